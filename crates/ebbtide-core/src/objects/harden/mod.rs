//! `harden=on`: finds heap misuse when it happens, or soon after.
//!
//! The fast paths do not know this mode. Their limits stay 0, as in the portable mode, so every call takes the slow paths
//! of the crate `ebbtide`. They call this module for objects of a class. Large allocations are handled in
//! [`crate::pages::large::guard`], requests for 0 bytes in [`empty`].
//!
//! In the section mode, most calls do not enter the heap either (`Front::allocate_at_once`, `Front::free_at_once`): they need
//! no lock. A fork may copy the process in the middle of such a call. In the child the object is then lost, as with the fast
//! paths: it is in no list, and its word says freed or live.
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

use crate::base::size_class::{CLASS, MIN_ALIGN, SMALL_TABLE, TABLE_MAX, aligned_class_of};
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

/// Requests of up to so many bytes, of ordinary alignment, have no paged place, and [`SMALL_TABLE`] covers their places.
const UNPAGED_MAX: usize = TABLE_MAX - 2 * GUARD_BYTES;

const _: () = assert!(UNPAGED_MAX * 4 <= FRAME_BYTES * PAGED_QUARTERS);

/// A place for a request: the class, and the bytes of the place in front of the object.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The class.
    pub class: usize,
    front: usize,
}

/// The parts of a place that are the same for its whole class.
#[derive(Clone, Copy)]
struct Shape {
    /// Bytes of the place up to its last guard page.
    end: usize,
    /// Bytes of the guard page in front.
    page: usize,
}

impl Shape {
    /// That of a class without guard pages.
    #[inline]
    fn unpaged(class: usize) -> Self {
        let end = CLASS[class].size as usize;
        Self { end, page: 0 }
    }

    /// Guard bytes in front of the object. Without guard pages there is always room for all of them.
    #[inline]
    fn before(self, front: usize) -> usize {
        if self.page == 0 {
            return GUARD_BYTES;
        }
        (front - self.page).min(GUARD_BYTES)
    }

    /// Guard bytes behind the object.
    #[inline]
    fn behind(self, front: usize, size: usize) -> usize {
        (self.end - front - size).min(MOST_BEHIND)
    }

    /// How many bytes of a freed object are poisoned: a multiple of 16.
    #[inline]
    fn poisoned(self, front: usize) -> usize {
        (self.end - front).min(POISON_BYTES)
    }
}

impl Objects {
    /// Marks a place live that is about to be handed out for `size` bytes. Returns the object.
    #[inline]
    pub fn begin_life(&self, layout: Layout, place: usize, size: usize) -> usize {
        self.begin_life_in(self.shape(layout.class), layout, place, size)
    }

    /// As [`Self::begin_life`], for what [`Settings::small_layout`] returned.
    #[inline]
    pub fn begin_small_life(&self, layout: Layout, place: usize, size: usize) -> usize {
        self.begin_life_in(Shape::unpaged(layout.class), layout, place, size)
    }

    #[inline(always)]
    fn begin_life_in(&self, shape: Shape, layout: Layout, place: usize, size: usize) -> usize {
        let Layout { class, front } = layout;
        let object = place + front;
        match self.word(class, place) {
            // Nothing else has the place, so the word needs no exchange.
            Some((word, _)) if Word(word.load(Ordering::Acquire)).state() != State::Live => {
                word.store(Word::live(size, front).0, Ordering::Release);
            }
            _ => not_free(class, object),
        }
        let before = shape.before(front);
        // SAFETY: inside the place, in front of and behind the bytes that the program may use.
        unsafe {
            fill::<GUARD>(object - before, before);
            fill::<GUARD>(object + size, shape.behind(front, size));
        }
        object
    }

    /// Frees an object. The caller has entered the heap.
    #[cold]
    #[inline(never)]
    pub fn free_hardened(&self, class: usize, object: usize) {
        let shape = self.shape(class);
        let front = self.end_life(class, shape, object);
        let now = clock::now_ms();
        let is_closed = shape.page > 0 && self.close_place(class, object - front, now);
        if !is_closed {
            // SAFETY: an object has at least this many bytes, and this call has just ended its life.
            unsafe { fill::<POISON>(object, shape.poisoned(front)) };
        }
        let entry = Entry::new(class, object, front, is_closed);
        self.put_in_quarantine(entry, now);
    }

    /// Ends the life of an object of a [stacked](Self::is_stacked) class and poisons it. The caller puts the entry into the
    /// quarantine. It need not have entered the heap.
    #[inline]
    pub fn end_stacked(&self, class: usize, object: usize) -> Entry {
        self.end_stacked_in(self.shape(class), class, object)
    }

    /// As [`Self::end_stacked`], for a class of [small places](quarantine::has_small_places).
    #[inline]
    pub fn end_small(&self, class: usize, object: usize) -> Entry {
        self.end_stacked_in(Shape::unpaged(class), class, object)
    }

    #[inline(always)]
    fn end_stacked_in(&self, shape: Shape, class: usize, object: usize) -> Entry {
        let front = self.end_life(class, shape, object);
        // SAFETY: as in `free_hardened`.
        unsafe { fill::<POISON>(object, shape.poisoned(front)) };
        Entry::new(class, object, front, false)
    }

    /// Undoes [`Self::end_stacked`], except for the object's content, which the program does not need any more. The object can
    /// be freed again then.
    #[cold]
    pub fn revive(&self, entry: Entry) {
        let (class, object, front) = (entry.class(), entry.object(), entry.front());
        let Some((word, _)) = self.word(class, object) else {
            return;
        };
        let size = Word(word.load(Ordering::Relaxed)).size();
        // SAFETY: as in `begin_life`: only this call has the object.
        unsafe {
            fill::<GUARD>(object + size, self.shape(class).behind(front, size));
        }
        word.store(Word::live(size, front).0, Ordering::Release);
    }

    /// Marks an object freed and checks its guards. Returns the bytes of its place in front of it. Ends the process if no live
    /// object begins at `object`.
    #[inline(always)]
    fn end_life(&self, class: usize, shape: Shape, object: usize) -> usize {
        let (word, now) = self.word_of(class, object, "free of ");
        let before = Word(word.swap(now.freed().0, Ordering::AcqRel));
        if before.state() != State::Live {
            not_live(before, class, object, "free of ");
        }
        let (front, size) = (before.front(), before.size());
        if !guards_hold(shape, object, front, size) {
            self.written_beside(class, object, front, size, "free");
        }
        front
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
    #[inline]
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
    #[inline]
    fn shape(&self, class: usize) -> Shape {
        let size = CLASS[class].size as usize;
        let page = if self.has_guard_pages && is_pages(size) {
            FRAME_BYTES
        } else {
            0
        };
        Shape {
            end: size - page,
            page,
        }
    }

    /// The place for `size` bytes at a multiple of `align`. `None`: whole frames must serve the request.
    #[inline]
    pub fn layout(&self, size: usize, align: usize) -> Option<Layout> {
        debug_assert!(align.is_power_of_two());
        Self::small_layout(size, align).or_else(|| self.layout_of_any(size, align))
    }

    /// The same, if no guard pages are needed and a table tells the class.
    #[inline]
    pub fn small_layout(size: usize, align: usize) -> Option<Layout> {
        if size > UNPAGED_MAX || align > MIN_ALIGN {
            return None;
        }
        // Rounded up, as this cannot overflow.
        let steps = (size + 2 * GUARD_BYTES + MIN_ALIGN - 1) >> MIN_ALIGN.trailing_zeros();
        let class = SMALL_TABLE[steps] as usize;
        let front = GUARD_BYTES;
        Some(Layout { class, front })
    }

    fn layout_of_any(&self, size: usize, align: usize) -> Option<Layout> {
        let below = align.max(MIN_ALIGN) - 1;
        let room = (size.max(1) + below) & !below;
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
        self.has_guard_pages && is_pages(CLASS[class].size as usize)
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
        let shape = self.shape(class);
        if !guards_hold(shape, object, front, old) {
            self.written_beside(class, object, front, old, "realloc");
        }
        let least = if shape.page > 0 { 0 } else { GUARD_BYTES };
        let room = shape.end - front - least;
        if size > room || size < room / 2 {
            return Err(old);
        }
        word.store(Word::live(size, front).0, Ordering::Release);
        // SAFETY: as in `begin_life`.
        unsafe { fill::<GUARD>(object + size, shape.behind(front, size)) };
        Ok(())
    }

    /// The word of a live object. Ends the process if no live object begins at `object`.
    #[inline(always)]
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
    #[inline(always)]
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
        let shape = self.shape(class);
        let behind = shape.behind(front, size);
        // SAFETY: as in `begin_life`.
        if let Some(at) = unsafe { first_other(object + size, behind, GUARD) } {
            let line = line("write behind the end of ", object, class);
            abort_by_guard(line, size, at, by)
        }
        let before = shape.before(front);
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
    #[inline]
    fn check_poison(&self, class: usize, object: usize, front: usize) {
        // SAFETY: an object has this many bytes; only the caller has it.
        if !unsafe { holds::<POISON>(object, self.shape(class).poisoned(front)) } {
            self.written_after_free(class, object, front);
        }
    }

    #[cold]
    #[inline(never)]
    fn written_after_free(&self, class: usize, object: usize, front: usize) -> ! {
        // SAFETY: as in `check_poison`.
        let at = unsafe { first_other(object, self.shape(class).poisoned(front), POISON) };
        line("write after free to ", object, class)
            .text(", byte ")
            .number(at.unwrap_or(0))
            .abort()
    }
}

/// Whether the object's guards are whole.
#[inline(always)]
fn guards_hold(shape: Shape, object: usize, front: usize, size: usize) -> bool {
    let before = shape.before(front);
    // SAFETY: as in `begin_life`.
    let [in_front, behind] = unsafe {
        [
            difference::<GUARD>(object - before, before),
            difference::<GUARD>(object + size, shape.behind(front, size)),
        ]
    };
    [in_front[0] | behind[0], in_front[1] | behind[1]] == [0; 2]
}

/// Whether places of so many bytes are three whole pages or more.
const fn is_pages(size: usize) -> bool {
    size > 2 * FRAME_BYTES && size.is_multiple_of(FRAME_BYTES)
}

/// The bytes of a place that can have memory: all but its guard pages.
fn memory_of(class: usize, has_guard_pages: bool) -> usize {
    let size = CLASS[class].size as usize;
    let is_paged = has_guard_pages && is_pages(size);
    size - if is_paged { 2 * FRAME_BYTES } else { 0 }
}

/// Sixteen bytes at any address: one register on every processor.
type Chunk = [u8; 16];
const CHUNK: usize = size_of::<Chunk>();
/// Bytes of two chunks: there is a guard of so many bytes on both sides of most objects.
const STEP: usize = 2 * CHUNK;

/// Gives closed pages access again. Their content is not needed. `false`: refused.
///
/// # Safety
/// As [`vm::remap_fresh`].
unsafe fn reopen(start: usize, bytes: usize) -> bool {
    // SAFETY: by contract.
    unsafe { vm::open(start, bytes).is_ok() || vm::remap_fresh(start, bytes).is_ok() }
}

/// Sets `count` bytes from `start` on to `VALUE`.
///
/// # Safety
/// The bytes are the caller's.
#[inline(always)]
unsafe fn fill<const VALUE: u8>(start: usize, count: usize) {
    let set = |at: usize| {
        // SAFETY: by contract, for each step below.
        unsafe { (at as *mut [Chunk; 2]).write_unaligned([[VALUE; CHUNK]; 2]) }
    };
    if count < STEP {
        // SAFETY: by contract.
        return unsafe { fill_few(start, count, VALUE) };
    }
    each_step(start, count, set);
}

/// Fewer bytes than a step: guards beside guard pages.
#[cold]
#[inline(never)]
unsafe fn fill_few(start: usize, count: usize, value: u8) {
    // SAFETY: by the contract of `fill`.
    unsafe { (start as *mut u8).write_bytes(value, count) }
}

/// Whether all of `count` bytes from `start` on are `VALUE`.
///
/// # Safety
/// As [`fill`].
#[inline(always)]
unsafe fn holds<const VALUE: u8>(start: usize, count: usize) -> bool {
    // SAFETY: by contract.
    unsafe { difference::<VALUE>(start, count) == [0; 2] }
}

/// Zero if all of `count` bytes from `start` on are `VALUE`. Else some bits are set.
///
/// # Safety
/// As [`fill`].
#[inline(always)]
unsafe fn difference<const VALUE: u8>(start: usize, count: usize) -> [u64; 2] {
    if count < STEP {
        // SAFETY: by contract.
        return unsafe { [first_other(start, count, VALUE).is_some().into(), 0] };
    }
    let wanted = u64::from_ne_bytes([VALUE; 8]);
    let mut others = [0; 2];
    each_step(start, count, |at| {
        // SAFETY: by contract, for each step.
        let [a, b, c, d] = unsafe { (at as *const [u64; 4]).read_unaligned() };
        others[0] |= (a ^ wanted) | (c ^ wanted);
        others[1] |= (b ^ wanted) | (d ^ wanted);
    });
    others
}

/// The steps that cover `count` bytes from `start` on, [`STEP`] or more. The last one may overlap the one before.
#[inline(always)]
fn each_step(start: usize, count: usize, mut step: impl FnMut(usize)) {
    let last = start + count - STEP;
    let mut at = start;
    while at + STEP < last {
        step(at);
        step(at + STEP);
        at += 2 * STEP;
    }
    if at < last {
        step(at);
    }
    step(last);
}

/// The first of `count` bytes from `start` on that is not `value`.
///
/// # Safety
/// As [`fill`].
#[cold]
#[inline(never)]
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

/// The caches are corrupt, by the program's fault or ours.
#[cold]
#[inline(never)]
fn not_free(class: usize, object: usize) -> ! {
    line("about to hand out what is no free object: ", object, class).abort()
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
