//! The two kinds of record: [`Pageblock`], one per pageblock, and [`BlockWord`], one per 64 of them.
//!
//! See the crate's header for the states and invariants. A record's first cache line is its header. Each bit map is a
//! cache line of its own, so that choosing a block reads only the header.

use crate::bits::{self, Map};
use crate::frame::{BLOCK_CLUSTERS, BLOCK_FRAMES};
use core::mem::offset_of;

/// The free frames of one pageblock. Opaque; zeroed memory is valid.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Pageblock {
    /// Neighbours on the bucket list, as index in the zone plus one; 0 is none.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) free_count: u16,
    pub(crate) dirty_count: u16,
    pub(crate) lazy_count: u16,
    /// Frames of the block that are in claims. Only the claims say which frames.
    pub(crate) claimed_count: u16,
    /// The longest run of free frames.
    pub(crate) max_run: u16,
    /// The list of the block, plus one; 0 is none.
    pub(crate) bucket: u8,
    /// One bit per cluster that is wholly free.
    pub(crate) clusters: u8,
    /// Of a partial block: dirty and lazy frames in groups that are not wholly free ([`crate::ZoneState`]).
    pub(crate) pinned_dirty: u16,
    pub(crate) pinned_lazy: u16,
    spare: [u32; 10],
    pub(crate) free: Map,
    pub(crate) dirty: Map,
    pub(crate) lazy: Map,
}

const _: () = assert!(size_of::<Pageblock>() == 256 && align_of::<Pageblock>() == 64);

/// The kinds of 64 pageblocks, one bit each. Opaque; zeroed memory is valid.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct BlockWord {
    /// Whole-free.
    pub(crate) free: u64,
    /// Holds a free dirty frame that is not pinned (whole-free and partial blocks).
    pub(crate) dirty: u64,
    /// Holds a free lazy frame that is not pinned (whole-free and partial blocks).
    pub(crate) lazy: u64,
    /// Whole-free, and every frame is in the one state that `dirty` or `lazy` names.
    pub(crate) all: u64,
    /// The record is valid and some frame is not free.
    pub(crate) partial: u64,
    /// The whole block is in a claim.
    pub(crate) claimed: u64,
    /// Not claimed for now: its huge page could not be split.
    pub(crate) unsplit: u64,
    spare: u64,
}

const _: () = assert!(size_of::<BlockWord>() == 64);

/// The content of a free frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Clean,
    Dirty,
    Lazy,
}

/// How many frames an operation moved, and how many of them were dirty and lazy.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    pub frames: u32,
    pub dirty: u32,
    pub lazy: u32,
}

impl Moved {
    #[inline]
    pub fn add(&mut self, other: Moved) {
        self.frames += other.frames;
        self.dirty += other.dirty;
        self.lazy += other.lazy;
    }

    #[inline]
    pub fn clean(self) -> bool {
        self.dirty | self.lazy == 0
    }
}

impl BlockWord {
    /// Offsets of the words free, dirty, lazy, all, partial, claimed, for observers.
    pub const WORDS: [usize; 6] = [
        offset_of!(BlockWord, free),
        offset_of!(BlockWord, dirty),
        offset_of!(BlockWord, lazy),
        offset_of!(BlockWord, all),
        offset_of!(BlockWord, partial),
        offset_of!(BlockWord, claimed),
    ];
    /// A record with nothing opened.
    pub const ZERO: BlockWord = BlockWord {
        free: 0,
        dirty: 0,
        lazy: 0,
        all: 0,
        partial: 0,
        claimed: 0,
        unsplit: 0,
        spare: 0,
    };

    /// Clears all bits of the blocks of `mask`.
    #[inline]
    pub(crate) fn clear(&mut self, mask: u64) {
        self.free &= !mask;
        self.dirty &= !mask;
        self.lazy &= !mask;
        self.all &= !mask;
        self.partial &= !mask;
        self.claimed &= !mask;
        self.unsplit &= !mask;
    }

    /// Makes the blocks of `mask` whole-free, all frames in one state.
    #[inline]
    pub(crate) fn set_free(&mut self, mask: u64, content: Content) {
        self.clear(mask);
        self.free |= mask;
        match content {
            Content::Clean => {}
            Content::Dirty => {
                self.dirty |= mask;
                self.all |= mask;
            }
            Content::Lazy => {
                self.lazy |= mask;
                self.all |= mask;
            }
        }
    }

    /// Whole-free blocks with a frame that is not clean.
    #[inline]
    pub(crate) fn free_resident(&self) -> u64 {
        self.free & (self.dirty | self.lazy)
    }
}

impl Pageblock {
    /// Offsets of the maps free, dirty, lazy, for observers.
    pub const MAPS: [usize; 3] = [
        offset_of!(Pageblock, free),
        offset_of!(Pageblock, dirty),
        offset_of!(Pageblock, lazy),
    ];
    /// A record with nothing in it.
    pub const ZERO: Pageblock = Pageblock {
        prev: 0,
        next: 0,
        free_count: 0,
        dirty_count: 0,
        lazy_count: 0,
        claimed_count: 0,
        max_run: 0,
        bucket: 0,
        clusters: 0,
        pinned_dirty: 0,
        pinned_lazy: 0,
        spare: [0; 10],
        free: [0; BLOCK_CLUSTERS],
        dirty: [0; BLOCK_CLUSTERS],
        lazy: [0; BLOCK_CLUSTERS],
    };

    /// Every frame free and in one state; on no list.
    pub(crate) fn fill(&mut self, content: Content) {
        let all = |c| {
            if content == c {
                [u64::MAX; BLOCK_CLUSTERS]
            } else {
                [0; BLOCK_CLUSTERS]
            }
        };
        let count = |c| if content == c { BLOCK_FRAMES as u16 } else { 0 };
        self.dirty = all(Content::Dirty);
        self.lazy = all(Content::Lazy);
        self.dirty_count = count(Content::Dirty);
        self.lazy_count = count(Content::Lazy);
        self.fill_free();
    }

    /// Makes every frame free; the words `dirty` and `lazy` and their counts stay.
    pub(crate) fn fill_free(&mut self) {
        self.free = [u64::MAX; BLOCK_CLUSTERS];
        self.free_count = BLOCK_FRAMES as u16;
        self.max_run = BLOCK_FRAMES as u16;
        self.clusters = u8::MAX;
        self.claimed_count = 0;
        (self.pinned_dirty, self.pinned_lazy) = (0, 0);
        self.bucket = 0;
    }

    /// The dirty and the lazy frames in groups of `group` frames that are not wholly free.
    pub(crate) fn pinned(&self, group: u32) -> (u16, u16) {
        let (mut dirty, mut lazy) = (0, 0);
        for i in 0..BLOCK_CLUSTERS {
            let pinned = !bits::whole_groups(self.free[i], group);
            dirty += bits::ones(self.dirty[i] & pinned);
            lazy += bits::ones(self.lazy[i] & pinned);
        }
        (dirty as u16, lazy as u16)
    }

    /// Takes the free frames of `mask` in cluster `i` out. The caller must update `max_run`.
    #[inline]
    pub(crate) fn take_word(&mut self, i: usize, mask: u64) -> Moved {
        debug_assert_eq!(self.free[i] & mask, mask);
        let moved = Moved {
            frames: bits::ones(mask),
            dirty: bits::ones(self.dirty[i] & mask),
            lazy: bits::ones(self.lazy[i] & mask),
        };
        self.free[i] &= !mask;
        self.dirty[i] &= !mask;
        self.lazy[i] &= !mask;
        self.clusters &= !(1 << i);
        self.free_count -= moved.frames as u16;
        self.dirty_count -= moved.dirty as u16;
        self.lazy_count -= moved.lazy as u16;
        moved
    }

    /// Puts the frames of `mask` in cluster `i` back. The caller must update `max_run`.
    #[inline]
    pub(crate) fn put_word(&mut self, i: usize, mask: u64, content: Content) -> Moved {
        debug_assert_eq!(self.free[i] & mask, 0);
        let n = bits::ones(mask);
        let mut moved = Moved {
            frames: n,
            dirty: 0,
            lazy: 0,
        };
        self.free[i] |= mask;
        match content {
            Content::Clean => {}
            Content::Dirty => {
                self.dirty[i] |= mask;
                moved.dirty = n;
            }
            Content::Lazy => {
                self.lazy[i] |= mask;
                moved.lazy = n;
            }
        }
        self.clusters |= u8::from(self.free[i] == u64::MAX) << i;
        self.free_count += n as u16;
        self.dirty_count += moved.dirty as u16;
        self.lazy_count += moved.lazy as u16;
        moved
    }

    /// Corrects `max_run` after frames were taken out: it can only have become shorter.
    #[inline]
    pub(crate) fn shorten_max_run(&mut self) {
        let bound = self.max_run.min(self.free_count);
        self.max_run = bits::longest_run(&self.free, u32::from(bound)) as u16;
    }

    /// Corrects `max_run` after `[from, from + n)` became free: only the run around it can have become longer.
    #[inline]
    pub(crate) fn lengthen_max_run(&mut self, from: u32, n: u32) {
        self.max_run = self
            .max_run
            .max(bits::run_around(&self.free, from, n) as u16);
    }

    /// Chooses a place for `n` frames: dirty frames first, then frames that are dirty or lazy, then the lowest
    /// place.
    #[inline]
    pub(crate) fn place(&self, n: u32, align: u32) -> Option<u32> {
        if n == 64 && align <= 64 && self.clusters != 0 {
            return Some(self.place_cluster());
        }
        if u32::from(self.dirty_count) >= n
            && let Some(at) = bits::find_run(&self.dirty, n, align, None)
        {
            return Some(at);
        }
        if self.lazy_count != 0 && u32::from(self.dirty_count + self.lazy_count) >= n {
            let resident: Map = core::array::from_fn(|i| self.dirty[i] | self.lazy[i]);
            return bits::find_run(&self.free, n, align, Some(&resident));
        }
        bits::find_run(&self.free, n, align, None)
    }

    /// Chooses a wholly free cluster: the first that is all dirty, else the first.
    #[inline]
    fn place_cluster(&self) -> u32 {
        let mut left = self.clusters;
        if self.dirty_count >= 64 {
            while left != 0 {
                let i = left.trailing_zeros();
                if self.dirty[i as usize] == u64::MAX {
                    return i * 64;
                }
                left &= left - 1;
            }
        }
        self.clusters.trailing_zeros() * 64
    }
}
