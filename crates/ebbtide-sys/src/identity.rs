//! The identity of this process and this thread, and the auxiliary vector that the kernel passed at the start.

use core::ffi::{CStr, c_char};

use crate::call::{Sysno, syscall};

/// A value of the auxiliary vector, or `None` when the kernel did not give it.
pub fn auxv(kind: libc::c_ulong) -> Option<usize> {
    // SAFETY: getauxval only reads the loader's copy of the vector. It sets `errno` when the value is missing;
    // callers that promise to keep `errno` restore it.
    match unsafe { libc::getauxval(kind) } {
        0 => None,
        value => Some(value as usize),
    }
}

/// The process id, asked from the kernel (a cached one would be the parent's after a raw clone).
pub fn id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as u32
}

/// The name of the program's file, without its directory; empty if the kernel did not pass it. No system call. In a thread with another name, and
/// in a worker, it is the same. Every supported kernel passes it. Under an emulator that does not, `errno` changes.
pub fn program() -> &'static [u8] {
    let Some(path) = auxv(libc::AT_EXECFN) else {
        return b"";
    };
    // SAFETY: the kernel put this string above the main thread's stack, where it stays. The word behind it is 0.
    let path = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The thread id.
pub fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as u32
}
