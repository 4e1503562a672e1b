//! The lock of libc's list of all streams.
//!
//! `fork` takes this lock after its handlers have run. `fflush(NULL)` takes it too, and then waits for each stream; a
//! thread that reads from a stream holds that stream and allocates. So a fork handler that makes allocations wait
//! must take this lock first. If the C library does not export the lock, these functions do nothing.
//!
//! Source: glibc, `libio/genops.c` and `sysdeps/nptl/fork.h`.

use crate::libc_symbols;

fn call(address: *const ()) {
    if !address.is_null() {
        // SAFETY: the address of a glibc function without arguments and result.
        let function: extern "C" fn() = unsafe { core::mem::transmute(address) };
        function();
    }
}

/// Takes the lock; the thread that holds it may take it again. Waits without a bound, as `fork` does.
pub fn lock() {
    call(libc_symbols::list_lock());
}

/// Undoes one [`lock`].
///
/// # Safety
/// This thread took it by [`lock`].
pub unsafe fn unlock() {
    call(libc_symbols::list_unlock());
}

/// Frees the lock in a forked child. `fork` itself does this only if the parent had several threads.
///
/// # Safety
/// No other thread exists.
pub unsafe fn reset() {
    call(libc_symbols::list_resetlock());
}
