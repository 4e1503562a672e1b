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
}

export!(
    _rjem_malloc,
    _rjem_calloc,
    _rjem_realloc,
    _rjem_free,
    |align, size| unsafe { _rjem_memalign(align, size) },
    _rjem_malloc_usable_size
);
