//! `malloc` and its family.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use ebbtide::alloc;
use ebbtide_sys::vm;

pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the C library's own word of this thread.
    unsafe { *libc::__errno_location() = error };
}

/// Null means `ENOMEM`.
#[inline(always)]
fn or_no_memory(address: *mut u8) -> *mut c_void {
    if address.is_null() {
        no_memory();
    }
    address.cast()
}

#[cold]
fn no_memory() {
    set_errno(libc::ENOMEM);
}

/// malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let object = alloc::allocate_fast(size);
    if object.is_null() {
        // A tail call, so that the fast path makes no stack frame.
        return malloc_slow(size);
    }
    object.cast()
}

/// While requests are counted for a profile, this is their fast path.
#[inline(never)]
extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    let object = alloc::allocate_fast_sized(size);
    if object.is_null() {
        return malloc_unsized(size);
    }
    object.cast()
}

/// The same for guarded allocations.
#[inline(never)]
extern "C" fn malloc_unsized(size: usize) -> *mut c_void {
    let object = alloc::allocate_fast_guarded(size);
    if object.is_null() {
        return malloc_slowly(size);
    }
    object.cast()
}

#[inline(never)]
extern "C" fn malloc_slowly(size: usize) -> *mut c_void {
    or_no_memory(alloc::allocate_slowly(size))
}

/// free(3); keeps `errno`.
///
/// # Safety
/// `address` is null or a live allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(address: *mut c_void) {
    // SAFETY: by contract.
    unsafe { alloc::free(address.cast()) }
}

/// The `free` of SunOS, in glibc until 2.25.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(address: *mut c_void) {
    // SAFETY: by contract.
    unsafe { alloc::free(address.cast()) }
}

/// free_sized of C23: a size that cannot be the allocation's ends the process.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(address: *mut c_void, size: usize) {
    // SAFETY: by contract.
    unsafe {
        alloc::check_size(address.cast(), size, false);
        alloc::free(address.cast());
    }
}

/// free_aligned_sized of C23.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(address: *mut c_void, alignment: usize, size: usize) {
    // SAFETY: by contract.
    unsafe {
        alloc::check_size(address.cast(), size, alignment > alloc::MIN_ALIGN);
        alloc::free(address.cast());
    }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => or_no_memory(alloc::allocate_zeroed(bytes)),
        None => or_no_memory(null_mut()),
    }
}

/// realloc(3); `realloc(p, 0)` frees and returns null, as glibc's.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(address: *mut c_void, size: usize) -> *mut c_void {
    if address.is_null() {
        return malloc(size);
    }
    // SAFETY: by contract.
    unsafe {
        if size == 0 {
            alloc::free(address.cast());
            return null_mut();
        }
        or_no_memory(alloc::reallocate(address.cast(), size))
    }
}

/// reallocarray(3).
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    address: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: by contract.
        Some(bytes) => unsafe { realloc(address, bytes) },
        None => or_no_memory(null_mut()),
    }
}

/// posix_memalign(3): the error is the result, and `errno` is kept.
///
/// # Safety
/// `result` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    result: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let address = alloc::allocate_aligned(size, alignment);
    if address.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: by contract.
    unsafe { *result = address.cast() };
    0
}

/// memalign(3): other alignments than powers of two are rounded up to one.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => or_no_memory(alloc::allocate_aligned(size, alignment)),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// aligned_alloc(3), which in glibc up to 2.37 is [`memalign`].
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    memalign(alignment, size)
}

/// valloc(3): at a page of the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(vm::page(), size)
}

/// pvalloc(3): whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = vm::page();
    match size.checked_next_multiple_of(page) {
        Some(size) => memalign(page, size.max(page)),
        None => or_no_memory(null_mut()),
    }
}

/// malloc_usable_size(3): the program may use all of these bytes.
///
/// # Safety
/// `address` is null or a live allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(address: *mut c_void) -> usize {
    // SAFETY: by contract.
    unsafe { alloc::usable_size(address.cast()) }
}
