//! libc's lock of the list of all streams.
//!
//! `fork` takes it after its handlers have run, and so does `fflush(NULL)`, which then waits for each stream; a reader
//! holds its stream and allocates. Whoever keeps allocations waiting inside of a fork must take it first. Where a C
//! library does not export it, these functions do nothing.
//!
//! Source: glibc, `libio/genops.c` and `sysdeps/nptl/fork.h`.

use crate::glibc;

fn call(address: *const ()) {
    if !address.is_null() {
        // SAFETY: the address of one of glibc's functions without arguments and result.
        let function: extern "C" fn() = unsafe { core::mem::transmute(address) };
        function();
    }
}

/// Takes it; the thread that has it may take it again. Waits without a bound, as `fork` does.
pub fn lock() {
    call(glibc::list_lock());
}

/// Undoes one [`lock`].
///
/// # Safety
/// This thread took it.
pub unsafe fn unlock() {
    call(glibc::list_unlock());
}

/// Makes it free, in a forked child: what `fork` does there only where the parent had several threads.
///
/// # Safety
/// No other thread exists.
pub unsafe fn reset() {
    call(glibc::list_resetlock());
}
