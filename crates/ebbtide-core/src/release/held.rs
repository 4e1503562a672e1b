//! Blocks whose huge page could not be split (shared with a forked child, pinned): they are *held*.
//!
//! A held block has [`flag::HELD`]: none of its frames is claimed or tried until the next look. The looks
//! come at growing intervals, [`FIRST_MS`] to [`MOST_MS`], so that children that share much memory with
//! their parent do not try again and again.

use crate::heap::Heap;
use crate::region::flag;
use crate::size_class::CLASSES;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_zone::Block;

/// How long held blocks are left alone at first, and at most.
const FIRST_MS: u64 = 1000;
const MOST_MS: u64 = 60_000;

/// What is held, and when it is looked at again.
pub struct Held {
    /// Dirty frames of zones.
    frames: AtomicUsize,
    /// Empty frames of spans: those that were tried, and those of other spans in the same blocks that came by later.
    in_spans: AtomicUsize,
    /// The number of the look, 1 or more.
    look: AtomicU32,
    wait_ms: AtomicU64,
    last_ms: AtomicU64,
}

impl Held {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            frames: AtomicUsize::new(0),
            in_spans: AtomicUsize::new(0),
            look: AtomicU32::new(1),
            wait_ms: AtomicU64::new(FIRST_MS),
            last_ms: AtomicU64::new(0),
        }
    }

    /// Frames that were held at the last try.
    pub fn all(&self) -> usize {
        self.frames() + self.in_spans.load(Ordering::Relaxed)
    }

    /// Those of zones.
    pub fn frames(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }

    /// Frames of a zone could not be given back.
    pub fn add(&self, frames: u32) {
        self.frames.fetch_add(frames as usize, Ordering::Relaxed);
    }

    /// Frames of a span could not be given back.
    pub fn add_in_span(&self, frames: u32) {
        self.in_spans.fetch_add(frames as usize, Ordering::Relaxed);
    }

    /// The number of this look: a span whose frames are counted has it.
    pub fn look(&self) -> u32 {
        self.look.load(Ordering::Relaxed)
    }

    /// Forgets the counts.
    pub fn clear(&self) {
        // Never 0, which is that of a span that was never counted.
        self.look
            .store(self.look().wrapping_add(1).max(1), Ordering::Relaxed);
        self.frames.store(0, Ordering::Relaxed);
        self.in_spans.store(0, Ordering::Relaxed);
    }

    /// Milliseconds until the next look, while the intervals still grow.
    pub fn next_look_ms(&self) -> Option<u64> {
        let wait = self.wait_ms.load(Ordering::Relaxed);
        (wait < MOST_MS).then_some(wait)
    }
}

impl Heap {
    /// Lets held blocks be claimed again when it is time.
    pub fn look_at_held(&self, now: u64) {
        let held = &self.held;
        let wait = held.wait_ms.load(Ordering::Relaxed);
        if held.all() == 0 {
            held.wait_ms.store(FIRST_MS, Ordering::Relaxed);
            held.last_ms.store(now, Ordering::Relaxed);
        } else if now.wrapping_sub(held.last_ms.load(Ordering::Relaxed)) >= wait {
            held.wait_ms
                .store((wait * 2).min(MOST_MS), Ordering::Relaxed);
            held.last_ms.store(now, Ordering::Relaxed);
            self.end_holds();
        }
    }

    /// Nothing is held from now on.
    pub fn end_holds(&self) {
        self.held.clear();
        for zone in self.live_zones() {
            let (first, end) = zone.with(self.region(), |zone| {
                zone.end_holds();
                let state = zone.state();
                (state.open_end().0 - state.opened(), state.open_end().0)
            });
            for block in (first..end).map(Block) {
                // SAFETY: opened blocks.
                let flags = unsafe { self.region().flags(block) };
                if flags.load(Ordering::Relaxed) & flag::HELD != 0 {
                    flags.fetch_and(!flag::HELD, Ordering::Relaxed);
                }
            }
        }
        for class in 1..CLASSES {
            self.central[class].spans.lock().end_holds(self, class);
        }
    }

    /// Whether a block's huge page could not be split.
    pub fn is_held(&self, block: Block) -> bool {
        self.flags_of(block) & flag::HELD != 0
    }
}

#[cfg(test)]
mod tests;
