//! Observes measured processes from outside, and sets up swap and cgroups for them.
//!
//! | module | what it does |
//! |---|---|
//! | `observe`, `sample` | watches a process while its memory returns; one sample |
//! | `pidfd` | processes by descriptor |
//! | `tree` | a process with all below it |
//! | `interrupt` | interruption by a signal |
//! | `swap` | swap and a memory cgroup for the time of a run |

pub mod interrupt;
pub mod observe;
pub mod pidfd;
pub mod sample;
pub mod swap;
pub mod tree;
