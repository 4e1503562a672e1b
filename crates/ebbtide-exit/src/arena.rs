//! The helper's own memory: one mapping, which it never takes away.
//!
//! ```text
//!  Control │ buffer │ storage │ pieces                │ seats: stacks of SEAT_BYTES each
//! ```
//!
//! Zeroed memory is valid and says that nothing has begun. The program writes [`Control`] before the helper is
//! made; afterwards only the helper does, and its threads through the atomic fields.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::base::config::{AUTO, Config, MAX_TEARDOWN_WORKERS};
use ebbtide_sys::helper::{self, Seat, Waited};
use ebbtide_sys::{process, vm};

const BUFFER_AT: usize = 4096;
const BUFFER_BYTES: usize = 20 << 10;
/// In the middle: there is room on both sides of it.
const STORAGE_AT: usize = BUFFER_AT + BUFFER_BYTES + STORAGE_BYTES / 2;
const STORAGE_BYTES: usize = 8 << 10;
const PIECES_AT: usize = BUFFER_AT + BUFFER_BYTES + STORAGE_BYTES;
/// Pieces at most: a process has 65,530 mappings by default, and 8 TiB make as many. The end of the process takes the rest.
pub const PIECES: usize = 256 << 10;
const SEATS_AT: usize = (PIECES_AT + PIECES * size_of::<Piece>()).next_multiple_of(4096);
const SEAT_BYTES: usize = 32 << 10;
/// The seat of the thread that watches for an exec. The helper's first thread has seat 0.
pub const WATCHER: usize = 1;
/// Seats of threads that take memory while there is enough.
pub const CALM: Range<usize> = WATCHER + 1..WATCHER + 1 + MAX_TEARDOWN_WORKERS;
/// Seats of threads that take over when there is not.
pub const HURRIED: Range<usize> = CALM.end..CALM.end + 32;
/// Seats of threads that end requests.
pub const ENDERS: Range<usize> = HURRIED.end..HURRIED.end + 16;
/// All seats.
pub const SEATS: usize = ENDERS.end;
/// Rings of requests at most; the end of the process ends the others.
pub const RINGS: usize = 256;
/// The whole.
pub const BYTES: usize = SEATS_AT + SEATS * SEAT_BYTES;

const _: () = assert!(size_of::<Control>() <= BUFFER_AT);

/// What the helper is told, and what its threads tell each other.
#[repr(C)]
pub struct Control {
    /// 1 while a thread runs in the seat.
    pub busy: [AtomicU32; SEATS],
    /// The helper has become what it should be, and waits for the end.
    pub watching: Flag,
    /// The helper has none of the program's descriptors, or is about to end.
    pub apart: Flag,
    /// Nothing but a trap would end the helper.
    pub stuck: Flag,
    /// So be it.
    pub may_trap: Flag,
    /// The program has ended.
    pub ended: Flag,
    /// Memory is short.
    pub hurry: Flag,
    /// This helper may work: it has been admitted.
    pub admitted: Flag,
    /// No piece is left.
    pub finished: Flag,
    /// When the main thread was seen to leave the memory, if the end followed at once; else 0.
    pub left_ns: AtomicU64,
    /// The next piece to take; how many are listed; those not done yet.
    pub next: AtomicUsize,
    /// See there.
    pub count: AtomicUsize,
    /// See there.
    pub left: AtomicUsize,
    /// Rings of requests of io_submit(2), 0 behind the last one; and the next one to end.
    pub rings: [AtomicUsize; RINGS],
    /// See there.
    pub next_ring: AtomicUsize,
    /// The program's process id.
    pub program: u32,
    /// The word that the kernel clears when the main thread leaves this memory.
    pub word: usize,
    /// Threads that take memory while there is enough.
    pub workers: usize,
}

/// What threads tell each other: not yet, or yes.
#[repr(transparent)]
pub struct Flag(AtomicU32);

impl Flag {
    /// Whether it is so.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// From now on it is.
    pub fn set(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// The same, and everybody who waits hears of it.
    pub fn tell(&self) {
        self.set();
        self.wake();
    }

    /// Lets those who wait look again.
    pub fn wake(&self) {
        helper::wake(self.0.as_ptr() as usize);
    }

    /// Waits for it or for `ms`, once: may return early.
    pub fn wait(&self, ms: u64) -> Waited {
        helper::wait(self.0.as_ptr() as usize, 0, ms)
    }

    /// Waits for it or for `ms`.
    pub fn wait_at_most(&self, ms: u64) {
        let began = helper::now_ms();
        while !self.is_set() && helper::now_ms() - began < ms {
            if self.wait(ms) == Waited::Refused {
                return;
            }
        }
    }
}

/// A range to take.
#[repr(C)]
pub struct Piece {
    start: AtomicUsize,
    /// 0: it is done.
    bytes: AtomicUsize,
}

impl Piece {
    /// Lists a range. Nobody may take pieces yet.
    pub fn list(&self, start: usize, bytes: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Calls `work` with the range's first byte and length if it has not been done, and notes that it has. `true`: nobody else
    /// noted that meanwhile.
    pub fn take(&self, work: impl FnOnce(usize, usize)) -> bool {
        let bytes = self.bytes.load(Ordering::SeqCst);
        if bytes == 0 {
            return false;
        }
        work(self.start.load(Ordering::Relaxed), bytes);
        self.bytes.swap(0, Ordering::SeqCst) != 0
    }
}

/// The mapping.
#[derive(Clone, Copy)]
pub struct Arena(usize);

impl Arena {
    /// A new one. `None`: there is no memory.
    pub fn map() -> Option<Self> {
        let address = vm::map(BYTES).ok()?;
        // SAFETY: the mapping just made. A forked child has no use for it.
        unsafe {
            let _ = vm::advise(address, BYTES, libc::MADV_DONTFORK);
            let _ = vm::advise(address, BYTES, libc::MADV_NOHUGEPAGE);
        }
        Some(Self(address))
    }

    /// The one that was mapped at `address`.
    pub fn at(address: usize) -> Self {
        Self(address)
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
            AUTO => process::allowed_cpus().clamp(1, 4),
            workers => workers,
        };
        // SAFETY: by contract nobody else reads it now; both places are inside the mapping.
        unsafe {
            let control = self.0 as *mut Control;
            control.write_bytes(0, 1);
            (*control).program = program;
            (*control).word = word;
            (*control).workers = workers;
            let storage = self.0 + STORAGE_AT;
            (storage as *mut usize).write(storage);
        }
    }

    /// A seat by number: 0 the helper, 1 its watcher.
    pub fn seat(self, number: usize) -> Seat<'static> {
        Seat {
            stack: self.0 + SEATS_AT + (number + 1) * SEAT_BYTES,
            storage: self.0 + STORAGE_AT,
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

    /// The list of pieces, with those that are not listed.
    pub fn pieces(self) -> &'static [Piece] {
        // SAFETY: inside the mapping, all fields atomic.
        unsafe { core::slice::from_raw_parts((self.0 + PIECES_AT) as *const Piece, PIECES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_done_once() {
        let piece = Piece {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        };
        let never = |_, _| panic!("it is done");
        assert!(!piece.take(never), "not listed");
        piece.list(7, 8);
        assert!(piece.take(|start, bytes| assert_eq!((start, bytes), (7, 8))));
        assert!(!piece.take(never));
        // Two threads are at it, and the first one ends later.
        piece.list(7, 8);
        assert!(!piece.take(|_, _| assert!(piece.take(|_, _| {}))));
    }
}
