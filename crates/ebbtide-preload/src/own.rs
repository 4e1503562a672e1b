//! The C API beyond `malloc`: `include/ebbtide.h`.

use crate::standard::set_errno;
use core::ffi::c_int;
use ebbtide::stats::Figures;

/// Gives all free memory of the process back; the bytes given back.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_release() -> usize {
    ebbtide::release_all()
}

/// Fills the first `size` bytes of `*result`; the bytes filled, or -1 with `EINVAL` for a null pointer or
/// a size without room for the version.
///
/// # Safety
/// `result` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_stats(result: *mut Figures, size: usize) -> c_int {
    // SAFETY: by contract.
    unsafe { fill(result, size, || figures(size)) }
}

/// The figures, those that the kernel knows only for a caller with room for them: it walks the page tables.
fn figures(size: usize) -> Figures {
    let mut figures = ebbtide::stats::figures();
    if size > core::mem::offset_of!(Figures, rss_bytes) {
        let (rss, lazy) = ebbtide_sys::process::resident().unwrap_or_default();
        figures.rss_bytes = rss;
        figures.rss_without_lazy_bytes = rss.saturating_sub(lazy);
    }
    figures
}

/// Fills the first `size` bytes of `*result`; the bytes filled, or -1 with `EINVAL` for a null pointer or a size without room
/// for a word.
///
/// # Safety
/// `result` can be written to for `size` bytes.
pub(crate) unsafe fn fill<T>(result: *mut T, size: usize, figures: impl FnOnce() -> T) -> c_int {
    if result.is_null() || size < size_of::<u64>() {
        set_errno(libc::EINVAL);
        return -1;
    }
    let figures = figures();
    let count = size.min(size_of::<T>());
    // SAFETY: by contract, and both have that many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const figures).cast::<u8>(), result.cast(), count);
    }
    count as c_int
}
