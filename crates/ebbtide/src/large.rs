//! Large allocations: whole frames straight from a zone.
//!
//! Up to 511 frames lie inside one pageblock; from 2 MiB up they own whole pageblocks, 2 MiB-aligned,
//! with address space behind them to grow into while the region is less than half used. Only the head
//! frame has a class byte ([`LARGE`]) and a span record; whoever exchanges the byte for 0 has freed the
//! allocation, so a second `free` is always found.
//!
//! Growing tries, in order: the slack, free neighbours, moving the pages to a new place
//! (mremap), copying.

use crate::heap::Heap;
use crate::region::Region;
use crate::report::Line;
use crate::span::{self, Span};
use core::sync::atomic::Ordering;
use ebbtide_sys::features::MOVE_PAGES;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, Block, FRAME_BYTES, Frame};

/// The class byte of a large allocation's head frame.
pub const LARGE: u8 = u8::MAX;

/// From this size on pages are moved, not copied.
const MOVE_BYTES: usize = 256 << 10;
/// A shrinking allocation releases a tail of at least this many frames within its last block.
const TAIL_FRAMES: u32 = 16;
/// Requests above this are compared with what the machine has.
const UNCHECKED_BYTES: usize = 64 << 20;

/// A fresh large allocation.
pub struct Large {
    /// Its address.
    pub address: usize,
    /// Whether it reads zero.
    pub clean: bool,
}

/// What stands at an address that is not an object of a class.
pub enum Found {
    /// A large allocation's head.
    Head(Frame),
    /// Nothing that can be freed.
    Nothing,
}

impl Heap {
    /// Allocates `size` bytes (above 0) in whole frames at a multiple of `align` (a power of two).
    pub fn allocate_large(&self, size: usize, align: usize) -> Option<Large> {
        crate::fork::notice(self);
        let taken = self.try_large(size, align).or_else(|| {
            crate::release::release_everything(self);
            self.try_large(size, align)
        });
        self.tick();
        taken
    }

    fn try_large(&self, size: usize, align: usize) -> Option<Large> {
        if size > self.most() {
            return None;
        }
        let frames = size.div_ceil(FRAME_BYTES) as u32;
        let align_frames = (align / FRAME_BYTES).max(1) as u32;
        let region = self.region();
        let index = span::take_record(&self.records, region)?;
        let taken = if frames < BLOCK_FRAMES && align_frames <= BLOCK_FRAMES {
            let run = self.take_run(frames, align_frames);
            run.map(|run| (run.first, 0, run.clean))
        } else {
            let blocks = frames.div_ceil(BLOCK_FRAMES);
            let slack = if self.has_address_space() { blocks } else { 0 };
            let extent = self.take_blocks(blocks, align_frames.div_ceil(BLOCK_FRAMES), slack);
            extent.map(|extent| (extent.first.first_frame(), extent.blocks, extent.clean))
        };
        let Some((first, blocks, clean)) = taken else {
            span::put_record(&self.records, region, index);
            return None;
        };
        // SAFETY: the record and the frames are this allocation's, known to nobody else yet.
        unsafe {
            let span = span::record(region, index);
            (span.class, span.first, span.frames, span.blocks) = (0, first.0, frames, blocks);
            span.was_clean = clean;
            self.slack.fetch_add(span.slack(), Ordering::Relaxed);
            region.span_of(first).store(index, Ordering::Relaxed);
            region.class_of(first).store(LARGE, Ordering::Release);
        }
        Some(Large {
            address: region.address(first),
            clean,
        })
    }

    /// The largest request to be granted now.
    fn most(&self) -> usize {
        let region_bytes = self.region().blocks as usize * BLOCK_BYTES;
        let limit = self.settings().request_limit;
        if limit >= region_bytes || overcommits() {
            region_bytes
        } else {
            limit.max(UNCHECKED_BYTES)
        }
    }

    /// Whether less than half of the address space has been opened.
    fn has_address_space(&self) -> bool {
        let opened: u64 = self
            .live_zones()
            .iter()
            .map(|zone| u64::from(zone.lock.lock().state.opened()))
            .sum();
        opened * 2 < u64::from(self.region().blocks)
    }

    /// Looks up an address that has no class.
    pub fn find_large(&self, address: usize) -> Found {
        let region = self.region();
        if !region.contains(address) || !address.is_multiple_of(FRAME_BYTES) {
            return Found::Nothing;
        }
        let frame = region.frame(address);
        // SAFETY: the whole array is readable from the start on.
        match unsafe { region.class_of(frame) }.load(Ordering::Acquire) {
            LARGE => Found::Head(frame),
            _ => Found::Nothing,
        }
    }

    fn large_span(&self, head: Frame) -> &mut Span {
        // SAFETY: a head has a record, which belongs to the allocation's owner: the caller.
        unsafe {
            let index = self.region().span_of(head).load(Ordering::Relaxed);
            span::record(self.region(), index)
        }
    }

    /// Usable bytes of a large allocation.
    pub fn large_bytes(&self, head: Frame) -> usize {
        self.large_span(head).frames as usize * FRAME_BYTES
    }

    /// Frees a large allocation. `false`: somebody else just did.
    pub fn free_large(&self, head: Frame) -> bool {
        crate::fork::notice(self);
        let region = self.region();
        // SAFETY: a head's frame is opened.
        let class = unsafe { region.class_of(head) };
        if class
            .compare_exchange(LARGE, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // SAFETY: as in `large_span`; after the exchange this thread alone owns it.
        let index = unsafe { region.span_of(head) }.load(Ordering::Relaxed);
        let (frames, blocks) = {
            let span = self.large_span(head);
            (span.frames, span.blocks)
        };
        let dirty = self.large_span(head).dirty_blocks(frames.div_ceil(BLOCK_FRAMES));
        self.slack.fetch_sub(self.large_span(head).slack(), Ordering::Relaxed);
        span::put_record(&self.records, region, index);
        if blocks == 0 {
            self.put_run(head, frames, frames);
        } else {
            self.put_blocks(head.block(), blocks, dirty);
        }
        self.tick();
        true
    }

    /// Makes a large allocation `size` bytes long. `None`: it must be copied by the caller.
    pub fn resize_large(&self, head: Frame, size: usize) -> Option<usize> {
        let frames = u32::try_from(size.div_ceil(FRAME_BYTES)).ok()?;
        let before = self.large_span(head).slack();
        let resized = self.resize_in_place(head, frames);
        if resized == Some(true) {
            let after = self.large_span(head).slack();
            self.slack.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            return Some(self.region().address(head));
        }
        let bytes = self.large_bytes(head);
        if resized.is_none()
            || bytes < MOVE_BYTES
            || !MOVE_PAGES.may_work()
            || self.settings().config.basic_syscalls
        {
            return None;
        }
        self.move_large(head, bytes, size)
    }

    /// `Some(true)`: done; `Some(false)`: there is no room here; `None`: better copied.
    fn resize_in_place(&self, head: Frame, frames: u32) -> Option<bool> {
        let span = self.large_span(head);
        match frames.cmp(&span.frames) {
            core::cmp::Ordering::Equal => Some(true),
            core::cmp::Ordering::Greater => Some(self.grow_in_place(head, frames)),
            core::cmp::Ordering::Less => self.shrink(head, frames).then_some(true),
        }
    }

    fn grow_in_place(&self, head: Frame, frames: u32) -> bool {
        let region = self.region();
        let zone = self.zone_of(head.block());
        let span = self.large_span(head);
        let old = span.frames;
        let grown = if span.blocks == 0 {
            head.in_block() + frames <= BLOCK_FRAMES
                && zone
                    .with(region, |zone| zone.grow_run(head, old, frames))
                    .is_some()
        } else {
            let blocks = frames.div_ceil(BLOCK_FRAMES);
            let grown = blocks <= span.blocks
                || zone
                    .with(region, |zone| {
                        zone.grow_blocks(head.block(), span.blocks, blocks)
                    })
                    .is_some_and(|clean| {
                        (span.was_clean, span.blocks) = (span.was_clean && clean, blocks);
                        true
                    });
            grown
        };
        if grown {
            span.frames = frames;
        }
        grown
    }

    /// Cuts the tail off and gives its memory back. `false`: so much that copying is better.
    fn shrink(&self, head: Frame, frames: u32) -> bool {
        let span = self.large_span(head);
        if frames < span.frames / 2 && (frames as usize * FRAME_BYTES) < MOVE_BYTES {
            return false;
        }
        let old = span.frames;
        if span.blocks == 0 {
            span.frames = frames;
            self.put_run(Frame(head.0 + frames), old - frames, old - frames);
            return true;
        }
        let (blocks, old_blocks) = (
            frames.div_ceil(BLOCK_FRAMES).max(1),
            old.div_ceil(BLOCK_FRAMES),
        );
        let first = Block(head.block().0 + blocks);
        let cut = span.blocks - blocks;
        (span.frames, span.blocks) = (frames, blocks);
        if cut > 0 {
            let dirty = if self.large_span(head).was_clean { old_blocks - blocks } else { cut };
            self.put_blocks(first, cut, dirty);
        }
        let tail = old.min(blocks * BLOCK_FRAMES) - frames;
        if tail >= TAIL_FRAMES {
            let address = self.region().address(Frame(head.0 + frames));
            // SAFETY: frames of this allocation behind what the program keeps.
            unsafe { crate::release::release_range(address, tail as usize * FRAME_BYTES) };
        }
        self.tick();
        true
    }

    /// Moves the pages to a larger place.
    fn move_large(&self, head: Frame, bytes: usize, size: usize) -> Option<usize> {
        let region = self.region();
        let Large { address: to, .. } = self.allocate_large(size, FRAME_BYTES)?;
        let from = region.address(head);
        // SAFETY: both are live allocations of ours; the new one holds nothing yet and is larger.
        if MOVE_PAGES
            .latch(unsafe { vm::move_pages(from, to, bytes) })
            .is_err()
        {
            // SAFETY: as above.
            unsafe {
                core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
            }
            self.free_large(head);
            return Some(to);
        }
        self.mark_moved(to, bytes);
        self.free_moved(head);
        Some(to)
    }

    /// Frees an allocation whose pages have left: its frames are clean.
    fn free_moved(&self, head: Frame) {
        let region = self.region();
        // SAFETY: as in `free_large`; the program gave the allocation to `realloc`, so it is ours.
        let class = unsafe { region.class_of(head) };
        if class
            .compare_exchange(LARGE, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            double_free(region, head);
        }
        let (index, frames, blocks) = {
            let span = self.large_span(head);
            // SAFETY: as above.
            let index = unsafe { region.span_of(head) }.load(Ordering::Relaxed);
            (index, span.frames, span.blocks)
        };
        let dirty = self.large_span(head).dirty_blocks(0);
        self.slack.fetch_sub(self.large_span(head).slack(), Ordering::Relaxed);
        span::put_record(&self.records, region, index);
        if blocks == 0 {
            self.put_run(head, frames, 0);
        } else {
            self.put_blocks(head.block(), blocks, dirty);
        }
    }

    /// Notes that blocks lie in a mapping of their own now, which a fresh mapping heals when they
    /// are released. (See `release`.)
    fn mark_moved(&self, address: usize, bytes: usize) {
        let region = self.region();
        let first = region.frame(address).block().0;
        for block in first..=region.frame(address + bytes - 1).block().0 {
            // SAFETY: the blocks are opened.
            unsafe { region.moved(Block(block)) }.store(1, Ordering::Relaxed);
        }
    }
}

/// Ends the process over a large allocation that was freed twice.
pub fn double_free(region: &Region, head: Frame) -> ! {
    Line::new()
        .text("double free of ")
        .address(region.address(head))
        .text(", a large allocation")
        .abort()
}

/// Whether the machine grants requests above all its memory: `vm.overcommit_memory` is 1.
fn overcommits() -> bool {
    ebbtide_sys::file::read_number(c"/proc/sys/vm/overcommit_memory") == Some(1)
}
