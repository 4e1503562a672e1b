//! The measured process's way to Ebbtide's per-CPU data: this program links no
//! allocator, so the functions are looked up in the library that is loaded.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem;

use anyhow::{Result, bail, ensure};

/// An area, as the library calls it.
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

/// The functions.
#[derive(Clone, Copy, Debug)]
pub struct PerCpu {
    alloc: unsafe extern "C" fn(usize, usize) -> Area,
    free: unsafe extern "C" fn(Area),
    ptr: unsafe extern "C" fn(Area, c_uint) -> *mut c_void,
    add: unsafe extern "C" fn(Area, usize, u64),
    sum: unsafe extern "C" fn(Area, usize) -> u64,
    stats: unsafe extern "C" fn(*mut Stats, usize) -> c_int,
    /// Copies of each area.
    pub cpus: usize,
}

fn symbol(name: &CStr) -> Result<*mut c_void> {
    // SAFETY: dlsym with a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        bail!("{} is not in this process", name.to_string_lossy());
    }
    Ok(found)
}

impl PerCpu {
    /// The functions of the library that is loaded.
    pub fn find() -> Result<Self> {
        // SAFETY: the types are those of `ebbtide.h`.
        unsafe {
            let cpus: unsafe extern "C" fn() -> c_uint =
                mem::transmute(symbol(c"ebb_percpu_cpus")?);
            Ok(PerCpu {
                alloc: mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, usize) -> Area>(
                    symbol(c"ebb_percpu_alloc")?,
                ),
                free: mem::transmute::<*mut c_void, unsafe extern "C" fn(Area)>(symbol(
                    c"ebb_percpu_free",
                )?),
                ptr: mem::transmute::<*mut c_void, unsafe extern "C" fn(Area, c_uint) -> *mut c_void>(
                    symbol(c"ebb_percpu_ptr")?,
                ),
                add: mem::transmute::<*mut c_void, unsafe extern "C" fn(Area, usize, u64)>(symbol(
                    c"ebb_percpu_add_u64",
                )?),
                sum: mem::transmute::<*mut c_void, unsafe extern "C" fn(Area, usize) -> u64>(
                    symbol(c"ebb_percpu_sum_u64")?,
                ),
                stats: mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Stats, usize) -> c_int,
                >(symbol(c"ebb_percpu_stats")?),
                cpus: cpus() as usize,
            })
        }
    }

    /// An area.
    #[inline]
    pub fn alloc(&self, size_bytes: usize, align: usize) -> Result<Area> {
        // SAFETY: takes any arguments.
        let area = unsafe { (self.alloc)(size_bytes, align) };
        ensure!(!area.is_null(), "no memory for {size_bytes} bytes a CPU");
        Ok(area)
    }

    /// Frees it.
    ///
    /// # Safety
    /// It is allocated, and not used any more.
    #[inline]
    pub unsafe fn free(&self, area: Area) {
        // SAFETY: by contract.
        unsafe { (self.free)(area) }
    }

    /// Its copy for a CPU.
    ///
    /// # Safety
    /// It is allocated, and there is such a CPU.
    pub unsafe fn copy(&self, area: Area, cpu: usize) -> *mut u8 {
        // SAFETY: by contract.
        unsafe { (self.ptr)(area, cpu as c_uint) }.cast()
    }

    /// Adds.
    ///
    /// # Safety
    /// It is allocated and has an aligned word there.
    #[inline]
    pub unsafe fn add(&self, area: Area, offset: usize, value: u64) {
        // SAFETY: by contract.
        unsafe { (self.add)(area, offset, value) }
    }

    /// Sums up.
    ///
    /// # Safety
    /// As [`Self::add`].
    pub unsafe fn sum(&self, area: Area, offset: usize) -> u64 {
        // SAFETY: by contract.
        unsafe { (self.sum)(area, offset) }
    }

    /// The figures.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: a place of that size.
        unsafe { (self.stats)(&mut stats, size_of::<Stats>()) };
        stats
    }
}
