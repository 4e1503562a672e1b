//! Tests the filter's answers in a forked child. The calls in the lists would do nothing, or fail for another reason.

extern crate std;
use super::*;
use crate::call::Errno;
use crate::helper::descriptor::{F_OFD_SETLK, F_OFD_SETLKW};
use crate::helper::exit_process;
use crate::{process, vm};
use core::sync::atomic::{AtomicU32, Ordering};
use std::vec::Vec;

/// A system call, by number and arguments.
type Call = (Sysno, [usize; 6]);

fn call(number: Sysno, arguments: &[usize]) -> Call {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    (number, all)
}

/// The calls that a helper needs, for a page and its own number.
fn needed(page: usize, own: usize, _: usize) -> Vec<Call> {
    let dont_need = libc::MADV_DONTNEED as usize;
    std::vec![
        call(Sysno::madvise, &[page, 4096, dont_need]),
        call(Sysno::munmap, &[page, 4096]),
        call(Sysno::io_destroy, &[0]),
        call(Sysno::futex, &[page, libc::FUTEX_WAKE as usize, 1]),
        call(Sysno::read, &[0, 0, 0]),
        call(Sysno::pread64, &[0, 0, 0, 0]),
        call(Sysno::lseek, &[usize::MAX, 0, 0]),
        call(Sysno::ppoll, &[0, 0, 8]),
        call(Sysno::getpid, &[]),
        call(Sysno::restart_syscall, &[]),
        call(Sysno::clock_gettime, &[0, 8]),
        call(Sysno::sched_yield, &[]),
        call(Sysno::sched_setscheduler, &[0, usize::MAX]),
        call(Sysno::sched_setaffinity, &[0, 0, 0]),
        call(Sysno::sched_getaffinity, &[0, 0, 0]),
        call(Sysno::unshare, &[libc::CLONE_THREAD as usize]),
        call(Sysno::unshare, &[libc::CLONE_VM as usize]),
        call(Sysno::fcntl, &[usize::MAX, F_OFD_SETLK as usize, 0]),
        call(Sysno::fcntl, &[usize::MAX, F_OFD_SETLKW as usize, 0]),
        call(Sysno::kill, &[own, 0]),
        call(Sysno::process_vm_writev, &[own, 0, 0, 0, 0, 0]),
    ]
}

/// Calls that a helper never needs, also with the number of another process.
fn refused(page: usize, own: usize, other: usize) -> Vec<Call> {
    let here = libc::AT_FDCWD as usize;
    let null = c"/dev/null".as_ptr() as usize;
    let hidden = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let code = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    std::vec![
        call(Sysno::sched_setscheduler, &[other, usize::MAX]),
        call(Sysno::sched_setscheduler, &[1 << 32, usize::MAX]),
        call(Sysno::sched_setaffinity, &[other, 0, 0]),
        call(Sysno::sched_getaffinity, &[other, 0, 0]),
        call(Sysno::sched_setattr, &[other, 0, 0]),
        call(Sysno::getpriority, &[0, other]),
        call(Sysno::kill, &[other, 0]),
        call(Sysno::kill, &[0, 0]),
        call(Sysno::kill, &[own | 1 << 32, 0]),
        call(Sysno::tgkill, &[other, other, 0]),
        call(Sysno::pidfd_open, &[other, 0]),
        call(Sysno::process_vm_readv, &[other, 0, 0, 0, 0, 0]),
        call(Sysno::process_vm_readv, &[own, 0, 0, 0, 0, 0]),
        call(Sysno::process_vm_writev, &[other, 0, 0, 0, 0, 0]),
        call(Sysno::process_vm_writev, &[own | 1 << 32, 0, 0, 0, 0, 0]),
        call(Sysno::prlimit64, &[other, 0, 0, 0]),
        call(Sysno::openat, &[here, null, 0, 0]),
        call(Sysno::unlinkat, &[here, c"".as_ptr() as usize, 0]),
        call(
            Sysno::socket,
            &[libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0]
        ),
        call(Sysno::write, &[2, 0, 0]),
        call(Sysno::dup, &[usize::MAX]),
        call(Sysno::close, &[usize::MAX]),
        call(Sysno::fcntl, &[usize::MAX, libc::F_DUPFD as usize, 0]),
        call(Sysno::ioctl, &[usize::MAX, 0, 0]),
        call(Sysno::mmap, &[0, 4096, code, hidden, usize::MAX, 0]),
        call(Sysno::mprotect, &[page, 4096, code]),
        call(Sysno::execve, &[0, 0, 0]),
        // Not a thread: without a filter, refused because the flags do not fit together.
        call(Sysno::clone, &[libc::CLONE_THREAD as usize]),
        call(Sysno::clone3, &[0, 0]),
        call(Sysno::unshare, &[libc::CLONE_FS as usize]),
        call(Sysno::prctl, &[libc::PR_GET_DUMPABLE as usize]),
        call(Sysno::seccomp, &[usize::MAX, 0, 0]),
    ]
}

/// Makes the calls in a child, with or without the filter, and says for each whether the answer was `EPERM`.
fn denied(is_bound: bool, list: fn(usize, usize, usize) -> Vec<Call>) -> Vec<(Call, bool)> {
    const UNSEEN: u32 = u32::MAX;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (page, other) = (vm::map(4096).unwrap(), process::id() as usize);
    // SAFETY: a new mapping of zeroes, which stays. The child makes system calls on what is its own, and ends.
    let answers = unsafe {
        let answers = libc::mmap(core::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert_ne!(answers, libc::MAP_FAILED);
        let answers = core::slice::from_raw_parts(answers as *const AtomicU32, 1024);
        answers
            .iter()
            .for_each(|answer| answer.store(UNSEEN, Ordering::Relaxed));
        let child = libc::fork();
        if child == 0 {
            let calls = list(page, process::id() as usize, other);
            if !is_bound || lock_down() {
                for ((number, [a, b, c, d, e, f]), answer) in calls.iter().zip(answers) {
                    let is_denied = syscall!(*number, *a, *b, *c, *d, *e, *f) == Err(Errno::EPERM);
                    answer.store(u32::from(is_denied), Ordering::Relaxed);
                }
            }
            exit_process()
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
        answers
    };
    let answers = answers.iter().map(|answer| answer.load(Ordering::Relaxed));
    let calls = list(page, 0, other).into_iter().zip(answers);
    calls
        .map(|(call, answer)| {
            assert_ne!(answer, UNSEEN, "{call:x?} was not made");
            (call, answer == 1)
        })
        .collect()
}

#[test]
fn what_it_needs_is_left() {
    for (call, is_denied) in denied(true, needed) {
        assert!(!is_denied, "{call:x?}");
    }
}

#[test]
fn the_rest_is_refused() {
    for (call, is_denied) in denied(true, refused) {
        assert!(is_denied, "{call:x?}");
    }
    // Shows that the filter causes the refusals: a sandbox around the tests may refuse some calls too.
    let others = denied(false, refused);
    let denied = others.iter().filter(|(_, is_denied)| *is_denied).count();
    assert!(denied < 4, "{others:x?}");
}
