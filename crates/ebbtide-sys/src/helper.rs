//! A process that shares the program's memory and outlives it: what it is made of.
//!
//! `clone(CLONE_VM)`: another process with the same memory and nothing else of the program's. It has no
//! descriptors, no signal handlers (all signals are blocked), no thread-local storage of libc's, no capabilities,
//! and may make few system calls ([`lock_down`]). No function here touches `errno`.
//!
//! Only x86-64 and aarch64: elsewhere [`spawn_process`] says `ENOSYS`.

mod descriptor;
mod lock_down;

pub use crate::clone::Entry;
pub use descriptor::{Descriptor, open_private};
pub use lock_down::lock_down;

use crate::call::{Errno, Sysno, syscall};
use crate::clone::{Request, clone};
use core::sync::atomic::{AtomicU32, Ordering};

/// The flags of its threads, the only ones that [`lock_down`] leaves.
const THREAD_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID) as usize;

/// Descriptors are shared until it unshares them at once: it never holds a copy of one that the program closes.
/// No exit signal: `wait` does not see it. Not traced: a debugger of the program has nothing to do with it.
const PROCESS_FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FILES
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_UNTRACED) as usize;

/// Where one of its threads runs.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    /// The end of its stack, a multiple of 16.
    pub stack: usize,
    /// What stands in for thread-local storage: room on both sides of this address.
    pub storage: usize,
    /// 1 as long as it runs: the kernel clears it.
    pub busy: &'a AtomicU32,
}

/// Starts the process. Its number, as this one sees it. `entry` never returns.
///
/// # Errors
/// What clone(2) says: `EAGAIN` under a limit, `EPERM` from a filter; `ENOSYS` where clone is not known.
///
/// # Safety
/// The seat is nobody else's until [`Seat::busy`] is 0, and stays mapped; `entry` does only what a thread
/// that libc does not know may do.
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

/// Starts a further thread of it.
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
    // SAFETY: the caller's. No flag asks for a number.
    let made = unsafe { clone(&request, entry, argument) };
    if made.is_err() {
        seat.busy.store(0, Ordering::Release);
    }
    made
}

/// Ends this thread; this process, where a filter of the program's refuses that.
pub fn exit_thread() -> ! {
    // SAFETY: nothing of this thread's is used any more.
    let _ = unsafe { syscall!(Sysno::exit, 0) };
    exit_process()
}

/// Ends this process, whatever a filter of the program's refuses: by its end, by a signal, by a limit of time, by a trap.
///
/// The trap comes last: before Linux 5.16 what may dump core ends everybody who shares the memory.
pub fn exit_process() -> ! {
    try_to_end();
    crate::clone::trap()
}

/// The same, but for the trap: returns where all else is refused.
pub fn try_to_end() {
    // SAFETY: as above, for all of its threads.
    unsafe {
        let _ = syscall!(Sysno::exit_group, 0);
        let id = crate::process::id();
        // 0, what a refusal is taken for, would be the whole group.
        if id != 0 {
            let _ = syscall!(Sysno::kill, id, libc::SIGKILL);
        }
    }
    if set_limit(libc::RLIMIT_CPU as usize, 1) {
        // A second of it, without giving way, unless a filter only claims that it is set.
        for _ in 0..100_000_000 {
            crate::process::id();
        }
    }
}

/// Kills a child that has not been collected. `false`: refused.
pub fn kill(id: u32) -> bool {
    // SAFETY: no pointers. Its number is not another's before it is collected.
    id != 0 && unsafe { syscall!(Sysno::kill, id, libc::SIGKILL) }.is_ok()
}

/// The word that the kernel clears and wakes when this thread leaves its memory: by its end, or by exec.
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

/// Gives up what it shares with the program but memory: descriptors, session, terminal, directory, and a
/// priority beyond the usual. `false`: refused; then it must end.
pub fn leave_program() -> bool {
    // Before anything is refused, as it may have to end by a trap. 1 and not 0: a core of it is not wanted through a pipe either.
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

/// Sets a limit of this process. `false`: refused.
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

/// Sleeps. Others go first then, where `sched_yield` knows only those of the caller's own session.
pub fn pause(us: u64) {
    let (none, time) = (core::ptr::null_mut::<libc::pollfd>(), timespec(us));
    // SAFETY: no entries, and a time.
    let _ = unsafe { syscall!(Sysno::ppoll, none, 0, &raw const time, 0, 0) };
}

/// The user that this process may open files as.
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

/// Whether nobody else uses this memory, asked by the one thread of this process. The kernel looks through all
/// processes, so the answer is exact, and with nobody there to share it further it stays true.
pub fn is_alone() -> bool {
    // SAFETY: as above: for a single thread that shares no memory nothing is to be unshared.
    unsafe { syscall!(Sysno::unshare, libc::CLONE_VM) }.is_ok()
}

/// Takes the end of a process that this one made off the kernel's list. `true`: it is gone.
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

/// What became of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Woken, or the word had changed already.
    Woken,
    /// The time is over.
    Late,
    /// The word cannot be read, or a filter of the program's refuses the call.
    Refused,
}

/// Sleeps while the word at `address` holds `value`. The kernel's own wake-ups of thread ends are heard.
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
    // SAFETY: the kernel checks the address; nobody is woken or moved.
    match unsafe { syscall!(Sysno::futex, address, compare, 0, 0, address, value) } {
        Ok(_) => true,
        Err(Errno::EAGAIN | Errno::EFAULT) => false,
        // A filter of the program's. A wait that is late found the value; somebody may wake it just then, but not
        // twice in a row.
        Err(_) => (0..2).any(|_| wait(address, value, 0) == Waited::Late),
    }
}

/// Wakes everybody who waits as [`wait`] does.
pub fn wake(address: usize) {
    // SAFETY: the kernel checks the address.
    let _ = unsafe { syscall!(Sysno::futex, address, libc::FUTEX_WAKE, i32::MAX) };
}

/// Takes a mapping away.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn unmap(start: usize, end: usize) {
    // SAFETY: by contract. A refusal leaves it to the end of the process.
    let _ = unsafe { syscall!(Sysno::munmap, start, end - start) };
}

/// Ends the requests of io_submit(2) whose ring begins at `ring`, and takes that away: what can be cancelled at once, else
/// it waits for them, as the end of the memory would.
///
/// # Safety
/// Nobody needs them.
pub unsafe fn end_requests(ring: usize) {
    // SAFETY: by contract. A refusal leaves it to the end of the process.
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
