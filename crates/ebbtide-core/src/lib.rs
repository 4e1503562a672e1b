//! The heap of the memory manager: objects, pages, and how they go back to the kernel.
//!
//! What programs link is the crate `ebbtide`, which enters here, and says what the heap is made of
//! ([`reclaim::sources::Parts`]). What is public here is so for `ebbtide` and its parts alone.
//!
//! The crate is five rooms, each a folder. A room imports those below it and none above; `scripts/check-rooms` sees to it.
//!
//! ```text
//!  front      the heap's start, the ways in, forks, requests        whole heap, entered
//!  reclaim    free memory back: sources, engine, workers, pressure  Heap
//!  objects    size classes: per-CPU stacks, full batches, spans     Objects
//!  pages      the region, zones, large allocations, spare runs      Pages
//!  base       configuration, size classes, lock ranks, figures      no state of the heap
//! ```
//!
//! [`reclaim::Heap`] holds an [`objects::Objects`], which holds a [`pages::Pages`]: what is in a room takes a reference to that room's
//! struct, and reaches those below through it.
//!
//! `no_std`; allocates nothing from elsewhere; starts no thread. See `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]
// Read by those who change it.
#![allow(rustdoc::private_intra_doc_links)]
// What is made here is made in the one static.
#![allow(clippy::new_without_default)]

#[cfg(test)]
mod alone;
pub mod base;
pub mod front;
pub mod objects;
pub mod pages;
pub mod reclaim;
