//! C++'s `operator new` and `operator delete`, in all forms.
//!
//! The C++ library's operators call `malloc` and `free`. These here are `malloc` and `free` themselves, where no program
//! can tell the difference: only the C++ library defines operators, and `malloc` is this library's. Otherwise each
//! continues with the operator that the program would have without this library. A program may replace some forms, and
//! the C++ library's other forms call these.
//!
//! Without memory, `operator new` also continues with the next one. That tries again, calls the new-handler, and throws
//! `std::bad_alloc` or returns null.
//!
//! With `harden=on`, `operator delete(void *, size_t)` compares the size with that of the allocation.
//!
//! If a C program opens a C++ library later, that library finds these operators first.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering};

use ebbtide::alloc;
use ebbtide_sys::loader::{has_cxx_library, is_first_to_define, one_object_defines};

use crate::loader::NextFunction;

/// Decided by the first call, or before `main`.
static MODE: AtomicU8 = AtomicU8::new(UNDECIDED);

const UNDECIDED: u8 = 0;
/// The operators are `malloc` and `free`.
const DIRECT: u8 = 1;
/// The same, and a sized `delete` compares sizes.
const CHECKED: u8 = 2;
/// They continue with the next ones.
const ONWARD: u8 = 3;

#[inline(always)]
fn is_direct() -> bool {
    MODE.load(Ordering::Relaxed) == DIRECT
}

/// The mode, decided.
fn mode() -> u8 {
    match MODE.load(Ordering::Relaxed) {
        UNDECIDED => decide(),
        mode => mode,
    }
}

#[cold]
fn decide() -> u8 {
    let has_library = has_cxx_library();
    let is_alone = !has_library || one_object_defines(&NAMES);
    let mode = match is_alone && is_first_to_define(c"malloc") {
        false => ONWARD,
        true if has_library && ebbtide::is_hardened() => CHECKED,
        true => DIRECT,
    };
    MODE.store(mode, Ordering::Relaxed);
    mode
}

/// Decides before `main`: a later search in a forked child could wait for a lock that no thread will free.
pub(crate) fn prepare() {
    if mode() == ONWARD || has_cxx_library() {
        for next in NEXT {
            next.address();
        }
    }
}

/// Allocates after the fast path had no object. `operator new(0)` asks for one byte, as the C++ library's.
fn allocate(size: usize) -> *mut u8 {
    match mode() {
        ONWARD => null_mut(),
        _ => alloc::allocate_slow(size.max(1)),
    }
}

fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    match align.is_power_of_two() && mode() != ONWARD {
        true => alloc::allocate_aligned(size.max(1), align),
        false => null_mut(),
    }
}

/// Where there is no next `operator new`.
extern "C" fn none(_size: usize) -> *mut c_void {
    null_mut()
}

/// Where there is no next `operator delete`.
unsafe extern "C" fn only_free(address: *mut c_void) {
    // SAFETY: the caller of the operator promises that it is an allocation.
    unsafe { alloc::free(address.cast()) }
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("no C string"),
    }
}

/// The body of an operator, by its kind.
macro_rules! operator {
    ($name:ident new($($tag:ident)?)) => {
        ebbtide_sys::define_onward!(onward(size: usize $(, $tag: usize)?) -> *mut c_void, next_new);

        /// # Safety
        /// As in C++.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(size: usize $(, $tag: usize)?) -> *mut c_void {
            if is_direct() {
                let object = alloc::allocate_fast(size);
                if !object.is_null() {
                    return object.cast();
                }
            }
            // SAFETY: the same arguments.
            unsafe { slow(size $(, $tag)?) }
        }

        #[inline(never)]
        unsafe extern "C-unwind" fn slow(size: usize $(, $tag: usize)?) -> *mut c_void {
            let object = allocate(size);
            if object.is_null() {
                // SAFETY: the same arguments.
                return unsafe { onward(size $(, $tag)?) };
            }
            object.cast()
        }
    };
    ($name:ident new_aligned($($tag:ident)?)) => {
        ebbtide_sys::define_onward!(
            onward(size: usize, align: usize $(, $tag: usize)?) -> *mut c_void,
            next_new
        );

        /// # Safety
        /// As in C++.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            size: usize,
            align: usize $(, $tag: usize)?
        ) -> *mut c_void {
            let object = allocate_aligned(size, align);
            if object.is_null() {
                // SAFETY: the same arguments.
                return unsafe { onward(size, align $(, $tag)?) };
            }
            object.cast()
        }
    };
    ($name:ident delete($($more:ident)*)) => {
        ebbtide_sys::define_onward!(onward(address: *mut c_void $(, $more: usize)*), next_delete);

        /// # Safety
        /// As in C++.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(address: *mut c_void $(, $more: usize)*) {
            if !is_direct() {
                // SAFETY: the same arguments.
                return unsafe { slow(address $(, $more)*) };
            }
            // SAFETY: the caller promises that it is an allocation.
            unsafe { alloc::free(address.cast()) }
        }

        #[inline(never)]
        unsafe extern "C-unwind" fn slow(address: *mut c_void $(, $more: usize)*) {
            // SAFETY: the same arguments, which the caller promises to be right.
            unsafe {
                match mode() {
                    ONWARD => onward(address $(, $more)*),
                    CHECKED => {
                        check(stringify!($name), address, [$($more),*].first().copied());
                        alloc::free(address.cast());
                    }
                    _ => alloc::free(address.cast()),
                }
            }
        }
    };
}

/// Ends the process if a sized `delete` of one object has a wrong size.
unsafe fn check(name: &str, address: *mut c_void, size: Option<usize>) {
    if let ("_ZdlPvm", Some(size)) = (name, size) {
        // SAFETY: the caller of the operator promises that it is an allocation.
        unsafe { alloc::check_size(address.cast(), size.max(1), false) };
    }
}

macro_rules! operators {
    ($($name:ident $kind:ident($($more:ident)*): $about:literal;)*) => {
        $(
            #[doc = $about]
            #[allow(non_snake_case)]
            pub mod $name {
                #[allow(clippy::wildcard_imports)]
                use super::*;

                pub(super) static NEXT: NextFunction =
                    NextFunction::new(c_name(concat!(stringify!($name), "\0")));

                /// The next one, with which `new` continues.
                #[allow(dead_code)]
                extern "C" fn next_new() -> usize {
                    NEXT.address().unwrap_or(none as *const () as usize)
                }

                /// The next one, with which `delete` continues.
                #[allow(dead_code)]
                extern "C" fn next_delete() -> usize {
                    NEXT.address().unwrap_or(only_free as *const () as usize)
                }

                operator!($name $kind($($more)*));
            }
        )*

        const COUNT: usize = [$(stringify!($name)),*].len();
        static NEXT: [&NextFunction; COUNT] = [$(&$name::NEXT),*];
        /// The operators, and a function that only a C++ library has beside them.
        static NAMES: [&CStr; COUNT + 1] =
            [$(c_name(concat!(stringify!($name), "\0")),)* c"__cxa_throw"];
    };
}

operators! {
    _Znwm new(): "`operator new(size_t)`.";
    _Znam new(): "`operator new[](size_t)`.";
    _ZnwmRKSt9nothrow_t new(tag): "`operator new(size_t, nothrow_t)`.";
    _ZnamRKSt9nothrow_t new(tag): "`operator new[](size_t, nothrow_t)`.";
    _ZnwmSt11align_val_t new_aligned(): "`operator new(size_t, align_val_t)`.";
    _ZnamSt11align_val_t new_aligned(): "`operator new[](size_t, align_val_t)`.";
    _ZnwmSt11align_val_tRKSt9nothrow_t new_aligned(tag): "`operator new(size_t, align_val_t, nothrow_t)`.";
    _ZnamSt11align_val_tRKSt9nothrow_t new_aligned(tag): "`operator new[](size_t, align_val_t, nothrow_t)`.";
    _ZdlPv delete(): "`operator delete(void *)`.";
    _ZdaPv delete(): "`operator delete[](void *)`.";
    _ZdlPvm delete(size): "`operator delete(void *, size_t)`.";
    _ZdaPvm delete(size): "`operator delete[](void *, size_t)`.";
    _ZdlPvRKSt9nothrow_t delete(tag): "`operator delete(void *, nothrow_t)`.";
    _ZdaPvRKSt9nothrow_t delete(tag): "`operator delete[](void *, nothrow_t)`.";
    _ZdlPvSt11align_val_t delete(align): "`operator delete(void *, align_val_t)`.";
    _ZdaPvSt11align_val_t delete(align): "`operator delete[](void *, align_val_t)`.";
    _ZdlPvmSt11align_val_t delete(size align): "`operator delete(void *, size_t, align_val_t)`.";
    _ZdaPvmSt11align_val_t delete(size align): "`operator delete[](void *, size_t, align_val_t)`.";
    _ZdlPvSt11align_val_tRKSt9nothrow_t delete(align tag): "`operator delete(void *, align_val_t, nothrow_t)`.";
    _ZdaPvSt11align_val_tRKSt9nothrow_t delete(align tag): "`operator delete[](void *, align_val_t, nothrow_t)`.";
}
