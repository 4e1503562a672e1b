//! Measured processes seen from outside: signals, looks, and what they need of the system for a while.
//!
//! | module | what it does |
//! |---|---|
//! | `observe`, `sample` | watches a process while memory goes back; a look |
//! | `pidfd` | processes by descriptor |
//! | `interrupt` | what a signal breaks off |
//! | `swap` | swap and a memory cgroup for the time of a run |

pub mod interrupt;
pub mod observe;
pub mod pidfd;
pub mod sample;
pub mod swap;
