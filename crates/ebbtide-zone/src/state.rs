//! The zone's own state: counters, bucket lists, scan hints, and the opening of pageblocks.

use crate::bits;
use crate::frame::{BLOCK_FRAMES, Block, CLUSTER_FRAMES, Frame, WORD_BLOCKS, ZONE_ALIGN_BLOCKS};
use crate::pageblock::{BlockWord, Content, Moved, Pageblock};

/// One list per power of two of `max_run`, 1 to 511.
pub(crate) const BUCKETS: usize = 9;

/// The state of one zone, beside its records. Plain data.
///
/// The kernel releases memory by *pages*, which may be larger than a frame. So claims consist of whole aligned *groups* of
/// frames: 1, 4 or 16 of them. A free dirty or lazy frame is *pinned* while some frame of its group is not free.
///
/// Indices count pageblocks (or words of 64 pageblocks) from the zone's first. Hints (`INV-ZONE-8`): no word below
/// `low_free` has a whole-free block; none below `low_resident` a whole-free block that is not clean; none from
/// `high_resident` on a `dirty` or `lazy` bit.
#[derive(Clone, Copy, Debug)]
pub struct ZoneState {
    pub(crate) first_block: u32,
    pub(crate) limit: u32,
    /// Frames that only go together: those of a page of the kernel.
    pub(crate) group: u32,
    /// Blocks below are frozen.
    pub(crate) base: u32,
    pub(crate) open_end: u32,
    pub(crate) heads: [u32; BUCKETS],
    pub(crate) free: u64,
    pub(crate) dirty: u64,
    pub(crate) lazy: u64,
    pub(crate) claimed: u64,
    /// Of the dirty and the lazy frames, those that are pinned.
    pub(crate) pinned_dirty: u64,
    pub(crate) pinned_lazy: u64,
    /// Whole-free blocks, and how many of them have a dirty or a lazy frame.
    pub(crate) free_blocks: u32,
    pub(crate) resident_blocks: u32,
    pub(crate) low_free: u32,
    pub(crate) low_resident: u32,
    pub(crate) high_resident: u32,
}

/// A zone's counts, in frames unless a field says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Opened (without frozen ones): `free + claimed + in_use`.
    pub open: u64,
    /// Frames in the free map, in any state.
    pub free: u64,
    /// Free and dirty.
    pub dirty: u64,
    /// Free and lazy.
    pub lazy: u64,
    /// In claims.
    pub claimed: u64,
    /// Of `dirty`, the pinned ones.
    pub pinned_dirty: u64,
    /// Of `lazy`, the pinned ones.
    pub pinned_lazy: u64,
    /// With their owners.
    pub in_use: u64,
    /// Whole-free pageblocks.
    pub free_blocks: u32,
    /// Whole-free pageblocks with a frame that is not clean.
    pub resident_free_blocks: u32,
}

impl Counters {
    /// Dirty frames that can be claimed.
    #[inline]
    pub fn loose_dirty(&self) -> u64 {
        self.dirty - self.pinned_dirty
    }

    /// Lazy frames that can be claimed.
    #[inline]
    pub fn loose_lazy(&self) -> u64 {
        self.lazy - self.pinned_lazy
    }
}

/// A zone with its records, under its lock.
#[derive(Debug)]
pub struct Zone<'a> {
    pub(crate) state: &'a mut ZoneState,
    pub(crate) blocks: &'a mut [Pageblock],
    pub(crate) words: &'a mut [BlockWord],
}

impl ZoneState {
    /// A zone of the blocks `[first_block, limit_block)` with nothing opened. Its frames are claimed one by one.
    ///
    /// `first_block` must be a multiple of [`ZONE_ALIGN_BLOCKS`].
    pub const fn new(first_block: u32, limit_block: u32) -> ZoneState {
        Self::with_group(first_block, limit_block, 1)
    }

    /// As [`ZoneState::new`], for a kernel whose pages have `group` frames, a power of two up to [`CLUSTER_FRAMES`].
    pub const fn with_group(first_block: u32, limit_block: u32, group: u32) -> ZoneState {
        assert!(group.is_power_of_two() && group <= CLUSTER_FRAMES);
        assert!(first_block.is_multiple_of(ZONE_ALIGN_BLOCKS) && first_block <= limit_block);
        assert!(limit_block <= 1 << 23, "frame numbers have 32 bits");
        ZoneState {
            first_block,
            limit: limit_block - first_block,
            group,
            base: 0,
            open_end: 0,
            heads: [0; BUCKETS],
            free: 0,
            dirty: 0,
            lazy: 0,
            claimed: 0,
            pinned_dirty: 0,
            pinned_lazy: 0,
            free_blocks: 0,
            resident_blocks: 0,
            low_free: 0,
            low_resident: 0,
            high_resident: 0,
        }
    }

    /// The current counts.
    #[inline]
    pub fn counters(&self) -> Counters {
        let open = u64::from(self.open_end - self.base) * u64::from(BLOCK_FRAMES);
        Counters {
            open,
            free: self.free,
            dirty: self.dirty,
            lazy: self.lazy,
            claimed: self.claimed,
            pinned_dirty: self.pinned_dirty,
            pinned_lazy: self.pinned_lazy,
            in_use: open - self.free - self.claimed,
            free_blocks: self.free_blocks,
            resident_free_blocks: self.resident_blocks,
        }
    }

    /// The zone's first block, frozen or not.
    pub const fn first_block(&self) -> Block {
        Block(self.first_block)
    }

    /// One past the last block that can ever be opened.
    pub const fn limit_block(&self) -> Block {
        Block(self.first_block + self.limit)
    }

    /// One past the last opened block.
    pub const fn open_end(&self) -> Block {
        Block(self.first_block + self.open_end)
    }

    /// Pageblocks opened and not frozen.
    pub const fn opened(&self) -> u32 {
        self.open_end - self.base
    }

    /// Pageblocks that can still be opened.
    pub const fn unopened(&self) -> u32 {
        self.limit - self.open_end
    }

    /// Whether `frame` lies in a frozen block of this zone.
    #[inline]
    pub const fn is_frozen(&self, frame: Frame) -> bool {
        let block = frame.block().0;
        block >= self.first_block && block - self.first_block < self.base
    }

    #[inline]
    pub(crate) fn count_take(&mut self, m: Moved) {
        self.free -= u64::from(m.frames);
        self.dirty -= u64::from(m.dirty);
        self.lazy -= u64::from(m.lazy);
    }

    #[inline]
    pub(crate) fn count_put(&mut self, m: Moved) {
        self.free += u64::from(m.frames);
        self.dirty += u64::from(m.dirty);
        self.lazy += u64::from(m.lazy);
    }

    /// Lowers and raises the hints for a word that has new whole-free blocks or resident frames.
    #[inline]
    pub(crate) fn hint(&mut self, word: u32, whole: bool, resident: bool) {
        if whole {
            self.low_free = self.low_free.min(word);
            if resident {
                self.low_resident = self.low_resident.min(word);
            }
        }
        if resident {
            self.high_resident = self.high_resident.max(word + 1);
        }
    }
}

/// The word and the bit of a block by its index in the zone.
#[inline]
pub(crate) fn bit_of(index: u32) -> (usize, u64) {
    ((index / WORD_BLOCKS) as usize, 1 << (index % WORD_BLOCKS))
}

impl<'a> Zone<'a> {
    /// The view under the lock. `blocks` and `words` start at the zone's first block. They cover at least the
    /// opened blocks, and those that [`Zone::open`] will open.
    #[inline]
    pub fn new(
        state: &'a mut ZoneState,
        blocks: &'a mut [Pageblock],
        words: &'a mut [BlockWord],
    ) -> Zone<'a> {
        debug_assert!(blocks.len() >= state.open_end as usize);
        debug_assert!(words.len() * 64 >= state.open_end as usize);
        Zone {
            state,
            blocks,
            words,
        }
    }

    /// The current counts.
    #[inline]
    pub fn counters(&self) -> Counters {
        self.state.counters()
    }

    /// The state behind the view.
    #[inline]
    pub fn state(&self) -> &ZoneState {
        self.state
    }

    /// Pageblocks opened and not frozen.
    pub fn opened(&self) -> u32 {
        self.state.opened()
    }

    /// Pageblocks that can still be opened.
    pub fn unopened(&self) -> u32 {
        self.state.unopened()
    }

    /// Whether `frame` lies in a frozen block of this zone.
    pub fn is_frozen(&self, frame: Frame) -> bool {
        self.state.is_frozen(frame)
    }

    /// Opens up to `blocks` clean pageblocks at the end. Returns their number. The zone's limit and the slices of
    /// the view are the bounds. O(blocks / 64).
    pub fn open(&mut self, blocks: u32) -> u32 {
        self.open_as(blocks, Content::Clean)
    }

    /// As [`Zone::open`], for pageblocks that the kernel has populated already, as it does for locked memory.
    pub fn open_resident(&mut self, blocks: u32) -> u32 {
        self.open_as(blocks, Content::Dirty)
    }

    fn open_as(&mut self, blocks: u32, content: Content) -> u32 {
        let begin = self.state.open_end;
        let room =
            (self.blocks.len().min(self.words.len() * 64)).min(self.state.limit as usize) as u32;
        let n = blocks.min(room.saturating_sub(begin));
        if n == 0 {
            return 0;
        }
        let words = &mut *self.words;
        // If the fork of this child interrupted an `open`, bits may be set above the opened end. They may also be
        // set in the same word below the end of the frozen blocks.
        let first = match begin == self.state.base {
            true => begin / WORD_BLOCKS * WORD_BLOCKS,
            false => begin,
        };
        let rest = (begin + n).next_multiple_of(WORD_BLOCKS) - first;
        bits::for_words(first, rest, |i, mask| words[i].clear(mask));
        self.state.open_end = begin + n;
        self.put_range(begin, n, content);
        n
    }

    /// Forgets every opened block, for a forked child that came without the fork handlers: the parent's threads may
    /// have been inside the zone, so its state cannot be trusted.
    ///
    /// All blocks below `block` (raised to the opened end if that is higher) become frozen: they are never taken,
    /// and puts into them are ignored. The zone continues from `block` with nothing opened. O(words of the view).
    pub fn reset_above(&mut self, block: Block) {
        let s = &mut *self.state;
        let wanted = block.0.saturating_sub(s.first_block);
        let base = wanted.max(s.open_end.min(s.limit)).min(s.limit);
        let word = base / WORD_BLOCKS;
        *s = ZoneState {
            base,
            open_end: base,
            low_free: word,
            low_resident: word,
            high_resident: word,
            ..ZoneState::with_group(s.first_block, s.first_block + s.limit, s.group)
        };
        // Bits may be set above the opened end if an `open` was interrupted. Zero words are only read.
        for w in self.words.iter_mut().skip(word as usize) {
            if w.free | w.dirty | w.lazy | w.all | w.partial | w.claimed != 0 {
                *w = BlockWord::ZERO;
            }
        }
    }

    /// The index of an opened block.
    #[inline]
    pub(crate) fn index(&self, block: Block) -> Option<u32> {
        let index = block.0.checked_sub(self.state.first_block)?;
        (index >= self.state.base && index < self.state.open_end).then_some(index)
    }

    #[inline]
    pub(crate) fn block_at(&self, index: u32) -> Block {
        Block(self.state.first_block + index)
    }

    pub(crate) fn unlink(&mut self, index: u32) {
        let b = &mut self.blocks[index as usize];
        let (prev, next, bucket) = (b.prev, b.next, b.bucket);
        if bucket == 0 {
            return;
        }
        b.bucket = 0;
        if next != 0 {
            self.blocks[next as usize - 1].prev = prev;
        }
        if prev != 0 {
            self.blocks[prev as usize - 1].next = next;
        } else {
            self.state.heads[bucket as usize - 1] = next;
        }
    }

    fn link(&mut self, index: u32, bucket: u8) {
        let head = &mut self.state.heads[bucket as usize - 1];
        let next = *head;
        *head = index + 1;
        let b = &mut self.blocks[index as usize];
        b.bucket = bucket;
        b.prev = 0;
        b.next = next;
        if next != 0 {
            self.blocks[next as usize - 1].prev = index + 1;
        }
    }

    /// Updates list and block word of a partial block after a change of its record (`INV-ZONE-4`, `INV-ZONE-6`).
    #[inline]
    pub(crate) fn settle(&mut self, index: u32) {
        if self.state.group != 1 {
            self.count_pinned(index);
        }
        let b = &self.blocks[index as usize];
        if u32::from(b.free_count) == BLOCK_FRAMES {
            return self.settle_whole(index);
        }
        let dirty = b.dirty_count != b.pinned_dirty;
        let lazy = b.lazy_count != b.pinned_lazy;
        // 1 + floor(log2), and 0 for 0.
        let bucket = (u16::BITS - b.max_run.leading_zeros()) as u8;
        if bucket != b.bucket {
            self.unlink(index);
            if bucket != 0 {
                self.link(index, bucket);
            }
        }
        let (i, bit) = bit_of(index);
        let w = &mut self.words[i];
        w.dirty = if dirty { w.dirty | bit } else { w.dirty & !bit };
        w.lazy = if lazy { w.lazy | bit } else { w.lazy & !bit };
        self.state.hint(i as u32, false, dirty | lazy);
    }

    /// Counts the pinned frames of a partial block again. In a whole-free block no frame is pinned.
    fn count_pinned(&mut self, index: u32) {
        let b = &mut self.blocks[index as usize];
        let (dirty, lazy) = b.pinned(self.state.group);
        let s = &mut *self.state;
        s.pinned_dirty = s.pinned_dirty + u64::from(dirty) - u64::from(b.pinned_dirty);
        s.pinned_lazy = s.pinned_lazy + u64::from(lazy) - u64::from(b.pinned_lazy);
        (b.pinned_dirty, b.pinned_lazy) = (dirty, lazy);
    }

    /// The last frame was put back: the block becomes whole-free.
    fn settle_whole(&mut self, index: u32) {
        self.unlink(index);
        let b = &self.blocks[index as usize];
        let (i, bit) = bit_of(index);
        let w = &mut self.words[i];
        w.clear(bit);
        w.free |= bit;
        w.dirty |= if b.dirty_count != 0 { bit } else { 0 };
        w.lazy |= if b.lazy_count != 0 { bit } else { 0 };
        let full = u32::from(b.dirty_count.max(b.lazy_count)) == BLOCK_FRAMES;
        w.all |= if full { bit } else { 0 };
        let resident = b.dirty_count | b.lazy_count != 0;
        self.state.free_blocks += 1;
        self.state.resident_blocks += u32::from(resident);
        self.state.hint(i as u32, true, resident);
    }

    /// Makes a whole-free block partial, with all frames free and on no list: the caller takes some at once.
    pub(crate) fn convert_free(&mut self, index: u32) {
        let (i, bit) = bit_of(index);
        let w = &mut self.words[i];
        debug_assert!(w.free & bit != 0);
        let (all, dirty, lazy) = (w.all & bit != 0, w.dirty & bit != 0, w.lazy & bit != 0);
        w.free &= !bit;
        w.all &= !bit;
        w.partial |= bit;
        self.state.free_blocks -= 1;
        self.state.resident_blocks -= u32::from(dirty | lazy);
        let b = &mut self.blocks[index as usize];
        match (all, dirty, lazy) {
            (_, false, false) => b.fill(Content::Clean),
            (true, true, _) => b.fill(Content::Dirty),
            (true, false, true) => b.fill(Content::Lazy),
            (false, ..) => b.fill_free(),
        }
    }

    /// Makes a large block partial, with no free frame.
    pub(crate) fn convert_large(&mut self, index: u32) {
        let (i, bit) = bit_of(index);
        self.words[i].partial |= bit;
        self.blocks[index as usize] = Pageblock::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of the parent may have been inside [`BlockWord::clear`], so any of the bits may stand alone.
    #[test]
    fn a_reset_clears_words_that_were_being_written() {
        let fields: [fn(&mut BlockWord) -> &mut u64; 6] = [
            |w| &mut w.free,
            |w| &mut w.dirty,
            |w| &mut w.lazy,
            |w| &mut w.all,
            |w| &mut w.partial,
            |w| &mut w.claimed,
        ];
        for (one, other) in (0..6).flat_map(|one| (0..=one).map(move |other| (one, other))) {
            let mut state = ZoneState::new(0, 128);
            let mut words = [BlockWord::ZERO; 2];
            *fields[one](&mut words[1]) = 1 << 7;
            *fields[other](&mut words[1]) = 1 << 7;
            let mut zone = Zone::new(&mut state, &mut [], &mut words);
            zone.reset_above(Block(64));
            for field in fields {
                assert_eq!(*field(&mut words[1]), 0, "{one} and {other} were set");
            }
        }
    }
}
