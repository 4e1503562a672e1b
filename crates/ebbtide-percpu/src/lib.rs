//! Per-CPU data for the program: areas with a copy for each CPU, and operations on them.
//!
//! ```text
//!  reservation, by shard            a chunk: one unit a CPU, and the spill unit
//!  ├ chunk 0 ┼ chunk 1 ┼ …          ├ CPU 0 ──┼ CPU 1 ──┼ … ┼ spill ──┤
//!                                      ▲ area    ▲ its copy
//!  handle: tag │ size │ address of the area for CPU 0, from the reservation's start
//! ```
//!
//! [`ebbtide_zone::percpu`] is the policy: where areas lie, and which pages are released. Each shard of chunks has one
//! lock (`PERCPU`); the calling CPU selects the shard. No system call is made under the lock.
//!
//! Additions are restartable sections without an atomic instruction. Two kinds of threads must not touch a word that
//! sections write: a thread without an rseq registration (a worker, a `vfork` child), and a thread on a CPU that was not
//! counted at the start. Such a thread adds to the *spill* unit with an atomic instruction. In the portable mode all
//! additions are atomic.
//!
//! - `INV-PERCPU-7`: a free granule reads zero in every unit: areas are zeroed when they are freed, pages by the
//!   kernel.
//! - `INV-PERCPU-8`: a word of a CPU's unit is written by sections or, in the portable mode, by atomic
//!   instructions; a word of the spill unit by atomic instructions.
//!
//! | module | contents |
//! |---|---|
//! | `space` | address space: chunks, units, records |
//! | `areas` | allocate, free, figures |
//! | `memory` | populate, zero, release |
//! | `round` | depopulation: by which thread, and when |
//! | `handle` | the handles of areas |
//! | `words` | addition and sum |
#![no_std]
#![warn(missing_docs)]
// Maintainers read this documentation with its private items.
#![allow(rustdoc::private_intra_doc_links)]

mod areas;
mod handle;
mod memory;
mod round;
mod space;
mod words;

pub use areas::{Problem, Stats, allocate, allocate_nowait, free, stats};
pub use handle::{Handle, pointer};
pub use space::{PERCPU, PerCpuData, cpus, has_unit, rseq_offset, units};
pub use words::{add, sum};
