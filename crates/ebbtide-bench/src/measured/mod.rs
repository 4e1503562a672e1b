//! What measured processes share: what they print, the allocation functions that they call, random numbers.
//!
//! | module | what it does |
//! |---|---|
//! | `link` | marks: the measured process's end of an observed run |
//! | `block`, `objects` | one block; many objects |
//! | `content` | what compresses, but not to nothing |
//! | `hist` | histograms of times |

pub mod block;
pub mod content;
pub mod hist;
pub mod link;
pub mod objects;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString, c_void};
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use ebbtide_tools::out;
use serde::{Deserialize, Serialize};

use crate::stats::Spread;
use block::Method;

/// What a measured process does.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The case to run
    pub case: String,
    /// Its size, in the unit of the case
    pub amount: u64,
    /// How a block is had: malloc, munmap, madvise
    #[arg(long, default_value = "malloc", value_parser = Method::named)]
    pub method: Method,
    /// Without huge pages
    #[arg(long)]
    pub thp_off: bool,
    /// What else the case takes
    pub more: Option<OsString>,
}

impl WorkerArgs {
    /// What else the case takes.
    pub fn more(&self) -> Result<&OsStr> {
        let more = self.more.as_deref();
        more.with_context(|| format!("case {} takes one argument more", self.case))
    }
}

/// What the worker prints.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Output {
    /// File that defines `malloc` in this process.
    #[serde(default)]
    pub allocator: String,
    /// Equal in every process that did the same work.
    pub checksum: u64,
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
    /// What an observer saw; the worker itself leaves it empty.
    #[serde(skip)]
    pub curve: Option<Curve>,
}

/// How memory went back, from the end of freeing on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Between two points.
    pub step_ms: u64,
    /// Resident size of the process.
    pub rss_mib: Vec<f64>,
    /// What the system has less than before the fill.
    pub system_mib: Vec<f64>,
    /// Swap in use beyond what was before; empty where nobody looked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub swap_mib: Vec<f64>,
    /// Resident before the fill.
    pub base_mib: f64,
    /// Pages with a live byte.
    pub live_mib: f64,
}

/// A case is measured in this many parts; its figure is their median.
const PARTS: u64 = 11;
/// Allocates; never null, as the figures would mean nothing.
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

/// Frees.
///
/// # Safety
/// `object` came from [`alloc`] and is not used any more.
pub unsafe fn release(object: *mut u8) {
    // SAFETY: by the contract above.
    unsafe { libc::free(black_box(object).cast::<c_void>()) };
}

/// Times `PARTS` parts of `count / PARTS` operations each; `part` gives a checksum.
pub fn timed(metric: &str, count: u64, mut part: impl FnMut(u64) -> u64) -> Output {
    let each = (count / PARTS).max(1);
    let mut checksum = part(each);
    let mut values = Vec::with_capacity(PARTS as usize);
    for _ in 0..PARTS {
        let began = Instant::now();
        checksum = checksum.wrapping_add(part(each));
        values.push(began.elapsed().as_nanos() as f64 / each as f64);
    }
    Output {
        checksum,
        metrics: Spread::of(&values)
            .map(|s| (metric.to_owned(), s.median))
            .into_iter()
            .collect(),
        ..Output::default()
    }
}

/// A small generator (xorshift64*), the same in every process.
pub struct Random(pub u64);

impl Random {
    /// The next number; its upper bits are the better ones.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A size of 64 to 512 bytes.
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
