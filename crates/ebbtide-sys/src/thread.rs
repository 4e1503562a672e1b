//! Worker threads, made by a raw clone.
//!
//! Not by `pthread_create`: that takes libc's locks and memory, which whoever calls `free` may be holding;
//! libc would count the thread, so that a program whose own threads have all ended went on, and ended in
//! the worker; and the program's static TLS would come out of the worker's stack. So libc does not know
//! these threads, and they must not use what it keeps per thread: no `errno`, no allocation, no
//! cancellation. `setuid` neither waits for them nor changes them; they give up all capabilities and
//! execute nothing.
//!
//! They share memory and signal handlers with the program, but all signals are blocked in them; and not
//! its descriptors: they have a table of their own, emptied at once.

use crate::call::{Errno, Sysno, syscall};
pub use crate::clone::Entry;
use crate::clone::{Request, clone};
use crate::{process, vm};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes of a worker's stack, and above it of what stands in for its thread block.
const STACK_BYTES: usize = 128 << 10;
const BLOCK_BYTES: usize = 32 << 10;
/// Below the stack: no access.
const GUARD_BYTES: usize = vm::GRANULE;

/// Set in [`Place::busy`] until the kernel has made the thread.
const MAKING: u32 = 1 << 31;

/// A place for one thread at a time.
pub struct Place {
    /// The number of the thread that runs here: the kernel sets it when it has made the thread, and clears it when the
    /// thread is gone. Before, [`MAKING`] and the number of who makes it, whom a filter may kill for that.
    busy: AtomicU32,
    /// How many were tried to start here.
    made: AtomicU32,
    /// Its stack, above a guard, kept for the next one. 0: none yet.
    memory: core::sync::atomic::AtomicUsize,
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    /// Nobody is here.
    pub const fn new() -> Self {
        Self {
            busy: AtomicU32::new(0),
            made: AtomicU32::new(0),
            memory: core::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// Whether the last thread that ran here is gone, or who was to make it.
    pub fn is_free(&self) -> bool {
        let busy = self.busy.load(Ordering::Acquire);
        busy == 0 || busy & MAKING != 0 && is_gone(busy & !MAKING)
    }

    /// Tells the threads that have run here apart: greater by one for each.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    /// Whether the calling thread runs here.
    pub fn is_here(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == process::thread_id()
    }

    /// Nobody is here any more: in a forked child.
    pub fn reset(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }

    /// Starts a thread. `false`: refused, or the last one is not gone yet. One caller at a time.
    ///
    /// `rseq_offset`: where the thread would look for its `struct rseq`; it finds −1, no registration.
    /// 0: it would not look.
    pub fn spawn(&'static self, entry: Entry, argument: usize, rseq_offset: isize) -> bool {
        if !self.is_free() {
            return false;
        }
        let mut memory = self.memory.load(Ordering::Relaxed);
        if memory == 0 {
            let Some(fresh) = stack() else {
                return false;
            };
            memory = fresh;
            self.memory.store(memory, Ordering::Relaxed);
        }
        let stack = memory + STACK_BYTES;
        let block = stack + BLOCK_BYTES / 2;
        // SAFETY: inside the mapping just made. The thread pointer's target holds its own address, and
        // what a restartable section would read as `cpu_id` says that there is no registration.
        unsafe {
            (block as *mut usize).write(block);
            if rseq_offset != 0 && rseq_offset.unsigned_abs() + 64 < BLOCK_BYTES / 2 {
                ((block as isize + rseq_offset + 4) as *mut i32).write(-1);
            }
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        // Behind the count: who finds the place busy again finds that changed.
        let making = MAKING | process::thread_id();
        self.busy.store(making, Ordering::Release);
        // Descriptors are shared until `leave_descriptors`: a copy would keep open what the program closes before the
        // thread first gets a CPU.
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
        // SAFETY: the new thread has a stack and a thread block of its own, and inherits the blocked
        // signals.
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

/// Memory for a stack and a block, with a guard below. `None`: refused.
fn stack() -> Option<usize> {
    let bytes = STACK_BYTES + BLOCK_BYTES;
    let guard = vm::reserve(GUARD_BYTES + bytes, vm::GRANULE).ok()?;
    let memory = guard + GUARD_BYTES;
    // SAFETY: inside the reservation just made.
    if unsafe { vm::commit(memory, bytes) }.is_err() {
        vm::unmap(guard, GUARD_BYTES + bytes);
        return None;
    }
    Some(memory)
}

/// Whether a thread of this process is gone, by its number. One with the same number may have come since, and the main
/// thread stays as long as there are others.
pub fn is_gone(thread: u32) -> bool {
    // SAFETY: no pointers; no signal is sent.
    let found = unsafe { syscall!(Sysno::tgkill, process::id(), thread, 0) };
    found == Err(Errno::ESRCH)
}

/// Gives up what a worker does not need: capabilities, and ever getting more.
pub fn leave_privileges() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let none = [0u32; 6];
    // SAFETY: both are readable; only this thread loses something.
    unsafe {
        let _ = syscall!(Sysno::prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let _ = syscall!(Sysno::capset, &raw const header, none.as_ptr());
    }
}

/// Gives this thread a name of up to 15 bytes and a NUL.
pub fn set_name(name: &[u8; 16]) {
    // SAFETY: `name` is readable.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Lets this thread's wake-ups wait for the program's turn to end: `SCHED_BATCH`, which costs no share of the
/// CPU and needs no privilege.
pub fn wake_gently() {
    schedule(libc::SCHED_BATCH);
}

/// Gives up a priority beyond the usual, which a thread has from the one that made it.
pub fn leave_priority() {
    schedule(libc::SCHED_OTHER);
}

/// Lets this thread run only where nobody else wants to. There is no way back without privilege.
pub fn run_idly() {
    schedule(libc::SCHED_IDLE);
    // The kernel would look who else wants to at its next tick only.
    give_way();
}

fn schedule(policy: c_int) {
    let parameter = 0i32;
    // SAFETY: a `sched_param` is one int; `parameter` is readable.
    let _ = unsafe { syscall!(Sysno::sched_setscheduler, 0, policy, &raw const parameter) };
}

/// Whether this thread gives way to others more than usual, and more than that thread does. It would hand that on to what
/// it makes.
pub fn gives_way_more_than(thread: u32) -> bool {
    standing(0) < standing(thread).min(USUAL)
}

/// [`standing`] without niceness.
const USUAL: usize = 20;

/// A thread's right to the CPU, by number: 0 if it is idle, 1 to 40 against its niceness, else.
fn standing(thread: u32) -> usize {
    const RESET_ON_FORK: usize = 0x4000_0000;
    // SAFETY: no pointers.
    unsafe {
        let policy = syscall!(Sysno::sched_getscheduler, thread).unwrap_or(0);
        if policy & !RESET_ON_FORK == libc::SCHED_IDLE as usize {
            return 0;
        }
        syscall!(Sysno::getpriority, 0, thread).unwrap_or(0)
    }
}

/// Lets others who want this CPU go first, once.
pub fn give_way() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall!(Sysno::sched_yield) };
}

/// Whether [`leave_descriptors`] was ever called, by whatever thread.
pub(crate) static SOME_LEFT_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// Leaves the program's table of descriptors for an empty one of this thread's own. `false`: refused, the table is the
/// program's still.
pub fn leave_descriptors() -> bool {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: the flag makes the table that is emptied this thread's own.
    let leave = |first: u32, last: u32| unsafe {
        syscall!(Sysno::close_range, first, last, CLOSE_RANGE_UNSHARE)
    };
    SOME_LEFT_DESCRIPTORS.store(true, Ordering::Relaxed);
    // No range at all: a kernel says so, a filter that answers in its place may claim that it is done.
    leave(1, 0) == Err(Errno::EINVAL) && leave(0, u32::MAX).is_ok()
}

/// A CPU alone, as a mask.
fn one(cpu: usize) -> [u64; 128] {
    let mut mask = [0; 128];
    mask[cpu / 64] = 1 << (cpu % 64);
    mask
}

/// The CPUs that a thread may use.
pub struct Affinity {
    mask: [u64; 128],
    bytes: usize,
}

impl Affinity {
    /// Those of this thread now.
    pub fn current() -> Self {
        Self::of(0)
    }

    /// Those of a thread of this user's by number, 0 for this one.
    pub fn of(thread: u32) -> Self {
        let mut mask = [0u64; 128];
        let size = size_of_val(&mask);
        // SAFETY: the kernel writes at most the size given.
        let bytes = unsafe { syscall!(Sysno::sched_getaffinity, thread, size, mask.as_mut_ptr()) }
            .unwrap_or(0);
        Self { mask, bytes }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.mask
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Keeps this thread on the `index`-th of these CPUs other than `avoid`, where there is one: long
    /// calls into the kernel are not spread by the scheduler. Which one that is.
    pub fn pin(&self, index: usize, avoid: usize) -> Option<usize> {
        let others = (0..self.bytes * 8)
            .filter(|&cpu| cpu != avoid && self.mask[cpu / 64] >> (cpu % 64) & 1 == 1);
        let count = others.clone().count();
        let cpu = others.clone().nth(index.checked_rem(count)?)?;
        self.set(&one(cpu));
        Some(cpu)
    }

    /// Lets this thread use all of these CPUs again.
    pub fn restore(&self) {
        self.set(&self.mask);
    }

    /// The same after [`Self::pin`], unless somebody has chosen others for it meanwhile.
    pub fn unpin(&self, pinned: Option<usize>) {
        if pinned.is_some_and(|cpu| Self::current().mask == one(cpu)) {
            self.restore();
        }
    }

    fn set(&self, mask: &[u64; 128]) {
        // SAFETY: `mask` is readable for that many bytes.
        let _ = unsafe { syscall!(Sysno::sched_setaffinity, 0, self.bytes, mask.as_ptr()) };
    }
}

/// Sleeps while `word` holds `value`, at most `timeout_ms`. Wakes up spuriously too.
pub fn wait(word: &AtomicU32, value: u32, timeout_ms: u64) {
    let time = libc::timespec {
        tv_sec: (timeout_ms / 1000) as i64,
        tv_nsec: (timeout_ms % 1000 * 1_000_000) as i64,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is a live futex word, `time` is readable.
    let _ = unsafe {
        syscall!(
            Sysno::futex,
            word.as_ptr(),
            operation,
            value,
            &raw const time
        )
    };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::time::{Duration, Instant};

    /// Waits until it is so. Who has been joined is in the kernel's list a moment longer.
    fn comes(is_so: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn what_others_chose_for_a_thread_stays() {
        let check = || {
            let all = Affinity::current();
            let cpu = all.pin(1, usize::MAX).unwrap();
            assert_eq!(Affinity::current().count(), 1);
            all.unpin(Some(cpu));
            assert_eq!(Affinity::current().mask, all.mask);
            // Nowhere to go.
            assert_eq!(
                Affinity {
                    mask: one(cpu),
                    ..all
                }
                .pin(0, cpu),
                None
            );
            let Some(other) = all.pin(0, cpu) else { return };
            all.pin(0, other);
            // Somebody calls it back meanwhile.
            all.set(&one(other));
            all.unpin(Some(cpu));
            assert_eq!(Affinity::current().mask, one(other));
        };
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn who_is_gone_is_seen() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(process::thread_id()).unwrap();
            let _ = ended.recv();
        });
        let id = told.recv().unwrap();
        assert!(!is_gone(id) && !is_gone(process::thread_id()));
        drop(end);
        thread.join().unwrap();
        assert!(comes(|| is_gone(id)));
    }

    /// Where a worker's stack is at an end, so is the worker, and nobody's memory is written to.
    #[test]
    fn below_a_stack_is_no_memory() {
        let memory = stack().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Neighbours without access may be in one mapping with it.
        let guard = std::format!("-{memory:x} ---p");
        assert!(maps.contains(&guard), "no {guard} in {maps}");
        // SAFETY: the mapping just made.
        unsafe {
            ((memory + STACK_BYTES + BLOCK_BYTES) as *mut u8)
                .sub(1)
                .write(1)
        };
        vm::unmap(
            memory - GUARD_BYTES,
            GUARD_BYTES + STACK_BYTES + BLOCK_BYTES,
        );
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
