//! Pageblocks whose huge page could not be split, because a forked child shares it or it is pinned: *unsplit* blocks.
//!
//! An unsplit block has [`flag::UNSPLIT`]: none of its frames is claimed until the next retry. Retries come at growing intervals,
//! [`FIRST_MS`] to [`MOST_MS`], so that children that share much memory with their parent do not try again and again.

use crate::pages::Pages;
use crate::pages::region::flag;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_zone::Block;

/// First interval between retries.
const FIRST_MS: u64 = 1000;
/// Longest interval between retries.
const MOST_MS: u64 = 60_000;

/// How much is unsplit, and when it is tried again.
pub struct UnsplitBlocks {
    /// Dirty frames of zones.
    frames: AtomicUsize,
    /// Empty frames of spans: those that were tried, and those of other spans in the same blocks that came by later.
    in_spans: AtomicUsize,
    /// Number of the retry period, 1 or more.
    generation: AtomicU32,
    wait_ms: AtomicU64,
    last_ms: AtomicU64,
}

impl UnsplitBlocks {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            frames: AtomicUsize::new(0),
            in_spans: AtomicUsize::new(0),
            generation: AtomicU32::new(1),
            wait_ms: AtomicU64::new(FIRST_MS),
            last_ms: AtomicU64::new(0),
        }
    }

    /// Frames that could not be released at the last try.
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

    /// The number of this retry period: a span whose frames are counted has it.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Forgets the counts.
    pub fn clear(&self) {
        // Never 0, which is that of a span that was never counted.
        self.generation
            .store(self.generation().wrapping_add(1).max(1), Ordering::Relaxed);
        self.frames.store(0, Ordering::Relaxed);
        self.in_spans.store(0, Ordering::Relaxed);
    }

    /// Milliseconds until the next retry, while the intervals still grow.
    pub fn next_retry_ms(&self) -> Option<u64> {
        let wait = self.wait_ms.load(Ordering::Relaxed);
        (wait < MOST_MS).then_some(wait)
    }

    /// Whether it is time to try again; then the next retry is twice as far away.
    pub fn is_time(&self, now: u64) -> bool {
        let wait = self.wait_ms.load(Ordering::Relaxed);
        let next = match self.all() {
            0 => FIRST_MS,
            _ if now.wrapping_sub(self.last_ms.load(Ordering::Relaxed)) < wait => return false,
            _ => (wait * 2).min(MOST_MS),
        };
        self.wait_ms.store(next, Ordering::Relaxed);
        self.last_ms.store(now, Ordering::Relaxed);
        self.all() > 0
    }
}

impl Pages {
    /// Whether a block's huge page could not be split.
    pub fn is_held(&self, block: Block) -> bool {
        self.flags_of(block) & flag::UNSPLIT != 0
    }
}

#[cfg(test)]
mod tests;
