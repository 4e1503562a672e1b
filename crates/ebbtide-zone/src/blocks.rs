//! Whole pageblocks: takes, extends and puts them back by block words, 64 at a time.

use crate::bits;
use crate::frame::{BLOCK_FRAMES, Block, WORD_BLOCKS};
use crate::pageblock::{Content, Moved};
use crate::put::{Put, PutError, PutErrorKind};
use crate::state::Zone;

/// Whole pageblocks that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first of them.
    pub first: Block,
    /// Number of blocks, including the slack if it was free.
    pub blocks: u32,
    /// How many of them held a dirty or lazy frame.
    pub dirty_blocks: u32,
    /// Whether every frame was clean.
    pub clean: bool,
}

impl Zone<'_> {
    /// Takes `blocks` whole pageblocks plus `slack_blocks` behind them, at the lowest multiple of `align_blocks` (a
    /// power of two) where they fit. If they fit nowhere with the slack, takes them without it. Slack ends before
    /// the first block that is not clean: slack is not in use, so memory in it could not be released. O(opened /
    /// 64) from a hint; records are read only for blocks whose frames differ.
    pub fn take_blocks(
        &mut self,
        blocks: u32,
        align_blocks: u32,
        slack_blocks: u32,
    ) -> Option<Extent> {
        if blocks == 0 || !align_blocks.is_power_of_two() {
            return None;
        }
        let with = u64::from(blocks) + u64::from(slack_blocks);
        let (index, n) = match self.find_blocks(with, align_blocks) {
            Some(index) => (
                index,
                blocks + self.clean_blocks(index + blocks, slack_blocks),
            ),
            None if slack_blocks == 0 => return None,
            None => (self.find_blocks(u64::from(blocks), align_blocks)?, blocks),
        };
        let dirty_blocks = self.take_range(index, n);
        Some(Extent {
            first: self.block_at(index),
            blocks: n,
            dirty_blocks,
            clean: dirty_blocks == 0,
        })
    }

    /// Of `n` whole-free blocks, the number of clean blocks before the first that is not clean.
    fn clean_blocks(&self, index: u32, n: u32) -> u32 {
        let mut clean = n;
        bits::for_words(index, n, |i, mask| {
            let resident = self.words[i].free_resident() & mask;
            if resident != 0 {
                clean = clean.min(i as u32 * WORD_BLOCKS + resident.trailing_zeros() - index);
            }
        });
        clean
    }

    /// Extends taken blocks in place from `old` to `new` blocks. Returns whether the added ones were clean. `None`:
    /// they are not all whole-free, and nothing changed. O((new - old) / 64).
    pub fn grow_blocks(&mut self, first: Block, old: u32, new: u32) -> Option<bool> {
        if new == old {
            return Some(true);
        }
        let index = self.index(first)?.checked_add(old)?;
        let n = new.checked_sub(old)?;
        if index.checked_add(n)? > self.state.open_end {
            return None;
        }
        let mut free = true;
        bits::for_words(index, n, |i, mask| {
            free &= self.words[i].free & mask == mask
        });
        free.then(|| self.take_range(index, n) == 0)
    }

    /// Puts whole pageblocks back: the first `dirty_blocks` as dirty, the rest as clean. O(blocks / 64); records
    /// are touched only for blocks that were partial.
    pub fn put_blocks(
        &mut self,
        first: Block,
        blocks: u32,
        dirty_blocks: u32,
    ) -> Result<Put, PutError> {
        let fail = |kind| {
            Err(PutError {
                kind,
                first: first.first_frame(),
            })
        };
        let end = first.0.saturating_add(blocks);
        let s = &*self.state;
        if blocks == 0 || first.0 < s.first_block {
            return fail(PutErrorKind::OutOfRange);
        }
        if end <= s.first_block + s.base {
            return Ok(Put::Frozen);
        }
        let Some(index) = self.index(first).filter(|&i| blocks <= s.open_end - i) else {
            return fail(PutErrorKind::OutOfRange);
        };
        let (mut free, mut claimed, mut partial) = (0, 0, 0);
        bits::for_words(index, blocks, |i, mask| {
            free |= self.words[i].free & mask;
            claimed |= self.words[i].claimed & mask;
            partial |= self.words[i].partial & mask;
        });
        if free != 0 {
            return fail(PutErrorKind::AlreadyFree);
        }
        if claimed != 0 {
            return fail(PutErrorKind::Claimed);
        }
        if partial != 0
            && let Some(kind) = self.partial_obstacle(index, blocks)
        {
            return fail(kind);
        }
        let dirty = dirty_blocks.min(blocks);
        self.put_range(index, dirty, Content::Dirty);
        self.put_range(index + dirty, blocks - dirty, Content::Clean);
        Ok(Put::Done)
    }

    /// A partial block may be put as a whole if its owner holds all of it: the owner put a part back and got it
    /// again.
    #[cold]
    fn partial_obstacle(&self, index: u32, blocks: u32) -> Option<PutErrorKind> {
        (index..index + blocks)
            .filter(|&i| self.is_partial(i))
            .find_map(|i| {
                let b = &self.blocks[i as usize];
                if b.free_count != 0 {
                    return Some(PutErrorKind::AlreadyFree);
                }
                (b.claimed_count != 0).then_some(PutErrorKind::Claimed)
            })
    }

    fn find_blocks(&mut self, n: u64, align: u32) -> Option<u32> {
        if n > u64::from(self.state.free_blocks) {
            return None;
        }
        let end = self.state.open_end.div_ceil(WORD_BLOCKS) as usize;
        let mut from = self.state.low_free as usize;
        while from < end && self.words[from].free == 0 {
            from += 1;
        }
        self.state.low_free = from as u32;
        let base_words = u64::from(self.state.first_block / WORD_BLOCKS);
        let word = |i: usize| self.words[i].free;
        bits::find_run_by(word, from, end, n, u64::from(align), base_words).map(|at| at as u32)
    }

    /// Takes whole-free blocks out of the free map. Returns how many were not clean.
    pub(crate) fn take_range(&mut self, index: u32, n: u32) -> u32 {
        let mut moved = Moved {
            frames: n * BLOCK_FRAMES,
            dirty: 0,
            lazy: 0,
        };
        let mut resident = 0;
        let (words, blocks) = (&mut *self.words, &*self.blocks);
        bits::for_words(index, n, |i, mask| {
            let w = &mut words[i];
            let all = w.all & mask;
            let mut mixed = w.free_resident() & mask & !all;
            resident += (w.free_resident() & mask).count_ones();
            moved.dirty += (w.dirty & all).count_ones() * BLOCK_FRAMES;
            moved.lazy += (w.lazy & all).count_ones() * BLOCK_FRAMES;
            while mixed != 0 {
                let b = &blocks[i * 64 + mixed.trailing_zeros() as usize];
                moved.dirty += u32::from(b.dirty_count);
                moved.lazy += u32::from(b.lazy_count);
                mixed &= mixed - 1;
            }
            w.clear(mask);
        });
        self.state.count_take(moved);
        self.state.free_blocks -= n;
        self.state.resident_blocks -= resident;
        resident
    }

    /// Makes blocks without an owner whole-free.
    pub(crate) fn put_range(&mut self, index: u32, n: u32, content: Content) {
        if n == 0 {
            return;
        }
        let words = &mut *self.words;
        bits::for_words(index, n, |i, mask| words[i].set_free(mask, content));
        let frames = n * BLOCK_FRAMES;
        let only = |c| if content == c { frames } else { 0 };
        let moved = Moved {
            frames,
            dirty: only(Content::Dirty),
            lazy: only(Content::Lazy),
        };
        self.state.count_put(moved);
        self.state.free_blocks += n;
        let resident = content != Content::Clean;
        self.state.resident_blocks += if resident { n } else { 0 };
        self.state.hint(index / WORD_BLOCKS, true, resident);
        self.state
            .hint((index + n - 1) / WORD_BLOCKS, true, resident);
    }
}
