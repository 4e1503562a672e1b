//! mimalloc with sampled heap profiles (not started) as a preloadable library.

use mimalloc_pprof as _;

include!("../../export.rs");

unsafe extern "C" {
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_calloc(count: usize, size: usize) -> *mut c_void;
    fn mi_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn mi_free(old: *mut c_void);
    fn mi_malloc_aligned(size: usize, align: usize) -> *mut c_void;
    fn mi_usable_size(object: *const c_void) -> usize;
    fn mi_collect(force: bool);
}

export!(
    mi_malloc,
    mi_calloc,
    mi_realloc,
    mi_free,
    |align, size| unsafe { mi_malloc_aligned(size, align) },
    mi_usable_size
);

/// Gives back all free memory, by the allocator's own call.
#[unsafe(no_mangle)]
pub extern "C" fn peer_release() {
    unsafe { mi_collect(true) };
}
