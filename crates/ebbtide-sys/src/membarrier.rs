//! Makes other CPUs leave their restartable sections.
//!
//! `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10) restarts the section that a thread of
//! this process is in, on one CPU or on all. After it returns, every section on those CPUs sees
//! what was stored before the call. Source: membarrier(2).

use crate::call::{Errno, Sysno, syscall};

const QUERY: i32 = 0;
const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;
const FLAG_CPU: u32 = 1;

/// Announces the use of [`fence_cpu`] and [`fence_all`]. It is cheap early; with many threads it costs milliseconds.
///
/// # Errors
/// `EINVAL` before Linux 5.10, `ENOSYS`, or `EPERM` from a filter.
pub fn register() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) }.map(drop)
}

/// Makes a membarrier call without effect. Callers use it before they take a lock under which they fence: a filter
/// that kills the caller for membarrier(2) does so here, while no lock is held.
///
/// # Errors
/// `ENOSYS`, or the error of a filter.
pub fn ask() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, QUERY, 0, 0) }.map(drop)
}

/// Restarts the section running on `cpu`.
///
/// # Errors
/// As [`register`]; a filter may also refuse only this call.
pub fn fence_cpu(cpu: usize) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu) }.map(drop)
}

/// Restarts the sections running on all CPUs.
///
/// # Errors
/// As [`fence_cpu`].
pub fn fence_all() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, PRIVATE_EXPEDITED_RSEQ, 0, 0) }.map(drop)
}
