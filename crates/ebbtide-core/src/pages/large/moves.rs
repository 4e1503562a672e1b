//! Moves the pages of a large allocation to a larger place, and makes the old place an ordinary mapping again.
//!
//! Settings that the program made on its allocation (`madvise`, `mprotect`, `mlock`, a name) move with the pages, and also
//! stay at the old place.
//!
//! - `INV-LARGE-1`: a place that pages were moved away from becomes a fresh mapping before its frames are put back. If
//!   that is refused, the place is never used again.
//! - `INV-LARGE-2`: when an allocation of 16 MiB or more is put back, its memory is writable. A forked child has this
//!   memory with its content.

use super::{Large, OWN_BLOCKS_FRAMES, Place, double_free};
use crate::pages::Pages;
use crate::pages::region::flag;
use core::sync::atomic::Ordering;
use ebbtide_sys::features::MOVE_PAGES;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_FRAMES, Block, FRAME_BYTES, Frame};

/// From this size on pages are moved, not copied. A move costs two mappings until its target is released as a
/// whole.
const MOVE_BYTES: usize = 16 << 20;
/// Most moved places at a time; further allocations are copied.
const MAX_MOVES: usize = 1000;
/// In [`Span::moved_frames`]: the pages lie in several mappings, so they cannot be moved again.
const MOVED_TWICE: u32 = u32::MAX;

impl Pages {
    /// Whether the pages of an allocation can be moved. They must lie in one mapping (two after a move; the third
    /// time they are copied), and there must not be too many moved places yet. With guard pages they are copied, so that
    /// a use of the old address is found.
    pub(super) fn can_move(&self, head: Frame, bytes: usize) -> bool {
        let moved = self.large_span(head).moved_frames;
        let address = self.region().address(head);
        let last = address + bytes == self.region().end();
        bytes >= MOVE_BYTES
            && !self.has_guard_pages
            && moved != MOVED_TWICE
            && !vm::is_locked()
            && MOVE_PAGES.may_work()
            && !self.config.basic_syscalls
            && self.moves.load(Ordering::Relaxed) < MAX_MOVES
            && !last
            && pieces(moved, bytes).all(|(at, len)| {
                // SAFETY: the range is the allocation's, and the reservation continues behind it.
                unsafe { vm::is_one_mapping(address + at, len) }
            })
    }

    /// Moves the pages to a larger place.
    pub(super) fn move_large(&self, head: Frame, bytes: usize, size: usize) -> Option<usize> {
        let region = self.region();
        let Large { address: to, .. } = self.take_large(size, FRAME_BYTES)?;
        let from = region.address(head);
        let moved = self.large_span(head).moved_frames;
        let mut done = 0;
        for (at, len) in pieces(moved, bytes) {
            // SAFETY: both are live allocations of ours, the new one holds nothing yet and is larger, and after an
            // error it is never used again.
            let result = unsafe { vm::move_pages(from + at, to + at, len) };
            if MOVE_PAGES.latch(result).is_err() {
                return self.copy_after_failed_move(from, to, done, bytes, size, head);
            }
            done += len;
        }
        self.mark_moved(to, done);
        // Two mappings after the second move.
        let frames = (done / FRAME_BYTES) as u32;
        let moved_frames = if moved > 0 { MOVED_TWICE } else { frames };
        self.large_span(region.frame(to)).moved_frames = moved_frames;
        self.give_up_large(head, false)
            .unwrap_or_else(|| double_free(region, head));
        Some(to)
    }

    /// The kernel may have unmapped the target, and another mapping may be there now. So the target is never
    /// touched again. It is lost, except for the `done` bytes at its start, which hold content. This process
    /// does not try moves again.
    #[cold]
    fn copy_after_failed_move(
        &self,
        from: usize,
        to: usize,
        done: usize,
        bytes: usize,
        size: usize,
        head: Frame,
    ) -> Option<usize> {
        let Some(Large { address: fresh, .. }) = self.take_large(size, FRAME_BYTES) else {
            // SAFETY: the moved pages are in the target; the source is mapped and reads zero there.
            unsafe { core::ptr::copy_nonoverlapping(to as *const u8, from as *mut u8, done) };
            return None;
        };
        // SAFETY: each part is copied from its current place to a fresh allocation that is large enough.
        unsafe {
            core::ptr::copy_nonoverlapping(to as *const u8, fresh as *mut u8, done);
            let (rest, target) = ((from + done) as *const u8, (fresh + done) as *mut u8);
            core::ptr::copy_nonoverlapping(rest, target, bytes - done);
        }
        // Nothing is known of the pages that moved and came back.
        self.large_span(head).tail = 0;
        self.give_up_large(head, true)
            .unwrap_or_else(|| double_free(self.region(), head));
        Some(fresh)
    }

    /// Notes that blocks lie in a mapping of their own now. When they are released, a fresh mapping replaces it.
    /// (See `release`.)
    fn mark_moved(&self, address: usize, bytes: usize) {
        let region = self.region();
        let (first, last) = (region.frame(address), region.frame(address + bytes - 1));
        let mut flags = flag::MOVED | flag::MOVE;
        for block in first.block().0..=last.block().0 {
            // SAFETY: the blocks are opened.
            let before = unsafe { region.flags(Block(block)) }.fetch_or(flags, Ordering::Relaxed);
            if (flags & !before) & flag::MOVE != 0 {
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            flags = flag::MOVED;
        }
    }

    /// Puts back a place whose content is not needed: as a fresh mapping (`INV-LARGE-1`), or never.
    pub(super) fn put_fresh(&self, place: Place) {
        let Place { head, frames, .. } = place;
        let whole = place.blocks * BLOCK_FRAMES;
        // Up to the end of the last block that it owns whole, or of its tail.
        let end = match frames > whole {
            true => frames,
            false => frames.next_multiple_of(BLOCK_FRAMES),
        };
        let address = self.region().address(head);
        // SAFETY: the allocation's frames, and its slack; their content is not needed.
        if unsafe { vm::remap_fresh(address, end as usize * FRAME_BYTES) }.is_err() {
            // The place is lost. The next one would be lost too.
            MOVE_PAGES.refuse();
            self.slack.fetch_add(place.owned(), Ordering::Relaxed);
            return;
        }
        self.note_fresh_blocks(head.block(), end.min(whole) / BLOCK_FRAMES);
        if end > whole {
            self.note_fresh_part(Frame(head.0 + whole), end - whole);
        }
        self.put_large(place, 0, false);
    }

    /// Undoes the settings that the program may have made on the frames `[from, end)` of an allocation of `frames`
    /// (`INV-LARGE-2`). Libc unmaps such memory, so programs do not undo the settings themselves. `false`: refused.
    pub(super) fn undo_advice(&self, head: Frame, from: u32, end: u32, frames: u32) -> bool {
        if frames < OWN_BLOCKS_FRAMES || from >= end {
            return true;
        }
        let address = self.region().address(Frame(head.0 + from));
        // SAFETY: frames of an allocation that was just freed, or is about to be cut off.
        unsafe { vm::make_ordinary(address, (end - from) as usize * FRAME_BYTES) }
    }
}

/// The mappings in which an allocation's first `bytes` lie, as offset and length: the part that was moved before,
/// and the rest.
fn pieces(moved_frames: u32, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = (moved_frames as usize * FRAME_BYTES).min(bytes);
    let both = [(0, first), (first, bytes - first)];
    both.into_iter().filter(|&(_, len)| len > 0)
}
