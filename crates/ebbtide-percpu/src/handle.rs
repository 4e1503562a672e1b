//! What areas are called.
//!
//! ```text
//!  63..60   59 … 40                   39 … 0
//!   0xE     whole words, in bytes     address of the area for CPU 0, from the start of the reservation
//! ```
//!
//! No address looks like that, so a pointer from elsewhere is found, and using a handle as a pointer faults.

use crate::space::{self, LIMIT_BYTES};
use ebbtide_core::base::message::Message;
use ebbtide_zone::percpu::UNIT_BYTES;

const TAG: usize = 0xe << 60;
const SIZE_SHIFT: u32 = 40;
const PLACE_MASK: usize = (1 << SIZE_SHIFT) - 1;
/// Subtracted from the upper bits, it leaves the last offset at which a word fits.
const BIAS: usize = (TAG >> SIZE_SHIFT) + 8;

const _: () = assert!(LIMIT_BYTES <= 1 << SIZE_SHIFT && UNIT_BYTES < 1 << 20);

/// An area. Not checked before it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(pub usize);

impl Handle {
    pub(crate) fn new(place: usize, size: usize) -> Self {
        Self(TAG | (size & !7) << SIZE_SHIFT | place)
    }

    /// The place of the area from the start of the reservation, if it can be one.
    #[inline]
    pub(crate) fn place(self) -> Option<usize> {
        let place = self.0 & PLACE_MASK;
        (self.0 & 0xf << 60 == TAG && place < space::bytes()).then_some(place)
    }

    /// The address of the word at `offset` for CPU 0.
    #[inline(always)]
    pub(crate) fn word(self, offset: usize) -> usize {
        // One compare for the tag, the range and the alignment.
        let room = (self.0 >> SIZE_SHIFT)
            .wrapping_sub(BIAS)
            .wrapping_sub(offset);
        if (room | offset) & !(UNIT_BYTES - 8) != 0 {
            misuse(self, offset);
        }
        space::base()
            .wrapping_add(self.0 & PLACE_MASK)
            .wrapping_add(offset)
    }
}

/// The address of the area for `cpu`. Ends the process for what is no area or no CPU.
pub fn pointer(handle: Handle, cpu: usize) -> *mut u8 {
    let Some(place) = handle.place() else {
        refuse("ebb_percpu_ptr", handle, FOREIGN)
    };
    if cpu >= space::units() {
        Message::new()
            .text("ebb_percpu_ptr: no copy of ")
            .address(handle.0)
            .text(" for CPU ")
            .number(cpu)
            .abort()
    }
    (space::base() + place + cpu * UNIT_BYTES) as *mut u8
}

/// Of what is no area.
pub(crate) const FOREIGN: &str = " is not from ebb_percpu_alloc";

/// Ends the process over what a function was given.
#[cold]
pub(crate) fn refuse(function: &str, handle: Handle, problem: &str) -> ! {
    let line = Message::new().text(function).text(": ");
    line.address(handle.0).text(problem).abort()
}

#[cold]
fn misuse(handle: Handle, offset: usize) -> ! {
    if handle.place().is_none() {
        refuse("ebb_percpu word", handle, FOREIGN)
    }
    Message::new()
        .text("ebb_percpu word: offset ")
        .number(offset)
        .text(" of ")
        .address(handle.0)
        .text(" is no aligned word of it")
        .abort()
}
