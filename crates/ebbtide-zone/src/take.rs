//! Taking runs of frames inside one pageblock.

use crate::bits;
use crate::frame::{BLOCK_FRAMES, CLUSTER_FRAMES, Frame};
use crate::pageblock::{Moved, Pageblock};
use crate::state::{BUCKETS, Zone};

/// Entries of a bucket that are compared.
const SCAN: u32 = 8;
/// Entries of a bucket that are compared when no other place is left.
const SCAN_LAST: u32 = 64;

/// How frames are taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TakeMode {
    /// By words: up to a cluster in one step.
    #[default]
    Cluster,
    /// Each frame by itself, with all the bookkeeping, as a page-by-page allocator does (`dev=cluster:off`).
    FrameByFrame,
}

/// Frames that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first of them.
    pub first: Frame,
    /// Number of frames.
    pub frames: u32,
    /// Whether every frame was clean. Lazy frames are not.
    pub clean: bool,
}

impl Zone<'_> {
    /// Takes `frames` (1 to 511) consecutive frames of one pageblock, at a multiple of `align_frames` (a power of
    /// two, at most 512). `None`: no opened block has a place, or the arguments are out of range.
    ///
    /// Chooses the fullest of the first partial blocks that fit, and in it a dirty place before a clean one. If
    /// none fits, chooses the lowest whole-free block, dirty before clean. For 64 frames, chooses a whole cluster
    /// before any other place. O(1): at most 8 headers per bucket (64 when no other place is left), and one block's
    /// words. If a whole-free block is converted, a walk over the block words from the hint is added.
    pub fn take_run(&mut self, frames: u32, align_frames: u32, mode: TakeMode) -> Option<Run> {
        let fine = (1..BLOCK_FRAMES).contains(&frames)
            && align_frames.is_power_of_two()
            && align_frames <= BLOCK_FRAMES;
        if !fine || self.state.free < u64::from(frames) {
            return None;
        }
        let index = self.pick(frames, align_frames)?;
        let start = self.blocks[index as usize].place(frames, align_frames)?;
        Some(self.take_at(index, start, frames, mode))
    }

    /// Extends a run in place from `old` to `new` frames, inside its pageblock. Returns whether the added frames
    /// were clean. `None`: they are not all free, and nothing changed.
    pub fn grow_run(&mut self, first: Frame, old: u32, new: u32) -> Option<bool> {
        let start = first.in_block().checked_add(old)?;
        if old == 0 || new < old || first.in_block().checked_add(new)? > BLOCK_FRAMES {
            return None;
        }
        let index = self.index(first.block())?;
        if new == old {
            return Some(true);
        }
        if !self.is_partial(index) {
            return None;
        }
        let b = &self.blocks[index as usize];
        let mut free = true;
        bits::for_words(start, new - old, |i, mask| free &= b.free[i] & mask == mask);
        free.then(|| {
            self.take_at(index, start, new - old, TakeMode::Cluster)
                .clean
        })
    }

    /// Chooses a block where [`Pageblock::place`] finds a place. Converts a whole-free block if needed.
    #[inline]
    fn pick(&mut self, frames: u32, align: u32) -> Option<u32> {
        let bucket = frames.ilog2() as usize;
        if frames == CLUSTER_FRAMES
            && align <= CLUSTER_FRAMES
            && let Some(index) = self.scan(bucket, SCAN, |b| b.clusters != 0)
        {
            return Some(index);
        }
        let fits = |b: &Pageblock| {
            u32::from(b.max_run) >= frames
                && (align == 1 || bits::find_run(&b.free, frames, align, None).is_some())
        };
        if let Some(index) = self.scan(bucket, SCAN, fits) {
            return Some(index);
        }
        if let Some(index) = self.lowest_free_block() {
            self.convert_free(index);
            return Some(index);
        }
        self.scan(bucket, SCAN_LAST, fits)
    }

    /// The fullest of the first `limit` entries that fit, in the smallest bucket that has one.
    #[inline]
    fn scan(&self, bucket: usize, limit: u32, fits: impl Fn(&Pageblock) -> bool) -> Option<u32> {
        for head in &self.state.heads[bucket..BUCKETS] {
            let mut at = *head;
            let mut best = (u16::MAX, 0);
            for _ in 0..limit {
                if at == 0 {
                    break;
                }
                let b = &self.blocks[at as usize - 1];
                if b.free_count < best.0 && fits(b) {
                    best = (b.free_count, at);
                }
                at = b.next;
            }
            if best.1 != 0 {
                return Some(best.1 - 1);
            }
        }
        None
    }

    /// The whole-free block to convert: the lowest that is not clean, else the lowest.
    fn lowest_free_block(&mut self) -> Option<u32> {
        if self.state.free_blocks == 0 {
            return None;
        }
        let end = self.state.open_end.div_ceil(64);
        if self.state.resident_blocks != 0 {
            let found = (self.state.low_resident..end)
                .map(|i| (i, self.words[i as usize].free_resident()))
                .find(|&(_, w)| w != 0);
            let (i, w) = found?;
            self.state.low_resident = i;
            return Some(i * 64 + w.trailing_zeros());
        }
        let found = (self.state.low_free..end)
            .map(|i| (i, self.words[i as usize].free))
            .find(|&(_, w)| w != 0);
        let (i, w) = found?;
        self.state.low_free = i;
        Some(i * 64 + w.trailing_zeros())
    }

    /// Takes a place that is known to be free, in a partial block.
    #[inline]
    fn take_at(&mut self, index: u32, start: u32, frames: u32, mode: TakeMode) -> Run {
        let mut moved = Moved::default();
        match mode {
            TakeMode::Cluster => {
                let b = &mut self.blocks[index as usize];
                bits::for_words(start, frames, |i, mask| moved.add(b.take_word(i, mask)));
                b.shorten_max_run();
                self.state.count_take(moved);
                self.settle(index);
            }
            TakeMode::FrameByFrame => {
                for at in start..start + frames {
                    let b = &mut self.blocks[index as usize];
                    let one = b.take_word((at / 64) as usize, 1 << (at % 64));
                    b.shorten_max_run();
                    self.state.count_take(one);
                    self.settle(index);
                    moved.add(one);
                }
            }
        }
        let first = Frame(self.block_at(index).first_frame().0 + start);
        Run {
            first,
            frames,
            clean: moved.clean(),
        }
    }
}
