//! Numbers: frames, clusters, pageblocks, and how they relate.

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;
/// Frames of a cluster: one word of each bit map.
pub const CLUSTER_FRAMES: u32 = 64;
/// Clusters of a pageblock.
pub const BLOCK_CLUSTERS: usize = 8;
/// Frames of a pageblock.
pub const BLOCK_FRAMES: u32 = 512;
/// Bytes of a pageblock.
pub const BLOCK_BYTES: usize = FRAME_BYTES * BLOCK_FRAMES as usize;
/// Pageblocks of one [`crate::BlockWord`].
pub const WORD_BLOCKS: u32 = 64;
/// A zone's first block is a multiple of this, so that aligned numbers are aligned addresses.
pub const ZONE_ALIGN_BLOCKS: u32 = 512;

const _: () = assert!(CLUSTER_FRAMES * BLOCK_CLUSTERS as u32 == BLOCK_FRAMES);

/// The [`crate::BlockWord`]s that `blocks` pageblocks need.
pub const fn words_for(blocks: u32) -> usize {
    blocks.div_ceil(WORD_BLOCKS) as usize
}

/// A frame by its number in the region: `(address - base) >> 12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Frame(pub u32);

/// A pageblock by its number in the region: `frame >> 9`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Block(pub u32);

impl Frame {
    /// The pageblock that the frame lies in.
    #[inline]
    pub const fn block(self) -> Block {
        Block(self.0 / BLOCK_FRAMES)
    }

    /// The frame's place in its pageblock, 0 to 511.
    #[inline]
    pub const fn in_block(self) -> u32 {
        self.0 % BLOCK_FRAMES
    }
}

impl Block {
    /// The first frame of the pageblock (for numbers that no region has, the last frame number).
    #[inline]
    pub const fn first_frame(self) -> Frame {
        Frame(self.0.saturating_mul(BLOCK_FRAMES))
    }
}
