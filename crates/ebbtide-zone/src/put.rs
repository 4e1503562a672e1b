//! Puts runs of frames back, and reports puts that cannot be right.

use crate::bits;
use crate::frame::{BLOCK_FRAMES, Frame};
use crate::pageblock::{Content, Moved};
use crate::state::{Zone, bit_of};
use crate::take::TakeMode;

/// The result of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The frames are in the free map.
    Done,
    /// The frames lie in frozen blocks: ignored.
    Frozen,
}

/// The reason why a put was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutErrorKind {
    /// Empty, not opened, outside the zone, or (for a run) not in one pageblock.
    OutOfRange,
    /// Some frame is free already: a double put.
    AlreadyFree,
    /// Some frame is in a claim, so no owner may put it.
    Claimed,
    /// A claim was put that is not outstanding.
    NotClaimed,
}

/// A refused put. The zone is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutError {
    /// Why.
    pub kind: PutErrorKind,
    /// The first frame of the refused put.
    pub first: Frame,
}

impl Zone<'_> {
    /// Puts frames of one pageblock back, as dirty or clean. When the last frame is put, the block becomes
    /// whole-free.
    ///
    /// A part of a large block may be put too: the rest of the block stays with its owner. O(1).
    pub fn put_run(
        &mut self,
        first: Frame,
        frames: u32,
        dirty: bool,
        mode: TakeMode,
    ) -> Result<Put, PutError> {
        let fail = |kind| Err(PutError { kind, first });
        let start = first.in_block();
        if frames == 0 || frames > BLOCK_FRAMES - start {
            return fail(PutErrorKind::OutOfRange);
        }
        if frames == BLOCK_FRAMES {
            return self.put_blocks(first.block(), 1, u32::from(dirty));
        }
        let Some(index) = self.index(first.block()) else {
            return if self.is_frozen(first) {
                Ok(Put::Frozen)
            } else {
                fail(PutErrorKind::OutOfRange)
            };
        };
        let (i, bit) = bit_of(index);
        let w = &self.words[i];
        if w.partial & bit == 0 {
            if w.free & bit != 0 {
                return fail(PutErrorKind::AlreadyFree);
            }
            if w.claimed & bit != 0 {
                return fail(PutErrorKind::Claimed);
            }
            self.convert_large(index);
        }
        let b = &self.blocks[index as usize];
        let mut taken = 0;
        bits::for_words(start, frames, |i, mask| taken |= b.free[i] & mask);
        if taken != 0 {
            return fail(PutErrorKind::AlreadyFree);
        }
        if frames + u32::from(b.free_count) + u32::from(b.claimed_count) > BLOCK_FRAMES {
            return fail(PutErrorKind::Claimed);
        }
        let content = if dirty {
            Content::Dirty
        } else {
            Content::Clean
        };
        match mode {
            TakeMode::Cluster => self.put_at(index, start, frames, content),
            TakeMode::FrameByFrame => {
                for at in start..start + frames {
                    self.put_at(index, at, 1, content);
                }
            }
        }
        Ok(Put::Done)
    }

    /// Puts frames back that are known to have no owner, in a partial block.
    #[inline]
    fn put_at(&mut self, index: u32, start: u32, frames: u32, content: Content) {
        let b = &mut self.blocks[index as usize];
        let mut moved = Moved::default();
        bits::for_words(start, frames, |i, mask| {
            moved.add(b.put_word(i, mask, content))
        });
        b.lengthen_max_run(start, frames);
        self.state.count_put(moved);
        self.settle(index);
    }

    #[inline]
    pub(crate) fn is_partial(&self, index: u32) -> bool {
        let (i, bit) = bit_of(index);
        self.words[i].partial & bit != 0
    }
}
