//! A reference count that is per CPU until it is killed, and exact from then on.
//!
//! | `killed` | references are counted | the last one is noticed |
//! |---|---|---|
//! | 0 | on the CPU, by a section that reads `killed` first; without an rseq registration, in `count` | no |
//! | 1 | in `count` | once `kill` has folded the CPUs' words into it |
//!
//! `count` begins with [`BIAS`] above the true count, so it cannot reach zero before the fold.
//!
//! Why the fold misses nothing: `kill` sets the flag and fences all CPUs. A section that read the flag before the fence
//! is in one of two states. Either it is over, and its addition is visible. Or the fence aborts it, and it reads the flag
//! anew. Additions to `count` meanwhile are correct at any time. The CPUs' words no longer change when they are summed.
//!
//! Origin: the kernel's `percpu-refcount`. Its grace period is the fence here.

use super::{PerCpu, Problem};
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use ebbtide_sys::features::MEMBARRIER;
use ebbtide_sys::membarrier;
use ebbtide_sys::rseq::{self, Added, SECTIONS, section};

/// More than the number of references can ever be.
const BIAS: i64 = 1 << 62;
const MAX_ABORTS: u32 = 100;

/// References to something. Begins with one.
///
/// ```
/// let references = ebbtide::percpu::RefCount::new().unwrap();
/// references.get();
/// assert_eq!(references.kill(), Ok(false)); // drops the first one
/// assert!(references.put()); // the last one
/// ```
#[derive(Debug)]
pub struct RefCount {
    words: PerCpu<[u64; 1]>,
    count: AtomicI64,
    killed: AtomicU32,
}

/// The kernel refuses the fence. The count stays per CPU, and no thread notices its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl RefCount {
    /// One reference.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Self, Problem> {
        Ok(Self {
            words: PerCpu::new()?,
            count: AtomicI64::new(BIAS + 1),
            killed: AtomicU32::new(0),
        })
    }

    /// Adds a reference. The caller must have one.
    #[inline]
    pub fn get(&self) {
        if !self.on_cpu(1) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds a reference, unless the last one is gone.
    pub fn try_get(&self) -> bool {
        if self.on_cpu(1) {
            return true;
        }
        let more = |count| (count > 0).then_some(count + 1);
        self.count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Drops a reference. `true`: it was the last one; only one caller gets `true`. That caller sees everything
    /// that other threads did before their `put`.
    #[inline]
    pub fn put(&self) -> bool {
        if self.on_cpu(1u64.wrapping_neg()) {
            return false;
        }
        self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Makes the count exact and drops the first reference: `true` if it was the last one. Later calls do nothing
    /// and return `false`.
    ///
    /// # Errors
    /// The fence is refused: nothing has changed.
    pub fn kill(&self) -> Result<bool, Refused> {
        if self.killed.swap(1, Ordering::SeqCst) != 0 {
            return Ok(false);
        }
        if ebbtide_percpu::rseq_offset() != 0 && MEMBARRIER.latch(membarrier::fence_all()).is_err()
        {
            self.killed.store(0, Ordering::SeqCst);
            return Err(Refused);
        }
        let counted = self.words.sum(0) as i64;
        self.count.fetch_add(counted - BIAS, Ordering::AcqRel);
        Ok(self.put())
    }

    /// Counts on this CPU. `false`: the caller must count in `count`.
    #[inline]
    fn on_cpu(&self, value: u64) -> bool {
        let rseq_offset = ebbtide_percpu::rseq_offset();
        if !SECTIONS || rseq_offset == 0 {
            return false;
        }
        let (word, units) = (self.words.pointer(0) as usize, ebbtide_percpu::units());
        for _ in 0..MAX_ABORTS {
            // SAFETY: the area lives as long as `self`; sections are in use.
            let added =
                unsafe { section::add_unless(&self.killed, word, units, value, rseq_offset) };
            match added {
                Added::Yes => return true,
                Added::Flagged => return false,
                Added::No => {
                    rseq::join_if_unregistered(rseq_offset);
                    if !ebbtide_percpu::has_unit() {
                        return false;
                    }
                }
            }
        }
        false
    }
}
