//! Mechanism: all code that uses the kernel's or the processor's interface directly.
//!
//! This is the only crate with inline assembly, system calls and raw pointers into the kernel's ABI. It decides
//! nothing: the crates above decide what to reserve, when to release and which threads to stop. System calls are raw,
//! so `errno` is never touched; results are values.
//!
//! | module | what it is |
//! |---|---|
//! | [`unwind`] | the return addresses on the own stack |
//! | [`vm`] | reserve, commit, release and move address space |
//! | [`loader`] | a `dlopen` that runs before the C library's |
//! | [`fault`] | a handler of SIGSEGV that runs before the program's |
//! | [`request_signal`] | a signal by which a user asks for something |
//! | [`lock`] | futex lock with a rank, usable before libc is ready |
//! | [`lockstat`] | lock cost by rank; off by default |
//! | [`rseq`] | per-CPU object stacks: restartable sections and their portable model |
//! | [`membarrier`] | make another CPU leave its restartable section |
//! | [`features`] | optional kernel calls, tried once and latched |
//! | [`pages`] | what is mapped at an address |
//! | [`pressure`] | memory limits, the headroom below them, and events of memory pressure |
//! | [`thread`] | worker threads |
//! | [`helper`] | a process that shares the program's memory and outlives it |
//! | [`streams`] | the lock of libc's list of streams |
//! | [`clock`] | monotonic time and CPU time |
//! | [`process`] | start-up facts: environment, auxiliary vector, CPUs, limits |
//! | [`mod@file`] | read small kernel files without libc |
//! | [`shared_file`] | files that are mapped for observers |
#![no_std]
#![warn(missing_docs)]

pub mod clock;
pub mod fault;
pub mod features;
pub mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod helper;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu",
    target_pointer_width = "64"
))]
pub mod loader;
pub mod lock;
pub mod lockstat;
pub mod membarrier;
pub mod pages;
pub mod pressure;
pub mod process;
pub mod request_signal;
pub mod rseq;
pub mod shared_file;
pub mod streams;
pub mod thread;
pub mod unwind;
pub mod vm;

mod call;
mod clone;
mod identity;
mod libc_symbols;

pub use call::Errno;
