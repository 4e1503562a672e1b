//! The times at which ticks and rounds last did their periodic work.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebbtide_zone::plan::TICK_MS;

/// The last times of periodic work, in milliseconds of one monotonic clock.
pub struct Pacing {
    /// A tick.
    pub(super) tick_ms: AtomicU64,
    /// A tick that checked the memory kept outside the zones.
    pub(super) asked_ms: AtomicU64,
    /// A check of the free memory of the machine, if pressure is not watched.
    pub(super) room_ms: AtomicU64,
    /// The start of the window in which the low water of each cache is noted.
    pub window_ms: AtomicU64,
    /// The number of depopulations so far. Each depopulation scans a span once.
    pub(super) depopulations: AtomicU32,
}

impl Pacing {
    /// No work was done yet.
    pub const fn new() -> Self {
        Self {
            tick_ms: AtomicU64::new(0),
            asked_ms: AtomicU64::new(0),
            room_ms: AtomicU64::new(0),
            window_ms: AtomicU64::new(0),
            depopulations: AtomicU32::new(0),
        }
    }

    /// Whether the program is active: its own ticks call a worker when memory is due.
    pub(super) fn is_active(&self, now: u64) -> bool {
        now.wrapping_sub(self.tick_ms.load(Ordering::Relaxed)) < 2 * TICK_MS
    }
}

/// Whether `ms` have passed since `last`. If so, `last` becomes `now`.
pub fn is_time(last: &AtomicU64, now: u64, ms: u64) -> bool {
    let is_time = now.wrapping_sub(last.load(Ordering::Relaxed)) >= ms;
    if is_time {
        last.store(now, Ordering::Relaxed);
    }
    is_time
}
