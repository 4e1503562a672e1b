//! Make other CPUs leave their restartable sections.
//!
//! `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10) restarts the section that a thread of
//! this process is in, on one CPU or on all. After it returns, every section on those CPUs sees
//! what was stored before the call. Source: membarrier(2).

use crate::call::{Errno, Sysno, syscall};

const QUERY: i32 = 0;
const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;
const FLAG_CPU: u32 = 1;

/// Announces the use of [`fence_cpu`] and [`fence_all`]. Early it is cheap; with many threads
/// it costs milliseconds.
///
/// # Errors
/// `EINVAL` before Linux 5.10, `ENOSYS`, or `EPERM` from a filter.
pub fn register() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) }.map(drop)
}

/// Does nothing. Asked before anything is taken that a fence is made under: a filter that kills for the call does so here.
///
/// # Errors
/// `ENOSYS`, or what a filter answers.
pub fn ask() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { syscall!(Sysno::membarrier, QUERY, 0, 0) }.map(drop)
}

/// Restarts the section running on `cpu`.
///
/// # Errors
/// As [`register`]; a filter may refuse it later than that.
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
