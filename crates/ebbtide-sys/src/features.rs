//! Optional kernel calls. Ebbtide tries each one at its first use and latches the answer, which any thread can read.
//!
//! A feature is *unknown* until its first use, then *works* or *refused*. A program may sandbox itself late, so a
//! working feature can become refused. A refused feature stays refused.

use core::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const REFUSED: u8 = 2;

/// The latch of one feature.
pub struct Feature {
    state: AtomicU8,
    /// Its name in messages and statistics.
    pub name: &'static str,
}

impl Feature {
    const fn new(name: &'static str) -> Self {
        Self {
            state: AtomicU8::new(UNKNOWN),
            name,
        }
    }

    /// Whether a call is worth trying: it was not refused so far.
    pub fn may_work(&self) -> bool {
        self.state.load(Ordering::Relaxed) != REFUSED
    }

    /// `Some(true)` after a success, `Some(false)` after a refusal, `None` before any use.
    pub fn known(&self) -> Option<bool> {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == WORKS),
        }
    }

    /// Latches the result of a use and returns it.
    pub fn latch<T, E>(&self, result: Result<T, E>) -> Result<T, E> {
        match result {
            Ok(_) => self.note_success(),
            Err(_) => self.refuse(),
        }
        result
    }

    /// Latches a successful use.
    pub fn note_success(&self) {
        if self.state.load(Ordering::Relaxed) == UNKNOWN {
            self.state.store(WORKS, Ordering::Relaxed);
        }
    }

    /// Latches a refusal: the feature is never tried again.
    pub fn refuse(&self) {
        self.state.store(REFUSED, Ordering::Relaxed);
    }
}

/// Drains of other CPUs' caches: `membarrier(PRIVATE_EXPEDITED_RSEQ)`, Linux 5.10.
pub static MEMBARRIER: Feature = Feature::new("membarrier");
/// Growing large allocations without copying: `mremap(MREMAP_DONTUNMAP)`, Linux 5.7.
pub static MOVE_PAGES: Feature = Feature::new("mremap");
/// Huge pages in the growth range: `MADV_HUGEPAGE`.
pub static HUGE_PAGES: Feature = Feature::new("hugepage");
/// Recognising forked children: `MADV_WIPEONFORK`, Linux 4.14.
pub static WIPE_ON_FORK: Feature = Feature::new("wipeonfork");

/// Many ranges released by one call: `process_madvise` on the own process, Linux 6.13 and 6.15.
pub static RELEASE_MANY: Feature = Feature::new("process_madvise");
/// Checks whether a huge page was split: `PAGEMAP_SCAN`, Linux 6.7.
pub static SCAN_PAGES: Feature = Feature::new("pagemap_scan");
/// Threads that release memory beside the program.
pub static WORKERS: Feature = Feature::new("workers");
/// Lazy pages: the kernel may take them until the next store to them. `MADV_FREE`, Linux 5.18 (before, it races with
/// direct reads).
pub static LAZY_FREE: Feature = Feature::new("madvise_free");
/// Releases memory that the program has locked: `MADV_DONTNEED_LOCKED`, Linux 5.18. Tried when locked memory is met.
pub static RELEASE_LOCKED: Feature = Feature::new("dontneed_locked");
/// The exit helper: a process that returns memory after the program's end.
pub static REAPER: Feature = Feature::new("reaper");
/// Populates a page of per-CPU data on all CPUs in advance: `MADV_POPULATE_WRITE`, Linux 5.14.
pub static POPULATE: Feature = Feature::new("populate");
/// `MADV_DONTNEED` really drops the pages. Some emulators and filters report success for a call that does nothing.
pub static RELEASE: Feature = Feature::new("dontneed");
/// Registers threads for sections, where the C library does not.
pub static REGISTER: Feature = Feature::new("rseq_register");
/// Removes the registration of sections around `vfork`. If it is refused, `vfork` is a fork.
pub static UNREGISTER: Feature = Feature::new("rseq_unregister");
/// Copies the statistics page to its file by `process_vm_writev` on the own process, so no store of this process
/// touches the file.
pub static COPY_PAGE: Feature = Feature::new("process_vm_writev");
/// Reads stacks of this process without a fault: `process_vm_readv` on the own process. Only while objects are sampled.
pub static READ_STACK: Feature = Feature::new("process_vm_readv");

/// All features, for messages and statistics.
pub static ALL: [&Feature; 16] = [
    &MEMBARRIER,
    &MOVE_PAGES,
    &HUGE_PAGES,
    &WIPE_ON_FORK,
    &RELEASE_MANY,
    &SCAN_PAGES,
    &WORKERS,
    &LAZY_FREE,
    &RELEASE_LOCKED,
    &REAPER,
    &POPULATE,
    &RELEASE,
    &UNREGISTER,
    &COPY_PAGE,
    &REGISTER,
    &READ_STACK,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stays() {
        let feature = Feature::new("test");
        assert_eq!(feature.known(), None);
        assert!(feature.latch::<_, ()>(Ok(1)).is_ok());
        assert_eq!(feature.known(), Some(true));
        assert!(feature.latch::<(), _>(Err(1)).is_err());
        assert!(feature.latch::<_, ()>(Ok(1)).is_ok());
        assert_eq!((feature.known(), feature.may_work()), (Some(false), false));
    }
}
