//! `sigaction` and `signal`: with `guard`, the program's action of SIGSEGV stays behind Ebbtide's handler.
//!
//! The program sees its own action, as if there were no other handler ([`ebbtide_sys::fault`]). All other calls go to the
//! C library: it has signals of its own, and its own record of handlers. A program that takes the signal of `profile_dump` gets it, and one
//! line says so.

use crate::loader::NextFunction;
use crate::standard::set_errno;
use core::ffi::c_int;
use core::mem::{transmute, zeroed};
use core::ptr;
use ebbtide::message::Message;
use ebbtide_sys::{fault, request_signal};

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

static SIGACTION: NextFunction = NextFunction::new(c"sigaction");
static SIGNAL: NextFunction = NextFunction::new(c"signal");

/// Searches before `main`, as for `dlopen`.
pub(crate) fn prepare() {
    SIGACTION.address();
    SIGNAL.address();
}

fn is_for_us(signal: c_int) -> bool {
    signal == libc::SIGSEGV && fault::is_installed()
}

fn take_from_us(signal: c_int, handler: usize) {
    if request_signal::is_taken_by(signal, handler) {
        Message::new()
            .text("profile_dump: the program now handles signal ")
            .number(signal as usize)
            .text(" itself, so nothing is written at it; name another signal")
            .write();
    }
}

/// sigaction(2).
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if is_for_us(signal) {
        // SAFETY: by contract.
        return match unsafe { fault::change(new, old) } {
            Ok(()) => 0,
            Err(error) => {
                set_errno(error.into_raw());
                -1
            }
        };
    }
    let Some(next) = SIGACTION.address() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: by contract. Read before `old` is written, which may be the same.
    let handler = unsafe { new.as_ref() }.map(|new| new.sa_sigaction);
    // SAFETY: the C library's function, or that of a library between.
    let result = unsafe { transmute::<usize, Sigaction>(next)(signal, new, old) };
    if let Some(handler) = handler.filter(|_| result == 0) {
        take_from_us(signal, handler);
    }
    result
}

/// signal(2), with the semantics of BSD.
///
/// # Safety
/// As signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if !is_for_us(signal) {
        let Some(next) = SIGNAL.address() else {
            set_errno(libc::ENOSYS);
            return libc::SIG_ERR;
        };
        // SAFETY: as in `sigaction`.
        let before = unsafe { transmute::<usize, Signal>(next)(signal, handler) };
        if before != libc::SIG_ERR {
            take_from_us(signal, handler);
        }
        return before;
    }
    // SAFETY: all zeros is an action with an empty mask.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: by contract.
    match unsafe { fault::change(ptr::from_ref(&new), ptr::from_mut(&mut old)) } {
        Ok(()) => old.sa_sigaction,
        Err(error) => {
            set_errno(error.into_raw());
            libc::SIG_ERR
        }
    }
}
