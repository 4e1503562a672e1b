//! The C API beyond `malloc`: `include/ebbtide.h`.

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
pub unsafe extern "C" fn ebb_stats(result: *mut Figures, size: usize) -> core::ffi::c_int {
    if result.is_null() || size < size_of::<u64>() {
        // SAFETY: the C library's own word of this thread.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    let mut figures = ebbtide::stats::figures();
    // The kernel walks the page tables for these two: only for a caller that asks.
    if size > core::mem::offset_of!(Figures, rss_bytes) {
        let (rss, lazy) = ebbtide_sys::process::resident().unwrap_or_default();
        figures.rss_bytes = rss;
        figures.rss_without_lazy_bytes = rss.saturating_sub(lazy);
    }
    let count = size.min(size_of::<Figures>());
    // SAFETY: by contract, and both have that many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const figures).cast::<u8>(), result.cast(), count);
    }
    count as core::ffi::c_int
}
