//! When ticks and rounds last did what they do seldom.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebbtide_zone::plan::TICK_MS;

/// Times in milliseconds of one monotonic clock.
pub struct Pacing {
    /// A tick.
    pub(super) tick_ms: AtomicU64,
    /// A tick that asked what is kept outside the zones.
    pub(super) asked_ms: AtomicU64,
    /// A look at what memory is left, where pressure is not watched.
    pub(super) room_ms: AtomicU64,
    /// A window began in which the least that each cache kept is noted.
    pub window_ms: AtomicU64,
    /// How many times spans were depopulated: each time looks at a span once.
    pub(super) depopulations: AtomicU32,
}

impl Pacing {
    /// Nothing was done yet.
    pub const fn new() -> Self {
        Self {
            tick_ms: AtomicU64::new(0),
            asked_ms: AtomicU64::new(0),
            room_ms: AtomicU64::new(0),
            window_ms: AtomicU64::new(0),
            depopulations: AtomicU32::new(0),
        }
    }

    /// Whether the program is at work: its own ticks call a worker when something is due.
    pub(super) fn is_active(&self, now: u64) -> bool {
        now.wrapping_sub(self.tick_ms.load(Ordering::Relaxed)) < 2 * TICK_MS
    }
}

/// Whether `ms` have gone by since `last`; then now is the last time.
pub fn is_time(last: &AtomicU64, now: u64, ms: u64) -> bool {
    let is_time = now.wrapping_sub(last.load(Ordering::Relaxed)) >= ms;
    if is_time {
        last.store(now, Ordering::Relaxed);
    }
    is_time
}
