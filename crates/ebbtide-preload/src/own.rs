//! The C API beyond `malloc`: `include/ebbtide.h`.

use crate::standard::set_errno;
use core::ffi::c_int;

/// Gives all free memory of the process back; the bytes given back.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_release() -> usize {
    ebbtide::release_all()
}

/// `struct ebb_stats` of `ebbtide.h`: later versions only add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct ebb_stats {
    pub version: u64,
    pub live_bytes: u64,
    pub large_bytes: u64,
    pub cached_bytes: u64,
    pub in_spans_bytes: u64,
    pub dirty_bytes: u64,
    pub lazy_bytes: u64,
    pub pending_bytes: u64,
    pub held_bytes: u64,
    pub metadata_bytes: u64,
    pub opened_bytes: u64,
    pub released_bytes: u64,
    pub refaulted_bytes: u64,
    pub worker_ns: u64,
    pub longest_stall_ns: u64,
    pub lazied_bytes: u64,
    pub lazy_zones: u64,
    pub reused_bytes: u64,
    pub unused_bytes: u64,
    pub rss_bytes: u64,
    pub rss_without_lazy_bytes: u64,
    pub fallovers: u64,
    pub lock_acquisitions: u64,
    pub lock_contended: u64,
    pub lock_wait_ns: u64,
    pub lock_hold_ns: u64,
    pub pressure_events: u64,
    pub pressure_state: u64,
    pub limit_left_bytes: u64,
    pub limit_bytes: u64,
    pub percpu_bytes: u64,
    pub zone_acquisitions: u64,
    pub zone_contended: u64,
    pub zone_wait_ns: u64,
    pub zone_hold_ns: u64,
    pub reserved: u64,
}

/// Fills the first `size` bytes of `*result`; the bytes filled, or -1 with `EINVAL` for a null pointer or
/// a size without room for the version.
///
/// # Safety
/// `result` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_stats(result: *mut ebb_stats, size: usize) -> c_int {
    // SAFETY: by contract.
    unsafe { fill(result, size, || figures(size)) }
}

/// Those that fit into `size` bytes.
fn figures(size: usize) -> ebb_stats {
    let stats = ebbtide::stats::Stats::collect();
    // The kernel walks the page tables for these two: only for who asks.
    let (rss, lazy) = if size > core::mem::offset_of!(ebb_stats, rss_bytes) {
        ebbtide_sys::process::resident().unwrap_or_default()
    } else {
        (0, 0)
    };
    ebb_stats {
        version: 1,
        live_bytes: stats.live as u64,
        large_bytes: stats.large as u64,
        cached_bytes: stats.cached as u64,
        in_spans_bytes: stats.in_spans as u64,
        dirty_bytes: stats.dirty as u64,
        lazy_bytes: stats.lazy as u64,
        pending_bytes: stats.pending as u64,
        held_bytes: stats.held as u64,
        metadata_bytes: stats.metadata as u64,
        opened_bytes: stats.opened as u64,
        released_bytes: stats.released as u64,
        refaulted_bytes: stats.refaulted as u64,
        worker_ns: stats.worker_ns,
        longest_stall_ns: stats.longest_stall_ns,
        lazied_bytes: stats.lazied as u64,
        lazy_zones: stats.lazy_zones as u64,
        reused_bytes: stats.reused as u64,
        unused_bytes: stats.unused as u64,
        rss_bytes: rss,
        rss_without_lazy_bytes: rss.saturating_sub(lazy),
        fallovers: stats.fallovers,
        lock_acquisitions: stats.locks.taken,
        lock_contended: stats.locks.contended,
        lock_wait_ns: stats.locks.wait_ns,
        lock_hold_ns: stats.locks.hold_ns,
        pressure_events: stats.pressure_events,
        pressure_state: stats.pressure_state,
        limit_left_bytes: stats.limit_left,
        limit_bytes: stats.limit,
        percpu_bytes: stats.percpu as u64,
        zone_acquisitions: stats.zone_locks.taken,
        zone_contended: stats.zone_locks.contended,
        zone_wait_ns: stats.zone_locks.wait_ns,
        zone_hold_ns: stats.zone_locks.hold_ns,
        reserved: 0,
    }
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
