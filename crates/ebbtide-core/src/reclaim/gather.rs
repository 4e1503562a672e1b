//! A gather: claimed ranges on their way to the kernel.
//!
//! ```text
//!  Gather  ┌ 8 ranges inline ┐ ──▶ newest Batch (4 KiB, 510 ranges) ──▶ the one before ──▶ …
//! ```
//!
//! Ranges that touch are merged (whole blocks with whole blocks, others inside a block), frames are
//! counted. Room is made *before* ranges are claimed
//! ([`Gather::reserve`], no lock held), because claiming and adding happen under a zone's lock, where
//! nothing may ask for memory.
//!
//! - `INV-GATHER-1`: a gather holds exactly the ranges that were claimed for it and not put back.
//! - `INV-GATHER-2`: adding never fails within the room that was reserved.
//!
//! The term and the batches are those of the kernel's `mmu_gather`.

pub mod batches;

use batches::{BATCH, Batch, put_batch, take_batch};
use core::ptr::{self, NonNull};
use ebbtide_zone::BLOCK_FRAMES;

/// Ranges held without a batch.
const INLINE: usize = 8;
/// The most ranges that one claim adds: every other frame of a pageblock.
pub const CLAIM_RANGES: usize = 256;

/// A run of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Range {
    /// The first frame.
    pub first: u32,
    /// How many, with [`KEPT`], [`LAZY`] and [`DONE`].
    frames: u32,
}

/// Set in [`Range::frames`] when the range was not released.
const KEPT: u32 = 1 << 31;
/// Set there when the range becomes lazy, not clean.
const LAZY: u32 = 1 << 30;
/// Set there when the kernel has the range already, and others of the gather are left to a worker.
const DONE: u32 = 1 << 29;

impl Range {
    /// `frames` from `first` on.
    pub const fn new(first: u32, frames: u32) -> Self {
        Self { first, frames }
    }

    /// The same range, to become lazy.
    pub fn to_lazy(self) -> Self {
        Self::new(self.first, self.frames | LAZY)
    }

    /// How many frames.
    pub fn frames(self) -> u32 {
        self.frames & !(KEPT | LAZY | DONE)
    }

    /// Whether it becomes lazy.
    pub fn is_lazy(self) -> bool {
        self.frames & LAZY != 0
    }

    /// Whether it consists of whole pageblocks. Others end at a block's border, because a block is split,
    /// or held, on its own.
    fn is_blocks(self) -> bool {
        self.first.is_multiple_of(BLOCK_FRAMES) && self.frames().is_multiple_of(BLOCK_FRAMES)
    }

    /// Whether it was left as it was.
    pub fn is_kept(self) -> bool {
        self.frames & KEPT != 0
    }

    /// Whether nothing is left to do but to put it back.
    pub fn is_done(self) -> bool {
        self.frames & (KEPT | DONE) != 0
    }
}

/// See the module's header.
pub struct Gather {
    inline: [Range; INLINE],
    inline_len: usize,
    /// The batch that is being filled, and behind it those that are full; null while ranges go inline.
    last: *mut Batch,
    /// An empty one.
    spare: *mut Batch,
    frames: u64,
    ranges: usize,
}

// SAFETY: the batches belong to the gather alone.
unsafe impl Send for Gather {}

impl Gather {
    /// Nothing.
    pub const NEW: Self = Self {
        inline: [Range::new(0, 0); INLINE],
        inline_len: 0,
        last: ptr::null_mut(),
        spare: ptr::null_mut(),
        frames: 0,
        ranges: 0,
    };

    /// Frames of all ranges.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.ranges == 0
    }

    /// Makes room for one more claim. `false`: no memory; release what is held.
    pub fn reserve(&mut self) -> bool {
        if self.spare.is_null() && self.room() < CLAIM_RANGES {
            let Some(batch) = take_batch() else {
                return false;
            };
            self.spare = batch.as_ptr();
        }
        true
    }

    /// Ranges that can be added for sure.
    pub fn room(&self) -> usize {
        // SAFETY: our own batches.
        let last = unsafe { self.last.as_ref() };
        let here = last.map_or(INLINE - self.inline_len, |batch| BATCH - batch.len);
        here + if self.spare.is_null() { 0 } else { BATCH }
    }

    /// Adds a range, merged with the last one if they touch. `false`: there was no room reserved.
    pub fn add(&mut self, range: Range) -> bool {
        if let Some(last) = self.last_range()
            && last.first + last.frames() == range.first
            && (!range.first.is_multiple_of(BLOCK_FRAMES) || last.is_blocks() && range.is_blocks())
            && last.is_lazy() == range.is_lazy()
            && last.frames() + range.frames() < DONE
        {
            last.frames += range.frames();
            self.frames += u64::from(range.frames());
            return true;
        }
        if self.last.is_null() && self.inline_len < INLINE {
            self.inline[self.inline_len] = range;
            self.inline_len += 1;
        } else {
            // SAFETY: our own batches.
            if unsafe { self.last.as_ref() }.is_none_or(|batch| batch.len == BATCH) {
                // SAFETY: our own chain; the batch becomes the last of another one.
                let Some(spare) = (unsafe { self.spare.as_mut() }) else {
                    return false;
                };
                self.spare = core::mem::replace(&mut spare.next, self.last);
                self.last = spare;
            }
            // SAFETY: as above; it has room.
            let batch = unsafe { &mut *self.last };
            batch.ranges[batch.len] = range;
            batch.len += 1;
        }
        self.frames += u64::from(range.frames());
        self.ranges += 1;
        true
    }

    fn last_range(&mut self) -> Option<&mut Range> {
        // SAFETY: our own batches.
        match unsafe { self.last.as_mut() } {
            Some(batch) => batch.ranges[..batch.len].last_mut(),
            None => self.inline[..self.inline_len].last_mut(),
        }
    }

    /// All ranges, for changes: those inline, then batch by batch, the newest first.
    pub fn for_each(&mut self, mut each: impl FnMut(&mut Range)) {
        let inline = &mut self.inline[..self.inline_len];
        inline.iter_mut().for_each(&mut each);
        let mut batch = self.last;
        // SAFETY: our own batches.
        while let Some(here) = unsafe { batch.as_mut() } {
            here.ranges[..here.len].iter_mut().for_each(&mut each);
            batch = here.next;
        }
    }

    /// Notes that a range was not released.
    pub fn keep(range: &mut Range) {
        range.frames |= KEPT;
    }

    /// Notes that the kernel has got a range, or gets it before the gather goes to somebody else.
    pub fn done(range: &mut Range) {
        range.frames |= DONE;
    }

    /// Forgets what is noted of the ranges: whoever did has not come to the end.
    pub fn begin_again(&mut self) {
        self.for_each(|range| range.frames &= !(KEPT | DONE));
    }

    /// Takes the newest range out. The way in which ranges are put back: whoever puts one back takes it
    /// out under the same lock.
    pub fn pop(&mut self) -> Option<Range> {
        let range = self.peek()?;
        // SAFETY: our own batches.
        match unsafe { self.last.as_mut() } {
            Some(batch) => {
                batch.len -= 1;
                if batch.len == 0 {
                    self.drop_last();
                }
            }
            None => self.inline_len -= 1,
        }
        self.ranges -= 1;
        self.frames -= u64::from(range.frames());
        Some(range)
    }

    /// Cuts `frames` off the end of the newest range; the range goes when nothing is left.
    pub fn cut(&mut self, frames: u32) {
        let Some(range) = self.last_range() else {
            return;
        };
        if range.frames() <= frames {
            self.pop();
        } else {
            range.frames -= frames;
            self.frames -= u64::from(frames);
        }
    }

    /// The newest range, without taking it out.
    pub fn peek(&mut self) -> Option<Range> {
        self.last_range().copied()
    }

    /// Takes the empty last batch off the chain and keeps it as the spare one, or frees it later.
    fn drop_last(&mut self) {
        let empty = self.last;
        // SAFETY: our own chain. What was spare before hangs behind the empty one.
        self.last = unsafe { core::mem::replace(&mut (*empty).next, self.spare) };
        self.spare = empty;
    }

    /// Gives all batches back. No lock may be held; the gather is empty.
    pub fn free_batches(&mut self) {
        debug_assert!(self.is_empty() && self.last.is_null());
        while let Some(batch) = NonNull::new(self.spare) {
            // SAFETY: our own chain.
            self.spare = unsafe { batch.as_ref() }.next;
            put_batch(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::batches::{FIRST, FIRST_BATCHES, First, REFUSE_BATCHES};
    use super::*;
    use core::sync::atomic::Ordering;
    use std::vec::Vec;

    fn ranges(gather: &mut Gather) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        gather.for_each(|range| all.push((range.first, range.frames())));
        all
    }

    /// One test for all, because refusing is process-wide.
    #[test]
    fn merging_batches_and_exhaustion() {
        // The first batches are there without a mapping, each once.
        let first = &raw const FIRST as usize;
        let mut seen: Vec<usize> = (0..3)
            .map(|_| take_batch().unwrap().as_ptr() as usize)
            .collect();
        for batch in &seen {
            put_batch(NonNull::new(*batch as *mut Batch).unwrap());
        }
        seen.retain(|batch| (first..first + size_of::<First>()).contains(batch));
        seen.dedup();
        assert_eq!(seen.len(), FIRST_BATCHES);

        let mut gather = Gather::NEW;
        assert!(gather.reserve());
        assert!(gather.add(Range::new(10, 2)) && gather.add(Range::new(12, 3)));
        assert!(gather.add(Range::new(20, 1)));
        assert_eq!(ranges(&mut gather), [(10, 5), (20, 1)]);
        assert_eq!((gather.frames(), gather.len()), (6, 2));
        let mut other = Gather::NEW;
        assert!(other.add(Range::new(500, 12)) && other.add(Range::new(512, 3)));
        assert!(other.add(Range::new(1024, 512)) && other.add(Range::new(1536, 1024)));
        assert_eq!(ranges(&mut other), [(500, 12), (512, 3), (1024, 1536)]);
        // What becomes lazy stays apart, through merging and cutting.
        let mut mixed = Gather::NEW;
        assert!(mixed.add(Range::new(10, 2)) && mixed.add(Range::new(12, 2).to_lazy()));
        assert!(mixed.add(Range::new(14, 3).to_lazy()));
        assert_eq!(ranges(&mut mixed), [(10, 2), (12, 5)]);
        mixed.cut(2);
        let last = mixed.pop().unwrap();
        assert_eq!(
            (last.frames(), last.is_lazy(), mixed.frames()),
            (3, true, 2)
        );
        assert!(!mixed.pop().unwrap().is_lazy());

        // Every other frame: nothing merges, batches are linked.
        let mut expected = std::vec![(10, 5), (20, 1)];
        for n in 0..2000u32 {
            assert!(gather.reserve());
            assert!(gather.add(Range::new(100 + 2 * n, 1)));
            expected.push((100 + 2 * n, 1));
        }
        let mut all = ranges(&mut gather);
        all.sort();
        assert_eq!(all, expected);
        assert_eq!(gather.len(), 2002);

        // Without memory for a batch, what was reserved can still be added, no more.
        REFUSE_BATCHES.store(true, Ordering::Relaxed);
        let room = gather.room();
        for n in 0..room as u32 {
            assert!(gather.add(Range::new(10_000 + 2 * n, 1)));
            expected.push((10_000 + 2 * n, 1));
        }
        assert!(!gather.reserve() && !gather.add(Range::new(1, 1)));
        REFUSE_BATCHES.store(false, Ordering::Relaxed);
        assert!(gather.reserve() && gather.add(Range::new(1, 1)));
        expected.push((1, 1));

        let mut count = 0;
        gather.for_each(|range| {
            if range.first % 4 == 0 {
                Gather::keep(range);
                count += 1;
            } else if range.first % 4 == 1 {
                Gather::done(range);
            }
        });
        while let Some(range) = gather.pop() {
            assert_eq!(Some((range.first, range.frames())), expected.pop());
            assert_eq!(range.is_kept(), range.first % 4 == 0);
            assert_eq!(range.is_done(), range.first % 4 < 2);
            count -= i32::from(range.is_kept());
        }
        assert_eq!((count, gather.frames(), gather.len()), (0, 0, 0));
        gather.free_batches();
    }
}
