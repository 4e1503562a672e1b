//! Per-CPU data: `ebb_percpu_*` of `include/ebbtide.h`.

use crate::own::fill;
use crate::standard::set_errno;
use core::ffi::{c_int, c_uint, c_void};
use ebbtide::percpu::{self, Handle, Problem};

/// A handle of an area in C: it has the type of a pointer, but is a number and no address.
#[allow(non_camel_case_types)]
pub type ebb_percpu = c_void;

/// Allocates an area of `size` bytes, zeroed, for each CPU; null with `EINVAL` or `ENOMEM`.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_percpu_alloc(size: usize, align: usize) -> *mut ebb_percpu {
    or_null(percpu::allocate(size, align))
}

/// The same without waiting, in pages that are populated already.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_percpu_alloc_nowait(size: usize, align: usize) -> *mut ebb_percpu {
    or_null(percpu::allocate_nowait(size, align))
}

fn or_null(area: Result<Handle, Problem>) -> *mut ebb_percpu {
    match area {
        Ok(handle) => handle.0 as *mut ebb_percpu,
        Err(problem) => {
            set_errno(match problem {
                Problem::BadArguments => libc::EINVAL,
                Problem::NoMemory => libc::ENOMEM,
            });
            core::ptr::null_mut()
        }
    }
}

/// Frees an area; null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_percpu_free(area: *mut ebb_percpu) {
    if !area.is_null() {
        percpu::free(Handle(area as usize));
    }
}

/// The area's copy for a CPU.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_percpu_ptr(area: *mut ebb_percpu, cpu: c_uint) -> *mut c_void {
    percpu::pointer(Handle(area as usize), cpu as usize).cast()
}

/// The number of copies.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_percpu_cpus() -> c_uint {
    percpu::cpus() as c_uint
}

/// Adds to this CPU's word.
///
/// # Safety
/// The area is allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_percpu_add_u64(area: *mut ebb_percpu, offset: usize, value: u64) {
    // SAFETY: by contract.
    unsafe { percpu::add(Handle(area as usize), offset, value) }
}

/// The sum of all CPUs' words.
///
/// # Safety
/// The area is allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_percpu_sum_u64(area: *mut ebb_percpu, offset: usize) -> u64 {
    // SAFETY: by contract.
    unsafe { percpu::sum(Handle(area as usize), offset) }
}

/// `struct ebb_percpu_stats` of `ebbtide.h`: later versions only add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct ebb_percpu_stats {
    pub chunks: usize,
    pub sidelined_chunks: usize,
    pub allocated_bytes: usize,
    pub populated_bytes: usize,
    pub depopulated_bytes: usize,
}

/// Fills the first `size` bytes of `*result`. Returns the bytes filled, or -1 with `EINVAL` for a null pointer or a
/// size too small for a field.
///
/// # Safety
/// `result` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ebb_percpu_stats(result: *mut ebb_percpu_stats, size: usize) -> c_int {
    let figures = || {
        let stats = percpu::stats();
        ebb_percpu_stats {
            chunks: stats.chunks,
            sidelined_chunks: stats.sidelined_chunks,
            allocated_bytes: stats.allocated_bytes,
            populated_bytes: stats.populated_bytes,
            depopulated_bytes: stats.depopulated_bytes,
        }
    };
    // SAFETY: by contract.
    unsafe { fill(result, size, figures) }
}
