//! The memory of a worker thread: its stack, and the block that stands in for its thread block.
//!
//! ```text
//!  guard │ stack, downwards │ below │ block │ above
//!                             ▲       ▲ the thread pointer
//!                             └ struct rseq, where the C library puts it below; or in `above`
//! ```
//!
//! The C library keeps `struct rseq` at a fixed distance from every thread's pointer. Before glibc 2.41 it lies
//! inside the thread block; from then on beyond all static TLS, whatever its size. `below` and `above` both reach
//! that far. The `cpu_id` there is −1: not registered. So sections find the parked slab, and `sched_getcpu` asks the
//! kernel. The same holds for the area that this library keeps in static TLS ([`crate::rseq`])
//! ([decision 0066](../../../../docs/decisions/0066-workers-have-an-rseq-area-and-no-extra-rights.md)).
//!
//! - `INV-THREAD-1`: wherever code in such a thread expects `struct rseq`, the thread has memory of its own that says
//!   −1.

use super::is_gone;
use crate::call::{Sysno, syscall};
use crate::clone::{Entry, Request, clone};
use crate::{process, rseq, vm};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of a worker's stack.
const STACK_BYTES: usize = 128 << 10;
/// Minimum number of bytes on each side of the thread pointer's target.
const SIDE_BYTES: usize = 16 << 10;
/// Bytes of `struct rseq` that the C library and sections touch.
const AREA_BYTES: usize = 64;
const _: () = assert!(rseq::OWN_BYTES <= AREA_BYTES);
/// No C library has a distance beyond this. If it is larger, no thread is made.
const FARTHEST: usize = 1 << 30;
/// Bytes without access below the stack.
const GUARD_BYTES: usize = vm::GRANULE;

/// Set in [`Place::busy`] until the kernel has made the thread.
const MAKING: u32 = 1 << 31;

/// A place for one thread at a time.
pub struct Place {
    /// The number of the thread that runs here. The kernel sets it when it has made the thread, and clears it when
    /// the thread is gone. Before that, [`MAKING`] and the number of the creating thread, which a filter may kill
    /// during the call.
    busy: AtomicU32,
    /// Number of threads that this place tried to start.
    made: AtomicU32,
    /// The stack, above a guard, kept for the next thread. 0: none yet.
    memory: AtomicUsize,
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    /// An empty place.
    pub const fn new() -> Self {
        Self {
            busy: AtomicU32::new(0),
            made: AtomicU32::new(0),
            memory: AtomicUsize::new(0),
        }
    }

    /// Whether the last thread that ran here is gone, or the thread that was to make it.
    pub fn is_free(&self) -> bool {
        let busy = self.busy.load(Ordering::Acquire);
        busy == 0 || busy & MAKING != 0 && is_gone(busy & !MAKING)
    }

    /// The number of the thread that runs here; 0: none.
    pub fn thread(&self) -> u32 {
        let busy = self.busy.load(Ordering::SeqCst);
        if busy & MAKING == 0 { busy } else { 0 }
    }

    /// A number that identifies the last thread started here: greater by one for each.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    /// Marks the place as empty: in a forked child.
    pub fn reset(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }

    /// Starts a thread. Returns `false` if refused, or if the last thread is not gone yet. Only one caller at a time.
    pub fn spawn(&'static self, entry: Entry, argument: usize) -> bool {
        self.spawn_with(entry, argument, process::rseq_offset())
    }

    /// The same, with `struct rseq` at this distance from the thread pointer; 0: no code looks for it.
    fn spawn_with(&'static self, entry: Entry, argument: usize, rseq_offset: isize) -> bool {
        let own_offset = rseq::own_offset();
        let Some(layout) = Layout::reaching([rseq_offset, own_offset]) else {
            return false;
        };
        if !self.is_free() {
            return false;
        }
        let mut memory = self.memory.load(Ordering::Relaxed);
        if memory == 0 {
            let Some(fresh) = layout.map() else {
                return false;
            };
            memory = fresh;
            self.memory.store(memory, Ordering::Relaxed);
        }
        let stack = memory + STACK_BYTES;
        let block = stack + layout.below;
        // SAFETY: inside the mapping, which reaches from `below` bytes under the block to `above` over it. The thread
        // pointer's target holds its own address; `cpu_id` says that there is no registration.
        unsafe {
            (block as *mut usize).write(block);
            if rseq_offset != 0 {
                (block.wrapping_add_signed(rseq_offset + 4) as *mut i32).write_unaligned(-1);
            }
            if own_offset != 0 {
                rseq::mark_block(block);
            }
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        // After the count: a thread that sees the place busy again also sees the new count.
        let making = MAKING | process::thread_id();
        self.busy.store(making, Ordering::Release);
        // Descriptors are shared until `leave_descriptors`. A copy would keep files open that the program closes
        // before the new thread first runs.
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_CLEARTID;
        let all = u64::MAX;
        let mut before = 0u64;
        // SAFETY: the new thread has a stack and a thread block of its own, and inherits the blocked signals.
        unsafe {
            let size = size_of::<u64>();
            let set = libc::SIG_SETMASK;
            let _ = syscall!(
                Sysno::rt_sigprocmask,
                set,
                &raw const all,
                &raw mut before,
                size
            );
            let request = Request {
                flags: flags as usize,
                stack,
                block,
                number: self.busy.as_ptr(),
                busy: self.busy.as_ptr(),
            };
            let made = clone(&request, entry, argument).is_ok();
            let none = core::ptr::null_mut::<u64>();
            let _ = syscall!(Sysno::rt_sigprocmask, set, &raw const before, none, size);
            if !made {
                self.busy.store(0, Ordering::Release);
            }
            made
        }
    }
}

/// How far a thread's memory reaches below and above its thread pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    below: usize,
    above: usize,
}

impl Layout {
    /// A layout in which each `struct rseq` at these distances lies inside. `None`: a distance is too large.
    fn reaching(rseq_offsets: [isize; 2]) -> Option<Self> {
        let mut layout = Self {
            below: SIDE_BYTES,
            above: SIDE_BYTES,
        };
        for offset in rseq_offsets {
            let far = offset.unsigned_abs();
            if far > FARTHEST {
                return None;
            }
            let (side, bytes) = match offset < 0 {
                true => (&mut layout.below, far),
                false => (&mut layout.above, far + AREA_BYTES),
            };
            *side = bytes.max(*side).next_multiple_of(vm::GRANULE);
        }
        Some(layout)
    }

    fn bytes(self) -> usize {
        STACK_BYTES + self.below + self.above
    }

    /// Maps memory for a stack and a block, with a guard below. `None`: refused. Only touched pages become resident:
    /// a few.
    fn map(self) -> Option<usize> {
        let guard = vm::reserve(GUARD_BYTES + self.bytes(), vm::GRANULE).ok()?;
        let memory = guard + GUARD_BYTES;
        // SAFETY: inside the reservation just made.
        unsafe {
            if vm::commit(memory, self.bytes()).is_err() {
                vm::unmap(guard, GUARD_BYTES + self.bytes());
                return None;
            }
            let _ = vm::advise(memory, self.bytes(), libc::MADV_NOHUGEPAGE);
        }
        Some(memory)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::tests::comes;
    use super::*;

    /// A stack overflow ends the worker and writes to no other memory.
    #[test]
    fn below_a_stack_is_no_memory() {
        let layout = Layout::reaching([0, 0]).unwrap();
        let memory = layout.map().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // The kernel may merge the guard with a neighbour without access.
        let guard = std::format!("-{memory:x} ---p");
        assert!(maps.contains(&guard), "no {guard} in {maps}");
        // SAFETY: the mapping just made.
        unsafe { ((memory + layout.bytes()) as *mut u8).sub(1).write(1) };
        vm::unmap(memory - GUARD_BYTES, GUARD_BYTES + layout.bytes());
    }

    #[test]
    fn a_block_reaches_as_far_as_the_registration() {
        let offsets = [-65_728, -410_016, -(3 << 20), -32, 2464, 500_000, 1 << 22];
        for pair in offsets
            .map(|one| offsets.map(|other| [one, other]))
            .concat()
        {
            let layout = Layout::reaching(pair).unwrap();
            for offset in pair {
                assert!(offset >= -(layout.below as isize), "{offset} {layout:?}");
                let end = offset + AREA_BYTES as isize;
                assert!(end <= layout.above as isize, "{offset} {layout:?}");
            }
        }
        assert_eq!(Layout::reaching([0, isize::MIN]), None);
        assert_eq!(Layout::reaching([isize::MAX, 0]), None);
    }

    /// A thread reads −1 as its `cpu_id`, and the words that a section would write beside it are the thread's own.
    #[test]
    fn a_thread_finds_no_registration_however_far_away() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn looks(offset: usize) {
            // SAFETY: inside this thread's block; the test checks exactly that.
            let cpu = unsafe { crate::rseq::section::cpu_id(offset as isize) };
            SEEN.store(cpu as usize, Ordering::Relaxed);
        }
        for offset in [-65_728isize, -410_016, -(3 << 20), 2464, 500_000] {
            let place: &'static Place = std::boxed::Box::leak(std::boxed::Box::default());
            SEEN.store(7, Ordering::Relaxed);
            assert!(place.spawn_with(looks, offset as usize, offset));
            assert!(comes(|| place.is_free()), "{offset}");
            assert_eq!(SEEN.load(Ordering::Relaxed) as i32, -1, "{offset}");
        }
    }

    #[test]
    fn libc_knows_the_threads_of_the_program_whatever_they_block() {
        static IS_UNKNOWN: AtomicU32 = AtomicU32::new(7);
        extern "C" fn looks(_: usize) {
            let is_unknown = process::is_unknown_to_libc();
            IS_UNKNOWN.store(is_unknown.into(), Ordering::Relaxed);
        }
        std::thread::spawn(|| {
            assert!(!process::is_unknown_to_libc());
            // SAFETY: plain calls on a local set, for this thread alone.
            unsafe {
                let mut all = core::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
            }
            assert!(!process::is_unknown_to_libc());
        })
        .join()
        .unwrap();
        let place: &'static Place = std::boxed::Box::leak(std::boxed::Box::default());
        assert!(place.spawn(looks, 0) && comes(|| place.is_free()));
        assert_eq!(IS_UNKNOWN.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_place_whose_maker_is_gone_is_free() {
        let place = Place::new();
        let making = |thread: u32| {
            place.busy.store(MAKING | thread, Ordering::Relaxed);
            !place.is_free()
        };
        let gone = std::thread::spawn(process::thread_id).join().unwrap();
        assert!(making(process::thread_id()));
        assert!(comes(|| !making(gone)));
    }
}
