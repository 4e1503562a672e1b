//! The measured process of the micro family: single operations, and filling.

use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use anyhow::{Result, ensure};
use ebbtide_tools::{machine, out};

use crate::measured::calls::status_bytes;
use crate::measured::{Output, Random, alloc, release, timed};

/// Objects in a batch.
pub const BATCH: usize = 1024;
/// Objects of the random working set.
const SLOTS: usize = 4096;
const CACHE_LINE_BYTES: usize = 64;

/// Allocates and frees one object in a loop.
pub fn pair(size_bytes: usize, count: u64) -> Output {
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

/// Allocates batches of 1,024 objects of 64 bytes, and frees them in the order of `order`.
pub fn batch(batches: u64, order: impl Fn(usize) -> usize) -> Output {
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

/// Replaces objects of 64 to 512 bytes at random among 4,096 live ones.
pub fn working_set(count: u64) -> Output {
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

/// The first words of an object in `fill`.
#[repr(C)]
struct Link {
    next: *mut Link,
    size_bytes: usize,
}

/// Fills `bytes` with objects of 64 to 512 bytes and touches every cache line. Then it frees all objects, the oldest
/// last. The objects hold the list themselves.
pub fn fill(bytes: u64) -> Result<Output> {
    if let Some(available) = machine::available_bytes() {
        ensure!(
            available / 2 > bytes,
            "filling {} needs twice that available; use --quick, or stop other programs",
            out::bytes(bytes)
        );
    }
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut head: *mut Link = ptr::null_mut();
    let (mut live_bytes, mut objects) = (0u64, 0u64);
    let before_bytes = status_bytes("VmRSS");
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
    let resident_bytes = status_bytes("VmRSS").saturating_sub(before_bytes);

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
    let checksum = live_bytes.wrapping_mul(31).wrapping_add(objects);
    Ok(Output::new(checksum, metrics))
}

/// The memory of a process that does nothing. Used if there is no C compiler.
pub fn rss() -> Output {
    let kib = |name| status_bytes(name) as f64 / 1024.0;
    Output::new(
        0,
        [("rss_kib", kib("VmRSS")), ("rss_peak_kib", kib("VmHWM"))],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::give_back::churn::churn;

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
}
