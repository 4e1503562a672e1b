//! snmalloc as a preloadable library.

use snmalloc_sys as _;

include!("../../export.rs");

unsafe extern "C" {
    fn sn_malloc(size: usize) -> *mut c_void;
    fn sn_calloc(count: usize, size: usize) -> *mut c_void;
    fn sn_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn sn_free(old: *mut c_void);
    fn sn_rust_alloc(align: usize, size: usize) -> *mut c_void;
    fn sn_malloc_usable_size(object: *const c_void) -> usize;
}

export!(
    sn_malloc,
    sn_calloc,
    sn_realloc,
    sn_free,
    |align, size| unsafe { sn_rust_alloc(align, size) },
    sn_malloc_usable_size
);
