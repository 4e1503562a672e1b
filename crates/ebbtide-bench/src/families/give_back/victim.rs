//! A measured process with two threads. One frees a large block, which is released at once or when the allocator
//! decides to. The other thread, the victim, only allocates and frees small objects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::measured::block::{Trim, touch};
use crate::measured::calls::now_ns;
use crate::measured::hist::Histogram;
use crate::measured::{Output, Random, alloc, release};

/// Live objects of the victim.
const SLOTS: usize = 4096;
/// Length of the quiet phase.
const QUIET: Duration = Duration::from_millis(500);
/// Minimum length of the other phase with a release on request, and its length without a request: long enough for
/// allocators that release a second later.
const DURING: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

// Where the victim adds its times.
const DISCARD: usize = 0;
const KEEP_QUIET: usize = 1;
const KEEP_DURING: usize = 2;
const STOP: usize = 3;

/// Measures the victim in the quiet phase and during the release. `at_once` asks for the release.
pub fn run(bytes: u64, at_once: bool) -> Result<Output> {
    let phase = AtomicUsize::new(DISCARD);
    let trim = Trim::find();
    let (quiet, during) = std::thread::scope(|scope| {
        let victim = scope.spawn(|| suffer(&phase));
        let block = alloc(bytes as usize);
        // SAFETY: the block has these bytes.
        unsafe { touch(block, bytes as usize) };
        phase.store(KEEP_QUIET, Ordering::Relaxed);
        std::thread::sleep(QUIET);
        phase.store(KEEP_DURING, Ordering::Relaxed);
        let began = now_ns();
        // SAFETY: allocated above, freed once.
        unsafe { release(block) };
        if at_once {
            trim.call();
        }
        let took = Duration::from_nanos(now_ns() - began);
        let length = if at_once { DURING.0 } else { DURING.1 };
        std::thread::sleep(length.saturating_sub(took));
        phase.store(STOP, Ordering::Relaxed);
        victim.join()
    })
    .map_err(|_| anyhow!("the victim has panicked"))?;
    let figures = |when: &str, times: Histogram| {
        [
            ("p50", times.quantile(0.5)),
            ("p99", times.quantile(0.99)),
            ("p999", times.quantile(0.999)),
            ("max", times.largest()),
        ]
        .map(|(name, value)| (format!("{when}_{name}_ns"), value as f64))
    };
    let both = [figures("quiet", quiet), figures("during", during)];
    Ok(Output::new(bytes, both.into_iter().flatten()))
}

/// Replaces one object at a time, and times each replacement.
fn suffer(phase: &AtomicUsize) -> (Histogram, Histogram) {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let mut slots = [std::ptr::null_mut::<u8>(); SLOTS];
    for slot in &mut slots {
        *slot = alloc(random.size_bytes());
    }
    let (mut quiet, mut during) = (Histogram::new(), Histogram::new());
    let mut began = now_ns();
    loop {
        let size_bytes = random.size_bytes();
        let slot = &mut slots[(random.next() >> 40) as usize % SLOTS];
        // SAFETY: every slot holds a live object, replaced at once.
        unsafe { release(*slot) };
        *slot = alloc(size_bytes);
        // SAFETY: at least 64 bytes.
        unsafe { slot.write_volatile(1) };
        // One clock reading ends this operation and begins the next, so that a stall between the two is measured too.
        let ended = now_ns();
        match phase.load(Ordering::Relaxed) {
            KEEP_QUIET => quiet.add(ended - began),
            KEEP_DURING => during.add(ended - began),
            STOP => {
                // The thread had no CPU for the rest of the phase, or for all of it.
                during.add(ended - began);
                break;
            }
            _ => {}
        }
        began = ended;
    }
    for slot in slots {
        // SAFETY: live, and not used after this.
        unsafe { release(slot) };
    }
    (quiet, during)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_phases_have_times() {
        let output = run(1 << 20, true).unwrap();
        for when in ["quiet", "during"] {
            let p50 = output.metrics[&format!("{when}_p50_ns")];
            assert!(p50 > 0.0 && p50 <= output.metrics[&format!("{when}_max_ns")]);
        }
    }
}
