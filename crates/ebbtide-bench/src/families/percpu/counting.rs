//! The measured process of the percpu family: threads that count, and threads that allocate and free per-CPU areas.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::families::percpu::percpu_api::{Area, PerCpu};
use crate::measured::Output;

/// Number of measurements; the median counts.
const PARTS: usize = 7;
/// Counters of the sharded atomic, each on a cache line of its own.
const SHARDS: usize = 64;
/// Areas in a batch.
const BATCH: usize = 64;

#[repr(align(128))]
struct Padded(AtomicU64);

/// An area that threads share.
#[derive(Clone, Copy)]
struct Shared(Area);

// SAFETY: a number; the library's functions accept it from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Nanoseconds for each of `count` iterations of `work`, by `threads` threads at once: the median of the parts.
fn turns(threads: usize, count: u64, work: impl Fn(usize, u64) + Sync) -> f64 {
    let mut parts: Vec<f64> = (0..PARTS)
        .map(|_| {
            let barrier = Barrier::new(threads);
            let slowest = Mutex::new(0.0f64);
            thread::scope(|scope| {
                for thread in 0..threads {
                    let (barrier, slowest, work) = (&barrier, &slowest, &work);
                    scope.spawn(move || {
                        barrier.wait();
                        let start = Instant::now();
                        work(thread, count);
                        let took = start.elapsed().as_secs_f64() * 1e9 / count as f64;
                        if let Ok(mut slowest) = slowest.lock() {
                            *slowest = slowest.max(took);
                        }
                    });
                }
            });
            slowest.into_inner().unwrap_or(f64::NAN)
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    parts[PARTS / 2]
}

/// `count` additions by each of `threads` threads, in four ways.
pub fn count(threads: usize, count: u64) -> Result<Output> {
    let percpu = PerCpu::find()?;
    let area = Shared(percpu.alloc(64, 64)?);
    let mut output = Output::default();
    let mut note = |name: &str, ns: f64| {
        output.metrics.insert(name.into(), ns);
    };
    let own = turns(threads, count, |_, count| {
        let area = black_box(area);
        for _ in 0..count {
            // SAFETY: allocated, and the first word of it.
            unsafe { (percpu.add)(area.0, 0, 1) };
        }
    });
    note("percpu_ns", own);
    // SAFETY: as above.
    let sum = unsafe { (percpu.sum)(area.0, 0) };
    let expected = threads as u64 * count * PARTS as u64;
    ensure!(sum == expected, "{sum} counted, {expected} added");

    let atomic = Padded(AtomicU64::new(0));
    let shared = turns(threads, count, |_, count| {
        for _ in 0..count {
            black_box(&atomic).0.fetch_add(1, Ordering::Relaxed);
        }
    });
    note("atomic_ns", shared);
    let shards: Vec<Padded> = (0..SHARDS).map(|_| Padded(AtomicU64::new(0))).collect();
    let sharded = turns(threads, count, |thread, count| {
        for _ in 0..count {
            black_box(&shards)[thread % SHARDS]
                .0
                .fetch_add(1, Ordering::Relaxed);
        }
    });
    note("sharded_ns", sharded);
    let mutex = Mutex::new(0u64);
    let locked = turns(threads, count / 8, |_, count| {
        for _ in 0..count {
            if let Ok(mut value) = black_box(&mutex).lock() {
                *value += 1;
            }
        }
    });
    note("mutex_ns", locked);
    // SAFETY: no thread uses the area any more.
    unsafe { (percpu.free)(area.0) };
    output.checksum = expected;
    Ok(output)
}

/// `count` areas allocated and freed by each of `threads` threads: one after the
/// other of 8 and of 1,024 bytes, and in batches of 8 to 512 bytes.
pub fn pairs(threads: usize, count: u64) -> Result<Output> {
    let percpu = PerCpu::find()?;
    let mut output = Output::default();
    let pair = |size: usize| {
        turns(threads, count, move |_, count| {
            for _ in 0..count {
                if let Ok(area) = percpu.alloc(black_box(size), 8) {
                    // SAFETY: just allocated.
                    unsafe { (percpu.free)(area) };
                }
            }
        })
    };
    for (name, size) in [("pair8_ns", 8), ("pair64_ns", 64), ("pair1k_ns", 1024)] {
        output.metrics.insert(name.into(), pair(size));
    }
    let batch = turns(threads, count, |_, count| {
        let mut areas = [std::ptr::null_mut(); BATCH];
        for _ in 0..count / BATCH as u64 {
            for (index, area) in areas.iter_mut().enumerate() {
                *area = percpu
                    .alloc(8 << (index % 7), 8)
                    .unwrap_or(std::ptr::null_mut());
            }
            for area in areas {
                // SAFETY: allocated above, or null.
                unsafe { (percpu.free)(area) };
            }
        }
    });
    output.metrics.insert("batch_ns".into(), batch);
    output.checksum = count;
    Ok(output)
}
