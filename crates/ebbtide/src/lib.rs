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
//! The way of a request, top to bottom; each layer knows only those below:
//!
//! ```text
//!  alloc               requests: size → class or whole frames; the fast paths
//!  ebbtide_core        the heap
//!  ebbtide_zone        which frames are free, handed out, given back: decisions without memory
//!  ebbtide_sys         the kernel and the processor
//! ```
//!
//! Beside them: [`percpu`] (data for each CPU, of `ebbtide_percpu`), `ebbtide_exit` (what is left after the program's end).
//! This crate puts them together.
//!
//! `no_std`; allocates nothing from elsewhere. See `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]

pub mod alloc;
mod global;
pub mod percpu;

/// What the process holds and has given back.
pub mod stats {
    pub use ebbtide_core::base::stats::locks;
    pub use ebbtide_core::front::figures;
    pub use ebbtide_interface::figures::{FIGURES, Figure, Figures, Kind};
}

pub use ebbtide_core::base::{config, message, size_class};
pub use global::Ebbtide;

use ebbtide_core::base::releaser::Releaser;
use ebbtide_core::front::{Front, started_heap};
use ebbtide_core::reclaim::sources::Parts;
use ebbtide_core::{objects, pages, reclaim};

/// What the heap is made of. A new cache, or another part that is told of the process's life, is a line here.
static PARTS: Parts = Parts {
    caches: &[
        &objects::harden::quarantine::Quarantined,
        &pages::spare::Spares,
        &objects::cpu_cache::drain::CpuStacks,
        &objects::central::transfer::Batches,
    ],
    holders: &[
        &ebbtide_percpu::PERCPU,
        &reclaim::depopulate::Spans,
        &reclaim::zones::Zones,
    ],
    hooks: &[&ebbtide_percpu::PERCPU, &ebbtide_exit::EXIT],
};

/// The heap, started by the first call.
#[inline]
fn heap() -> Option<&'static Front> {
    ebbtide_core::front::heap_of(&PARTS)
}

/// Gives all free memory of the process back to the kernel, from the caches of all CPUs too. Returns
/// the bytes given back; 0 when nothing was free. Blocks for as long as that takes: about 0.1 µs a
/// page, shared with the workers. Any thread may call it at any time.
pub fn release_all() -> usize {
    heap().map_or(0, |heap| {
        heap.enter_uncounted()
            .release_everything(Releaser::Explicit)
    })
}

/// Whether libraries that the program opens with `RTLD_DEEPBIND` are opened so (`deepbind=keep`). Starts the heap, which
/// reads the configuration.
pub fn keeps_deepbind() -> bool {
    heap().is_some_and(|heap| heap.config.deepbind_kept)
}

/// Ends the threads that release memory, and waits until they are gone: for a program that is about to bind itself, or
/// that must be single-threaded for a call. None is made for 100 ms. Most calls return at once, as most processes have
/// none; with one at work it takes until that is done. `false`: a second was not enough, and it ends later.
///
/// `libebbtide.so` does this by itself before `prctl`, `unshare` and `setns`. From any thread, and from signal handlers.
pub fn end_workers() -> bool {
    started_heap().is_none_or(|heap| heap.workers().end_all())
}

/// Tells the parts that the process ends in order, and writes the last figures: for who calls it at the end, as
/// `libebbtide.so` does. A program may go on afterwards.
pub fn end() {
    ebbtide_core::front::end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebbtide_core::base::ranks;
    use ebbtide_sys::lock::Rank;

    #[test]
    fn every_rank_of_the_heap_has_a_source() {
        let heap = &*heap().unwrap().enter_uncounted();
        for (number, name) in ranks::ALL {
            let rank = Rank(number);
            let mut count = 0;
            for source in PARTS.sources() {
                source.locks(heap, rank, &mut |_| count += 1);
            }
            let has_none = rank == ranks::FORK || rank == ranks::CPU && heap.caches.uses_sections();
            assert_eq!(count == 0, has_none, "{name}");
        }
    }
}
