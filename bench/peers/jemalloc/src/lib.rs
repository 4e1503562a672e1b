//! jemalloc 5.3.1 as a preloadable library.

use tikv_jemalloc_sys as _;

include!("../../export.rs");

unsafe extern "C" {
    fn _rjem_malloc(size: usize) -> *mut c_void;
    fn _rjem_calloc(count: usize, size: usize) -> *mut c_void;
    fn _rjem_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn _rjem_free(old: *mut c_void);
    fn _rjem_memalign(align: usize, size: usize) -> *mut c_void;
    fn _rjem_malloc_usable_size(object: *const c_void) -> usize;
    fn _rjem_mallctl(
        name: *const core::ffi::c_char,
        old: *mut c_void,
        old_len: *mut usize,
        new: *mut c_void,
        new_len: usize,
    ) -> c_int;
}

export!(
    _rjem_malloc,
    _rjem_calloc,
    _rjem_realloc,
    _rjem_free,
    |align, size| unsafe { _rjem_memalign(align, size) },
    _rjem_malloc_usable_size
);

/// Gives back all free memory, by the allocator's own call.
#[unsafe(no_mangle)]
pub extern "C" fn peer_release() {
    use core::ptr::null_mut;
    // 4096 means all arenas.
    let name = c"arena.4096.purge".as_ptr();
    unsafe { _rjem_mallctl(name, null_mut(), null_mut(), null_mut(), 0) };
}
