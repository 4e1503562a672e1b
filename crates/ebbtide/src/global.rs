//! Ebbtide as a Rust program's allocator.

use crate::alloc;
use core::alloc::{GlobalAlloc, Layout};

/// The allocator, for `#[global_allocator]`. All values are the same allocator: there is one heap per process.
/// Errors are null pointers; alignments above 1 GiB are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ebbtide;

// SAFETY: the functions of `alloc` return null or a live allocation of at least that size and alignment, never
// unwind, and `reallocate` keeps the content. `reallocate` is used only if its result is aligned enough.
unsafe impl GlobalAlloc for Ebbtide {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        alloc::allocate_aligned(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, _: Layout) {
        // SAFETY: by the trait's contract.
        unsafe { alloc::free(address) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= alloc::MIN_ALIGN {
            return alloc::allocate_zeroed(layout.size());
        }
        let address = alloc::allocate_aligned(layout.size(), layout.align());
        if !address.is_null() {
            // SAFETY: the allocation has that many bytes.
            unsafe { address.write_bytes(0, layout.size()) };
        }
        address
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= alloc::MIN_ALIGN {
            // SAFETY: by the trait's contract; sizes are above 0 there.
            return unsafe { alloc::reallocate(address, size) };
        }
        let fresh = alloc::allocate_aligned(size, layout.align());
        if !fresh.is_null() {
            // SAFETY: both are live and have that many bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(address, fresh, layout.size().min(size));
                alloc::free(address);
            }
        }
        fresh
    }
}
