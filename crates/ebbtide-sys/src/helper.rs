//! The exit helper's mechanism: a process that shares the program's memory and outlives it.
//!
//! `clone(CLONE_VM)` makes it. It shares memory with the program and nothing else. It has no descriptors of the
//! program, no signal handlers (all signals are blocked), no thread-local storage of libc and no capabilities. It may
//! make few system calls ([`lock_down`]). No function here touches `errno`.
//!
//! Only x86-64 and aarch64: on other processors [`spawn_process`] fails with `ENOSYS`.

mod descriptor;
mod lock_down;

pub use crate::clone::Entry;
pub use descriptor::{Descriptor, open_private};
pub use lock_down::lock_down;

use crate::call::{Errno, Sysno, syscall};
use crate::clone::{Request, clone};
use core::sync::atomic::{AtomicU32, Ordering};

/// The flags for the helper's threads, the only clone flags that [`lock_down`] allows.
const THREAD_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID) as usize;

/// The flags for the helper. It shares descriptors until it unshares them, at once: so it never holds a copy of a
/// descriptor that the program closes. It has no exit signal, so the program's `wait` does not see it. It is not
/// traced, so a debugger of the program does not stop it.
const PROCESS_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FILES
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_UNTRACED) as usize;

/// Memory for one thread of the helper.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    /// The end of its stack, a multiple of 16.
    pub stack: usize,
    /// The address that stands in for the thread-local storage, with free memory on both sides.
    pub storage: usize,
    /// 1 while the thread runs. The kernel clears it when the thread ends.
    pub busy: &'a AtomicU32,
}

/// Starts the helper and returns its number as this process sees it. `entry` never returns.
///
/// # Errors
/// The error of clone(2): `EAGAIN` under a limit, `EPERM` from a filter, `ENOSYS` on a processor without an
/// implementation.
///
/// # Safety
/// The seat has no other user until [`Seat::busy`] is 0, and stays mapped. `entry` does only what a thread that libc
/// does not know may do.
pub unsafe fn spawn_process(seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let all = u64::MAX;
    let mut before = 0u64;
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: both masks are valid; this thread's is put back.
    unsafe {
        let set = libc::SIG_SETMASK;
        syscall!(
            Sysno::rt_sigprocmask,
            set,
            &raw const all,
            &raw mut before,
            8
        )?;
        let made = spawn(PROCESS_FLAGS, seat, entry, argument);
        let _ = syscall!(Sysno::rt_sigprocmask, set, &raw const before, none, 8);
        made
    }
}

/// Starts a further thread of the helper.
///
/// # Errors
/// As [`spawn_process`].
///
/// # Safety
/// As [`spawn_process`].
pub unsafe fn spawn_thread(seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    // SAFETY: by contract; signals are blocked already.
    unsafe { spawn(THREAD_FLAGS, seat, entry, argument) }
}

unsafe fn spawn(flags: usize, seat: Seat, entry: Entry, argument: usize) -> Result<u32, Errno> {
    let request = Request {
        flags,
        stack: seat.stack,
        block: seat.storage,
        number: core::ptr::null_mut(),
        busy: seat.busy.as_ptr(),
    };
    seat.busy.store(1, Ordering::Release);
    // SAFETY: the caller guarantees it. No flag asks for a number.
    let made = unsafe { clone(&request, entry, argument) };
    if made.is_err() {
        seat.busy.store(0, Ordering::Release);
    }
    made
}

/// Ends this thread, or this process if a filter of the program refuses that.
pub fn exit_thread() -> ! {
    // SAFETY: nothing of this thread is used any more.
    let _ = unsafe { syscall!(Sysno::exit, 0) };
    exit_process()
}

/// Ends this process, whichever calls a filter of the program refuses: by exit_group, by a signal, by a CPU limit, by
/// a trap.
///
/// The trap comes last: before Linux 5.16, a fault that may dump core ends every process that shares the memory.
pub fn exit_process() -> ! {
    try_to_end();
    crate::clone::trap()
}

/// Ends this process as [`exit_process`] does, but without the trap. Returns if everything else is refused.
pub fn try_to_end() {
    // SAFETY: as above, for all of its threads.
    unsafe {
        let _ = syscall!(Sysno::exit_group, 0);
        let id = crate::process::id();
        // `id` is 0 if the call was refused, and kill(0) would signal the whole group.
        if id != 0 {
            let _ = syscall!(Sysno::kill, id, libc::SIGKILL);
        }
    }
    if set_limit(libc::RLIMIT_CPU as usize, 1) {
        // Uses up the one second of CPU time. The loop ends all the same if a filter only claims that the limit is
        // set.
        for _ in 0..100_000_000 {
            crate::process::id();
        }
    }
}

/// Kills a child that has not been collected. Returns `false` if refused.
pub fn kill(id: u32) -> bool {
    // SAFETY: no pointers. The kernel does not reuse the number before the child is collected.
    id != 0 && unsafe { syscall!(Sysno::kill, id, libc::SIGKILL) }.is_ok()
}

/// The address of the word that the kernel clears and wakes when this thread leaves its memory, by its end or by
/// exec.
pub fn leaving_word() -> Option<usize> {
    let mut word = 0usize;
    // SAFETY: `word` is a valid place to write to.
    unsafe {
        syscall!(
            Sysno::prctl,
            libc::PR_GET_TID_ADDRESS,
            &raw mut word,
            0,
            0,
            0
        )
    }
    .ok()?;
    (word != 0).then_some(word)
}

/// Gives up everything shared with the program except memory: descriptors, session, terminal, directory, and a
/// priority above the default. Returns `false` if refused; then the helper must end.
pub fn leave_program() -> bool {
    // First, because a refusal below may end this process by a trap. 1 and not 0: a limit of 0 would still let a core
    // pipe get a dump.
    set_limit(libc::RLIMIT_CORE as usize, 1);
    if !crate::thread::leave_descriptors() {
        return false;
    }
    // SAFETY: the path ends with a NUL; only this process is changed.
    unsafe {
        let _ = syscall!(Sysno::setsid);
        let _ = syscall!(Sysno::chdir, c"/".as_ptr());
    }
    crate::thread::leave_priority();
    true
}

/// Sets a resource limit of this process. Returns `false` if refused.
fn set_limit(resource: usize, value: u64) -> bool {
    let limit = libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    let none = core::ptr::null_mut::<libc::rlimit64>();
    // SAFETY: the limit is readable; only this process is bound.
    unsafe { syscall!(Sysno::prlimit64, 0, resource, &raw const limit, none) }.is_ok()
}

fn timespec(us: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000 * 1000) as i64,
    }
}

/// Sleeps for `us` microseconds, so that other processes run first. `sched_yield` would yield only within the
/// caller's own session.
pub fn pause(us: u64) {
    let (none, time) = (core::ptr::null_mut::<libc::pollfd>(), timespec(us));
    // SAFETY: no entries, and a time.
    let _ = unsafe { syscall!(Sysno::ppoll, none, 0, &raw const time, 0, 0) };
}

/// The effective user of this process.
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::geteuid) }.unwrap_or(0) as u32
}

/// The parent's process id.
pub fn parent() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getppid) }.unwrap_or(0) as u32
}

/// Whether this process has one thread left.
pub fn is_single() -> bool {
    // SAFETY: the kernel checks, and changes nothing of a single thread.
    unsafe { syscall!(Sysno::unshare, libc::CLONE_THREAD) }.is_ok()
}

/// Whether no other process uses this memory. Call it from the only thread of this process. The kernel searches all
/// processes, so the answer is exact. Once true it stays true, because no other process is left to share the memory
/// further.
pub fn is_alone() -> bool {
    // SAFETY: as above. For a single thread that shares no memory, the call changes nothing.
    unsafe { syscall!(Sysno::unshare, libc::CLONE_VM) }.is_ok()
}

/// Collects a child that has ended. Returns `true` if it is gone.
pub fn collect(id: u32) -> bool {
    let flags = libc::WNOHANG | libc::__WALL;
    let none = core::ptr::null_mut::<i32>();
    // SAFETY: no status and no usage are asked for.
    match unsafe { syscall!(Sysno::wait4, id, none, flags, 0) } {
        Ok(found) => found as u32 == id,
        Err(error) => error == Errno::ECHILD,
    }
}

/// Nanoseconds since some fixed moment, without the vDSO and libc.
pub fn now_ns() -> u64 {
    let mut time = timespec(0);
    // SAFETY: `time` is a valid place to write to.
    let _ = unsafe { syscall!(Sysno::clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same in milliseconds.
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// The result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Woken, or the word had changed already.
    Woken,
    /// The time is over.
    Late,
    /// The word cannot be read, or a filter of the program refuses the call.
    Refused,
}

/// Sleeps for at most `ms` while the word at `address` holds `value`. The kernel's own wake-up at a thread's end ends
/// the sleep too.
pub fn wait(address: usize, value: u32, ms: u64) -> Waited {
    let time = timespec(ms.saturating_mul(1000));
    // SAFETY: the kernel checks the address.
    match unsafe {
        syscall!(
            Sysno::futex,
            address,
            libc::FUTEX_WAIT,
            value,
            &raw const time
        )
    } {
        Err(Errno::ETIMEDOUT) => Waited::Late,
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Waited::Woken,
        Err(_) => Waited::Refused,
    }
}

/// Whether the word at `address`, which may be unmapped, holds `value`.
pub fn holds(address: usize, value: u32) -> bool {
    let compare = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel checks the address; no thread is woken or moved.
    match unsafe { syscall!(Sysno::futex, address, compare, 0, 0, address, value) } {
        Ok(_) => true,
        Err(Errno::EAGAIN | Errno::EFAULT) => false,
        // A filter of the program refuses the call. A wait that times out found the value. Another thread may wake
        // the waiter just then, but not twice in a row.
        Err(_) => (0..2).any(|_| wait(address, value, 0) == Waited::Late),
    }
}

/// Wakes all threads that sleep in [`wait`].
pub fn wake(address: usize) {
    // SAFETY: the kernel checks the address.
    let _ = unsafe { syscall!(Sysno::futex, address, libc::FUTEX_WAKE, i32::MAX) };
}

/// Removes a mapping.
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(start: usize, end: usize) {
    // SAFETY: by contract. If the call is refused, the end of the process unmaps the range.
    let _ = unsafe { syscall!(Sysno::munmap, start, end - start) };
}

/// Ends the io_submit(2) requests whose ring begins at `ring`, and removes the ring. Requests that can be cancelled
/// end at once; the call waits for the others, as the end of the memory would.
///
/// # Safety
/// No thread needs the requests any more.
pub unsafe fn end_requests(ring: usize) {
    // SAFETY: by contract. If the call is refused, the end of the process ends the requests.
    let _ = unsafe { syscall!(Sysno::io_destroy, ring) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_looked_at_without_touching_it() {
        let word = 7u32;
        let address = &raw const word as usize;
        assert!(holds(address, 7));
        assert!(!holds(address, 0));
        assert!(!holds(8, 0), "nothing is mapped there");
    }
}
