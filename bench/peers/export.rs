// The C names of an allocator, exported from a peer's cdylib and forwarded to
// the names that its crate's C library has. Included by each peer's lib.rs.
//
// A forwarded call is one direct jump more than an allocator that was built as
// a shared library pays. A peer with a call that gives free memory back exports
// that as `peer_release`, in its own file.

use core::ffi::{c_int, c_void};

const EINVAL: c_int = 22;
const ENOMEM: c_int = 12;

/// Exports the C allocation functions over the given ones.
macro_rules! export {
    ($malloc:path, $calloc:path, $realloc:path, $free:path, $aligned:expr, $usable:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
            unsafe { $malloc(size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
            unsafe { $calloc(count, size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
            unsafe { $realloc(old, size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn free(old: *mut c_void) {
            unsafe { $free(old) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
            let aligned: unsafe fn(usize, usize) -> *mut c_void = $aligned;
            unsafe { aligned(align, size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
            unsafe { memalign(align, size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
            unsafe { memalign(4096, size) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
            unsafe { memalign(4096, size.max(1).next_multiple_of(4096)) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn posix_memalign(
            out: *mut *mut c_void,
            align: usize,
            size: usize,
        ) -> c_int {
            if !align.is_power_of_two() || align % size_of::<usize>() != 0 {
                return EINVAL;
            }
            let new = unsafe { memalign(align, size) };
            if new.is_null() {
                return ENOMEM;
            }
            unsafe { *out = new };
            0
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn malloc_usable_size(object: *const c_void) -> usize {
            unsafe { $usable(object) }
        }
    };
}
