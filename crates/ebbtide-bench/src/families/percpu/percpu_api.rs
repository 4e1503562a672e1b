//! Access to Ebbtide's per-CPU data for the measured process. This program links no allocator, so the functions are
//! looked up in the loaded library.

use std::ffi::{CStr, c_int, c_uint, c_void};

use anyhow::{Context, Result, ensure};

use crate::measured::calls::symbol;

/// An area, in the library's type.
pub type Area = *mut c_void;

/// `struct ebb_percpu_stats` of `ebbtide.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// See the header.
    pub chunks: usize,
    /// See the header.
    pub sidelined_chunks: usize,
    /// See the header.
    pub allocated_bytes: usize,
    /// See the header.
    pub populated_bytes: usize,
    /// See the header.
    pub depopulated_bytes: usize,
}

/// The library's functions. Each takes only areas that are allocated.
#[derive(Clone, Copy, Debug)]
pub struct PerCpu {
    alloc: unsafe extern "C" fn(usize, usize) -> Area,
    /// Frees an area.
    pub free: unsafe extern "C" fn(Area),
    ptr: unsafe extern "C" fn(Area, c_uint) -> *mut c_void,
    /// Adds a value to the aligned word at this offset of this CPU's copy.
    pub add: unsafe extern "C" fn(Area, usize, u64),
    /// The sum of the aligned words at this offset of all copies.
    pub sum: unsafe extern "C" fn(Area, usize) -> u64,
    stats: unsafe extern "C" fn(*mut Stats, usize) -> c_int,
    /// Number of copies of each area.
    pub cpus: usize,
}

/// # Safety
/// `F` is the type of this function of `ebbtide.h`.
unsafe fn function<F: Copy>(name: &CStr) -> Result<F> {
    // SAFETY: by contract.
    let found = unsafe { symbol(name) };
    found.with_context(|| format!("{} is not in this process", name.to_string_lossy()))
}

impl PerCpu {
    /// Looks up the functions in the loaded library.
    pub fn find() -> Result<Self> {
        // SAFETY: the types are those of `ebbtide.h`.
        unsafe {
            let cpus: unsafe extern "C" fn() -> c_uint = function(c"ebb_percpu_cpus")?;
            Ok(PerCpu {
                alloc: function(c"ebb_percpu_alloc")?,
                free: function(c"ebb_percpu_free")?,
                ptr: function(c"ebb_percpu_ptr")?,
                add: function(c"ebb_percpu_add_u64")?,
                sum: function(c"ebb_percpu_sum_u64")?,
                stats: function(c"ebb_percpu_stats")?,
                cpus: cpus() as usize,
            })
        }
    }

    /// Allocates an area.
    #[inline]
    pub fn alloc(&self, size_bytes: usize, align: usize) -> Result<Area> {
        // SAFETY: takes any arguments.
        let area = unsafe { (self.alloc)(size_bytes, align) };
        ensure!(!area.is_null(), "no memory for {size_bytes} bytes a CPU");
        Ok(area)
    }

    /// The copy of an area for a CPU.
    ///
    /// # Safety
    /// The area is allocated, and the CPU exists.
    pub unsafe fn copy(&self, area: Area, cpu: usize) -> *mut u8 {
        // SAFETY: by contract.
        unsafe { (self.ptr)(area, cpu as c_uint) }.cast()
    }

    /// The library's figures about per-CPU data.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: `stats` has the size that is passed.
        unsafe { (self.stats)(&mut stats, size_of::<Stats>()) };
        stats
    }
}
