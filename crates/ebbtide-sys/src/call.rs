//! One seam to the kernel: raw calls whose errors are values.

pub use syscalls::Errno;
pub(crate) use syscalls::{Sysno, syscall};
