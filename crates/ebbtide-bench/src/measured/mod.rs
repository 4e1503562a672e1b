//! The part that measured processes share: their output, the allocation functions that they call, random numbers.
//!
//! | module | what it does |
//! |---|---|
//! | `calls` | calls of the C library, facts from the kernel |
//! | `link` | marks: the measured process's side of an observed run |
//! | `block`, `objects` | one block; many objects |
//! | `content` | content that compresses, but not to nothing |
//! | `hist` | histograms of times |

pub mod block;
pub mod calls;
pub mod content;
pub mod hist;
pub mod link;
pub mod objects;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString, c_void};
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use ebbtide_tools::out;
use serde::{Deserialize, Serialize};

use crate::stats::Spread;
use block::Method;

/// Arguments of a measured process.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The case to run
    pub case: String,
    /// Its size, in the unit of the case
    pub amount: u64,
    /// How to get a block
    #[arg(long, default_value = "malloc")]
    pub method: Method,
    /// Without huge pages
    #[arg(long)]
    pub thp_off: bool,
    /// Further arguments of the case
    pub more: Option<OsString>,
}

impl WorkerArgs {
    /// The further arguments of the case; an error if there are none.
    pub fn more(&self) -> Result<&OsStr> {
        let more = self.more.as_deref();
        more.with_context(|| format!("case {} takes one argument more", self.case))
    }
}

/// This program as a measured process for a case.
pub fn worker(case: &str, amount: u64) -> Result<Command> {
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command.args(["worker", case, &amount.to_string()]);
    Ok(command)
}

/// The output of a measured process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Output {
    /// File that defines `malloc` in this process.
    #[serde(default)]
    pub allocator: String,
    /// Equal in every process that did the same work.
    pub checksum: u64,
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
    /// The observer's curve; the worker itself leaves it empty.
    #[serde(skip)]
    pub curve: Option<Curve>,
}

impl Output {
    /// The figures of work with this checksum.
    pub fn new<Name: Into<String>>(
        checksum: u64,
        metrics: impl IntoIterator<Item = (Name, f64)>,
    ) -> Self {
        let mut output = Output {
            checksum,
            ..Output::default()
        };
        output.add(metrics);
        output
    }

    /// Adds figures.
    pub fn add<Name: Into<String>>(&mut self, metrics: impl IntoIterator<Item = (Name, f64)>) {
        let metrics = metrics.into_iter();
        self.metrics
            .extend(metrics.map(|(name, value)| (name.into(), value)));
    }
}

/// The return of memory over time, from the end of freeing on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Time between two points.
    pub step_ms: u64,
    /// Resident size of the process.
    pub rss_mib: Vec<f64>,
    /// Memory that the system has less than before the fill.
    pub system_mib: Vec<f64>,
    /// Swap in use beyond the use before; empty if it was not sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub swap_mib: Vec<f64>,
    /// Resident memory before the fill.
    pub base_mib: f64,
    /// Pages with a live byte.
    pub live_mib: f64,
}

impl Curve {
    /// The sample that counts at each point of the curve from `from_ns` on: the latest one, or `before` until there is
    /// one. The samples are in order of time.
    pub fn points<S: Copy>(
        &self,
        from_ns: u64,
        before: S,
        samples: &[S],
        at_ns: fn(&S) -> u64,
    ) -> impl Iterator<Item = S> {
        let end_ns = samples.last().map_or(0, at_ns);
        let times = (from_ns..=end_ns).step_by(self.step_ms as usize * 1_000_000);
        times.map(move |time_ns| {
            let taken = samples.partition_point(|sample| at_ns(sample) <= time_ns);
            samples[..taken].last().copied().unwrap_or(before)
        })
    }
}

/// Bytes of a MiB.
pub const MIB: f64 = (1 << 20) as f64;

/// A case is measured in this many parts; its figure is their median.
const PARTS: u64 = 11;
/// Allocates. The result is never null, because the figures would mean nothing.
pub fn alloc(size_bytes: usize) -> *mut u8 {
    // SAFETY: `malloc` takes any size. `black_box` keeps the compiler from
    // dropping a pair that has no use.
    let object = black_box(unsafe { libc::malloc(size_bytes) }).cast::<u8>();
    if object.is_null() {
        out::stderr("ebbtide-bench worker: out of memory\n");
        std::process::abort();
    }
    object
}

/// Frees an object.
///
/// # Safety
/// `object` came from [`alloc`] and is not used any more.
pub unsafe fn release(object: *mut u8) {
    // SAFETY: by the contract above.
    unsafe { libc::free(black_box(object).cast::<c_void>()) };
}

/// Times `PARTS` parts of `count / PARTS` operations each. `part` returns a checksum.
pub fn timed(metric: &str, count: u64, mut part: impl FnMut(u64) -> u64) -> Output {
    let each = (count / PARTS).max(1);
    let mut checksum = part(each);
    let mut values = Vec::with_capacity(PARTS as usize);
    for _ in 0..PARTS {
        let began = Instant::now();
        checksum = checksum.wrapping_add(part(each));
        values.push(began.elapsed().as_nanos() as f64 / each as f64);
    }
    Output::new(checksum, Spread::of(&values).map(|s| (metric, s.median)))
}

/// A small random number generator (xorshift64*), with the same numbers in every process.
pub struct Random(pub u64);

impl Random {
    /// The next number; its upper bits are the better ones.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A random size of 64 to 512 bytes.
    pub fn size_bytes(&mut self) -> usize {
        64 + (self.next() >> 32) as usize % 449
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_range() {
        let mut r = Random(1);
        assert!((0..10_000).all(|_| (64..=512).contains(&r.size_bytes())));
    }
}
