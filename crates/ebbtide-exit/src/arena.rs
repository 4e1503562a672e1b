//! The helper's own memory: one mapping, which the helper never unmaps.
//!
//! ```text
//!  Control │ buffer │ storage │ pieces                │ seats: stacks of SEAT_BYTES each
//! ```
//!
//! Zeroed memory is valid and means that nothing has begun. The program writes [`Control`] before the helper is made.
//! Afterwards only the helper writes it, and its threads through the atomic fields.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::base::config::{AUTO, Config, MAX_TEARDOWN_WORKERS};
use ebbtide_sys::helper::{self, Seat, Waited};
use ebbtide_sys::{process, vm};

const BUFFER_AT: usize = 4096;
const BUFFER_BYTES: usize = 20 << 10;
/// In the middle: there is free space on both sides of it.
const STORAGE_AT: usize = BUFFER_AT + BUFFER_BYTES + STORAGE_BYTES / 2;
const STORAGE_BYTES: usize = 8 << 10;
const PIECES_AT: usize = BUFFER_AT + BUFFER_BYTES + STORAGE_BYTES;
/// Most pieces: a process has 65,530 mappings by default, and 8 TiB make as many pieces. The end of the process
/// releases the rest.
pub const PIECES: usize = 256 << 10;
const SEATS_AT: usize = (PIECES_AT + PIECES * size_of::<Piece>()).next_multiple_of(SEAT_BYTES);
const SEAT_BYTES: usize = 32 << 10;
/// The seat of the thread that watches for an exec. The helper's first thread has seat 0.
pub const WATCHER: usize = 1;
/// Seats of threads that release memory while it is not short.
pub const CALM: Range<usize> = WATCHER + 1..WATCHER + 1 + MAX_TEARDOWN_WORKERS;
/// Seats of threads that take over when memory is short.
pub const HURRIED: Range<usize> = CALM.end..CALM.end + 32;
/// Seats of threads that end requests.
pub const ENDERS: Range<usize> = HURRIED.end..HURRIED.end + 16;
/// All seats.
pub const SEATS: usize = ENDERS.end;
/// Most rings of requests; the end of the process ends the others.
pub const RINGS: usize = 256;
/// Size of the whole arena: whole pages of any kernel.
pub const BYTES: usize = (SEATS_AT + SEATS * SEAT_BYTES).next_multiple_of(vm::LARGEST_PAGE);

const _: () = assert!(size_of::<Control>() <= BUFFER_AT);

/// The data that the program passes to the helper, and the words that its threads share.
#[repr(C)]
pub struct Control {
    /// 1 while a thread runs in the seat.
    pub busy: [AtomicU32; SEATS],
    /// The helper is set up, and waits for the program's end.
    pub watching: Flag,
    /// The helper has none of the program's descriptors, or is about to end.
    pub apart: Flag,
    /// Nothing but a trap would end the helper.
    pub stuck: Flag,
    /// The helper may end by a trap.
    pub may_trap: Flag,
    /// The program has ended.
    pub ended: Flag,
    /// Memory is short.
    pub hurry: Flag,
    /// This helper may work: it has been admitted.
    pub admitted: Flag,
    /// All pieces are done.
    pub finished: Flag,
    /// When the main thread was seen to leave the memory, if the end followed at once; else 0.
    pub left_ns: AtomicU64,
    /// The next piece to take; the number of listed pieces; the number of pieces that are not done yet.
    pub next: AtomicUsize,
    /// See [`Self::next`].
    pub count: AtomicUsize,
    /// See [`Self::next`].
    pub left: AtomicUsize,
    /// Rings of requests of io_submit(2), 0 behind the last one; and the next one to end.
    pub rings: [AtomicUsize; RINGS],
    /// See [`Self::rings`].
    pub next_ring: AtomicUsize,
    /// The program's process id.
    pub program: u32,
    /// The word that the kernel clears when the main thread leaves this memory.
    pub word: usize,
    /// Number of threads that release memory while it is not short.
    pub workers: usize,
}

/// A flag between threads: not set, or set.
#[repr(transparent)]
pub struct Flag(AtomicU32);

impl Flag {
    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Sets the flag.
    pub fn set(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Sets the flag, and wakes all threads that wait for it.
    pub fn tell(&self) {
        self.set();
        self.wake();
    }

    /// Wakes the waiting threads, so that they check again.
    pub fn wake(&self) {
        helper::wake(self.0.as_ptr() as usize);
    }

    /// Waits once for the flag or for `ms`; may return early.
    pub fn wait(&self, ms: u64) -> Waited {
        helper::wait(self.0.as_ptr() as usize, 0, ms)
    }

    /// Waits for the flag or for `ms`.
    pub fn wait_at_most(&self, ms: u64) {
        let began = helper::now_ms();
        while !self.is_set() && helper::now_ms() - began < ms {
            if self.wait(ms) == Waited::Refused {
                return;
            }
        }
    }
}

/// A range to release.
#[repr(C)]
pub struct Piece {
    start: AtomicUsize,
    /// 0: the piece is done.
    bytes: AtomicUsize,
}

impl Piece {
    /// Lists a range. No thread may take pieces yet.
    pub fn list(&self, start: usize, bytes: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Release);
    }

    /// If the piece is not done, calls `work` with its first byte and length, and marks it done. `true`: no other
    /// thread marked it meanwhile.
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
    /// Maps a new arena. `None`: there is no memory.
    pub fn map() -> Option<Self> {
        let address = vm::map(BYTES).ok()?;
        // SAFETY: the mapping was just made. A forked child has no use for it.
        unsafe {
            let _ = vm::advise(address, BYTES, libc::MADV_DONTFORK);
            let _ = vm::advise(address, BYTES, libc::MADV_NOHUGEPAGE);
        }
        Some(Self(address))
    }

    /// The arena that was mapped at `address`.
    pub fn at(address: usize) -> Self {
        Self(address)
    }

    /// Its first byte.
    pub fn address(self) -> usize {
        self.0
    }

    /// The byte behind its last one.
    pub fn end(self) -> usize {
        self.0 + BYTES
    }

    /// The shared data.
    pub fn control(self) -> &'static Control {
        // SAFETY: mapped for good, aligned, and valid when zero; the plain fields change only in `prepare`.
        unsafe { &*(self.0 as *const Control) }
    }

    /// Writes the data that a new helper needs.
    ///
    /// # Safety
    /// No helper lives on it.
    pub unsafe fn prepare(self, program: u32, word: usize, config: &Config) {
        let workers = match config.teardown_workers {
            AUTO => process::allowed_cpus().clamp(1, 4),
            workers => workers,
        };
        // SAFETY: by contract no other thread reads it now; both places are inside the mapping.
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

    /// A seat by number: 0 is the helper's, 1 its watcher's.
    pub fn seat(self, number: usize) -> Seat<'static> {
        Seat {
            stack: self.0 + SEATS_AT + (number + 1) * SEAT_BYTES,
            storage: self.0 + STORAGE_AT,
            busy: &self.control().busy[number],
        }
    }

    /// A buffer for text from the kernel; only for the helper's own thread.
    ///
    /// # Safety
    /// One user at a time.
    pub unsafe fn buffer(self) -> &'static mut [u8] {
        // SAFETY: inside the mapping; by contract no other user has it.
        unsafe { core::slice::from_raw_parts_mut((self.0 + BUFFER_AT) as *mut u8, BUFFER_BYTES) }
    }

    /// All pieces, listed or not.
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
        // Two threads work on the piece, and the first one ends later.
        piece.list(7, 8);
        assert!(!piece.take(|_, _| assert!(piece.take(|_, _| {}))));
    }
}
