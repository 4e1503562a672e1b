//! Ebbtide's own sums, in an area of its own.
//!
//! Made by the first worker: a process without one is small or calm and has its sums in the page of figures alone.
//! So has a process that shows the page to others (`stats_dir`), which is copied at any moment. What was counted before
//! stays where it is; a total is the sum of both.

use super::areas;
use super::handle::Handle;
use super::words;
use crate::heap::Heap;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Sums at most.
pub const SUMS: usize = 8;
const NO: usize = 0;
const MAKING: usize = 1;

/// The area, [`NO`] or [`MAKING`].
static AREA: AtomicUsize = AtomicUsize::new(NO);

fn area() -> Option<Handle> {
    let area = AREA.load(Ordering::Acquire);
    (area > MAKING).then_some(Handle(area))
}

/// Makes the area, once, if there is memory for it.
pub fn begin(heap: &Heap) {
    if AREA.load(Ordering::Relaxed) != NO
        || !heap.settings().config.stats_dir.as_bytes().is_empty()
        || AREA
            .compare_exchange(NO, MAKING, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    if let Ok(handle) = areas::allocate_inside(heap, SUMS * 8, SUMS * 8) {
        AREA.store(handle.0, Ordering::Release);
    }
}

/// Adds to a sum, below [`SUMS`]. `false`: there is no area yet.
#[inline]
pub fn add(sum: usize, value: u64) -> bool {
    let Some(area) = area() else { return false };
    // SAFETY: never freed while it stands there.
    unsafe { words::add(area, sum * 8, value) };
    true
}

/// What was added.
pub fn total(sum: usize) -> u64 {
    // SAFETY: as in `add`.
    area().map_or(0, |area| unsafe { words::sum(area, sum * 8) })
}

/// A forked child counts anew. No other thread may count meanwhile.
pub fn forget(heap: &Heap) {
    let area = area();
    AREA.store(NO, Ordering::Relaxed);
    if let Some(area) = area {
        areas::free_inside(heap, area);
    }
}
