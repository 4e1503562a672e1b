//! The words that the fast paths of `malloc` and `free` read.

use crate::base::size_class::TABLE_MAX;
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::rseq::SECTIONS;

/// The words that the fast paths read: a few words in one cache line, zero until the heap has started.
///
/// The limits are stored last (release) and read first (acquire): a thread that passes a compare with them sees the
/// rest. They stay zero in the portable mode and with `harden=on`.
///
/// The words are 1 KiB behind a multiple of 2 KiB. A processor first compares the low 12 bits of addresses to find
/// out whether a load waits for a store before it. No stack header in a slab has the low 12 bits of these words.
/// `malloc` and `free` write a header each time, so the next call does not wait for nothing.
#[repr(C, align(2048))]
pub struct Fast {
    _apart: [u8; 1024],
    /// Requests below this size may be popped at once: [`TABLE_MAX`] + 1, or 0.
    pub sizes: AtomicUsize,
    /// An address may be pushed at once if it is a multiple of 16, and, less `base`, below 16 times this:
    /// sixteenths of the region, or 0.
    pub units: AtomicUsize,
    /// The address of frame 0.
    pub base: AtomicUsize,
    /// The address of the class byte of frame 0.
    pub classes: AtomicUsize,
    /// See [`ebbtide_sys::rseq::Stacks`].
    pub table: AtomicUsize,
    /// See there.
    pub parked: AtomicUsize,
    /// See there.
    pub rseq_offset: AtomicUsize,
    /// Bytes between two samples; 0: sampling is off. While it is on, `sizes` is 0, so that each request is counted.
    pub rate: AtomicUsize,
    /// One of so many requests is guarded; 0: none. Otherwise `sizes` is 0 too.
    pub guard: AtomicUsize,
}

/// The fast paths' words.
pub static FAST: Fast = Fast {
    _apart: [0; 1024],
    sizes: AtomicUsize::new(0),
    units: AtomicUsize::new(0),
    base: AtomicUsize::new(0),
    classes: AtomicUsize::new(0),
    table: AtomicUsize::new(0),
    parked: AtomicUsize::new(0),
    rseq_offset: AtomicUsize::new(0),
    rate: AtomicUsize::new(0),
    guard: AtomicUsize::new(0),
};

/// See [`Fast`]: headers are one word for each stack, from a page's start on.
const _: () = assert!(ebbtide_sys::rseq::STACKS * 8 <= core::mem::offset_of!(Fast, sizes));

impl Fast {
    /// Whether objects are popped and pushed by sections. `sizes` does not say so while requests are sampled.
    #[inline]
    pub fn uses_sections(&self) -> bool {
        SECTIONS && self.units.load(Ordering::Acquire) != 0
    }

    /// Sets the mean distance of samples, 0 for none. The caller excludes other callers.
    pub fn set_rate(&self, rate: usize) {
        self.rate.store(rate, Ordering::Relaxed);
        self.set_sizes();
    }

    /// Sets how many requests there are to one that is guarded. Called once, by the start of the heap.
    pub fn set_guard(&self, rate: usize) {
        self.guard.store(rate, Ordering::Relaxed);
        self.set_sizes();
    }

    /// Whether each request is counted.
    #[inline]
    pub fn counts(&self) -> bool {
        self.rate.load(Ordering::Relaxed) | self.guard.load(Ordering::Relaxed) != 0
    }

    fn set_sizes(&self) {
        let sizes = match !self.counts() && self.uses_sections() {
            true => TABLE_MAX + 1,
            false => 0,
        };
        self.sizes.store(sizes, Ordering::Release);
    }
}
