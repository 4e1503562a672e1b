//! Measured processes of the family `swap-exit`: one of many that hold memory, most of it
//! swapped out, until they are killed; and the one in the foreground that starts meanwhile.

use std::fs::File;
use std::hint::black_box;
use std::mem;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};
use ebbtide_tools::proc::{self, kib_field};

use crate::measured::content::fill;
use crate::measured::hist::Histogram;
use crate::measured::link::{self, now_ns, page_bytes};
use crate::measured::{Output, Random, alloc};

/// How many CPUs the processes share: they must be scarce.
pub const CPUS: usize = 2;
/// Of ten parts, so many are swapped out.
pub const SWAPPED_TENTHS: u64 = 6;
/// What is swapped out or not as a whole.
const PART_BYTES: usize = 1 << 20;
/// What one frame computes and touches.
const FRAME_WORDS: usize = 1 << 18;
const FRAME_BYTES: usize = 1 << 20;
/// Frames of the loop.
const FRAMES: u64 = 100;

/// Holds so much memory until it is killed.
pub fn app(bytes: u64) -> Result<Output> {
    share_cpus();
    link::base();
    let parts = bytes as usize / PART_BYTES;
    let mut random = Random(u64::from(std::process::id()) << 20 | 1);
    for part in 0..parts {
        let block = alloc(PART_BYTES);
        // SAFETY: the block has these bytes; it is never freed.
        unsafe {
            fill(block, PART_BYTES, &mut random);
            if (part as u64 % 10) < SWAPPED_TENTHS {
                swap_out(block, PART_BYTES);
            }
        }
    }
    let status = proc::text("/proc/self/status").unwrap_or_default();
    link::ready(kib_field(&status, "VmSwap").unwrap_or(0), cpu_us());
    // Answered only by mistake: it should have been killed.
    Ok(Output::default())
}

/// # Safety
/// The block has these bytes.
unsafe fn swap_out(block: *mut u8, bytes: usize) {
    let page = page_bytes();
    let start = (block as usize).next_multiple_of(page);
    let len = (block as usize + bytes - start) / page * page;
    // SAFETY: advice on whole pages of the block, which keeps what they hold.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_PAGEOUT) };
}

/// Starts cold: maps, faults, reads and computes; says so; then does the same over and over.
pub fn foreground(bytes: u64, file: &Path) -> Result<Output> {
    share_cpus();
    let mut sum = 0u64;
    let own = map(bytes as usize, None)?;
    // SAFETY: mapped with these lengths.
    unsafe {
        for at in (0..bytes as usize).step_by(page_bytes()) {
            own.add(at).write_volatile(1);
        }
        let file = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        let len = file.metadata()?.len() as usize;
        let read = map(len, Some(&file))?;
        for at in (0..len).step_by(64) {
            sum = sum.wrapping_add(u64::from(read.add(at).read_volatile()));
        }
    }
    let words: Vec<u64> = (0..FRAME_WORDS as u64).collect();
    for _ in 0..4 {
        sum = sum.wrapping_add(compute(&words));
    }
    link::started(now_ns());

    let mut times = Histogram::new();
    let mut began_ns = now_ns();
    let loop_ns = began_ns;
    for _ in 0..FRAMES {
        let block = map(FRAME_BYTES, None)?;
        for at in (0..FRAME_BYTES).step_by(page_bytes()) {
            // SAFETY: inside the mapping.
            unsafe { block.add(at).write_volatile(1) };
        }
        sum = sum.wrapping_add(compute(&words));
        // SAFETY: mapped above, not used any more.
        unsafe { libc::munmap(block.cast(), FRAME_BYTES) };
        let ended_ns = now_ns();
        times.add(ended_ns - began_ns);
        began_ns = ended_ns;
    }
    let mean_ms = (began_ns - loop_ns) as f64 / FRAMES as f64 / 1e6;
    black_box(sum);
    let figures = [
        ("frame_ms", mean_ms),
        ("frame_p95_ms", times.quantile(0.95) as f64 / 1e6),
    ];
    Ok(Output {
        checksum: sum,
        metrics: figures.map(|(k, v)| (k.to_owned(), v)).into(),
        ..Output::default()
    })
}

fn compute(words: &[u64]) -> u64 {
    let mut sum = 1u64;
    for _ in 0..4 {
        for word in words {
            sum = (sum ^ black_box(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }
    sum
}

fn map(len: usize, file: Option<&File>) -> Result<*mut u8> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let access = libc::PROT_READ | if file.is_none() { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping, no address asked for.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
    ensure!(start != libc::MAP_FAILED, "mmap: out of memory");
    Ok(start.cast())
}

/// Restricts the process to the first [`CPUS`] CPUs that it may use.
fn share_cpus() {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: sets of CPUs are numbers; both calls get their size.
    unsafe {
        let (mut allowed, mut chosen): (libc::cpu_set_t, libc::cpu_set_t) = mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut allowed) == 0 {
            let cpus = 0..libc::CPU_SETSIZE as usize;
            for cpu in cpus.filter(|c| libc::CPU_ISSET(*c, &allowed)).take(CPUS) {
                libc::CPU_SET(cpu, &mut chosen);
            }
            libc::sched_setaffinity(0, size, &chosen);
        }
    }
}

/// Microseconds of CPU that the process has used.
fn cpu_us() -> u64 {
    // SAFETY: numbers only; the kernel fills it in.
    unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage_us(&usage)
    }
}

/// Microseconds of both kinds.
pub fn usage_us(usage: &libc::rusage) -> u64 {
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
