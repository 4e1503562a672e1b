//! The one reservation of address space, and the flat arrays beside it.
//!
//! ```text
//!  region    ├ zone 0 ────────────────┼ zone 1 ────────────┤      frame = (ptr - base) >> 12
//!            opened │ reserved         opened │ reserved
//!  arrays    class_of_frame  u8  a frame     class, LARGE at the head of whole frames, 0 else
//!            span_of_frame   u32 a frame     index of the span record
//!            pageblocks      256 B a block   the zones' records
//!            block words     64 B a 64 blocks
//!            flags           u8 a block      see [`flag`]
//!            spans           128 B a span    see `span`
//!            states          2 KiB a span    words of objects, with `harden=on`: see `harden`
//! ```
//!
//! All of it is reserved once, without memory. [`Region::open`] makes parts usable as zones grow. An array entry that was
//! never written reads as zero, and zero means "nothing there".
//!
//! - `INV-REGION-1`: `base` is a multiple of 1 GiB (2 MiB in a region below 4 GiB), so the alignment of
//!   a frame number is that of its address.
//! - `INV-REGION-2`: array entries are touched only for frames below their zone's opened end. Class
//!   bytes can be read for all of the region.

use ebbtide_interface::records::{self, Places};
use ebbtide_sys::{Errno, process, vm};
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, Block, BlockWord, FRAME_BYTES, Frame, Pageblock};

use crate::base::size_class::{CLASSES, MAX_OBJECTS};
use crate::base::stats::{self, Owner};

/// The addresses and sizes of the reservation and its arrays. Set once.
#[derive(Clone, Copy)]
pub struct Region {
    /// Address of frame 0.
    pub base: usize,
    /// Number of pageblocks.
    pub blocks: u32,
    /// Address of `class_of_frame`.
    pub classes: usize,
    span_ids: usize,
    pageblocks: usize,
    words: usize,
    flags: usize,
    /// Address of the span records.
    pub spans: usize,
    /// Address of the objects' words. 0 without `harden=on`.
    pub states: usize,
    /// Most span records.
    pub max_spans: u32,
}

/// Special states of a block's mapping.
pub mod flag {
    /// Pages were moved there: the block lies in a mapping of its own, until a fresh mapping replaces it.
    pub const MOVED: u8 = 1;
    /// The block is kept from huge pages, because empty pages of it were released.
    pub const SMALL: u8 = 2;
    /// The block's huge page could not be split. It is tried again later.
    pub const UNSPLIT: u8 = 4;
    /// The first block of those that one move made [`MOVED`].
    pub const MOVE: u8 = 8;
}

/// The class byte of a large allocation's head frame. It is no class, but it has a stack (`INV-CLASS-1`).
pub const LARGE: u8 = CLASSES as u8;
/// Bytes of a span record.
pub const RECORD_BYTES: usize = 128;
const _: () = assert!(FRAME_BYTES as u64 == records::FRAME_BYTES);
const _: () = assert!(BLOCK_FRAMES as u64 == records::BLOCK_FRAMES && LARGE == records::LARGE);
const _: () = assert!(RECORD_BYTES == records::span::BYTES);
const _: () = assert!(size_of::<Pageblock>() == records::pageblock::BYTES);
const _: () = assert!(size_of::<BlockWord>() == records::block_word::BYTES);
const _: () = {
    use records::pageblock::{DIRTY, FREE, LAZY};
    let [free, dirty, lazy] = Pageblock::MAPS;
    assert!(free == FREE && dirty == DIRTY && lazy == LAZY);
};
const _: () = {
    use records::block_word::{ALL, CLAIMED, DIRTY, FREE, LAZY, PARTIAL};
    let [free, dirty, lazy, all, partial, claimed] = BlockWord::WORDS;
    assert!(free == FREE && dirty == DIRTY && lazy == LAZY);
    assert!(all == ALL && partial == PARTIAL && claimed == CLAIMED);
};
/// Bytes of words beside a span record, with `harden=on`.
pub const STATES_BYTES: usize = MAX_OBJECTS * 4;

const GIB: usize = 1 << 30;
/// Frame numbers fit into 32 bits, and every address into the processor's address size.
const MAX_REGION: usize = 8 << 40;
const MIN_REGION: usize = 16 << 20;

impl Region {
    /// The state before [`Self::reserve`].
    pub const NONE: Self = Self {
        base: 0,
        blocks: 0,
        classes: 0,
        span_ids: 0,
        pageblocks: 0,
        words: 0,
        flags: 0,
        spans: 0,
        states: 0,
        max_spans: 0,
    };

    /// Reserves 16 times the RAM, or as much as limits and the kernel allow.
    ///
    /// # Errors
    /// Not even 16 MiB were available.
    pub fn reserve(hardened: bool) -> Result<Self, Errno> {
        let ram = process::memory_total().map_or(4 * GIB, |(ram, _)| ram);
        let mut size = ram
            .saturating_mul(16)
            .clamp(64 * GIB, MAX_REGION)
            .next_power_of_two();
        if let Some(limit) = process::soft_limit(process::Resource::AddressSpace) {
            // The rest of the limit is for the program's own mappings: code, stacks, files.
            size = size.min(limit / 4 * if hardened { 2 } else { 3 });
        }
        loop {
            size = size / BLOCK_BYTES * BLOCK_BYTES;
            match Self::reserve_exactly(size, hardened) {
                Err(error) if size / 2 < MIN_REGION => return Err(error),
                Err(_) => size = size / 8 * 5,
                done => return done,
            }
        }
    }

    fn reserve_exactly(size: usize, hardened: bool) -> Result<Self, Errno> {
        let blocks = size / BLOCK_BYTES;
        let frames = size / FRAME_BYTES;
        let page = vm::whole_pages;
        let max_spans = frames / 2;
        let states_bytes = if hardened { STATES_BYTES } else { 0 };
        let sizes = [
            page(frames),
            page(frames * 4),
            page(blocks * size_of::<Pageblock>()),
            page(blocks.div_ceil(64) * size_of::<BlockWord>()),
            page(blocks),
            page(max_spans * RECORD_BYTES),
            page(max_spans * states_bytes),
        ];
        // A small region means that a limit is set: there is no address space for trimming to 1 GiB.
        let align = if size < 4 * GIB { BLOCK_BYTES } else { GIB };
        let base = vm::reserve(size, align)?;
        let arrays_size = sizes.iter().sum();
        let arrays = vm::reserve(arrays_size, vm::page()).inspect_err(|_| vm::unmap(base, size))?;
        let mut at = arrays;
        let [classes, span_ids, pageblocks, words, flags, spans, states] = sizes.map(|bytes| {
            at += bytes;
            at - bytes
        });
        stats::note_range(Owner::Heap, base, size);
        stats::note_range(Owner::Records, arrays, arrays_size);
        let (blocks, max_spans) = (blocks as u32, max_spans as u32);
        // Any address may be looked up, so the whole array is made readable.
        // SAFETY: our own reservation.
        unsafe { vm::commit_read_only(classes, page(frames)) }.inspect_err(|_| {
            vm::unmap(base, size);
            vm::unmap(arrays, arrays_size);
        })?;
        Ok(Self {
            base,
            blocks,
            classes,
            span_ids,
            pageblocks,
            words,
            flags,
            spans,
            states: if hardened { states } else { 0 },
            max_spans,
        })
    }

    /// Where an observer finds the records. The caller adds the slabs.
    pub fn places(&self) -> Places {
        Places {
            base: self.base as u64,
            blocks: self.blocks.into(),
            classes: self.classes as u64,
            span_ids: self.span_ids as u64,
            pageblocks: self.pageblocks as u64,
            block_words: self.words as u64,
            spans: self.spans as u64,
            ..Places::default()
        }
    }

    /// The frame of an address in the region.
    #[inline]
    pub fn frame(&self, address: usize) -> Frame {
        Frame((address.wrapping_sub(self.base) / FRAME_BYTES) as u32)
    }

    /// Whether an address lies in the region.
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.blocks as usize * BLOCK_BYTES
    }

    /// The largest alignment for which an aligned frame number means an aligned address (`INV-REGION-1`).
    pub fn alignment(&self) -> usize {
        1 << self.base.trailing_zeros()
    }

    /// The address behind the last frame.
    pub fn end(&self) -> usize {
        self.base + self.blocks as usize * BLOCK_BYTES
    }

    /// The address of a frame.
    #[inline]
    pub fn address(&self, frame: Frame) -> usize {
        self.base + frame.0 as usize * FRAME_BYTES
    }

    /// Makes the array entries of the blocks `[first, first + count)` readable and writable, and with `access` the blocks
    /// too. A second call for the same blocks does no harm.
    ///
    /// # Errors
    /// `ENOMEM` under a limit; parts may have been opened, which does no harm either.
    pub fn open(&self, first: u32, count: u32, access: bool) -> Result<(), Errno> {
        let (first, count) = (first as usize, count as usize);
        let frames = BLOCK_FRAMES as usize;
        self.open_entries(self.classes, first * frames, count * frames, 1)?;
        self.open_entries(self.span_ids, first * frames, count * frames, 4)?;
        self.open_entries(self.pageblocks, first, count, size_of::<Pageblock>())?;
        self.open_entries(self.flags, first, count, 1)?;
        let words = first / 64..(first + count).div_ceil(64);
        self.open_entries(self.words, words.start, words.len(), size_of::<BlockWord>())?;
        if !access {
            return Ok(());
        }
        // SAFETY: the blocks lie in the reservation.
        unsafe { vm::commit(self.base + first * BLOCK_BYTES, count * BLOCK_BYTES) }
    }

    fn open_entries(
        &self,
        array: usize,
        first: usize,
        count: usize,
        size: usize,
    ) -> Result<(), Errno> {
        // SAFETY: a part of our own array, which begins and ends with whole pages.
        unsafe { vm::commit_around(array + first * size, count * size) }
    }

    /// Makes up to `count` span records from `first` on usable, with the words beside them. Returns the number of
    /// the first record that is not usable.
    ///
    /// # Errors
    /// `ENOMEM` under a limit.
    pub fn open_spans(&self, first: u32, count: u32) -> Result<u32, Errno> {
        let count = count.min(self.max_spans - first);
        if count > 0 {
            let (first, count) = (first as usize, count as usize);
            self.open_entries(self.spans, first, count, RECORD_BYTES)?;
            if self.states != 0 {
                self.open_entries(self.states, first, count, STATES_BYTES)?;
            }
        }
        Ok(first + count)
    }

    /// The class byte of a frame.
    ///
    /// # Safety
    /// The frame lies in the region; for a write, below its zone's opened end (`INV-REGION-2`).
    #[inline]
    pub unsafe fn class_of(&self, frame: Frame) -> &core::sync::atomic::AtomicU8 {
        // SAFETY: by contract the entry is mapped; all access is atomic.
        unsafe { &*((self.classes + frame.0 as usize) as *const _) }
    }

    /// The span index of a frame.
    ///
    /// # Safety
    /// The frame is below its zone's opened end (`INV-REGION-2`).
    #[inline]
    pub unsafe fn span_of(&self, frame: Frame) -> &core::sync::atomic::AtomicU32 {
        // SAFETY: as in `class_of`.
        unsafe { &*((self.span_ids + frame.0 as usize * 4) as *const _) }
    }

    /// The flags of a block: see [`flag`].
    ///
    /// # Safety
    /// The block is below its zone's opened end.
    pub unsafe fn flags(&self, block: Block) -> &core::sync::atomic::AtomicU8 {
        // SAFETY: as in `class_of`.
        unsafe { &*((self.flags + block.0 as usize) as *const _) }
    }

    /// The records of `count` pageblocks from `first` on, and their words.
    ///
    /// # Safety
    /// The caller holds the lock of the zone that owns them, `first` is a multiple of 64, and they
    /// have been opened.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn records(&self, first: u32, count: u32) -> (&mut [Pageblock], &mut [BlockWord]) {
        let blocks = self.pageblocks + first as usize * size_of::<Pageblock>();
        let words = self.words + first as usize / 64 * size_of::<BlockWord>();
        // SAFETY: zeroed memory is a valid record (`INV-ZONE-9`); by contract no other thread accesses it.
        unsafe {
            (
                core::slice::from_raw_parts_mut(blocks as *mut _, count as usize),
                core::slice::from_raw_parts_mut(words as *mut _, count.div_ceil(64) as usize),
            )
        }
    }

    /// Bytes of array entries in use for `blocks` opened blocks.
    pub fn array_bytes(&self, blocks: usize) -> usize {
        blocks * (BLOCK_FRAMES as usize * 5 + size_of::<Pageblock>()) + blocks.div_ceil(64) * 64
    }
}
