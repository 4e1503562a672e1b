//! The code that the programs `ebbtide` and `ebbtide-bench` share. It links no part of the memory manager.
//!
//! | module | what it does |
//! |---|---|
//! | `complete` | candidates for shell completions |
//! | `conf` | the keys of `EBBTIDE_CONF` |
//! | `library` | finds `libebbtide.so` |
//! | `lock_figures` | the cost of the library's locks |
//! | `machine` | facts about the machine, to be stored with a measurement |
//! | `out` | printing that tolerates a closed pipe; units |
//! | `proc` | reads files of `/proc` |
//! | `manual` | manual pages: examples, environment, exit status |
//! | `program` | exit status, completions and manual pages |
//! | `stats_page` | the statistics page of a process under Ebbtide |
//! | `values` | values of flags: sizes, times |

#[cfg(feature = "arguments")]
pub mod complete;
pub mod conf;
pub mod library;
pub mod lock_figures;
pub mod machine;
#[cfg(feature = "arguments")]
pub mod manual;
pub mod out;
pub mod proc;
#[cfg(feature = "arguments")]
pub mod program;
pub mod stats_page;
pub mod values;
