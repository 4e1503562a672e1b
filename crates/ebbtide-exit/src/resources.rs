//! What the helper has: its memory, and what it opened before it locked itself in. Its threads find that through their
//! argument.

use crate::admission::Admission;
use crate::arena::{Arena, SEATS};
use ebbtide_sys::helper::{self, Descriptor, Entry};
use ebbtide_sys::pressure::Kept;

/// They stand in the first thread's frame, which it does not leave. Aligned so that a seat's number fits beside their address.
#[repr(align(128))]
pub struct Resources {
    /// Its memory.
    pub arena: Arena,
    /// The program.
    pub program: Descriptor,
    /// The program's `stat` in `/proc`.
    pub stat: Descriptor,
    /// `/proc/self/maps`.
    pub maps: Descriptor,
    /// What tells whether memory is short.
    pub pressure: Kept,
    /// Which helpers of the user work.
    pub admission: Admission,
}

const _: () = assert!(SEATS <= align_of::<Resources>());

impl Resources {
    /// Starts a thread in each of these seats. How many there are.
    ///
    /// # Safety
    /// Each seat is used once, and `self` stays until the process ends. `entry` does only what a helper may do, and takes its
    /// argument by [`Self::of_thread`].
    pub unsafe fn spawn(&self, seats: impl Iterator<Item = usize>, entry: Entry) -> usize {
        let address = core::ptr::from_ref(self) as usize;
        seats
            // SAFETY: by contract.
            .filter(|&seat| unsafe {
                helper::spawn_thread(self.arena.seat(seat), entry, address | seat).is_ok()
            })
            .count()
    }

    /// What a thread finds, and the number of its seat.
    ///
    /// # Safety
    /// `argument` is that of a thread that [`Self::spawn`] made.
    pub unsafe fn of_thread(argument: usize) -> (&'static Self, usize) {
        let seat = argument % align_of::<Self>();
        // SAFETY: by contract.
        (unsafe { &*((argument - seat) as *const Self) }, seat)
    }
}
