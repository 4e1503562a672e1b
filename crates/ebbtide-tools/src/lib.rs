//! What the programs `ebbtide` and `ebbtide-bench` share. It links no part of the memory manager.
//!
//! | module | what it does |
//! |---|---|
//! | `conf` | the keys of `EBBTIDE_CONF` |
//! | `library` | finds `libebbtide.so` |
//! | `lock_figures` | what the library's locks cost |
//! | `machine` | facts about the machine that belong beside a measurement |
//! | `out` | prints without failing on a closed pipe; units |
//! | `proc` | reads what `/proc` says |
//! | `program` | exit status, completions and manual pages |
//! | `stats_page` | the page of figures that a process under Ebbtide keeps |
//! | `values` | what flags take: sizes, times |

pub mod conf;
pub mod library;
pub mod lock_figures;
pub mod machine;
pub mod out;
pub mod proc;
pub mod program;
pub mod stats_page;
pub mod values;
