//! The heap of the memory manager: objects, pages, and their release to the kernel.
//!
//! Programs link the crate `ebbtide`. It calls this crate, and defines the list of the heap's sources
//! ([`reclaim::sources::Parts`]). The public items of this crate are public only for `ebbtide` and its parts.
//!
//! The crate has five layers, one folder each. A layer imports only those below it; `scripts/check-rooms` checks this.
//!
//! ```text
//!  front      the heap's start, its entry points, forks, requests   whole heap, entered
//!  reclaim    release of free memory: engine, workers, pressure     Heap
//!  objects    size classes: per-CPU stacks, full batches, spans     Objects
//!  pages      the region, zones, large allocations, spare runs      Pages
//!  base       configuration, size classes, lock ranks, statistics   no state of the heap
//! ```
//!
//! [`reclaim::Heap`] holds an [`objects::Objects`], which holds a [`pages::Pages`]. Code of a layer takes a reference to
//! that layer's struct, and reaches the layers below through it.
//!
//! The crate is `no_std` and allocates nothing from elsewhere. It starts no threads but the workers. See
//! `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]
// Maintainers read this documentation with its private items.
#![allow(rustdoc::private_intra_doc_links)]
// These types are made only in the one static.
#![allow(clippy::new_without_default)]

#[cfg(test)]
mod alone;
pub mod base;
pub mod front;
pub mod objects;
pub mod pages;
pub mod reclaim;
