//! Claims: free frames are taken out of the free map, released or made lazy, and put back afterwards.
//!
//! Whole-free blocks are claimed first, the highest first, so that low addresses stay populated. Then the resident free
//! frames of one partial block are claimed. A claim is plain data. The zone counts the claimed frames; the claim says
//! where they are.
//!
//! The kernel releases whole pages. So a claim takes a group of frames only if all of them are free, and then takes all
//! of them, the clean ones too (`INV-ZONE-10`).

use crate::bits::{self, Map};
use crate::frame::{BLOCK_CLUSTERS, BLOCK_FRAMES, Block, Frame};
use crate::pageblock::{BlockWord, Content, Moved};
use crate::put::{Put, PutError, PutErrorKind};
use crate::state::{Zone, bit_of};

/// Partial blocks of a word that are compared.
const SCAN: u32 = 8;

/// Frames that are being released or made lazy: in no free map and without an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Whole pageblocks, 1 to 64. Some of their frames may be clean.
    Blocks {
        /// The first block.
        first: Block,
        /// Number of blocks.
        count: u32,
    },
    /// Frames of one pageblock. If a group has more than one frame, some of them may be clean.
    Frames {
        /// Which pageblock.
        block: Block,
        /// Its frames, one bit each.
        mask: [u64; 8],
    },
}

/// The state of a claimed frame when it is put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutState {
    /// Released: zero on next touch.
    Clean,
    /// Unchanged: the release failed or was not tried.
    Dirty,
    /// `MADV_FREE` was given.
    Lazy,
}

impl Claim {
    /// Number of frames.
    pub fn frames(&self) -> u32 {
        match self {
            Claim::Blocks { count, .. } => count.saturating_mul(BLOCK_FRAMES),
            Claim::Frames { mask, .. } => bits::count(mask),
        }
    }

    /// The frames as runs of neighbours `(first, frames)`, in order of address.
    pub fn runs(&self) -> impl Iterator<Item = (Frame, u32)> + use<> {
        let (mut blocks, base, mask) = match *self {
            Claim::Blocks { first, .. } => (Some((first.first_frame(), self.frames())), 0, [0; 8]),
            Claim::Frames { block, mask } => (None, block.first_frame().0, mask),
        };
        let mut at = 0;
        core::iter::from_fn(move || {
            if let Some(run) = blocks.take() {
                return Some(run);
            }
            let (begin, n) = bits::next_run(&mask, at)?;
            at = begin + n;
            Some((Frame(base + begin), n))
        })
    }

    /// The pageblock of its first frame.
    pub fn block(&self) -> Block {
        match *self {
            Claim::Blocks { first, .. } => first,
            Claim::Frames { block, .. } => block,
        }
    }
}

/// Which free frames a claim takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Dirty,
    Lazy,
    Both,
}

impl Wanted {
    /// The wanted bits of two words.
    #[inline]
    fn of(self, dirty: u64, lazy: u64) -> u64 {
        match self {
            Wanted::Dirty => dirty,
            Wanted::Lazy => lazy,
            Wanted::Both => dirty | lazy,
        }
    }

    /// Whole-free blocks that may be claimed as whole blocks. Dirty frames are not given up for the lazy frames
    /// beside them.
    #[inline]
    fn blocks(self, w: &BlockWord) -> u64 {
        match self {
            Wanted::Lazy => w.free & w.lazy & !w.dirty,
            _ => w.free & self.of(w.dirty, w.lazy),
        }
    }
}

impl From<PutState> for Content {
    fn from(outcome: PutState) -> Content {
        match outcome {
            PutState::Clean => Content::Clean,
            PutState::Dirty => Content::Dirty,
            PutState::Lazy => Content::Lazy,
        }
    }
}

impl Zone<'_> {
    /// Claims at most `max_frames` free frames, but at least a group, that are dirty (or lazy, with `include_lazy`):
    /// up to 64 neighbouring whole-free blocks, else groups of one partial block, else (for fewer than 512) of one
    /// whole-free block. `None`: there are no such frames that are not pinned. O(opened / 64) from a hint.
    pub fn claim_dirty(&mut self, max_frames: u32, include_lazy: bool) -> Option<Claim> {
        let wanted = if include_lazy {
            Wanted::Both
        } else {
            Wanted::Dirty
        };
        self.claim(max_frames, wanted)
    }

    /// Claims lazy frames only: whole-free blocks without a dirty frame first, then single groups. Dirty frames
    /// beside them stay, unless they are in the same group.
    pub fn claim_lazy(&mut self, max_frames: u32) -> Option<Claim> {
        self.claim(max_frames, Wanted::Lazy)
    }

    fn claim(&mut self, max_frames: u32, wanted: Wanted) -> Option<Claim> {
        let counters = self.state.counters();
        if max_frames == 0 || wanted.of(counters.loose_dirty(), counters.loose_lazy()) == 0 {
            return None;
        }
        let max_frames = max_frames.max(self.state.group);
        let low = self.state.base / 64;
        while self.state.high_resident > low {
            let w = &self.words[self.state.high_resident as usize - 1];
            if w.dirty | w.lazy != 0 {
                break;
            }
            self.state.high_resident -= 1;
        }
        if max_frames >= BLOCK_FRAMES
            && self.state.resident_blocks != 0
            && let Some((i, w)) = self.highest_word(|w| wanted.blocks(w))
        {
            return Some(self.claim_blocks(i, w, max_frames / BLOCK_FRAMES));
        }
        if let Some((i, w)) = self.highest_word(|w| w.partial & wanted.of(w.dirty, w.lazy)) {
            let index = self.emptiest(i, w);
            return Some(self.claim_frames(index, max_frames, wanted));
        }
        let (i, w) = self.highest_word(|w| w.free & wanted.of(w.dirty, w.lazy))?;
        let index = i * 64 + 63 - w.leading_zeros();
        self.convert_free(index);
        Some(self.claim_frames(index, max_frames, wanted))
    }

    /// Claims all free groups of a partial block, clean ones too: for a huge page that is about to be split, which
    /// is resident as a whole. `None`: the block is not partial, or has no free group. O(1).
    pub fn claim_free(&mut self, block: Block) -> Option<Claim> {
        let index = self.index(block)?;
        let (i, bit) = bit_of(index);
        let group = self.state.group;
        let b = &mut self.blocks[index as usize];
        if self.words[i].partial & bit == 0 || b.free_count == 0 {
            return None;
        }
        let mask = b.free.map(|free| bits::whole_groups(free, group));
        if mask == [0; BLOCK_CLUSTERS] {
            return None;
        }
        let mut moved = Moved::default();
        for (i, &m) in mask.iter().enumerate().filter(|(_, m)| **m != 0) {
            moved.add(b.take_word(i, m));
        }
        b.claimed_count += moved.frames as u16;
        b.shorten_max_run();
        self.state.count_take(moved);
        self.state.claimed += u64::from(moved.frames);
        self.settle(index);
        Some(Claim::Frames { block, mask })
    }

    /// Excludes a pageblock from claims until [`Zone::clear_unsplit`], or until it is whole-free or taken whole.
    pub fn mark_unsplit(&mut self, block: Block) {
        if let Some(index) = self.index(block) {
            let (i, bit) = bit_of(index);
            self.words[i].unsplit |= bit;
        }
    }

    /// Allows all excluded pageblocks to be claimed again. O(opened / 64). Words of frozen blocks are not touched:
    /// there may be no memory behind them, nor behind the word of a border above which nothing has been opened.
    pub fn clear_unsplit(&mut self) {
        let (base, end) = (self.state.base, self.state.open_end);
        if base < end {
            let words = &mut self.words[base as usize / 64..end.div_ceil(64) as usize];
            words.iter_mut().for_each(|w| w.unsplit = 0);
        }
    }

    /// Whether a pageblock is in a claim as a whole, not by its frames.
    pub fn is_claimed_whole(&self, block: Block) -> bool {
        self.index(block).is_some_and(|index| {
            let (i, bit) = bit_of(index);
            self.words[i].claimed & bit != 0
        })
    }

    /// Puts a claim back, all its frames in one state. O(1).
    pub fn put_claim(&mut self, claim: Claim, outcome: PutState) -> Result<Put, PutError> {
        let first = claim.block();
        let fail = |kind| {
            Err(PutError {
                kind,
                first: first.first_frame(),
            })
        };
        if self.is_frozen(first.first_frame()) {
            return Ok(Put::Frozen);
        }
        let Some(index) = self.index(first) else {
            return fail(PutErrorKind::OutOfRange);
        };
        match claim {
            Claim::Blocks { count, .. } => {
                if count == 0 || count > self.state.open_end - index {
                    return fail(PutErrorKind::OutOfRange);
                }
                let mut out = true;
                bits::for_words(index, count, |i, mask| {
                    out &= self.words[i].claimed & mask == mask
                });
                if !out {
                    return fail(PutErrorKind::NotClaimed);
                }
                self.state.claimed -= u64::from(count) * u64::from(BLOCK_FRAMES);
                self.put_range(index, count, outcome.into());
            }
            Claim::Frames { mask, .. } => {
                let n = bits::count(&mask);
                let b = &mut self.blocks[index as usize];
                let (i, bit) = bit_of(index);
                if self.words[i].partial & bit == 0 || n > u32::from(b.claimed_count) || n == 0 {
                    return fail(PutErrorKind::NotClaimed);
                }
                if (0..BLOCK_CLUSTERS).any(|i| b.free[i] & mask[i] != 0) {
                    return fail(PutErrorKind::AlreadyFree);
                }
                b.claimed_count -= n as u16;
                for (i, &m) in mask.iter().enumerate().filter(|(_, m)| **m != 0) {
                    self.state.count_put(b.put_word(i, m, outcome.into()));
                }
                b.max_run = bits::longest_run(&b.free, u32::from(b.free_count)) as u16;
                self.state.claimed -= u64::from(n);
                self.settle(index);
            }
        }
        Ok(Put::Done)
    }

    /// The highest word in which `among` finds blocks that are not unsplit, and all such blocks of it.
    fn highest_word(&self, among: impl Fn(&BlockWord) -> u64) -> Option<(u32, u64)> {
        (self.state.base / 64..self.state.high_resident)
            .rev()
            .find_map(|i| {
                let w = &self.words[i as usize];
                let hit = among(w) & !w.unsplit;
                (hit != 0).then_some((i, hit))
            })
    }

    /// Claims the highest run of whole-free blocks in `candidates`.
    fn claim_blocks(&mut self, word: u32, candidates: u64, max_blocks: u32) -> Claim {
        let top = 63 - candidates.leading_zeros();
        let count = (candidates << (63 - top)).leading_ones().min(max_blocks);
        let index = word * 64 + top + 1 - count;
        self.take_range(index, count);
        self.words[word as usize].claimed |= bits::mask(index % 64, count);
        self.state.claimed += u64::from(count) * u64::from(BLOCK_FRAMES);
        Claim::Blocks {
            first: self.block_at(index),
            count,
        }
    }

    /// Among the highest few partial blocks, the one with the most free frames; the higher one when equal.
    fn emptiest(&self, word: u32, mut candidates: u64) -> u32 {
        let mut best = (0, 0);
        for _ in 0..SCAN {
            if candidates == 0 {
                break;
            }
            let bit = 63 - candidates.leading_zeros();
            candidates &= !(1 << bit);
            let index = word * 64 + bit;
            let free = self.blocks[index as usize].free_count;
            if free > best.0 {
                best = (free, index);
            }
        }
        best.1
    }

    fn claim_frames(&mut self, index: u32, max_frames: u32, wanted: Wanted) -> Claim {
        let group = self.state.group;
        let b = &mut self.blocks[index as usize];
        let mut mask: Map = [0; BLOCK_CLUSTERS];
        let mut moved = Moved::default();
        for i in (0..BLOCK_CLUSTERS).rev() {
            let touched = bits::touched_groups(wanted.of(b.dirty[i], b.lazy[i]), group);
            let mut m = touched & bits::whole_groups(b.free[i], group);
            // Too many frames: the lowest stay.
            while m.count_ones() > max_frames - moved.frames {
                m = bits::without_first_group(m, group);
            }
            if m != 0 {
                mask[i] = m;
                moved.add(b.take_word(i, m));
            }
        }
        b.claimed_count += moved.frames as u16;
        b.shorten_max_run();
        self.state.count_take(moved);
        self.state.claimed += u64::from(moved.frames);
        self.settle(index);
        Claim::Frames {
            block: self.block_at(index),
            mask,
        }
    }
}
