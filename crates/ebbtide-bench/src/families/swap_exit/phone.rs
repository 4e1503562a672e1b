//! Measured processes of the family `swap-exit`. Many processes hold memory, most of it swapped out, until they are
//! killed. One process starts in the foreground meanwhile.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::measured::calls::{cpu_us, map, map_zeros, now_ns, page_bytes, status_bytes, usage};
use crate::measured::content::fill;
use crate::measured::hist::Histogram;
use crate::measured::{Output, Random, alloc, link};

/// Number of CPUs that the processes share: CPUs must be scarce.
pub const CPUS: usize = 2;
/// Tenths of the memory that are swapped out.
pub const SWAPPED_TENTHS: u64 = 6;
/// The unit that is swapped out or not.
const PART_BYTES: usize = 1 << 20;
/// Words that one frame of the loop computes and touches.
const FRAME_WORDS: usize = 1 << 18;
const FRAME_BYTES: usize = 1 << 20;
/// Number of frames of the loop.
const FRAMES: u64 = 100;

/// Holds memory until it is killed.
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
    link::ready(status_bytes("VmSwap"), cpu_us(&usage()));
    // An answer comes only by mistake: the process should have been killed.
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

/// Starts cold: maps, faults, reads and computes, and reports that it has started. Then it repeats the same in a
/// loop.
pub fn foreground(bytes: u64, file: &Path) -> Result<Output> {
    share_cpus();
    let mut sum = 0u64;
    let own = map_zeros(bytes as usize, 0)?;
    // SAFETY: mapped with these lengths.
    unsafe {
        for at in (0..bytes as usize).step_by(page_bytes()) {
            own.add(at).write_volatile(1);
        }
        let file = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        let len = file.metadata()?.len() as usize;
        let read = map(len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())?;
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
        let block = map_zeros(FRAME_BYTES, 0)?;
        for at in (0..FRAME_BYTES).step_by(page_bytes()) {
            // SAFETY: inside the mapping.
            unsafe { block.add(at).write_volatile(1) };
        }
        sum = sum.wrapping_add(compute(&words));
        // SAFETY: mapped above, and not used any more.
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
    Ok(Output::new(sum, figures))
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

/// Restricts the process to the first [`CPUS`] CPUs that it may use.
fn share_cpus() {
    if let Ok(allowed) = sched_getaffinity(None) {
        let mut chosen = CpuSet::new();
        let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        cpus.take(CPUS).for_each(|cpu| chosen.set(cpu));
        let _ = sched_setaffinity(None, &chosen);
    }
}
