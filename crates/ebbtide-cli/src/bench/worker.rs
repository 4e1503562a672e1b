//! The measured process: runs one case against the C library's allocation
//! functions, whichever library defines them here, and prints one line of JSON.
//!
//! Rust's `System` allocator, the default, calls the same functions, so a
//! preloaded library serves the whole process.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::fs;
use std::hint::black_box;
use std::mem;
use std::ptr;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::block::{self, Method};
use crate::bench::stats::Spread;
use crate::bench::{beside, counting, groups, percpu};
use crate::bench::{dying, objects, pages, phone, reuse, search, swap, victim};
use crate::cli::WorkerArgs;
use crate::out;
use crate::proc;
use crate::run::sample::kib_field;

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
/// Objects in a batch.
const BATCH: usize = 1024;
/// Objects of the random working set.
const SLOTS: usize = 4096;
const CACHE_LINE_BYTES: usize = 64;

/// Runs one case and prints what came out.
pub fn main(args: &WorkerArgs) -> Result<u8> {
    let n = args.amount;
    if args.thp_off {
        block::disable_thp()?;
    }
    let method = Method::named(&args.method)?;
    let mut output = match args.case.as_str() {
        "which" => Output::default(),
        "pair16" => pair(16, n),
        "pair64" => pair(64, n),
        "pair256" => pair(256, n),
        "lifo" => batch(n, |i| BATCH - 1 - i),
        "fifo" => batch(n, |i| i),
        "working_set" => working_set(n),
        "churn" => churn(n),
        "fill" => fill(n)?,
        "rss" => rss(),
        "warm" => block::warm(n, false)?,
        "warm_held" => block::warm(n, true)?,
        "block" => block::freed(n, method, false)?,
        "block_now" => block::freed(n, method, true)?,
        "temporaries" => block::temporaries(n)?,
        "victim_now" => victim::run(n, true)?,
        "victim_later" => victim::run(n, false)?,
        "app" => phone::app(n)?,
        "foreground" => phone::foreground(n, args.file.as_deref().context("--file is missing")?)?,
        "neighbour_first" => objects::scattered(n)?,
        "neighbour_second" => beside::second(n)?,
        "swap_keeper" => swap::keep(n)?,
        case if case.starts_with("search_") => search::run(case, n, args.searches_of_chunks)?,
        case if case.starts_with("searcher_") => search::searcher(case, n)?,
        case if case.starts_with("reuse_") => reuse::worker(case, n)?,
        case if case.starts_with("groups_") => groups::run(case, n)?,
        case if case.starts_with("count_") => counting::count(percpu::threads_of(case), n)?,
        case if case.starts_with("pairs_") => counting::pairs(percpu::threads_of(case), n)?,
        case if ["take_", "locks_", "hold_", "stall_"]
            .iter()
            .any(|p| case.starts_with(p)) =>
        {
            pages::run(case, n)?
        }
        case if case.starts_with("end_") => dying::run(case, n)?,
        case if case.ends_with("_random") || case.ends_with("_oldest") => {
            objects::thinned(case, n)?
        }
        other => bail!("unknown case '{other}'; 'ebbtide bench' starts this command itself"),
    };
    output.allocator = allocator();
    out::stdout((serde_json::to_string(&output)? + "\n").as_bytes());
    Ok(0)
}

/// The file that defines `malloc` here.
fn allocator() -> String {
    // SAFETY: dlsym and dladdr with valid arguments; `dli_fname`, if set, is a
    // NUL-terminated string that lives as long as the library.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        let mut info: libc::Dl_info = mem::zeroed();
        if symbol.is_null() || libc::dladdr(symbol, &mut info) == 0 || info.dli_fname.is_null() {
            return String::new();
        }
        CStr::from_ptr(info.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

/// Allocates; never null, as the figures would mean nothing.
pub fn alloc(size_bytes: usize) -> *mut u8 {
    // SAFETY: `malloc` takes any size. `black_box` keeps the compiler from
    // dropping a pair that has no use.
    let object = black_box(unsafe { libc::malloc(size_bytes) }).cast::<u8>();
    if object.is_null() {
        out::stderr("ebbtide bench-worker: out of memory\n");
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
fn timed(metric: &str, count: u64, mut part: impl FnMut(u64) -> u64) -> Output {
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

fn pair(size_bytes: usize, count: u64) -> Output {
    timed("ns_per_pair", count, |each| {
        let mut sum = 0u64;
        for i in 0..each {
            let object = alloc(black_box(size_bytes));
            // SAFETY: at least one byte was allocated, and nothing else uses the object.
            unsafe {
                object.write_volatile(i as u8);
                sum = sum.wrapping_add(u64::from(object.read_volatile()));
                release(object);
            }
        }
        sum
    })
}

/// Batches of 1,024 objects of 64 bytes, freed in the order that `order` gives.
fn batch(batches: u64, order: impl Fn(usize) -> usize) -> Output {
    let mut objects = [ptr::null_mut::<u8>(); BATCH];
    let mut output = timed("ns_per_pair", batches, |each| {
        let mut sum = 0u64;
        for _ in 0..each {
            for (i, slot) in objects.iter_mut().enumerate() {
                *slot = alloc(64);
                // SAFETY: the object has 64 bytes.
                unsafe { slot.write_volatile(i as u8) };
            }
            for i in 0..BATCH {
                let object = objects[order(i)];
                // SAFETY: allocated above, freed once: `order` is a permutation.
                unsafe {
                    sum = sum.wrapping_add(u64::from(object.read_volatile()));
                    release(object);
                }
            }
        }
        sum
    });
    for value in output.metrics.values_mut() {
        *value /= BATCH as f64;
    }
    output
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

/// Frees or makes objects of 64 bytes to 16 KiB at random: half of 32,768 places hold one, and which sizes are
/// in demand changes, so that there is always something to give back.
fn churn(count: u64) -> Output {
    const PLACES: usize = 32_768;
    const PHASE: u64 = 1 << 17;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut places = vec![std::ptr::null_mut::<u8>(); PLACES];
    let mut done = 0u64;
    let output = timed("ns_per_pair", count, |each| {
        let mut sum = 0u64;
        for _ in 0..each {
            let draw = random.next();
            let place = &mut places[(draw >> 40) as usize % PLACES];
            if place.is_null() {
                let shift = (draw >> 8) % 5 + done / PHASE % 5;
                *place = alloc((64 << shift) - (draw & 31) as usize);
                // SAFETY: the object has more than 32 bytes.
                unsafe { place.write_volatile(draw as u8) };
            } else {
                // SAFETY: a live object, forgotten below.
                unsafe {
                    sum = sum.wrapping_add(1 + u64::from(place.read_volatile()));
                    release(*place);
                }
                *place = std::ptr::null_mut();
            }
            done += 1;
        }
        sum
    });
    for place in places {
        // SAFETY: live or null, and the vector is gone after this.
        unsafe { release(place) };
    }
    output
}

/// Replaces objects of 64 to 512 bytes at random among 4,096 live ones.
fn working_set(count: u64) -> Output {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let fresh = |random: &mut Random| {
        let object = alloc(random.size_bytes());
        // SAFETY: the object has at least 64 bytes.
        unsafe { object.write_volatile(random.0 as u8) };
        object
    };
    let mut slots: Vec<*mut u8> = (0..SLOTS).map(|_| fresh(&mut random)).collect();
    let output = timed("ns_per_pair", count, |each| {
        let mut sum = 0u64;
        for _ in 0..each {
            let slot = &mut slots[(random.next() >> 40) as usize % SLOTS];
            // SAFETY: every slot holds a live object, replaced below.
            unsafe {
                sum = sum.wrapping_add(u64::from(slot.read_volatile()));
                release(*slot);
            }
            *slot = fresh(&mut random);
        }
        sum
    });
    for object in slots {
        // SAFETY: live, and the vector is gone after this.
        unsafe { release(object) };
    }
    output
}

/// First words of an object of `fill`.
#[repr(C)]
struct Link {
    next: *mut Link,
    size_bytes: usize,
}

/// Fills `bytes` with objects of 64 to 512 bytes, every cache line touched, then
/// frees all, oldest last. The objects hold the list themselves.
fn fill(bytes: u64) -> Result<Output> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if let Some(available) = kib_field(&info, "MemAvailable") {
        ensure!(
            available / 2 > bytes,
            "filling {} needs twice that available; use --quick, or stop other programs",
            out::bytes(bytes)
        );
    }
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut head: *mut Link = ptr::null_mut();
    let (mut live_bytes, mut objects) = (0u64, 0u64);
    let before_bytes = rss_bytes();
    let began = Instant::now();
    while live_bytes < bytes {
        let size_bytes = random.size_bytes();
        let object = alloc(size_bytes);
        // SAFETY: the object has `size_bytes` bytes, at least 64; malloc aligns to 16.
        unsafe {
            for line in (0..size_bytes).step_by(CACHE_LINE_BYTES) {
                object.add(line).write_volatile(1);
            }
            object.cast::<Link>().write(Link {
                next: head,
                size_bytes,
            });
        }
        head = object.cast();
        live_bytes += size_bytes as u64;
        objects += 1;
    }
    let fill_s = began.elapsed().as_secs_f64();
    let resident_bytes = rss_bytes().saturating_sub(before_bytes);

    let mut freed_bytes = 0u64;
    let began = Instant::now();
    while !head.is_null() {
        // SAFETY: `head` is a live object written above; it is read before it is freed.
        unsafe {
            let link = head.read();
            freed_bytes += link.size_bytes as u64;
            release(head.cast());
            head = link.next;
        }
    }
    let free_s = began.elapsed().as_secs_f64();
    ensure!(
        freed_bytes == live_bytes,
        "objects overlap: {freed_bytes} of {live_bytes} bytes found"
    );
    let metrics = [
        ("fill_s", fill_s),
        ("free_s", free_s),
        ("rss_per_live", resident_bytes as f64 / live_bytes as f64),
    ];
    Ok(Output {
        checksum: live_bytes.wrapping_mul(31).wrapping_add(objects),
        metrics: metrics.map(|(k, v)| (k.to_owned(), v)).into(),
        ..Output::default()
    })
}

fn status_bytes(name: &str) -> u64 {
    proc::text("/proc/self/status")
        .and_then(|t| kib_field(&t, name))
        .unwrap_or(0)
}

fn rss_bytes() -> u64 {
    status_bytes("VmRSS")
}

/// Size of a process that does nothing; used where no C compiler is at hand.
fn rss() -> Output {
    let kib = |name| status_bytes(name) as f64 / 1024.0;
    Output {
        checksum: 0,
        metrics: [("rss_kib", kib("VmRSS")), ("rss_peak_kib", kib("VmHWM"))]
            .map(|(k, v)| (k.to_owned(), v))
            .into(),
        ..Output::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_gives_its_metric_and_a_repeatable_checksum() {
        let cases: [fn() -> Output; 5] = [
            || pair(64, 1_000),
            || batch(22, |i| i),
            || working_set(1_000),
            || churn(100_000),
            || fill(1 << 20).unwrap(),
        ];
        for case in cases {
            let (a, b) = (case(), case());
            assert_eq!(a.checksum, b.checksum);
            assert_ne!(a.checksum, 0);
            assert!(a.metrics.values().all(|v| *v >= 0.0) && !a.metrics.is_empty());
        }
    }

    #[test]
    fn allocator_is_named() {
        assert!(allocator().contains("libc"));
    }

    #[test]
    fn sizes_are_in_range() {
        let mut r = Random(1);
        assert!((0..10_000).all(|_| (64..=512).contains(&r.size_bytes())));
    }
}
