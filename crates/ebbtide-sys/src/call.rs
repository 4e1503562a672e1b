//! System calls without libc. An error is a value: `errno` is neither read nor written.

pub use syscalls::Errno;
pub(crate) use syscalls::{Sysno, syscall};
