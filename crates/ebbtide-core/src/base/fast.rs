//! The words that the fast paths of `malloc` and `free` read.

use crate::base::size_class::TABLE_MAX;
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::rseq::{SECTIONS, Stacks};

/// The words that the fast paths read, zero until the heap has started: those of a request that is not guarded are in one cache line.
///
/// The limits are stored last (release) and read first (acquire): a thread that passes a compare with them sees the
/// rest. They stay zero in the portable mode and with `harden=on`.
///
/// The words are 1 KiB behind a multiple of 2 KiB. A processor first compares the low 12 bits of addresses to find
/// out whether a load waits for a store before it. No stack header in a slab has the low 12 bits of these words.
/// `malloc` and `free` write a header each time, so the next call does not wait for nothing.
#[repr(C, align(2048))]
pub struct Fast {
    _apart: [u8; 1024],
    /// Requests below this size may be popped at once: [`TABLE_MAX`] + 1, or 0.
    pub sizes: AtomicUsize,
    /// An address may be pushed at once if it is a multiple of 16, and, less `base`, below 16 times this:
    /// sixteenths of the region, or 0.
    pub units: AtomicUsize,
    /// The address of frame 0.
    pub base: AtomicUsize,
    /// The address of the class byte of frame 0.
    pub classes: AtomicUsize,
    /// See [`ebbtide_sys::rseq::Stacks`].
    pub table: AtomicUsize,
    /// See there.
    pub parked: AtomicUsize,
    /// See there.
    pub rseq_offset: AtomicUsize,
    /// Requests of 1 to this many bytes count these, and may be popped at once: [`TABLE_MAX`], or 0. While requests are
    /// counted, `sizes` is 0, and at most one of this word and the next two is above 0.
    pub sized: AtomicUsize,
    /// As `sized`, for requests that count as one each.
    pub numbered: AtomicUsize,
    /// As `sized`, for requests that count in both ways.
    pub both: AtomicUsize,
    /// Bytes between two samples; 0: sampling is off.
    pub rate: AtomicUsize,
    /// One of so many requests is guarded; 0: none.
    pub guard: AtomicUsize,
}

/// The fast paths' words.
pub static FAST: Fast = Fast::new();

/// See [`Fast`]: headers are one word for each stack, from a page's start on.
const _: () = assert!(ebbtide_sys::rseq::STACKS * 8 <= core::mem::offset_of!(Fast, sizes));

impl Fast {
    const fn new() -> Self {
        Self {
            _apart: [0; 1024],
            sizes: AtomicUsize::new(0),
            units: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            classes: AtomicUsize::new(0),
            table: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            rseq_offset: AtomicUsize::new(0),
            sized: AtomicUsize::new(0),
            numbered: AtomicUsize::new(0),
            both: AtomicUsize::new(0),
            rate: AtomicUsize::new(0),
            guard: AtomicUsize::new(0),
        }
    }

    /// Whether objects are popped and pushed by sections. `sizes` does not say so while requests are sampled.
    #[inline]
    pub fn uses_sections(&self) -> bool {
        SECTIONS && self.units.load(Ordering::Acquire) != 0
    }

    /// Where the stacks are.
    #[inline(always)]
    pub fn stacks(&self) -> Stacks {
        Stacks {
            table: self.table.load(Ordering::Relaxed),
            parked: self.parked.load(Ordering::Relaxed),
            rseq_offset: self.rseq_offset.load(Ordering::Relaxed) as isize,
        }
    }

    /// Sets the mean distance of samples, 0 for none. The caller excludes other callers.
    pub fn set_rate(&self, rate: usize) {
        self.rate.store(rate, Ordering::Relaxed);
        self.set_sizes();
    }

    /// Sets how many requests there are to one that is guarded. Called once, by the start of the heap.
    pub fn set_guard(&self, rate: usize) {
        self.guard.store(rate, Ordering::Relaxed);
        self.set_sizes();
    }

    /// Whether each request is counted.
    #[inline]
    pub fn counts(&self) -> bool {
        self.rate.load(Ordering::Relaxed) | self.guard.load(Ordering::Relaxed) != 0
    }

    /// Sets the limits: at most one is above 0. A rate of 1 leaves nothing to be counted.
    fn set_sizes(&self) {
        let (rate, guard) = (
            self.rate.load(Ordering::Relaxed),
            self.guard.load(Ordering::Relaxed),
        );
        let is_fast = self.uses_sections() && rate != 1 && guard != 1;
        let limit = |kind, most| if is_fast && kind { most } else { 0 };
        let limits = [
            (&self.sizes, limit(rate == 0 && guard == 0, TABLE_MAX + 1)),
            (&self.sized, limit(rate != 0 && guard == 0, TABLE_MAX)),
            (&self.numbered, limit(rate == 0 && guard != 0, TABLE_MAX)),
            (&self.both, limit(rate != 0 && guard != 0, TABLE_MAX)),
        ];
        for (word, limit) in limits {
            word.store(limit, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise requests would take the slow way, which only a stopwatch would notice.
    #[test]
    fn one_limit_lets_requests_pass() {
        let limits = |rate, guard, units| {
            let fast = Fast::new();
            fast.units.store(units, Ordering::Relaxed);
            fast.set_guard(guard);
            fast.set_rate(rate);
            [&fast.sizes, &fast.sized, &fast.numbered, &fast.both]
                .map(|word| word.load(Ordering::Relaxed))
        };
        let units = if SECTIONS { 1 } else { 0 };
        let of = |most| units * most;
        assert_eq!(limits(0, 0, units), [of(TABLE_MAX + 1), 0, 0, 0]);
        assert_eq!(limits(512 << 10, 0, units), [0, of(TABLE_MAX), 0, 0]);
        assert_eq!(limits(0, 1000, units), [0, 0, of(TABLE_MAX), 0]);
        assert_eq!(limits(512 << 10, 1000, units), [0, 0, 0, of(TABLE_MAX)]);
        for (rate, guard) in [(1, 0), (0, 1), (1, 1000), (1000, 1)] {
            assert_eq!(
                limits(rate, guard, units),
                [0; 4],
                "nothing is to be counted"
            );
        }
        assert_eq!(limits(512 << 10, 0, 0), [0; 4], "no sections");
    }
}
