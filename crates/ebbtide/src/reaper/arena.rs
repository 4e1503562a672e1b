//! The helper's own memory: one mapping, which it never takes away.
//!
//! ```text
//!  Control │ buffer │ storage │ pieces                │ seats: stacks of SEAT_BYTES each
//! ```
//!
//! Zeroed memory is valid and says that nothing has begun. The program writes [`Control`] before the helper is
//! made; afterwards only the helper does, and its threads through the atomic fields.

use crate::config::Config;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::helper::Seat;

const BUFFER_AT: usize = 4096;
const BUFFER_BYTES: usize = 20 << 10;
const STORAGE_AT: usize = BUFFER_AT + BUFFER_BYTES;
const STORAGE_BYTES: usize = 8 << 10;
const PIECES_AT: usize = STORAGE_AT + STORAGE_BYTES;
/// Pieces in one round of the teardown.
pub const PIECES: usize = 32 << 10;
const SEATS_AT: usize = (PIECES_AT + PIECES * size_of::<Piece>()).next_multiple_of(4096);
const SEAT_BYTES: usize = 32 << 10;
/// Threads at most: the helper, its watcher, [`CALM`] and [`HURRIED`].
const SEATS: usize = 2 + CALM + HURRIED;
/// Threads that take memory while there is enough, at most.
pub const CALM: usize = 16;
/// Threads that take over when there is not, at most.
pub const HURRIED: usize = 32;
/// The whole.
pub const BYTES: usize = SEATS_AT + SEATS * SEAT_BYTES;

const _: () = assert!(size_of::<Control>() <= BUFFER_AT);

/// What the helper is told, and what its threads tell each other.
#[repr(C)]
pub struct Control {
    /// 1 while a thread runs in the seat.
    busy: [AtomicU32; SEATS],
    /// 1: the helper has become what it should be, and waits for the end.
    watching: AtomicU32,
    /// 1: the helper has none of the program's descriptors.
    apart: AtomicU32,
    /// 1: the program has ended.
    pub ended: AtomicU32,
    /// 1: memory is short.
    pub hurry: AtomicU32,
    /// 1: it is this helper's turn.
    pub turn: AtomicU32,
    /// 1: no piece is left.
    pub finished: AtomicU32,
    /// When the main thread was seen to leave the memory, if the end followed at once; else 0.
    pub left_ns: AtomicU64,
    /// Changes when there are new pieces.
    pub round: AtomicU32,
    /// The next piece to take; pieces of this round; those not done yet.
    pub next: AtomicUsize,
    /// See there.
    pub count: AtomicUsize,
    /// See there.
    pub left: AtomicUsize,
    /// Where the threads find what they share.
    pub crew: AtomicUsize,
    /// The program's process id.
    pub program: u32,
    /// The word that the kernel clears when the main thread leaves this memory.
    pub word: usize,
    /// Threads that take memory while there is enough.
    pub workers: usize,
}

/// A range to take, at most once.
#[repr(C)]
pub struct Piece {
    /// Its first byte.
    pub start: AtomicUsize,
    /// Its length.
    pub bytes: AtomicUsize,
    /// Odd: done. Even, another number each round: not yet.
    pub done: AtomicU32,
}

/// The mapping.
#[derive(Clone, Copy)]
pub struct Arena(usize);

impl Arena {
    /// The one that was mapped at `address`, or none for 0.
    pub fn at(address: usize) -> Option<Self> {
        (address != 0).then_some(Self(address))
    }

    /// Where it begins.
    pub fn address(self) -> usize {
        self.0
    }

    /// Where it ends.
    pub fn end(self) -> usize {
        self.0 + BYTES
    }

    /// What is known.
    pub fn control(self) -> &'static Control {
        // SAFETY: mapped for good, aligned, and valid when zero; the plain fields change only in `prepare`.
        unsafe { &*(self.0 as *const Control) }
    }

    /// Tells a new helper what it needs.
    ///
    /// # Safety
    /// No helper lives on it.
    pub unsafe fn prepare(self, program: u32, word: usize, config: &Config) {
        let workers = match config.teardown_workers {
            crate::config::AUTO => ebbtide_sys::process::allowed_cpus().clamp(1, 4),
            workers => workers,
        };
        // SAFETY: by contract nobody else reads it now; both places are inside the mapping.
        unsafe {
            let control = self.0 as *mut Control;
            control.write_bytes(0, 1);
            (*control).program = program;
            (*control).word = word;
            (*control).workers = workers.clamp(1, CALM);
            let storage = self.0 + STORAGE_AT + STORAGE_BYTES / 2;
            (storage as *mut usize).write(storage);
        }
    }

    /// A seat by number: 0 the helper, 1 its watcher.
    pub fn seat(self, number: usize) -> Seat<'static> {
        Seat {
            stack: self.0 + SEATS_AT + (number + 1) * SEAT_BYTES,
            storage: self.0 + STORAGE_AT + STORAGE_BYTES / 2,
            busy: &self.control().busy[number],
        }
    }

    /// For text of the kernel's; the helper's own thread only.
    ///
    /// # Safety
    /// One user at a time.
    pub unsafe fn buffer(self) -> &'static mut [u8] {
        // SAFETY: inside the mapping; by contract nobody else has it.
        unsafe { core::slice::from_raw_parts_mut((self.0 + BUFFER_AT) as *mut u8, BUFFER_BYTES) }
    }

    /// The list of pieces.
    pub fn pieces(self) -> &'static [Piece] {
        // SAFETY: inside the mapping, all fields atomic.
        unsafe { core::slice::from_raw_parts((self.0 + PIECES_AT) as *const Piece, PIECES) }
    }
}

impl Control {
    /// Whether the helper's first thread runs.
    pub fn is_alive(&self) -> bool {
        self.busy[0].load(Ordering::Acquire) != 0
    }

    /// Whether it has come as far as to wait for the end.
    pub fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire) != 0
    }

    /// Notes that.
    pub fn set_watching(&self) {
        self.watching.store(1, Ordering::Release);
    }

    /// Notes that the helper has none of the program's descriptors, or is about to end.
    pub fn set_apart(&self) {
        self.apart.store(1, Ordering::Release);
        ebbtide_sys::helper::wake(self.apart.as_ptr() as usize);
    }

    /// Waits for that, or for `ms`.
    pub fn wait_apart(&self, ms: u64) {
        use ebbtide_sys::helper::{Waited, now_ms, wait};
        let began = now_ms();
        while self.apart.load(Ordering::Acquire) == 0 && now_ms() - began < ms {
            if wait(self.apart.as_ptr() as usize, 0, ms) == Waited::Refused {
                return;
            }
        }
    }

    /// The word that says whether a thread runs in a seat.
    pub fn busy(&self, seat: usize) -> &AtomicU32 {
        &self.busy[seat]
    }
}
