//! No sections: a processor without them, or another C library than glibc.
//!
//! Nothing is registered here ([`super::super::registration`]), so the manager works in the portable mode. An operation
//! that is called all the same finds what a thread without registration finds: a parked slab, no word.

use super::super::{Counted, Counting, Stacks};
use super::{Lingering, PARKED};
use core::sync::atomic::AtomicU32;

/// Whether there are sections in this build.
pub const SECTIONS: bool = false;
/// Whether a kernel is known that leaves sections of this processor running where it should abort them.
pub const BREAKS_ON_SOME_KERNELS: bool = false;
/// Nothing is registered.
pub const SIGNATURE: u32 = 0;

/// # Safety
/// None.
pub unsafe fn pop(_: &Stacks, _: usize) -> usize {
    0
}

/// # Safety
/// None.
pub unsafe fn pop_counted(_: &Stacks, _: usize, _: Counting) -> usize {
    0
}

/// # Safety
/// None.
pub unsafe fn count(_: &Stacks, _: usize, _: usize) -> Option<Counted> {
    None
}

/// # Safety
/// None.
pub unsafe fn push(_: &Stacks, _: usize, _: usize) -> bool {
    false
}

/// # Safety
/// None.
pub unsafe fn pop_batch(_: &Stacks, _: usize, _: &mut [usize]) -> isize {
    PARKED
}

/// # Safety
/// None.
pub unsafe fn push_batch(_: &Stacks, _: usize, _: &[usize], _: usize) -> isize {
    PARKED
}

/// # Safety
/// None.
pub unsafe fn add(_: usize, _: usize, _: u64, _: isize) -> bool {
    false
}

/// # Safety
/// None.
pub unsafe fn add_unless(_: &AtomicU32, _: usize, _: usize, _: u64, _: isize) -> usize {
    0
}

/// # Safety
/// None.
pub unsafe fn cpu_id(_: isize) -> i32 {
    -1
}

/// # Safety
/// None.
pub unsafe fn descriptor(_: isize) -> u64 {
    0
}

/// # Safety
/// None.
pub unsafe fn linger(_: &Stacks, _: &Lingering, _: u32) -> bool {
    true
}

/// Not known.
pub fn thread_pointer() -> usize {
    0
}

/// There is none.
///
/// # Safety
/// None.
pub unsafe extern "C" fn own_area() -> isize {
    0
}
