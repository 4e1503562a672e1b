//! Per-CPU data for the program: areas with a copy for each CPU, and what stands on them.
//!
//! ```text
//!  reservation, by shard            a chunk: one unit a CPU, and the spill unit
//!  ├ chunk 0 ┼ chunk 1 ┼ …          ├ CPU 0 ──┼ CPU 1 ──┼ … ┼ spill ──┤
//!                                      ▲ area    ▲ its copy
//!  handle: tag │ size │ address of the area for CPU 0, from the reservation's start
//! ```
//!
//! Where areas lie and which pages go back is policy: [`ebbtide_zone::percpu`], one shard of chunks behind one
//! lock (`PERCPU`), taken by the CPU that asks. No system call is made under it.
//!
//! Additions are restartable sections without an atomic instruction. A thread without registration (a worker, a
//! `vfork` child), or on a CPU that was not counted at the start, must not touch a word that sections write. It
//! adds to the *spill* unit with an atomic instruction. In the portable mode all additions are atomic.
//!
//! - `INV-PERCPU-7`: a free granule reads zero in every unit: areas are zeroed when they are freed, pages by the
//!   kernel.
//! - `INV-PERCPU-8`: a word of a CPU's unit is written by sections or, in the portable mode, by atomic
//!   instructions; a word of the spill unit by atomic instructions.
//!
//! | module | what it is |
//! |---|---|
//! | `space` | address space: chunks, units, records |
//! | `areas` | allocate, free, figures |
//! | `memory` | populate, zero, give back |
//! | `round` | depopulation: who does it, when |
//! | `handle` | what areas are called |
//! | `words` | addition and sum |
#![no_std]
#![warn(missing_docs)]
// Read by those who change it.
#![allow(rustdoc::private_intra_doc_links)]

mod areas;
mod handle;
mod memory;
mod round;
mod space;
mod words;

pub use areas::{Problem, Stats, allocate, free, stats};
pub use handle::{Handle, pointer};
pub use space::{PERCPU, PerCpuData, cpus, has_unit, rseq_offset, units};
pub use words::{add, sum};
