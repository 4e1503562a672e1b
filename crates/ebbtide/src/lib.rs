//! A memory manager for Linux processes that gives memory back.
//!
//! As a Rust program's allocator:
//!
//! ```
//! #[global_allocator]
//! static GLOBAL: ebbtide::Ebbtide = ebbtide::Ebbtide;
//!
//! let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
//! assert_eq!(words[999], "999");
//! ```
//!
//! As a drop-in `malloc` it is the crate `ebbtide-preload`, which calls what is here.
//!
//! The way of an allocation, top to bottom; each layer knows only the next:
//!
//! ```text
//!  alloc        requests: size → class or whole frames
//!  cpu_cache    per-CPU stacks of objects; refill and overflow
//!  central      per class: full batches, and spans by fullness
//!  large        whole frames, without spans
//!  frames       runs of frames from the zones; opens new ones
//!  release      free frames back to the kernel
//!  reaper       what is left after the program's end
//!  heap         the one static that holds all of it, and its start
//! ```
//!
//! Beside them: [`percpu`] (data for each CPU), [`size_class`], `span` (records), `region` (address space), `config`,
//! `fork`, `reserve` (for threads that allocate while another one forks), `domains` (zones by CPUs and nodes),
//! `harden` (mistakes found at once), [`stats`], `report` (the one line before an abort),
//! [`known`] (combinations that cannot work).
//!
//! `no_std`; allocates nothing from elsewhere; starts no thread. See `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]

pub mod alloc;
#[cfg(test)]
mod alone;
mod central;
pub mod config;
mod cpu_cache;
mod domains;
pub mod fork;
mod frames;
mod global;
mod harden;
mod heap;
pub mod known;
mod large;
pub mod percpu;
mod populate;
mod ranks;
mod reaper;
mod region;
mod release;
pub mod report;
mod reserve;
pub mod size_class;
mod sources;
mod span;
mod spare;
pub mod stats;

pub use global::Ebbtide;

/// What the heap is made of.
static PARTS: sources::Parts = sources::Parts {
    caches: &[
        &harden::quarantine::Quarantined,
        &spare::Spares,
        &cpu_cache::drain::CpuStacks,
        &central::transfer::Batches,
    ],
    keepers: &[
        &percpu::round::PerCpuData,
        &release::depopulate::Spans,
        &release::zones::Zones,
    ],
    hooks: &[&percpu::round::PerCpuData, &reaper::ExitHelper],
};

pub use release::release_all;

/// Whether libraries that the program opens with `RTLD_DEEPBIND` are opened so (`deepbind=keep`). Starts the heap, which
/// reads the configuration.
pub fn keeps_deepbind() -> bool {
    heap::heap().is_some_and(|heap| heap.settings().config.deepbind_kept)
}

/// Ends the threads that release memory, and waits until they are gone: for a program that is about to bind itself, or
/// that must be single-threaded for a call. None is made for a second. Most calls return at once, as most processes have
/// none; with one at work it takes until that is done. `false`: a second was not enough, and it ends later.
///
/// `libebbtide.so` does this by itself before `prctl`, `unshare` and `setns`. From any thread, and from signal handlers.
pub fn end_workers() -> bool {
    heap::started_heap().is_none_or(|heap| heap.workers.end_all())
}
