//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! A library that is opened with that flag finds libc's `free` before ours, and calls it with pointers of ours. So this
//! `dlopen` removes the flag, and the library finds the program's symbols first, as it does without the flag.
//! `deepbind=keep` keeps the flag.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::loader::{Onward, another_defines_variable, next_function};

ebbtide_sys::define_dlopen!(onward);

static DLOPEN: NextFunction = NextFunction::new(c"dlopen");

/// Searches before `main`: a later search in a forked child could wait for a lock that no thread will free.
pub(crate) fn prepare() {
    DLOPEN.address();
}

/// The function that the program would call without this library.
pub(crate) struct NextFunction {
    name: &'static CStr,
    /// Its address, if it does not change; 0: not known. (`INV-LOADER-2`)
    address: AtomicUsize,
}

impl NextFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address.
    pub(crate) fn address(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let next = next_function(self.name)?;
        if next.stays {
            self.address.store(next.address, Ordering::Relaxed);
        }
        Some(next.address)
    }
}

/// Whether another library of the program registers threads for restartable sequences, by the convention of tcmalloc
/// and of early versions of librseq.
pub(crate) fn another_registers() -> bool {
    another_defines_variable(c"__rseq_abi")
}

extern "C" fn onward(flags: c_int) -> Onward {
    ebbtide_sys::unwind::forget();
    let has_flag = flags & libc::RTLD_DEEPBIND != 0;
    let flags = match has_flag && !ebbtide::keeps_deepbind() {
        true => flags & !libc::RTLD_DEEPBIND,
        false => flags,
    };
    Onward {
        function: DLOPEN.address().unwrap_or(no_loader as *const () as usize),
        flags: flags as usize,
    }
}

/// Before glibc 2.34, where libdl is not loaded: nothing can be opened.
extern "C" fn no_loader(_file: *const c_char, _flags: c_int) -> *mut c_void {
    core::ptr::null_mut()
}
