//! Worker threads: made through libc, so that its thread bookkeeping holds, and then left alone.

use crate::call::{Sysno, syscall};
use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

/// Bytes of a worker's stack.
const STACK_BYTES: usize = 128 << 10;

/// Starts a detached thread with all signals blocked (libc keeps 32 and 33, without which `setuid`
/// would hang). `false`: refused.
///
/// libc allocates for a thread: no lock may be held.
pub fn spawn(entry: extern "C" fn(*mut c_void) -> *mut c_void, argument: usize) -> bool {
    // SAFETY: plain libc calls on local objects; `entry` lives as long as the library.
    unsafe {
        let errno = *libc::__errno_location();
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_attr_init(&raw mut attributes) != 0 {
            return false;
        }
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let argument = argument as *mut c_void;
        let error = libc::pthread_create(&raw mut thread, &raw const attributes, entry, argument);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        libc::pthread_attr_destroy(&raw mut attributes);
        *libc::__errno_location() = errno;
        error == 0
    }
}

/// Gives this thread a name of up to 15 bytes and a NUL.
pub fn set_name(name: &[u8; 16]) {
    // SAFETY: `name` is readable.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Gives this thread a descriptor table of its own, empty: it keeps nothing of the program's open.
pub fn leave_descriptors() {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: closes only this thread's copies.
    let _ = unsafe { syscall!(Sysno::close_range, 0, u32::MAX, CLOSE_RANGE_UNSHARE) };
}

/// The CPUs that a thread may use.
pub struct Affinity {
    mask: [u64; 128],
    bytes: usize,
}

impl Affinity {
    /// Those of this thread now.
    pub fn current() -> Self {
        let mut mask = [0u64; 128];
        let size = size_of_val(&mask);
        // SAFETY: the kernel writes at most the size given.
        let bytes =
            unsafe { syscall!(Sysno::sched_getaffinity, 0, size, mask.as_mut_ptr()) }.unwrap_or(0);
        Self { mask, bytes }
    }

    /// Keeps this thread on the `index`-th of these CPUs other than `avoid`, where there is one: long
    /// calls into the kernel are not spread by the scheduler.
    pub fn pin(&self, index: usize, avoid: usize) {
        let others = (0..self.bytes * 8)
            .filter(|&cpu| cpu != avoid && self.mask[cpu / 64] >> (cpu % 64) & 1 == 1);
        let count = others.clone().count();
        if count == 0 {
            return;
        }
        let Some(cpu) = others.clone().nth(index % count) else {
            return;
        };
        let mut one = [0u64; 128];
        one[cpu / 64] = 1 << (cpu % 64);
        self.set(&one);
    }

    /// Lets this thread use all of these CPUs again.
    pub fn restore(&self) {
        self.set(&self.mask);
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
