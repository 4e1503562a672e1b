//! Worker threads, made by a raw clone.
//!
//! `pthread_create` is not used, for three reasons. It takes locks and memory of libc, which a thread that calls
//! `free` may hold. libc would count the thread, so a program whose own threads have all ended would go on, and end
//! in the worker. And the program's static TLS would come out of the worker's stack.
//!
//! So libc does not know these threads, and they must not use what it keeps per thread: no `errno`, no allocation, no
//! cancellation. `setuid` neither waits for them nor changes them; they give up all capabilities and execute nothing.
//!
//! They share memory and signal handlers with the program, but block all signals. They do not share its descriptors:
//! they have a descriptor table of their own, which is emptied at once.

use crate::call::{Errno, Sysno, syscall};
pub use crate::clone::Entry;
use crate::process;
use core::ffi::c_int;
use core::sync::atomic::AtomicU32;

mod descriptors;
mod place;
mod rights;

pub use descriptors::{leave_descriptors, leave_descriptors_unnoticed};
pub use place::Place;
pub use rights::{Rights, SIGNAL_TO_ALL, pending_signals};

/// Whether the thread with this number is gone from this process. A new thread may have the same number, and the main
/// thread stays while other threads exist.
pub fn is_gone(thread: u32) -> bool {
    // SAFETY: no pointers; no signal is sent.
    let found = unsafe { syscall!(Sysno::tgkill, process::id(), thread, 0) };
    found == Err(Errno::ESRCH)
}

/// Gives up what a worker does not need: all capabilities, and the right to gain more.
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
    // SAFETY: both are readable; only this thread is changed.
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

/// Makes a wake-up of this thread wait until the running thread's time slice ends: `SCHED_BATCH`. It costs no share
/// of the CPU and needs no privilege.
pub fn wake_gently() {
    schedule(libc::SCHED_BATCH);
}

/// Gives up a priority above the default, which a thread inherits from its creator.
pub fn leave_priority() {
    schedule(libc::SCHED_OTHER);
}

/// Lets this thread run only when no other thread wants the CPU. It cannot be undone without privilege.
pub fn run_idly() {
    schedule(libc::SCHED_IDLE);
    // Without this, the kernel would check for other threads only at its next tick.
    give_way();
}

fn schedule(policy: c_int) {
    let parameter = 0i32;
    // SAFETY: a `sched_param` is one int; `parameter` is readable.
    let _ = unsafe { syscall!(Sysno::sched_setscheduler, 0, policy, &raw const parameter) };
}

/// Whether this thread yields to others more than usual, and more than `thread` does. Its children would inherit
/// that.
pub fn gives_way_more_than(thread: u32) -> bool {
    standing(0) < standing(thread).min(USUAL)
}

/// The [`standing`] of a thread with niceness 0.
const USUAL: usize = 20;

/// A thread's right to the CPU: 0 if it is idle, else 1 to 40, the more the lower its niceness. `thread` is its
/// number.
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

/// Lets other threads that want this CPU run first, once.
pub fn give_way() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall!(Sysno::sched_yield) };
}

/// A mask with one CPU.
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
    /// The CPUs that this thread may use now.
    pub fn current() -> Self {
        Self::of(0)
    }

    /// The CPUs that a thread of this user may use, by its number; 0 is this thread.
    pub fn of(thread: u32) -> Self {
        let mut mask = [0u64; 128];
        let size = size_of_val(&mask);
        // SAFETY: the kernel writes at most the size given.
        let bytes = unsafe { syscall!(Sysno::sched_getaffinity, thread, size, mask.as_mut_ptr()) }
            .unwrap_or(0);
        Self { mask, bytes }
    }

    /// The number of CPUs.
    pub fn count(&self) -> usize {
        self.mask
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Pins this thread to the `index`-th of these CPUs other than `avoid`, if there is one, and returns that CPU.
    /// Without this, the scheduler does not spread threads in long system calls.
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

    /// The same after [`Self::pin`], unless another thread has changed this thread's CPUs meanwhile.
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

/// Sleeps while `word` holds `value`, at most `timeout_ms`. May wake up spuriously.
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
pub(crate) mod tests {
    extern crate std;
    use super::*;
    use std::time::{Duration, Instant};

    /// Waits until `is_so` holds. A joined thread stays in the kernel's list a moment longer.
    pub(crate) fn comes(is_so: impl Fn() -> bool) -> bool {
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
            // No other CPU is left.
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
            // The affinity is changed again meanwhile.
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
}
