//! The measured process of the cluster family: threads allocate and free blocks of 4 KiB. The library's figures show
//! the cost of its zone locks.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ebbtide_interface::Figures;
use ebbtide_interface::figures::VERSION;

use crate::measured::calls::{clock_ns, symbol};
use crate::measured::{Output, alloc, release};

const BLOCK: usize = 4096;
/// Number of times that the blocks are allocated and freed. The first time does not count.
const ROUNDS: usize = 5;

/// The library's figures, with the cost of the zone locks so far.
fn figures() -> Result<Figures> {
    let mut figures = Figures::default();
    // Leaves out the last two figures, for which the kernel would walk the page tables.
    let len = std::mem::offset_of!(Figures, rss_bytes);
    // SAFETY: if the library defines it, `ebb_stats` has this form, and it writes at most as many bytes as its argument
    // says.
    let filled = unsafe {
        let stats = symbol::<unsafe extern "C" fn(*mut Figures, usize) -> i32>(c"ebb_stats");
        let stats = stats.context("the library has no ebb_stats")?;
        stats(&mut figures, len)
    };
    ensure!(
        filled as usize == len && figures.version == VERSION,
        "the library and this program are of different versions"
    );
    Ok(figures)
}

/// Runs a case: `take_THREADS_touched|untouched`, `locks_THREADS`, `hold_FRAMES`, `stall_alone|beside`.
pub fn run(case: &str, amount: u64) -> Result<Output> {
    let parts: Vec<&str> = case.split('_').collect();
    match parts[..] {
        ["take", threads, how] => take(threads.parse()?, amount, how == "touched", false),
        ["locks", threads] => take(threads.parse()?, amount, false, true),
        ["hold", frames] => hold(frames.parse()?, amount),
        ["stall", how] => stall(amount, how == "beside"),
        _ => bail!("unknown case '{case}'"),
    }
}

/// Allocates `count` blocks and frees them. Returns the sum of their contents.
fn round(blocks: &mut [*mut u8], touched: bool, seed: u64) -> u64 {
    let mut sum = 0u64;
    for (at, block) in blocks.iter_mut().enumerate() {
        *block = alloc(BLOCK);
        if touched {
            // SAFETY: a live block of 4 KiB.
            unsafe { block.cast::<u64>().write_volatile(seed ^ at as u64) };
        }
    }
    for (at, block) in blocks.iter_mut().enumerate() {
        // SAFETY: live, written above if it is read, freed once.
        unsafe {
            let expected = seed ^ at as u64;
            let found = if touched {
                block.cast::<u64>().read_volatile()
            } else {
                expected
            };
            assert_eq!(found, expected, "a live block has changed");
            sum = sum.wrapping_add(found);
            release(*block);
        }
    }
    sum
}

fn take(threads: usize, bytes: u64, touched: bool, locked: bool) -> Result<Output> {
    let count = bytes as usize / BLOCK;
    let barrier = Barrier::new(threads + 1);
    let mut before = Ok(Figures::default());
    let (mut began, mut began_cpu) = (Instant::now(), 0);
    let mut sum = 0u64;
    std::thread::scope(|scope| -> Result<()> {
        let work = |thread: usize| {
            let mut blocks = vec![std::ptr::null_mut(); count];
            let seed = 0x9E37_79B9 * (thread as u64 + 1);
            let mut sum = round(&mut blocks, touched, seed);
            barrier.wait();
            barrier.wait();
            for _ in 1..ROUNDS {
                sum = sum.wrapping_add(round(&mut blocks, touched, seed));
            }
            sum
        };
        let handles: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        barrier.wait();
        if locked {
            before = figures();
        }
        began = Instant::now();
        began_cpu = clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
        barrier.wait();
        for handle in handles {
            let one = handle
                .join()
                .map_err(|_| anyhow::anyhow!("a block changed"))?;
            sum = sum.wrapping_add(one);
        }
        Ok(())
    })?;
    let blocks = (threads * count * (ROUNDS - 1)) as f64;
    let wall = began.elapsed().as_nanos() as f64;
    let cpu = (clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - began_cpu) as f64;
    if !locked {
        let metrics = [("cpu_ns", cpu / blocks), ("wall_ns", wall / blocks)];
        return Ok(Output::new(sum, metrics));
    }
    let (before, after) = (before?, figures()?);
    let taken = after.zone_acquisitions - before.zone_acquisitions;
    ensure!(taken > 0, "no figures of locks; dev=lockstat:on is needed");
    let contended = after.zone_contended - before.zone_contended;
    let hold_ns = after.zone_hold_ns - before.zone_hold_ns;
    let wait_ns = after.zone_wait_ns - before.zone_wait_ns;
    let metrics = [
        ("hold_ns", hold_ns as f64 / blocks),
        ("wait_ns", wait_ns as f64 / blocks),
        ("contended_pct", contended as f64 * 100.0 / taken as f64),
    ];
    Ok(Output::new(sum, metrics))
}

/// Allocates objects of a class whose spans have `frames` frames, one span after the other.
fn hold(frames: usize, bytes: u64) -> Result<Output> {
    let size = match frames {
        2 => 16,
        64 => BLOCK,
        _ => bail!("no class for {frames} frames"),
    };
    // One span at a time, so that each span is a refill of its own.
    let before = figures()?;
    let mut objects = Vec::with_capacity(bytes as usize / size);
    while objects.len() < objects.capacity() {
        objects.push(alloc(size));
    }
    let after = figures()?;
    let taken = after.zone_acquisitions - before.zone_acquisitions;
    let turns = bytes / (frames * BLOCK) as u64;
    ensure!(
        taken >= turns,
        "{taken} turns of the lock for {turns} spans; lockstat is needed"
    );
    for object in &objects {
        // SAFETY: live, freed once.
        unsafe { release(*object) };
    }
    let hold_ns = after.zone_hold_ns - before.zone_hold_ns;
    let turn = hold_ns as f64 / taken as f64;
    Ok(Output::new(objects.len() as u64, [("turn_ns", turn)]))
}

/// Measures single calls in CPU time of the thread, alone or beside releases.
fn stall(calls: u64, beside: bool) -> Result<Output> {
    const HELD: usize = 4096;
    const OTHER: usize = 16384;
    let over = AtomicBool::new(false);
    let mut times = vec![0u32; 2 * calls as usize];
    std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| {
                let mut blocks = vec![std::ptr::null_mut(); OTHER];
                while !over.load(Ordering::Relaxed) {
                    round(&mut blocks, true, 7);
                    // SAFETY: no argument.
                    unsafe { libc::malloc_trim(0) };
                }
            });
        }
        let mut held = vec![std::ptr::null_mut::<u8>(); HELD];
        let read = || clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let timed = |time: &mut u32, work: &mut dyn FnMut()| {
            let start = read();
            work();
            *time = u32::try_from(read() - start).unwrap_or(u32::MAX);
        };
        for (at, pair) in times.chunks_exact_mut(2).enumerate() {
            let [first, second] = pair else { continue };
            let slot = &mut held[at * 2_654_435_761 % HELD];
            timed(first, &mut || {
                // SAFETY: null or a live block, replaced below.
                unsafe { release(*slot) };
            });
            timed(second, &mut || *slot = alloc(BLOCK));
        }
        over.store(true, Ordering::Relaxed);
        for block in held {
            // SAFETY: as above.
            unsafe { release(block) };
        }
    });
    times.sort_unstable();
    let us = |at: usize| f64::from(times[at.min(times.len() - 1)]) / 1000.0;
    let metrics = [
        ("p9999_us", us(times.len() / 10_000 * 9_999)),
        ("longest_us", us(times.len())),
    ];
    Ok(Output::new(calls, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_content_and_checksums_repeat() {
        let one = || run("take_2_touched", 1 << 20).unwrap();
        assert_eq!(one().checksum, one().checksum);
        assert!(one().metrics["cpu_ns"] > 0.0);
        assert!(run("stall_alone", 1000).unwrap().metrics["longest_us"] > 0.0);
        assert!(run("locks_1", 1 << 20).is_err(), "no library here");
        assert!(run("hold_3", 1).is_err() && run("take_x", 1).is_err());
    }
}
