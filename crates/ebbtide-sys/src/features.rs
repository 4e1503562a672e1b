//! Optional kernel calls: each tried, its answer latched, readable by anyone.
//!
//! A feature is *unknown* until its first use, then *works* or *refused*. A program may sandbox
//! itself late, so a working feature can become refused; refused never turns back.

use core::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const REFUSED: u8 = 2;

/// The latch of one feature.
pub struct Feature {
    state: AtomicU8,
    /// What it is called in reports.
    pub name: &'static str,
}

impl Feature {
    const fn new(name: &'static str) -> Self {
        Self {
            state: AtomicU8::new(UNKNOWN),
            name,
        }
    }

    /// Whether it is worth trying.
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

    /// Keeps the answer of a use and passes it on.
    pub fn latch<T, E>(&self, result: Result<T, E>) -> Result<T, E> {
        match result {
            Ok(_) => self.note_success(),
            Err(_) => self.refuse(),
        }
        result
    }

    /// It was used, and did what it should.
    pub fn note_success(&self) {
        if self.state.load(Ordering::Relaxed) == UNKNOWN {
            self.state.store(WORKS, Ordering::Relaxed);
        }
    }

    /// Never tries it again.
    pub fn refuse(&self) {
        self.state.store(REFUSED, Ordering::Relaxed);
    }
}

/// Drains of other CPUs' caches: `membarrier(PRIVATE_EXPEDITED_RSEQ)`, Linux 5.10.
pub static MEMBARRIER: Feature = Feature::new("membarrier");
/// Growing large allocations without copying: `mremap(MREMAP_DONTUNMAP)`, Linux 5.7.
pub static MOVE_PAGES: Feature = Feature::new("mremap");
/// Huge pages for the growth range: `MADV_HUGEPAGE`.
pub static HUGE_PAGES: Feature = Feature::new("hugepage");
/// Recognising forked children: `MADV_WIPEONFORK`, Linux 4.14.
pub static WIPE_ON_FORK: Feature = Feature::new("wipeonfork");

/// Many ranges released with one call: `process_madvise` on the own process, Linux 6.13 and 6.15.
pub static RELEASE_MANY: Feature = Feature::new("process_madvise");
/// Telling whether a huge page was split: `PAGEMAP_SCAN`, Linux 6.7.
pub static SCAN_PAGES: Feature = Feature::new("pagemap_scan");
/// Threads that release memory beside the program.
pub static WORKERS: Feature = Feature::new("workers");
/// Pages that the kernel may take and a store takes back: `MADV_FREE`, Linux 5.18 (before, it races with direct reads).
pub static LAZY_FREE: Feature = Feature::new("madvise_free");
/// Giving back memory that the program has locked: `MADV_DONTNEED_LOCKED`, Linux 5.18. Tried when that is met.
pub static RELEASE_LOCKED: Feature = Feature::new("dontneed_locked");
/// A process that takes memory back after the program's end.
pub static REAPER: Feature = Feature::new("reaper");
/// Memory for a page on all CPUs in advance: `MADV_POPULATE_WRITE`, Linux 5.14.
pub static POPULATE: Feature = Feature::new("populate");
/// `MADV_DONTNEED` does what it says. Emulators and filters answer so for a call that does nothing.
pub static RELEASE: Feature = Feature::new("dontneed");
/// Taking the registration of sections off around `vfork`. Refused: `vfork` is a fork.
pub static UNREGISTER: Feature = Feature::new("rseq_unregister");
/// Copying the page of figures to its file without touching that: `process_vm_writev` on the own process.
pub static COPY_PAGE: Feature = Feature::new("process_vm_writev");

/// All features, for reports.
pub static ALL: [&Feature; 14] = [
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
