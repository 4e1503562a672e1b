//! `harden=on`: mistakes of the program are found when they are made, or soon after.
//!
//! The fast paths know nothing of it: their limits stay 0, as in the portable mode, so every call comes by the
//! slow paths of the crate `ebbtide`, and objects of a class from there to here. Large allocations: [`crate::pages::large::guard`].
//!
//! ```text
//!  malloc(n)   an object for n + 1 bytes ──▶ its word: live, n ──▶ guard bytes behind the n
//!  free        the word: freed ──▶ guard read ──▶ poisoned ──▶ quarantine, first in, first out
//!              ──▶ poison read ──▶ caches
//! ```
//!
//! What is known of an object is a word out of line, [`STATES_BYTES`] of them beside each span record:
//!
//! | word | meaning | who leads there |
//! |---|---|---|
//! | 0 | never handed out | initial; the words of a record stay when it serves another span |
//! | 1 | freed | who exchanges it for a live one has freed the object: a second `free` sees it, from whatever thread |
//! | 2 + n | live, n bytes were asked for | who allocates it, or resizes it in place |
//!
//! - `INV-HARDEN-1`: a word says live from before the object is handed out until it is freed.
//! - `INV-HARDEN-2`: an object in a [`quarantine`] is in no span, so nobody gives its pages back: its poison is
//!   there unless the program wrote to it. Of what has left the quarantine nothing is assumed: it may read old or
//!   zero.

pub mod quarantine;

use crate::base::size_class::CLASS;
use crate::objects::Objects;
use crate::pages::Settings;
use crate::pages::large::guard::{GUARD, abort_by_guard};
use crate::pages::region::STATES_BYTES;
use crate::pages::span::{Misuse, line};
use core::sync::atomic::{AtomicU32, Ordering};
use ebbtide_zone::Frame;

const NEVER: u32 = 0;
const FREED: u32 = 1;
const LIVE: u32 = 2;

/// What stands behind the bytes that were asked for: at least one, at most so many.
const GUARD_BYTES: usize = 16;
/// How much of a freed object is poisoned.
const POISON_BYTES: usize = 1024;
/// As (part of) an address, one that no program has.
const POISON: u8 = 0xdb;

impl Objects {
    /// An object is about to be handed out, for `size` bytes.
    pub fn begin_life(&self, class: usize, object: usize, size: usize) {
        let word = self.word(class, object);
        let before = word.map(|word| word.swap(LIVE + size as u32, Ordering::AcqRel));
        if !matches!(before, Some(NEVER | FREED)) {
            // The caches are wrong, by the program's fault or ours.
            line("about to hand out what is no free object: ", object, class).abort();
        }
        write_guard(class, object, size);
    }

    /// Takes an object back.
    #[cold]
    #[inline(never)]
    pub fn free_hardened(&self, class: usize, object: usize) {
        let Some(word) = self.word(class, object) else {
            Misuse::Interior(object).abort(class)
        };
        let before = word.swap(FREED, Ordering::AcqRel);
        let size = size_of_live(before, class, object, "free of ");
        check_guard(class, object, size, "free");
        // SAFETY: an object has at least so many bytes, and this call has just ended its life.
        unsafe { (object as *mut u8).write_bytes(POISON, poisoned(class)) };
        self.put_in_quarantine(class, object);
    }
}

impl Settings {
    /// The bytes that were asked for.
    #[cold]
    #[inline(never)]
    pub fn size_hardened(&self, class: usize, object: usize, call: &str) -> usize {
        let Some(word) = self.word(class, object) else {
            line(call, object, class)
                .text(", which is in the middle of an object")
                .abort()
        };
        size_of_live(word.load(Ordering::Acquire), class, object, call)
    }

    /// Makes an object `size` bytes long where it is. `Err`: the bytes that it has, to be copied.
    #[cold]
    #[inline(never)]
    pub fn resize_hardened(&self, class: usize, object: usize, size: usize) -> Result<(), usize> {
        let old = self.size_hardened(class, object, "realloc of ");
        check_guard(class, object, old, "realloc");
        let room = CLASS[class].size as usize;
        if size >= room || size < room / 2 {
            return Err(old);
        }
        if let Some(word) = self.word(class, object) {
            word.store(LIVE + size as u32, Ordering::Release);
        }
        write_guard(class, object, size);
        Ok(())
    }

    /// The word of the object that begins at an address in a frame of `class`, if one does.
    fn word(&self, class: usize, address: usize) -> Option<&AtomicU32> {
        let (region, about) = (self.region(), &CLASS[class]);
        let frame = region.frame(address);
        let offset = address.wrapping_sub(region.address(Frame(self.span_start(frame))));
        let number = about.object_at(offset)?;
        // SAFETY: the frame has a class, so it is opened, and its span has a record, with which its words were
        // opened; all access is atomic.
        unsafe {
            let index = region.span_of(frame).load(Ordering::Relaxed) as usize;
            Some(&*((region.states + index * STATES_BYTES + number * 4) as *const AtomicU32))
        }
    }
}

/// How many bytes of an object of `class` are poisoned.
fn poisoned(class: usize) -> usize {
    (CLASS[class].size as usize).min(POISON_BYTES)
}

/// Ends the process if the poison of a freed object is not whole: the program wrote to it.
fn check_poison(class: usize, object: usize) {
    const WORD: u64 = u64::from_ne_bytes([POISON; 8]);
    // SAFETY: an object has so many bytes, a multiple of 16, at a multiple of 16; only the caller has it.
    let words = unsafe {
        core::slice::from_raw_parts(object as *const u64, poisoned(class) / size_of::<u64>())
    };
    if words.iter().fold(0, |wrong, word| wrong | (word ^ WORD)) != 0 {
        written_after_free(class, object);
    }
}

#[cold]
#[inline(never)]
fn written_after_free(class: usize, object: usize) -> ! {
    // SAFETY: as in `check_poison`.
    let bytes = unsafe { core::slice::from_raw_parts(object as *const u8, poisoned(class)) };
    let at = bytes.iter().position(|&byte| byte != POISON).unwrap_or(0);
    line("write after free to ", object, class)
        .text(", byte ")
        .number(at)
        .abort()
}

/// The bytes behind the `size` that were asked for.
fn guard(class: usize, object: usize, size: usize) -> (*mut u8, usize) {
    let room = CLASS[class].size as usize - size;
    ((object + size) as *mut u8, room.min(GUARD_BYTES))
}

fn write_guard(class: usize, object: usize, size: usize) {
    let (start, count) = guard(class, object, size);
    // SAFETY: inside the object, behind what the program may use.
    unsafe { start.write_bytes(GUARD, count) };
}

/// Ends the process if the program wrote behind what it asked for.
fn check_guard(class: usize, object: usize, size: usize, found_by: &str) {
    let (start, count) = guard(class, object, size);
    // SAFETY: as in `write_guard`.
    let bytes = unsafe { core::slice::from_raw_parts(start, count) };
    if let Some(at) = bytes.iter().position(|&byte| byte != GUARD) {
        let line = line("write behind the end of ", object, class);
        abort_by_guard(line, size, at, found_by)
    }
}

/// The bytes that were asked for, by a word that was read; ends the process if it is not a live object's.
fn size_of_live(word: u32, class: usize, object: usize, call: &str) -> usize {
    match word.checked_sub(LIVE) {
        Some(size) => size as usize,
        None => not_live(word, class, object, call),
    }
}

#[cold]
#[inline(never)]
fn not_live(word: u32, class: usize, object: usize, call: &str) -> ! {
    let why = match word {
        NEVER => ", which was never handed out",
        _ if call == "free of " => Misuse::DoubleFree(object).abort(class),
        _ => ", which was freed before",
    };
    line(call, object, class).text(why).abort()
}

#[cfg(test)]
pub(crate) mod tests;
