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
/// Pieces in one round of the teardown.
pub const PIECES: usize = 32 << 10;
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
    /// Changes when there are new pieces.
    pub round: AtomicU32,
    /// The next piece to take; pieces of this round; those not done yet.
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

    /// Not any more.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
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

/// A range to take. Listed anew each round, while a thread of the round before may still look at it.
#[repr(C)]
pub struct Piece {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// Odd: done. Even, another number each round: not yet.
    done: AtomicU32,
}

impl Piece {
    /// Lists a range in this round, once the one before is done. Whoever sees the last store sees the others, and whoever sees
    /// one of the others sees that the last range was done.
    pub fn list(&self, start: usize, bytes: usize, round: u32) {
        self.start.store(start, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
        self.done.store(round.wrapping_mul(2), Ordering::Release);
    }

    /// Calls `work` with the range's first byte and length if it has not been done, and notes that it has. `true`: nobody else
    /// noted that meanwhile.
    pub fn take(&self, work: impl FnOnce(usize, usize)) -> bool {
        let state = self.done.load(Ordering::SeqCst);
        let start = self.start.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Acquire);
        // Somebody has done it meanwhile, and this may be a piece of another round by now, in parts.
        if state & 1 == 1 || self.done.load(Ordering::SeqCst) != state {
            return false;
        }
        work(start, bytes);
        self.done
            .compare_exchange(state, state | 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
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

    /// The list of pieces.
    pub fn pieces(self) -> &'static [Piece] {
        // SAFETY: inside the mapping, all fields atomic.
        unsafe { core::slice::from_raw_parts((self.0 + PIECES_AT) as *const Piece, PIECES) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_piece_is_done_once_and_listed_anew() {
        let piece = Piece {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            done: AtomicU32::new(1),
        };
        let never = |_, _| panic!("it is done");
        assert!(!piece.take(never));
        piece.list(7, 8, 1);
        assert!(piece.take(|start, bytes| assert_eq!((start, bytes), (7, 8))));
        assert!(!piece.take(never));
        // Two threads are at it, and the first one ends later.
        piece.list(7, 8, 2);
        assert!(!piece.take(|_, _| assert!(piece.take(|_, _| {}))));
        // It is of another round by then.
        piece.list(7, 8, 3);
        assert!(!piece.take(|_, _| {
            assert!(piece.take(|_, _| {}));
            piece.list(9, 10, 4);
        }));
        assert!(piece.take(|start, bytes| assert_eq!((start, bytes), (9, 10))));
    }

    /// As when a thread that was held up in one round meets the list of the next.
    #[test]
    fn a_piece_is_not_seen_by_halves_of_two_rounds() {
        let piece = Piece {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            done: AtomicU32::new(1),
        };
        let is_over = core::sync::atomic::AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let mut seen = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    piece.take(|start, bytes| {
                        assert_eq!(bytes, !start);
                        seen += 1;
                        // So it is held up.
                        while piece.done.load(Ordering::Relaxed) & 1 == 0 {}
                    });
                }
                seen
            });
            let until = std::time::Instant::now() + std::time::Duration::from_millis(600);
            let mut round = 0u32;
            while !looker.is_finished() && std::time::Instant::now() < until {
                for _ in 0..1000 {
                    round = round.wrapping_add(1);
                    piece.list(round as usize, !(round as usize), round);
                    assert!(piece.take(|_, _| {}));
                }
            }
            is_over.store(true, Ordering::Relaxed);
            looker.join().unwrap()
        });
        assert!(seen > 0, "nothing was tested");
    }
}
