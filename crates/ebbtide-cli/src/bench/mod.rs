//! `ebbtide bench`: Ebbtide beside other allocators.
//!
//! Every figure comes from a fresh process under one allocator. Allocators take
//! turns within each round, so that drift of the machine meets all alike, and
//! Ebbtide stands in the rotation twice: what the two differ by is noise.
//!
//! | module | what it does |
//! |---|---|
//! | `harness` | runs a family's cases, interleaved, and collects figures |
//! | `peers` | the allocators, and where their libraries are |
//! | `report` | tables and JSON |
//! | `stats` | medians and quartiles |
//! | `worker` | the measured process |
//! | `micro` | the family of single operations |
//!
//! A family is a file like `micro`: it says what is run and what is measured.

pub mod harness;
pub mod micro;
pub mod peers;
pub mod report;
pub mod stats;
pub mod worker;
