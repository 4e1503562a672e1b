//! Large allocations with `harden=on`.
//!
//! The part of the last page behind the requested size is a guard. It is checked when the allocation is freed or resized.
//! A freed allocation keeps its place for a while, without memory and without access: any use of it causes SIGSEGV. Its
//! frames count as frames that large allocations own and do not use ([`Pages::slack`]).
//!
//! ```text
//!  │ size bytes │ guard bytes │ guard page │      the last two are the `tail` of the span record
//! ```
//!
//! A guard page is a *closed* frame: without memory and access, by a mark in the page tables (Linux 6.13). The same mark
//! closes frames that go back to their zone. Frames that no allocation has had yet lie behind [`ZoneSlot::accessible`]
//! and have no access either. So frames get access when they are taken ([`Pages::give_access`]).
//!
//! - `INV-CLOSED-1`: a closed frame belongs to the thread that closed it, to a zone, or is a guard page; so no object and
//!   no requested byte lies in it.
//! - `INV-CLOSED-2`: a frame that was closed reads zero when it gets access again.
//!
//! [`ZoneSlot::accessible`]: crate::pages::frames::ZoneSlot

use super::Place;
use crate::base::message::Message;
use crate::base::stats;
use crate::pages::span::Span;
use crate::pages::{Pages, Settings};
use core::sync::atomic::Ordering;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_FRAMES, FRAME_BYTES, Frame};

/// The value of guard bytes behind the requested size.
pub const GUARD: u8 = 0xe7;
/// Most allocations that are kept from use at a time. Each costs two mappings.
const ENTRIES: usize = 32;
/// Larger allocations are not kept: releasing their memory is for workers (64 MiB).
const MOST_FRAMES: u32 = 16384;
/// All kept allocations together take at most this part of the address space.
const SHARE: u32 = 16;

/// Freed large allocations, first in, first out: a ring of `count` entries; the oldest is at `first`.
pub struct Kept {
    places: [Place; ENTRIES],
    first: usize,
    count: usize,
    frames: usize,
}

impl Kept {
    /// None.
    pub const NONE: Self = Self {
        places: [Place {
            head: Frame(0),
            frames: 0,
            blocks: 0,
        }; ENTRIES],
        first: 0,
        count: 0,
        frames: 0,
    };

    /// There is always space for one entry ([`Self::take_excess`]).
    fn put(&mut self, place: Place) {
        self.places[(self.first + self.count) % ENTRIES] = place;
        self.count += 1;
        self.frames += place.owned();
    }

    fn take(&mut self) -> Option<Place> {
        self.count = self.count.checked_sub(1)?;
        let place = self.places[self.first];
        self.first = (self.first + 1) % ENTRIES;
        self.frames -= place.owned();
        Some(place)
    }

    fn take_excess(&mut self, most_frames: usize) -> Option<Place> {
        (self.count == ENTRIES || self.frames > most_frames)
            .then(|| self.take())
            .flatten()
    }
}

impl Settings {
    /// Frames of a large allocation's guard page.
    pub(super) fn guard_frames(&self) -> u32 {
        self.has_guard_pages.into()
    }
}

impl Pages {
    /// Notes that a large allocation is for `size` bytes, and writes the guard.
    #[inline]
    pub fn guard_large(&self, span: &mut Span, size: usize) {
        if self.is_hardened() {
            span.tail = (span.frames as usize * FRAME_BYTES - size) as u16;
            let (start, count) = self.tail(span);
            // SAFETY: the end of the last frame, behind the bytes that the program may use.
            unsafe { start.write_bytes(GUARD, count) };
            if self.has_guard_pages {
                self.close_guard_pages_at(start as usize + count, 1);
            }
        }
    }

    /// Ends the process if the program wrote behind the requested bytes.
    #[inline]
    pub fn check_large(&self, span: &Span, found_by: &str) {
        if span.tail > 0 {
            self.check_tail(span, found_by);
        }
    }

    /// The guard bytes: the tail without the guard page.
    fn tail(&self, span: &Span) -> (*mut u8, usize) {
        let end = self.region().address(Frame(span.first + span.frames));
        let page = self.guard_frames() as usize * FRAME_BYTES;
        let count = span.tail as usize;
        ((end - count) as *mut u8, count - page)
    }

    /// Closes frames as guard pages. If that is refused, misuse beyond the guard bytes is not found.
    pub fn close_guard_pages_at(&self, address: usize, frames: usize) {
        // SAFETY: the frames belong to the caller's allocation or span, and no requested byte lies in them.
        let _ = unsafe { vm::close(address, frames * FRAME_BYTES) };
    }

    /// Gives access to frames that were just taken from their zone (`harden=on`). `false`: refused.
    #[inline]
    pub fn give_access(&self, first: Frame, frames: u32) -> bool {
        !self.is_hardened() || self.open_frames(first, frames)
    }

    #[cold]
    fn open_frames(&self, first: Frame, frames: u32) -> bool {
        let zone = self.zone_of(first.block());
        let (region, end) = (self.region(), first.0 + frames);
        let reached = zone.accessible.load(Ordering::Acquire);
        if end > reached {
            let (from, count) = (region.address(Frame(reached)), end - reached);
            // SAFETY: opened blocks of the reservation. The frames in between belong to other threads or to the zone:
            // their content does not change.
            let done = unsafe { vm::commit_around(from, count as usize * FRAME_BYTES) };
            if done.is_err() {
                return false;
            }
            zone.accessible.fetch_max(end, Ordering::Release);
        }
        if !self.has_guard_pages {
            return true;
        }
        let (address, bytes) = (region.address(first), frames as usize * FRAME_BYTES);
        // SAFETY: the caller's frames; nothing in them is needed yet.
        unsafe { vm::open(address, bytes).is_ok() || vm::remap_fresh(address, bytes).is_ok() }
    }

    /// Closes frames before they go back to their zone, unless there are so many that workers should release them.
    /// `true`: they are clean now.
    #[inline]
    pub fn close_frames(&self, first: Frame, frames: u32) -> bool {
        self.has_guard_pages && frames <= MOST_FRAMES && self.close_range(first, frames as usize)
    }

    #[cold]
    fn close_range(&self, first: Frame, frames: usize) -> bool {
        let bytes = frames * FRAME_BYTES;
        // SAFETY: the caller's frames, which no allocation has any more.
        let closed = unsafe { vm::close(self.region().address(first), bytes) };
        closed.inspect(|()| stats::count_released(bytes)).is_ok()
    }

    #[cold]
    fn check_tail(&self, span: &Span, found_by: &str) {
        let (start, count) = self.tail(span);
        // SAFETY: as in `guard_large`.
        let bytes = unsafe { core::slice::from_raw_parts(start, count) };
        let Some(at) = bytes.iter().position(|&byte| byte != GUARD) else {
            return;
        };
        let address = self.region().address(Frame(span.first));
        let size = start as usize - address;
        let line = Message::new()
            .text("write behind the end of ")
            .address(address)
            .text(", a large allocation");
        abort_by_guard(line, size, at, found_by)
    }

    /// Takes memory and access from a freed allocation, for a while. `false`: the caller must put it back at once.
    #[inline]
    pub(super) fn keep_from_use(&self, place: Place) -> bool {
        self.is_hardened() && place.frames <= MOST_FRAMES && self.keep(place)
    }

    #[cold]
    fn keep(&self, place: Place) -> bool {
        let closed = match self.has_guard_pages {
            true => self.close_range(place.head, place.owned()).then_some(true),
            false => self.forbid(place),
        };
        let Some(closed) = closed else { return false };
        self.slack.fetch_add(place.owned(), Ordering::Relaxed);
        if !closed {
            // There are too many mappings: the place is lost.
            return true;
        }
        let most = (self.region().blocks / SHARE * BLOCK_FRAMES) as usize;
        let mut excess = {
            let mut kept = self.kept.lock();
            kept.put(place);
            kept.take_excess(most)
        };
        while let Some(place) = excess {
            self.put_kept(place);
            excess = self.kept.lock().take_excess(most);
        }
        true
    }

    /// Takes memory and access from a place, by a mapping of its own. `None`: refused, and the place is as before.
    /// `Some(false)`: refused, and a part of the place may have no access.
    fn forbid(&self, place: Place) -> Option<bool> {
        let address = self.region().address(place.head);
        let bytes = place.owned() * FRAME_BYTES;
        // SAFETY: frames of an allocation that has just been freed, and that cannot be allocated before `put_kept`.
        if !unsafe { super::release_range(address, bytes) } {
            return None;
        }
        // SAFETY: as above.
        let closed = unsafe { vm::forbid(address, bytes) }.is_ok();
        // SAFETY: as above. If the allocation is several mappings, a part of it may be closed now.
        if !closed && unsafe { vm::commit(address, bytes) }.is_ok() {
            return None;
        }
        Some(closed)
    }

    /// Puts back all kept allocations.
    pub fn put_all_kept(&self) {
        for _ in 0..ENTRIES {
            let Some(oldest) = self.kept.lock().take() else {
                return;
            };
            self.put_kept(oldest);
        }
    }

    fn put_kept(&self, place: Place) {
        let address = self.region().address(place.head);
        // A closed place stays closed in its zone.
        let has_access = self.has_guard_pages
            // SAFETY: inside the region; no allocation has these frames.
            || unsafe { vm::commit(address, place.owned() * FRAME_BYTES) }.is_ok();
        if !has_access {
            // A limit was lowered meanwhile, or there are too many mappings: the place is lost.
            return;
        }
        self.slack.fetch_sub(place.owned(), Ordering::Relaxed);
        self.put_large(place, 0, false);
    }
}

/// Ends the process: byte `at` of the guard behind `size` bytes was written.
pub fn abort_by_guard(line: Message, size: usize, at: usize, found_by: &str) -> ! {
    line.text(", byte ")
        .number(size + at)
        .text(" of ")
        .number(size)
        .text(", found by ")
        .text(found_by)
        .abort()
}

#[cfg(test)]
mod tests;
