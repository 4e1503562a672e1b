//! `ebbtide bench`: Ebbtide beside other allocators.
//!
//! Every figure comes from a fresh process under one allocator. Allocators take
//! turns within each round, so that drift of the machine meets all alike, and
//! Ebbtide stands in the rotation twice: what the two differ by is noise.
//!
//! | module | what it does |
//! |---|---|
//! | `harness` | runs a family's cases, interleaved, and collects figures |
//! | `process` | starts measured processes and reads what they print |
//! | `observe`, `sample`, `link` | watches a process from outside; a look; that process's end of it |
//! | `peers` | the allocators, and where their libraries are |
//! | `pidfd` | processes by descriptor |
//! | `progress`, `interrupt` | says what a run is at; what a signal breaks off |
//! | `report`, `tables` | sets figures side by side; as text or JSON |
//! | `html`, `plot` | a page; its drawings |
//! | `stats`, `hist` | medians and quartiles; histograms of times |
//! | `worker` | the measured process: single operations |
//! | `block`, `objects`, `victim` | the measured process: one block, many objects, two threads |
//! | `cluster` | the family of refills; `pages` are its processes, `script` its real programs |
//! | `micro` | the family of single operations |
//! | `exit`, `dying` | the family of ends; a process that ends, and what is seen of it |
//! | `swap_exit`, `crowd` | the family of ends in swap; a run of it |
//! | `phone`, `swap` | the processes of such a run; swap for its time, and its removal |
//! | `lazyfree`, `search` | the family of searches; the measured processes that search |
//! | `reuse` | the family of memory that is wanted again, and its measured process |
//! | `neighbour`, `beside` | the family of two processes within one limit; a run of it, and the second of them |
//! | `warm` | memory that is touched and held for such a run |
//! | `percpu` | the family of per-CPU data |
//! | `groups`, `counting`, `percpu_api` | the measured process: groups of areas; counting and allocating; the library's functions |
//! | `free`, `give_back` | the families `free` and `return`; `sized` is what they share |
//!
//! A family is a file like `micro`: it says what is run and what is measured.

pub mod cluster;
pub mod exit;
pub mod free;
pub mod give_back;
pub mod lazyfree;
pub mod micro;
pub mod neighbour;
pub mod percpu;
pub mod reuse;
pub mod swap_exit;
pub mod worker;

use anyhow::Result;

use crate::cli::BenchCommand;
use crate::figures::{self, Measured, html};

/// Runs a family and prints what came out.
pub fn main(command: &BenchCommand) -> Result<u8> {
    html::check(command.bench())?;
    figures::print(&measure(command)?, command.bench())
}

/// Runs a family.
pub fn measure(command: &BenchCommand) -> Result<Measured> {
    match command {
        BenchCommand::Micro(args) => micro::measure(args),
        BenchCommand::Free(args) => free::measure(args),
        BenchCommand::Return(args) => give_back::measure(args),
        BenchCommand::Lazyfree(args) => lazyfree::measure(args),
        BenchCommand::Reuse(args) => reuse::measure(args),
        BenchCommand::Cluster(args) => cluster::measure(args),
        BenchCommand::Neighbour(args) => neighbour::measure(args),
        BenchCommand::Exit(args) => exit::measure(args),
        BenchCommand::SwapExit(args) => swap_exit::measure(args),
        BenchCommand::Percpu(args) => percpu::measure(args),
    }
}
