//! Google's TCMalloc as a preloadable library.
//!
//! The crate builds it with the C compiler at hand. With gcc 12 its calls take the
//! slow path (`alloc_small_sampled_hooks_or_perthread`) even where its per-CPU caches
//! are registered, so small-object figures are worse than those of an upstream build.

use libtcmalloc_sys as _;

include!("../../export.rs");

unsafe extern "C" {
    fn TCMallocInternalMalloc(size: usize) -> *mut c_void;
    fn TCMallocInternalCalloc(count: usize, size: usize) -> *mut c_void;
    fn TCMallocInternalRealloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn TCMallocInternalFree(old: *mut c_void);
    fn TCMallocInternalMemalign(align: usize, size: usize) -> *mut c_void;
    fn TCMallocInternalMallocSize(object: *const c_void) -> usize;
    fn MallocExtension_Internal_ReleaseMemoryToSystem(bytes: usize);
}

export!(
    TCMallocInternalMalloc,
    TCMallocInternalCalloc,
    TCMallocInternalRealloc,
    TCMallocInternalFree,
    |align, size| unsafe { TCMallocInternalMemalign(align, size) },
    TCMallocInternalMallocSize
);

/// Gives back all free memory, by the allocator's own call.
#[unsafe(no_mangle)]
pub extern "C" fn peer_release() {
    unsafe { MallocExtension_Internal_ReleaseMemoryToSystem(usize::MAX) };
}
