//! The heap of the memory manager: objects, pages, and how they go back to the kernel.
//!
//! What programs link is the crate `ebbtide`, which enters here, and says what the heap is made of
//! ([`sources::Parts`]). What is public here is so for `ebbtide` and its parts alone.
//!
//! ```text
//!  cpu_cache    per-CPU stacks of objects; refill and overflow
//!  central      per class: full batches, and spans by fullness
//!  large        whole frames, without spans
//!  frames       runs of frames from the zones; opens new ones
//!  release      free frames back to the kernel
//!  heap         the one static that holds all of it, and its start
//! ```
//!
//! Beside them: [`size_class`], [`span`] (records), [`region`] (address space), [`find`] (what an address is), [`config`],
//! [`fork`], [`reserve`] (for threads that allocate while another one forks), [`domains`] (zones by CPUs and nodes),
//! [`harden`] (mistakes found at once), [`stats`], [`report`] (the one line before an abort),
//! [`known`] (combinations that cannot work), [`sources`] (all that holds free memory).
//!
//! `no_std`; allocates nothing from elsewhere; starts no thread. See `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]
// Read by those who change it.
#![allow(rustdoc::private_intra_doc_links)]
// What is made here is made in the one static.
#![allow(clippy::new_without_default)]

pub mod allowance;
#[cfg(test)]
mod alone;
pub mod central;
pub mod config;
pub mod cpu_cache;
pub mod domains;
pub mod figures;
pub mod find;
pub mod fork;
pub mod frames;
pub mod harden;
pub mod heap;
pub mod held;
pub mod known;
pub mod large;
pub mod objects;
pub mod pages;
pub mod ranks;
pub mod reclaim;
pub mod region;
pub mod release;
pub mod releaser;
pub mod report;
pub mod requests;
pub mod reserve;
pub mod size_class;
pub mod source;
pub mod sources;
pub mod span;
pub mod spare;
pub mod stats;
