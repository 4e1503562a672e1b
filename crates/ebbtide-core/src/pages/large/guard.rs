//! Large allocations with `harden=on`.
//!
//! The part of the last page behind the requested size is a guard. It is checked when the allocation is freed or resized.
//! A freed allocation keeps its place for a while, without memory and without access: any use of it causes SIGSEGV. Its
//! frames count as frames that large allocations own and do not use ([`Pages::slack`]).

use super::Place;
use crate::base::message::Message;
use crate::pages::Pages;
use crate::pages::span::Span;
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

impl Pages {
    /// Notes that a large allocation is for `size` bytes, and writes the guard.
    #[inline]
    pub fn guard_large(&self, span: &mut Span, size: usize) {
        if self.is_hardened() {
            span.tail = (span.frames as usize * FRAME_BYTES - size) as u16;
            let (start, count) = self.tail(span);
            // SAFETY: the end of the last frame, behind the bytes that the program may use.
            unsafe { start.write_bytes(GUARD, count) };
        }
    }

    /// Ends the process if the program wrote behind the requested bytes.
    #[inline]
    pub fn check_large(&self, span: &Span, found_by: &str) {
        if span.tail > 0 {
            self.check_tail(span, found_by);
        }
    }

    fn tail(&self, span: &Span) -> (*mut u8, usize) {
        let end = self.region().address(Frame(span.first + span.frames));
        let count = span.tail as usize;
        ((end - count) as *mut u8, count)
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
        let address = self.region().address(place.head);
        let bytes = place.owned() * FRAME_BYTES;
        // SAFETY: frames of an allocation that has just been freed, and that cannot be allocated before `put_kept`.
        if !unsafe { super::release_range(address, bytes) } {
            return false;
        }
        // SAFETY: as above.
        let closed = unsafe { vm::forbid(address, bytes) }.is_ok();
        // SAFETY: as above. If the allocation is several mappings, a part of it may be closed now.
        if !closed && unsafe { vm::commit(address, bytes) }.is_ok() {
            return false;
        }
        self.slack.fetch_add(place.owned(), Ordering::Relaxed);
        if !closed {
            // There are too many mappings for either call: the place is lost.
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
        // SAFETY: inside the region; no allocation has these frames.
        if unsafe { vm::commit(address, place.owned() * FRAME_BYTES) }.is_err() {
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
