//! Depopulates half-used spans, class by class: claims empty frames of a few spans at a time, and releases them.
//!
//! Depopulations are numbered, so that each depopulation scans a span once.

use super::gather::{self, Range};
use super::owned::release_owned;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::CLASSES;
use crate::base::source::{Outside, Round, Source};
use crate::objects::central::SpanLists;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_sys::clock;
use ebbtide_sys::lock::Rank;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::plan::{HELP_FRAMES, Remaining};

/// Spans that are scanned in one hold of their lock.
const SPANS_AT_ONCE: usize = 8;
/// Most ranges in one gather of a depopulation: one call to the kernel.
const BATCHED: usize = 1024 - gather::CLAIM_RANGES;

impl Heap {
    pub(super) fn waiting_in_spans(&self) -> usize {
        if !self.config.depopulate {
            return 0;
        }
        let waiting = |class: usize| self.central[class].spans.lock().waiting(class);
        self.reclaimable.marked().map(waiting).sum()
    }

    /// Two numbers of bytes. The first: what half-used spans keep beyond the headroom that the zones leave for
    /// them. The second: what they keep in all. Both are 0 if pressure is not watched.
    pub(super) fn excess_in_spans(&self, now: u64) -> (usize, usize) {
        if !self.config.pressure {
            return (0, 0);
        }
        let (dirty, lazy) = self.sum(|counters| (counters.dirty, counters.lazy));
        let room = self.room_frames(now).saturating_sub(dirty + lazy);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let waiting = self.waiting_in_spans();
        let excess = waiting.saturating_sub(room.saturating_mul(FRAME_BYTES));
        (excess, waiting)
    }

    /// Depopulates the due empty frames of half-used spans, in all classes. Returns the frames claimed.
    pub(super) fn depopulate_due(&self, now: u64, by: Releaser) -> u64 {
        if !self.config.depopulate {
            return 0;
        }
        let window = u64::from(self.control.retain_ms());
        let (excess, kept) = self.excess_in_spans(now);
        let mut frames = 0;
        for class in 1..CLASSES {
            let due = {
                let mut spans = self.central[class].spans.lock();
                let due = spans.due(class, now, window);
                let waiting = spans.waiting(class);
                // Each class releases its share of the excess.
                let share = waiting as u128 * excess as u128 / kept.max(1) as u128;
                match waiting {
                    1.. if self.allowance.is_short(now) => usize::MAX,
                    _ => due.max(share as usize),
                }
            };
            if due > 0 {
                frames += self.depopulate(class, due, by);
            }
        }
        frames
    }

    /// Depopulates all empty frames of half-used spans.
    pub(super) fn depopulate_everything(&self, by: Releaser) {
        if self.config.depopulate {
            for class in 1..CLASSES {
                self.depopulate(class, usize::MAX, by);
            }
        }
    }

    /// Depopulates on a tick, if no worker can be made: a few spans of one class at a time.
    pub(super) fn depopulate_some(&self, now: u64) {
        if !self.config.depopulate {
            return;
        }
        let window = u64::from(self.control.retain_ms());
        for class in 1..CLASSES {
            let due = self.central[class].spans.lock().due(class, now, window);
            if due > 0 {
                let due = due.min(HELP_FRAMES as usize * FRAME_BYTES);
                self.depopulate(class, due, Releaser::SlowPath);
                return;
            }
        }
    }

    /// Claims and releases empty frames of a class's spans, `due` bytes or all. Returns the frames claimed.
    pub(super) fn depopulate(&self, class: usize, due: usize, by: Releaser) -> u64 {
        let numbers = &self.pacing.depopulations;
        let round = numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut frames = 0;
        loop {
            if super::owned::holds_back(self, by) {
                return frames;
            }
            let Some(mut owned) = self.slots.take(by.owner()) else {
                return frames;
            };
            let gather = owned.gather();
            let mut more = true;
            while more && gather.len() < BATCHED && gather.reserve() {
                let mut lists = self.central[class].spans.lock();
                // SAFETY: lists of this class, under their lock.
                more = unsafe {
                    lists.depopulate(self, class, round, SPANS_AT_ONCE, |first, count| {
                        gather.add(Range::new(first.0, count));
                    })
                };
                if !more {
                    lists.looked_at_all(self, class);
                }
                if (frames + gather.frames()) as usize * FRAME_BYTES >= due {
                    break;
                }
            }
            let claimed = gather.frames();
            frames += claimed;
            release_owned(self, owned, by);
            if !more || claimed == 0 || frames as usize * FRAME_BYTES >= due {
                return frames;
            }
        }
    }
}

/// Half-used spans, and their records.
pub struct Spans;

impl Source<Heap> for Spans {
    fn locks(&self, heap: &Heap, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            ranks::SPANS => heap.central.iter().for_each(|central| each(&central.spans)),
            ranks::RECORDS => each(&heap.records),
            _ => {}
        }
    }

    fn tick(&self, heap: &Heap, _now: u64, outside: &mut Outside) {
        outside.waiting += heap.waiting_frames();
    }

    fn give_due(&self, heap: &Heap, round: &Round, left: &mut Remaining) {
        left.note(heap.depopulate_due(round.now, round.by));
        left.note(heap.waiting_frames());
    }

    /// A huge page that is split for this leaves more free frames. So the call waits for all gathers on their way
    /// to the kernel.
    fn give_all(&self, heap: &Heap, by: Releaser) {
        heap.retry_unsplit(clock::now_ms());
        heap.depopulate_everything(by);
        heap.join(by);
    }

    unsafe fn abandon(&self, heap: &Heap) {
        heap.records.lock().abandon();
        for central in &heap.central {
            *central.spans.lock() = SpanLists::NEW;
        }
    }
}

#[cfg(test)]
mod tests;
