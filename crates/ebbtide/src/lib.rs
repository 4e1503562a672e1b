//! A memory manager for Linux processes that releases free memory.
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
//! The crate `ebbtide-preload` is the drop-in `malloc`; it calls this crate.
//!
//! The path of a request, top to bottom. Each layer knows only those below:
//!
//! ```text
//!  alloc               requests: size → class or whole frames; the fast paths
//!  ebbtide_core        the heap
//!  ebbtide_zone        which frames are free, handed out, released: decisions without memory
//!  ebbtide_sys         the kernel and the processor
//! ```
//!
//! Beside them: [`percpu`] (data for each CPU, from `ebbtide_percpu`) and `ebbtide_exit` (returns memory after the
//! program's end). This crate puts them together.
//!
//! `no_std`; allocates nothing from elsewhere. See `ARCHITECTURE.md`.
#![no_std]
#![warn(missing_docs)]

pub mod alloc;
mod global;
pub mod percpu;
pub mod profile;

/// The memory that the process holds, and what it has released.
pub mod stats {
    pub(crate) use ebbtide_core::base::stats::confine;
    pub use ebbtide_core::base::stats::locks;
    pub use ebbtide_core::front::figures;
    pub use ebbtide_interface::figures::{FIGURES, Figure, Figures, Kind};
}

pub use ebbtide_core::base::{config, message, size_class};
pub use global::Ebbtide;

use ebbtide_core::base::releaser::Releaser;
use ebbtide_core::front::{Front, started_heap};
pub use ebbtide_core::reclaim::control::KeyProblem;
use ebbtide_core::reclaim::sources::Parts;
use ebbtide_core::{objects, pages, reclaim};

/// The parts of the heap. A new cache, or another part that must see the process's life, is a line here.
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
        &objects::guarded::Slots,
        &pages::samples::Profile,
    ],
    hooks: &[&ebbtide_percpu::PERCPU, &ebbtide_exit::EXIT],
};

/// The heap, started by the first call.
#[inline]
fn heap() -> Option<&'static Front> {
    ebbtide_core::front::heap_of(&PARTS)
}

/// Releases all free memory of the process to the kernel, including the caches of all CPUs. Returns the bytes
/// released; 0 when nothing was free. Blocks until the release is done: about 0.1 µs a page, shared with the
/// workers. Any thread may call it at any time.
pub fn release_all() -> usize {
    heap().map_or(0, |heap| {
        heap.enter_uncounted()
            .release_everything(Releaser::Explicit)
    })
}

/// Changes a key of `EBBTIDE_CONF` while the program runs: `retain_ms`, `limit` or `profile`, as `key=value` in the form of the variable.
/// `profile_dump=/PATH` writes the profile to that file at once.
///
/// Any thread may call it at any time; of several calls the last one takes effect. Memory that is kept beyond the new value goes on the next
/// slow path, or by a worker at once.
///
/// # Errors
/// See [`KeyProblem`]. Nothing changes then.
pub fn set(item: &[u8]) -> Result<(), KeyProblem> {
    let heap = heap().ok_or(KeyProblem::Fixed)?;
    heap.enter_uncounted().set_key(item)
}

/// The value of a key that can change: milliseconds, or bytes (`u64::MAX`: no limit; a percentage as the bytes that it is now).
///
/// # Errors
/// See [`KeyProblem`].
pub fn get(name: &[u8]) -> Result<u64, KeyProblem> {
    let heap = heap().ok_or(KeyProblem::Fixed)?;
    heap.enter_uncounted().key_value(name)
}

/// Unmaps a mapping of the program's own, as munmap(2) does, but leaves the work to workers. The addresses are free when it returns; the memory
/// goes within milliseconds to a second. Below 16 MiB, without workers, and where the kernel cannot move the range, the call does all of it.
///
/// # Errors
/// The number of munmap(2)'s error.
///
/// # Safety
/// The range is the program's, no memory of this allocator, and nothing uses it any more.
pub unsafe fn unmap(address: *mut u8, len: usize) -> Result<(), i32> {
    let heap = heap().ok_or(0)?;
    // SAFETY: by contract.
    unsafe { heap.enter_uncounted().unmap(address as usize, len) }.map_err(|error| error.into_raw())
}

/// Whether `RTLD_DEEPBIND` is kept when the program opens a library with it (`deepbind=keep`). Starts the heap,
/// which reads the configuration.
pub fn keeps_deepbind() -> bool {
    heap().is_some_and(|heap| heap.config.deepbind_kept)
}

/// Ends the threads that release memory, and waits until they are gone. It is for a program that is about to
/// restrict itself, or that must be single-threaded for a call. No such thread is made for 100 ms. Most calls
/// return at once, because most processes have no such thread. If one is at work, the call waits until it is done.
/// `false`: one second was not enough, and the thread ends later.
///
/// `libebbtide.so` does this by itself before `prctl`, `unshare` and `setns`. Any thread may call it, and signal
/// handlers may.
pub fn end_workers() -> bool {
    started_heap().is_none_or(|heap| heap.workers().end_all())
}

/// Prepares for a program that is about to restrict its system calls: no statistics page is made or removed afterwards. With
/// `has_filter`, a page that the process would get later is made now; else it has none, unless it has one already. Signal handlers may call it.
pub fn confine(has_filter: bool) {
    if let Some(heap) = started_heap() {
        stats::confine(&heap.config, has_filter);
    }
}

/// Calls the hooks for an orderly end of the process, and writes the last statistics. For callers at the end of the
/// program, such as `libebbtide.so`. The program may continue afterwards.
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
