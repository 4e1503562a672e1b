//! `harden=on`: finds heap misuse when it happens, or soon after.
//!
//! The fast paths do not know this mode. Their limits stay 0, as in the portable mode, so every call takes the slow paths
//! of the crate `ebbtide`. They call this module for objects of a class. Large allocations are handled in
//! [`crate::pages::large::guard`], requests for 0 bytes in [`empty`].
//!
//! ```text
//!  malloc(n)   a place for 32 + n + 32 bytes ──▶ its word: live, 32, n ──▶ guard bytes on both sides of the n
//!  free        the word: freed ──▶ guards read ──▶ poisoned ──▶ quarantine, first in, first out
//!              ──▶ poison read ──▶ caches
//! ```
//!
//! A freed paged place is closed instead of poisoned: memory and access are taken from it. That costs two system calls,
//! so only a few places are closed in each step of the clock; the others are poisoned.
//!
//! A *place* is an object as the rooms and caches know it: a slot of a span. The program's object lies inside of it:
//!
//! ```text
//!  small     │ 32 guard │ n bytes │ guard ≥ 32 │
//!  paged     │ page without access │ guard, 0 or more │ n bytes │ < align │ page without access │
//! ```
//!
//! Paged places serve requests that fill most of their pages, where the kernel has guard pages. The pages without access
//! are there from the span's first moment to its last, so they cost no system call per request.
//!
//! Each place has a word outside of it. [`STATES_BYTES`] of words lie beside each span record. A [`Word`] is:
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | never | never handed out | initial state; the words of a record stay when it serves another span |
//! | freed | any thread's second `free` sees it | the thread that exchanges it for a live word: it has freed the object |
//! | live | the requested bytes, and the bytes in front of them | the thread that allocates the object, or resizes it in place |
//!
//! - `INV-HARDEN-1`: a word says live from before the object is handed out until the object is freed.
//! - `INV-HARDEN-2`: an object in a [`quarantine`] is in no span, so its pages are not released. It is closed, or its poison
//!   is there unless the program wrote to it. Nothing is assumed about an object that has left the quarantine: it may read as old
//!   content or as zero.
//! - `INV-HARDEN-3`: where guard pages are in use, a class has paged places only, or none.

pub mod empty;
pub mod quarantine;
mod word;

use crate::base::size_class::{CLASS, MIN_ALIGN, aligned_class_of};
use crate::objects::Objects;
use crate::pages::Settings;
use crate::pages::large::guard::{GUARD, abort_by_guard};
use crate::pages::region::STATES_BYTES;
use crate::pages::span::{Misuse, line};
use core::sync::atomic::{AtomicU32, Ordering};
use ebbtide_sys::{clock, vm};
use ebbtide_zone::{FRAME_BYTES, Frame};
use quarantine::Entry;
use word::{State, Word};

/// Guard bytes in front of a small object, and the fewest behind it.
const GUARD_BYTES: usize = 32;
/// Most guard bytes behind an object.
const MOST_BEHIND: usize = 128;
/// Most bytes of a freed object that are poisoned.
const POISON_BYTES: usize = 1024;
/// As an address, or a part of one, this value is one that no program has.
const POISON: u8 = 0xdb;
/// A request gets a paged place from this part of its pages on, in quarters: otherwise too much of them would be unused.
const PAGED_QUARTERS: usize = 3;
/// Requests of a greater alignment get a paged place in any case. So no class has both kinds of places.
const MOST_ALIGN: usize = 256;

/// A place for a request: the class, and the bytes of the place in front of the object.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The class.
    pub class: usize,
    front: usize,
}

impl Objects {
    /// Marks a place live that is about to be handed out for `size` bytes. Returns the object.
    pub fn begin_life(&self, layout: Layout, place: usize, size: usize) -> usize {
        let Layout { class, front } = layout;
        let word = self.word(class, place);
        let before = word.map(|(word, _)| word.swap(Word::live(size, front).0, Ordering::AcqRel));
        let object = place + front;
        if !before.is_some_and(|before| Word(before).state() != State::Live) {
            // The caches are corrupt, by the program's fault or ours.
            line("about to hand out what is no free object: ", object, class).abort();
        }
        let before = self.before(class, front);
        // SAFETY: inside the place, in front of and behind the bytes that the program may use.
        unsafe {
            fill(object - before, before, GUARD);
            fill(object + size, self.behind(class, front, size), GUARD);
        }
        object
    }

    /// Frees an object.
    #[cold]
    #[inline(never)]
    pub fn free_hardened(&self, class: usize, object: usize) {
        let (word, now) = self.word_of(class, object, "free of ");
        let before = Word(word.swap(now.freed().0, Ordering::AcqRel));
        if before.state() != State::Live {
            not_live(before, class, object, "free of ");
        }
        let (front, size) = (before.front(), before.size());
        self.check_guards(class, object, front, size, "free");
        let now = clock::now_ms();
        let is_closed = self.is_paged(class) && self.close_place(class, object - front, now);
        if !is_closed {
            // SAFETY: an object has at least this many bytes, and this call has just ended its life.
            unsafe { fill(object, self.poisoned(class, front), POISON) };
        }
        let entry = Entry::new(class, object, front, is_closed);
        self.put_in_quarantine(entry, now);
    }

    /// Takes memory and access from a paged place whose object was freed, unless many were closed lately. Returns whether
    /// the place has no access now: a call that is refused may have closed a part of it, if the program has locked another.
    fn close_place(&self, class: usize, place: usize, now: u64) -> bool {
        let (start, bytes) = (place + FRAME_BYTES, memory_of(class, true));
        self.quarantine.may_close(now)
            // SAFETY: whole pages of the place, whose object's life has just ended.
            && unsafe { vm::close(start, bytes).is_ok() || !reopen(start, bytes) }
    }

    /// Ends the time of an object in the quarantine. `false`: its place has no access, and is lost.
    fn check_left(&self, entry: Entry) -> bool {
        let class = entry.class();
        if !entry.is_closed() {
            self.check_poison(class, entry.object(), entry.front());
            return true;
        }
        let (start, bytes) = (entry.place() + FRAME_BYTES, memory_of(class, true));
        // SAFETY: whole pages of the place, which only the quarantine has.
        unsafe { reopen(start, bytes) }
    }
}

impl Objects {
    /// Closes the guard pages of a fresh span of paged places.
    #[cold]
    pub fn close_guard_pages(&self, class: usize, first: Frame) {
        let about = &CLASS[class];
        let start = self.region().address(first);
        let last = about.objects as usize;
        self.close_guard_pages_at(start, 1);
        for number in 1..last {
            // The last page of a place and the first of the next.
            self.close_guard_pages_at(start + number * about.size as usize - FRAME_BYTES, 2);
        }
        self.close_guard_pages_at(start + last * about.size as usize - FRAME_BYTES, 1);
    }
}

impl Settings {
    /// The place for `size` bytes at a multiple of `align`. `None`: whole frames must serve the request.
    pub fn layout(&self, size: usize, align: usize) -> Option<Layout> {
        let room = size.max(1).next_multiple_of(align.max(MIN_ALIGN));
        let pages = room.next_multiple_of(FRAME_BYTES);
        let fills = size * 4 > pages * PAGED_QUARTERS || align > MOST_ALIGN;
        if self.has_guard_pages && fills {
            let class = aligned_class_of(pages + 2 * FRAME_BYTES, align.max(FRAME_BYTES))?;
            debug_assert!(self.is_paged(class));
            let front = CLASS[class].size as usize - FRAME_BYTES - room;
            return Some(Layout { class, front });
        }
        let front = align.max(GUARD_BYTES);
        let class = aligned_class_of(front + size + GUARD_BYTES, align)?;
        debug_assert!(!self.is_paged(class));
        Some(Layout { class, front })
    }

    /// Whether the first and the last page of each place of a class are guard pages (`INV-HARDEN-3`).
    pub fn is_paged(&self, class: usize) -> bool {
        self.has_guard_pages && is_pages(class)
    }

    /// The requested bytes of an object.
    #[cold]
    #[inline(never)]
    pub fn size_hardened(&self, class: usize, object: usize, call: &str) -> usize {
        self.word_of(class, object, call).1.size()
    }

    /// Resizes an object to `size` bytes in place. `Err`: the requested bytes so far, which the caller must copy.
    #[cold]
    #[inline(never)]
    pub fn resize_hardened(&self, class: usize, object: usize, size: usize) -> Result<(), usize> {
        let (word, now) = self.word_of(class, object, "realloc of ");
        let (front, old) = (now.front(), now.size());
        self.check_guards(class, object, front, old, "realloc");
        let least = if self.is_paged(class) { 0 } else { GUARD_BYTES };
        let room = self.end(class) - front - least;
        if size > room || size < room / 2 {
            return Err(old);
        }
        word.store(Word::live(size, front).0, Ordering::Release);
        // SAFETY: as in `begin_life`.
        unsafe { fill(object + size, self.behind(class, front, size), GUARD) };
        Ok(())
    }

    /// The word of a live object. Ends the process if no live object begins at `object`.
    fn word_of(&self, class: usize, object: usize, call: &str) -> (&AtomicU32, Word) {
        let Some((word, place)) = self.word(class, object) else {
            inside(class, object, call)
        };
        let now = Word(word.load(Ordering::Acquire));
        if now.state() != State::Never && place + now.front() != object {
            inside(class, object, call);
        }
        if now.state() != State::Live {
            not_live(now, class, object, call);
        }
        (word, now)
    }

    /// The word of the place around `address`, in a frame of `class`, and the place. `None`: there is none.
    fn word(&self, class: usize, address: usize) -> Option<(&AtomicU32, usize)> {
        let (region, about) = (self.region(), &CLASS[class]);
        let frame = region.frame(address);
        // SAFETY: the frame has a class, so it is opened, and its span has a record. The words were opened together
        // with the record. All access is atomic.
        unsafe {
            let (index, span) = crate::pages::span::of_frame(region, frame);
            let start = region.address(Frame(span.first));
            let number = about.object_around(address.wrapping_sub(start))?;
            let word = region.states + index as usize * STATES_BYTES + number * 4;
            let place = start + number * about.size as usize;
            Some((&*(word as *const AtomicU32), place))
        }
    }

    /// The bytes of a place up to its last guard page, or all of them.
    fn end(&self, class: usize) -> usize {
        let page = if self.is_paged(class) { FRAME_BYTES } else { 0 };
        CLASS[class].size as usize - page
    }

    /// Guard bytes in front of the object.
    fn before(&self, class: usize, front: usize) -> usize {
        let page = if self.is_paged(class) { FRAME_BYTES } else { 0 };
        (front - page).min(GUARD_BYTES)
    }

    /// Guard bytes behind the object.
    fn behind(&self, class: usize, front: usize, size: usize) -> usize {
        (self.end(class) - front - size).min(MOST_BEHIND)
    }

    /// How many bytes of a freed object are poisoned: a multiple of 16.
    fn poisoned(&self, class: usize, front: usize) -> usize {
        (self.end(class) - front).min(POISON_BYTES)
    }

    /// Ends the process if the program wrote beside the requested bytes.
    fn check_guards(&self, class: usize, object: usize, front: usize, size: usize, by: &str) {
        let before = self.before(class, front);
        // SAFETY: as in `begin_life`.
        let (in_front, behind) = unsafe {
            (
                holds(object - before, before, GUARD),
                holds(object + size, self.behind(class, front, size), GUARD),
            )
        };
        if !(in_front && behind) {
            self.written_beside(class, object, front, size, by);
        }
    }

    #[cold]
    #[inline(never)]
    fn written_beside(
        &self,
        class: usize,
        object: usize,
        front: usize,
        size: usize,
        by: &str,
    ) -> ! {
        let behind = self.behind(class, front, size);
        // SAFETY: as in `begin_life`.
        if let Some(at) = unsafe { first_other(object + size, behind, GUARD) } {
            let line = line("write behind the end of ", object, class);
            abort_by_guard(line, size, at, by)
        }
        let before = self.before(class, front);
        // SAFETY: as above.
        let at = unsafe { first_other(object - before, before, GUARD) }.unwrap_or(0);
        line("write before the start of ", object, class)
            .text(", ")
            .number(before - at)
            .text(" bytes before it, found by ")
            .text(by)
            .abort()
    }

    /// Ends the process if the poison of a freed object was changed: the program wrote to the object.
    fn check_poison(&self, class: usize, object: usize, front: usize) {
        // SAFETY: an object has this many bytes; only the caller has it.
        if !unsafe { holds(object, self.poisoned(class, front), POISON) } {
            self.written_after_free(class, object, front);
        }
    }

    #[cold]
    #[inline(never)]
    fn written_after_free(&self, class: usize, object: usize, front: usize) -> ! {
        // SAFETY: as in `check_poison`.
        let at = unsafe { first_other(object, self.poisoned(class, front), POISON) };
        line("write after free to ", object, class)
            .text(", byte ")
            .number(at.unwrap_or(0))
            .abort()
    }
}

/// Whether places of a class are three whole pages or more.
fn is_pages(class: usize) -> bool {
    let size = CLASS[class].size as usize;
    size > 2 * FRAME_BYTES && size.is_multiple_of(FRAME_BYTES)
}

/// The bytes of a place that can have memory: all but its guard pages.
fn memory_of(class: usize, has_guard_pages: bool) -> usize {
    let is_paged = has_guard_pages && is_pages(class);
    CLASS[class].size as usize - if is_paged { 2 * FRAME_BYTES } else { 0 }
}

/// Sixteen bytes at any address: one register on every processor.
type Chunk = [u8; 16];
const CHUNK: usize = size_of::<Chunk>();

/// Gives closed pages access again. Their content is not needed. `false`: refused.
///
/// # Safety
/// As [`vm::remap_fresh`].
unsafe fn reopen(start: usize, bytes: usize) -> bool {
    // SAFETY: by contract.
    unsafe { vm::open(start, bytes).is_ok() || vm::remap_fresh(start, bytes).is_ok() }
}

/// Sets `count` bytes from `start` on.
///
/// # Safety
/// The bytes are the caller's.
unsafe fn fill(start: usize, count: usize, value: u8) {
    // SAFETY: by contract.
    unsafe {
        if count < CHUNK {
            return (start as *mut u8).write_bytes(value, count);
        }
        // The last chunk may overlap the one before.
        let last = start + count - CHUNK;
        let mut at = start;
        while at < last {
            (at as *mut Chunk).write_unaligned([value; CHUNK]);
            at += CHUNK;
        }
        (last as *mut Chunk).write_unaligned([value; CHUNK]);
    }
}

/// Whether all of `count` bytes from `start` on are `value`.
///
/// # Safety
/// As [`fill`].
unsafe fn holds(start: usize, count: usize, value: u8) -> bool {
    // SAFETY: by contract.
    unsafe {
        if count < CHUNK {
            return first_other(start, count, value).is_none();
        }
        let wanted = u128::from_ne_bytes([value; CHUNK]);
        let other = |at: usize| u128::from_ne_bytes((at as *const Chunk).read_unaligned()) ^ wanted;
        let last = start + count - CHUNK;
        let (mut at, mut others) = (start, other(last));
        while at < last {
            others |= other(at);
            at += CHUNK;
        }
        others == 0
    }
}

/// The first of `count` bytes from `start` on that is not `value`.
///
/// # Safety
/// As [`fill`].
unsafe fn first_other(start: usize, count: usize, value: u8) -> Option<usize> {
    // SAFETY: by contract.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, count) };
    bytes.iter().position(|&byte| byte != value)
}

#[cold]
#[inline(never)]
fn inside(class: usize, object: usize, call: &str) -> ! {
    if call == "free of " {
        Misuse::Interior(object).abort(class)
    }
    line(call, object, class)
        .text(", which is in the middle of an object")
        .abort()
}

#[cold]
#[inline(never)]
fn not_live(word: Word, class: usize, object: usize, call: &str) -> ! {
    let why = match word.state() {
        State::Never => ", which was never handed out",
        _ if call == "free of " => Misuse::DoubleFree(object).abort(class),
        _ => ", which was freed before",
    };
    line(call, object, class).text(why).abort()
}

#[cfg(test)]
pub(crate) mod tests;
