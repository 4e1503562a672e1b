//! `prctl`, `unshare` and `setns`: calls that apply to one thread, or that need a single thread, end the workers first.
//!
//! A filter applies only to the thread that installs it, and a worker would stay outside. Nearly all programs set
//! `PR_SET_NO_NEW_PRIVS` before: without privilege the kernel requires it for filters and for Landlock. So that call ends
//! the workers too. This covers programs that then call seccomp(2) or Landlock by system call number.
//!
//! For the same reason `prctl` stops Ebbtide's own rseq registrations: the filter may kill a thread for that call.
//!
//! The kernel gives a user namespace, and some others, only to a process with a single thread. The C library's functions
//! are plain system calls and nothing else, and so are ours.

use core::ffi::{c_int, c_long, c_ulong};

/// Flags of unshare(2) for which the caller must be the only thread.
const UNSHARED_ALONE: c_int =
    libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
/// Flags of setns(2) for which the caller must be the only thread, or share nothing; 0 stands for any flag.
const ENTERED_ALONE: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | CLONE_NEWTIME;
const CLONE_NEWTIME: c_int = 0x80;

/// prctl(2). `PR_SET_SECCOMP` and `PR_SET_NO_NEW_PRIVS` end the workers first, and wait for that, at most one
/// second. No thread that has not done so yet registers for rseq from then on.
///
/// # Safety
/// As prctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        ebbtide::confine(option == libc::PR_SET_SECCOMP);
        ebbtide_sys::rseq::stop();
        ebbtide::end_workers();
    }
    // SAFETY: by contract.
    unsafe { libc::syscall(libc::SYS_prctl, c_long::from(option), a, b, c, d) as c_int }
}

/// unshare(2). If the kernel requires a single thread, the workers end first, as in [`prctl`].
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & UNSHARED_ALONE != 0 {
        ebbtide::end_workers();
    }
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_unshare, c_long::from(flags)) as c_int }
}

/// setns(2). If the kernel may require a single thread, the workers end first, as in [`prctl`].
#[unsafe(no_mangle)]
pub extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    if kind == 0 || kind & ENTERED_ALONE != 0 {
        ebbtide::end_workers();
    }
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_setns, c_long::from(file), c_long::from(kind)) as c_int }
}
