//! Large allocations: whole frames straight from a zone.
//!
//! Below 2 MiB an allocation lies inside one pageblock. From 2 MiB up it begins with whole pageblocks. Up to 16 MiB, the
//! rest of its last block goes to other runs, because a huge page there would be wasted. Above 16 MiB, the allocation owns
//! all its blocks. While the region is less than half used, it also owns as much clean address space behind them to grow
//! into.
//!
//! ```text
//!   blocks = 0          [..tail..]                 a run inside a block
//!   frames > blocks     [block][block][tail..]     the rest of the last block belongs to other runs
//!   frames <= blocks    [block][block][slack ]     whole blocks, used up to `frames`
//! ```
//!
//! An allocation begins and ends with a whole page of the kernel. So all that the program or Ebbtide does to its pages
//! concerns no other allocation.
//!
//! Only the head frame has a class byte ([`LARGE`]) and a span record. The thread that exchanges the byte for 0 has freed
//! the allocation, so a second `free` is always found.
//!
//! Growing tries, in order: the slack, free neighbours, moving the pages to a new place (mremap), copying.

pub mod guard;
mod moves;

use crate::base::message::Message;
use crate::base::size_class::{CLASS, MAX_SMALL, class_of};
use crate::base::stats;
use crate::pages::region::{LARGE, Region};
use crate::pages::span::{self, Span};
use crate::pages::{Pages, Settings};
use core::sync::atomic::Ordering;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, FRAME_BYTES, Frame};

/// Below this size, an allocation that shrinks to less than half is copied.
const SHRINK_BYTES: usize = 256 << 10;
/// A shrinking allocation releases a tail of at least this many frames within its last block.
const TAIL_FRAMES: u32 = 16;
/// From this many frames on (16 MiB) an allocation owns its last block whole, and slack.
const OWN_BLOCKS_FRAMES: u32 = 4096;

/// Larger requests are compared with the machine's memory.
const UNCHECKED_BYTES: usize = 64 << 20;

/// A fresh large allocation.
pub struct Large {
    /// Its address.
    pub address: usize,
    /// Whether it reads zero.
    pub clean: bool,
}

/// The result of a request to resize a large allocation.
pub enum Resized {
    /// The allocation is now at this address.
    At(usize),
    /// No other place is free for it now.
    NoRoom,
    /// The caller must copy it.
    Never,
}

/// The place of a large allocation.
#[derive(Clone, Copy)]
pub struct Place {
    head: Frame,
    frames: u32,
    blocks: u32,
}

impl Place {
    /// Frames that it owns. Unused frames behind those in use may also have old content.
    fn owned(self) -> usize {
        self.frames.max(self.blocks * BLOCK_FRAMES) as usize
    }
}

impl Pages {
    /// Takes `size` bytes (above 0) in whole frames at a multiple of `align` (a power of two).
    pub fn take_large(&self, size: usize, align: usize) -> Option<Large> {
        let frames = self.large_frames(size);
        let align_frames = ((align / FRAME_BYTES) as u32).max(vm::page_frames());
        let region = self.region();
        let is_run = frames < BLOCK_FRAMES && align_frames <= BLOCK_FRAMES;
        if is_run && let Some(first) = self.take_spare(frames, align_frames) {
            return Some(Large {
                address: region.address(first),
                clean: false,
            });
        }
        let index = self.take_record()?;
        let taken = if is_run {
            let run = self.take_run(frames, align_frames);
            run.map(|run| (run.first, 0, run.clean))
        } else {
            self.take_extent(frames, align_frames.div_ceil(BLOCK_FRAMES))
        };
        let Some((first, blocks, clean)) = taken else {
            self.put_record(index);
            return None;
        };
        // SAFETY: the record and the frames belong to this allocation, known to no other thread yet.
        unsafe {
            let span = span::record(region, index);
            (span.class, span.first, span.frames, span.blocks) = (0, first.0, frames, blocks);
            (span.moved_frames, span.tail) = (0, 0);
            span.forget_sample();
            self.guard_large(span, size);
            self.slack.fetch_add(span.slack(), Ordering::Relaxed);
            region.span_of(first).store(index, Ordering::Relaxed);
            region.class_of(first).store(LARGE, Ordering::Release);
        }
        let address = region.address(first);
        Some(Large { address, clean })
    }

    /// Takes whole blocks. The rest of the last block goes to other runs, or slack is added. Returns the first
    /// frame, the number of blocks owned, and whether all frames are clean.
    fn take_extent(&self, frames: u32, align_blocks: u32) -> Option<(Frame, u32, bool)> {
        let blocks = frames.div_ceil(BLOCK_FRAMES);
        let owns_last = frames >= OWN_BLOCKS_FRAMES;
        let has_slack = owns_last && self.has_address_space();
        let slack = if has_slack { blocks } else { 0 };
        let extent = self.take_blocks(blocks, align_blocks, slack)?;
        let first = extent.first.first_frame();
        if !self.give_access(first, frames) {
            self.put_blocks(extent.first, extent.blocks, 0);
            return None;
        }
        if owns_last {
            return Some((first, extent.blocks, extent.clean));
        }
        let rest = blocks * BLOCK_FRAMES - frames;
        if rest > 0 {
            let first_rest = Frame(first.0 + frames);
            // A huge page makes the rest resident together with its block. The rest then counts as dirty, so that
            // it is released if no allocation takes it.
            let dirty = !extent.clean || self.may_be_huge(first_rest);
            self.put_run(first_rest, rest, if dirty { rest } else { 0 });
        }
        Some((first, frames / BLOCK_FRAMES, extent.clean))
    }

    /// Whether less than half of the address space has been opened.
    fn has_address_space(&self) -> bool {
        let zones = self.live_zones().iter();
        let opened: u32 = zones.map(|zone| zone.lock.lock().state.opened()).sum();
        opened * 2 < self.region().blocks
    }

    /// Whether a request should be tried: not if it exceeds all memory of the machine, unless the machine always
    /// overcommits.
    pub fn grants(&self, size: usize, align: usize) -> bool {
        let limit = self.request_limit.max(UNCHECKED_BYTES);
        size <= self.region().blocks as usize * ebbtide_zone::BLOCK_BYTES
            && align <= self.region().alignment()
            && (size <= limit || !self.config.basic_syscalls && overcommits())
    }
}

impl Settings {
    /// Frames of an allocation of `size` bytes: whole pages of the kernel, with its guard page.
    fn large_frames(&self, size: usize) -> u32 {
        (vm::whole_pages(size) / FRAME_BYTES) as u32 + self.guard_frames()
    }

    #[allow(clippy::mut_from_ref)]
    fn large_span(&self, head: Frame) -> &mut Span {
        // SAFETY: a head has a record, which belongs to the allocation's owner: the caller.
        unsafe { span::of_frame(self.region(), head) }.1
    }

    /// Usable bytes of a large allocation. A small sampled object has those of other objects of its size, as far as its frames go.
    pub fn large_bytes(&self, head: Frame) -> usize {
        let span = self.large_span(head);
        let bytes = span.frames as usize * FRAME_BYTES - span.tail as usize;
        if let Some(sample) = span.sample()
            && sample.size <= MAX_SMALL as u64
            && !self.is_hardened()
        {
            return bytes.min(CLASS[class_of(sample.size as usize)].size as usize);
        }
        bytes
    }
}

impl Pages {
    /// Returns the frames of a large allocation to their zone. `touched` is false when its pages have been moved
    /// away. Returns the allocation's bytes, as far as they count as freed. `None`: another thread just freed it.
    pub fn give_up_large(&self, head: Frame, touched: bool) -> Option<usize> {
        let region = self.region();
        // SAFETY: a head's frame is opened.
        let class = unsafe { region.class_of(head) };
        class
            .compare_exchange(LARGE, 0, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        if self.is_abandoned(head) {
            // This process may hand the record out again: another thread of the parent took it after the fork's
            // copy began.
            return Some(0);
        }
        // SAFETY: after the exchange this thread alone owns the allocation and its record.
        let (index, span) = unsafe { span::of_frame(region, head) };
        if touched {
            self.check_large(span, "free");
        }
        self.end_sample(span);
        self.slack.fetch_sub(span.slack(), Ordering::Relaxed);
        let (frames, blocks, moved) = (span.frames, span.blocks, span.moved_frames > 0);
        let bytes = frames as usize * FRAME_BYTES;
        if touched && blocks == 0 && !moved && self.keep_spare(head, frames) {
            return Some(bytes);
        }
        self.put_record(index);
        self.count_large_freed(frames);
        let place = Place {
            head,
            frames,
            blocks,
        };
        if !touched || !self.undo_advice(head, 0, frames, frames) {
            self.put_fresh(place);
        } else if moved || !self.keep_from_use(place) {
            self.put_large(place, 0, true);
        }
        Some(bytes)
    }

    /// Counts freed frames of large allocations, for the next tick.
    pub(super) fn count_large_freed(&self, frames: u32) {
        let bytes = frames as usize * FRAME_BYTES;
        stats::large_freed(bytes);
        self.count_freed(bytes);
    }

    /// Returns the frames of an allocation from `from` on. With `dirty`, all of them were touched. Slack is clean
    /// in any case.
    fn put_large(&self, place: Place, from: u32, dirty: bool) {
        let Place { head, frames, .. } = place;
        let whole = place.blocks * BLOCK_FRAMES;
        let put_run = |first: u32, end: u32| {
            if first < end {
                let touched = if dirty { end - first } else { 0 };
                self.put_run(Frame(head.0 + first), end - first, touched);
            }
        };
        // The tail behind the blocks, or the only run.
        put_run(from.max(whole), frames);
        // The kept part of a block stays with the allocation; the rest of the block is returned.
        let first = from.next_multiple_of(BLOCK_FRAMES).min(whole);
        put_run(from, first);
        if first < whole {
            let count = (whole - first) / BLOCK_FRAMES;
            let used = frames.saturating_sub(first).div_ceil(BLOCK_FRAMES);
            let touched = if dirty { used.min(count) } else { 0 };
            self.put_blocks(Frame(head.0 + first).block(), count, touched);
        }
    }

    /// Resizes a large allocation to `size` bytes.
    pub fn try_resize(&self, head: Frame, size: usize) -> Resized {
        if size > self.region().blocks as usize * BLOCK_BYTES {
            return Resized::Never;
        }
        let frames = self.large_frames(size);
        let (old, before) = {
            let span = self.large_span(head);
            self.check_large(span, "realloc");
            (span.frames, span.slack())
        };
        if frames < old && !self.shrink(head, frames) {
            return Resized::Never;
        }
        if frames <= old || self.grow_in_place(head, frames).is_some() {
            let span = self.large_span(head);
            if !self.is_abandoned(head) {
                let more = span.slack().wrapping_sub(before);
                self.slack.fetch_add(more, Ordering::Relaxed);
            }
            self.guard_large(span, size);
            return Resized::At(self.region().address(head));
        }
        let bytes = old as usize * FRAME_BYTES;
        if !self.can_move(head, bytes) || !self.grants(size, FRAME_BYTES) {
            return Resized::Never;
        }
        self.move_large(head, bytes, size)
            .map_or(Resized::NoRoom, Resized::At)
    }

    /// `None`: no space is free here.
    fn grow_in_place(&self, head: Frame, frames: u32) -> Option<()> {
        let region = self.region();
        let zone = self.zone_of(head.block());
        let span = self.large_span(head);
        let whole = span.blocks * BLOCK_FRAMES;
        if span.frames > whole {
            let tail = Frame(head.0 + whole);
            let (old, new) = (span.frames - whole, frames - whole);
            if tail.in_block() + new > BLOCK_FRAMES {
                return None;
            }
            zone.with(region, |zone| zone.grow_run(tail, old, new))?;
        } else {
            let (old, new) = (span.blocks, frames.div_ceil(BLOCK_FRAMES));
            if new > old {
                zone.with(region, |zone| zone.grow_blocks(head.block(), old, new))?;
                span.blocks = new;
            }
        }
        // From the old guard page on. If access is refused, the caller copies, and the new frames are lost.
        let from = span.frames - self.guard_frames();
        if !self.give_access(Frame(head.0 + from), frames - from) {
            return None;
        }
        self.allowance.count_fresh(u64::from(frames - span.frames));
        span.frames = frames;
        Some(())
    }

    /// Cuts the tail off and releases its memory. `false`: the tail is so large that copying is better.
    fn shrink(&self, head: Frame, frames: u32) -> bool {
        let span = self.large_span(head);
        if frames < span.frames / 2 && (frames as usize * FRAME_BYTES) < SHRINK_BYTES {
            return false;
        }
        let (old, blocks) = (span.frames, span.blocks);
        if !self.undo_advice(head, frames, old, old) {
            return false;
        }
        let owns_last = old <= blocks * BLOCK_FRAMES && frames >= OWN_BLOCKS_FRAMES;
        let keep = if owns_last {
            frames.next_multiple_of(BLOCK_FRAMES)
        } else {
            frames
        };
        (span.frames, span.blocks) = (frames, blocks.min(keep / BLOCK_FRAMES));
        let place = Place {
            head,
            frames: old,
            blocks,
        };
        self.put_large(place, keep, true);
        self.count_large_freed(old.saturating_sub(keep));
        let rest = keep.min(old).saturating_sub(frames);
        if rest >= TAIL_FRAMES {
            let address = self.region().address(Frame(head.0 + frames));
            // SAFETY: frames of this allocation behind the part that the program keeps. If the release is refused,
            // they stay.
            unsafe { release_range(address, rest as usize * FRAME_BYTES) };
        }
        true
    }
}

/// Whether the machine grants requests beyond all its memory: `vm.overcommit_memory` is 1.
fn overcommits() -> bool {
    ebbtide_sys::file::read_number(c"/proc/sys/vm/overcommit_memory") == Some(1)
}

/// Releases a range and counts it. `false`: refused.
///
/// # Safety
/// The frames cannot be allocated meanwhile, and their content is not needed.
pub unsafe fn release_range(address: usize, bytes: usize) -> bool {
    // SAFETY: by contract.
    let released = unsafe { vm::release(address, bytes) };
    released.inspect(|()| stats::count_released(bytes)).is_ok()
}

/// Ends the process over a large allocation that was freed twice.
pub fn double_free(region: &Region, head: Frame) -> ! {
    Message::new()
        .text("double free of ")
        .address(region.address(head))
        .text(", a large allocation")
        .abort()
}

#[cfg(test)]
mod tests;
