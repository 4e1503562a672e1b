//! The program's own mappings, unmapped beside it: [`Heap::unmap`].
//!
//! ```text
//!   program's range ──mremap──▶ range of ours ──workers, piece by piece──▶ MADV_DONTNEED ──the last one──▶ munmap
//!          └──munmap, without memory
//! ```
//!
//! mremap moves page tables, not pages, so the caller's addresses are free when the call returns. Workers drop the memory. Where the range
//! cannot be moved, or there is no worker, the caller unmaps it.
//!
//! | state of an entry | meaning | set by |
//! |---|---|---|
//! | [`FREE`] | empty | the thread that unmapped its range |
//! | [`FILLING`] | a thread moves a range away for it | that thread |
//! | [`READY`] | workers drop its memory | the same thread |
//!
//! - `INV-UNMAP-1`: a range is unmapped only after each piece was dropped, by the thread that dropped the last one. No thread touches the range
//!   afterwards, because another mapping may take its addresses.
//! - `INV-UNMAP-2`: an entry is filled only while no thread looks at it. A thread is counted before it reads the state, and the state is changed before
//!   the count is read: one of the two sees the other.
//!
//! If a filter kills a worker in a piece, the rest of that range stays mapped.

use crate::base::stats;
use crate::reclaim::Heap;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use ebbtide_sys::{Errno, vm};

const FREE: u32 = 0;
const FILLING: u32 = 1;
const READY: u32 = 2;

/// Smaller ranges are unmapped at once.
const LEAST_BYTES: usize = 16 << 20;
/// What a worker drops in one call.
const PIECE_BYTES: usize = 32 << 20;
/// Ranges at the same time.
const MOST_RANGES: usize = 16;

/// A range on its way to the kernel.
struct MovedRange {
    state: AtomicU32,
    /// Threads that look at it.
    users: AtomicU32,
    /// Where the range was moved to; 0 before that.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The offset of the next piece, and the bytes that were not dropped yet.
    next: AtomicUsize,
    left: AtomicUsize,
}

impl MovedRange {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            users: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    /// Moves a range away. Its addresses stay mapped, without memory.
    ///
    /// # Safety
    /// The caller owns the entry, and the range.
    unsafe fn fill(&self, from: usize, len: usize) -> Result<(), Errno> {
        // As far from a huge page's boundary as before: then whole page tables move. If another thread takes these addresses meanwhile,
        // the kernel chooses others.
        let most = len.next_multiple_of(vm::HUGE) + vm::HUGE;
        let hint = vm::reserve(most, vm::HUGE)?;
        vm::unmap(hint, most);
        // SAFETY: by contract.
        let start = unsafe { vm::move_away(from, len, hint + from % vm::HUGE) }?;
        self.len.store(len, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.left.store(len, Ordering::Relaxed);
        Ok(())
    }

    /// Drops the next piece. `false`: there is none.
    fn drop_piece(&self) -> bool {
        // Before the state is read: a thread that has seen READY reads the words of that range (INV-UNMAP-2).
        self.users.fetch_add(1, Ordering::SeqCst);
        let dropped = self.state.load(Ordering::SeqCst) == READY && self.drop_here();
        self.users.fetch_sub(1, Ordering::Release);
        dropped
    }

    fn drop_here(&self) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        let at = self.next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
        if at >= len {
            return false;
        }
        let bytes = PIECE_BYTES.min(len - at);
        // SAFETY: a range of ours, which stays mapped until this piece is counted (INV-UNMAP-1). Locked pages and devices
        // refuse; munmap drops those.
        if unsafe { vm::advise(start + at, bytes, libc::MADV_DONTNEED) }.is_ok() {
            stats::count_released(bytes);
        }
        // Orders the pieces of all threads before the end of the range.
        if self.left.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.end();
        }
        true
    }

    fn end(&self) {
        let start = self.start.swap(0, Ordering::Relaxed);
        vm::unmap(start, self.len.load(Ordering::Relaxed));
        self.state.store(FREE, Ordering::Release);
    }
}

/// All ranges on their way.
pub struct Unmapping {
    ranges: [MovedRange; MOST_RANGES],
}

impl Unmapping {
    /// None.
    pub const fn new() -> Self {
        Self {
            ranges: [const { MovedRange::new() }; MOST_RANGES],
        }
    }

    fn take(&self) -> Option<&MovedRange> {
        self.ranges.iter().find(|entry| {
            let is_free = entry
                .state
                .compare_exchange(FREE, FILLING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
            // A thread may still be about to see that the last range has no piece left.
            let is_left = is_free && entry.users.load(Ordering::SeqCst) == 0;
            if is_free && !is_left {
                entry.state.store(FREE, Ordering::Release);
            }
            is_left
        })
    }

    /// Drops pieces until there is none. Called by workers.
    pub fn work(&self) {
        for entry in &self.ranges {
            while entry.drop_piece() {}
        }
    }

    /// Unmaps all ranges in a forked child, which has no worker.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn begin_in_child(&self) {
        for entry in &self.ranges {
            if entry.start.load(Ordering::Relaxed) != 0 {
                entry.end();
            }
            entry.state.store(FREE, Ordering::Relaxed);
            entry.users.store(0, Ordering::Relaxed);
        }
    }
}

impl Heap {
    /// Unmaps a range of the program: its addresses are free afterwards, and workers drop its memory. Small ranges, and ranges of several
    /// mappings on kernels that move one at a time, are unmapped at once.
    ///
    /// # Errors
    /// Those of munmap(2).
    ///
    /// # Safety
    /// The range is the program's, and nothing uses it any more.
    pub unsafe fn unmap(&self, from: usize, len: usize) -> Result<(), Errno> {
        let is_large = len >= LEAST_BYTES && from.is_multiple_of(vm::GRANULE);
        let workers = if is_large && !self.config.basic_syscalls {
            self.max_workers().min(len / PIECE_BYTES + 1)
        } else {
            0
        };
        if workers > 0
            && let Some(entry) = self.unmapping.take()
        {
            let len = len.next_multiple_of(vm::GRANULE);
            // SAFETY: this thread has the entry; the range by contract.
            if unsafe { entry.fill(from, len) }.is_ok() {
                entry.state.store(READY, Ordering::Release);
                if !self.call_workers(workers) {
                    while entry.drop_piece() {}
                }
            } else {
                entry.state.store(FREE, Ordering::Release);
            }
        }
        // Without memory, if it was moved.
        // SAFETY: by contract.
        unsafe { vm::unmap_exactly(from, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;

    fn mapped(len: usize) -> usize {
        let at = vm::reserve(len, vm::HUGE).unwrap();
        // SAFETY: a new range.
        unsafe { vm::commit(at, len).unwrap() };
        for byte in (0..len).step_by(vm::GRANULE) {
            // SAFETY: inside it.
            unsafe { ((at + byte) as *mut u8).write(1) };
        }
        at
    }

    fn is_free(at: usize, len: usize) -> bool {
        let mut seen = [0u8; 1];
        // SAFETY: asks only.
        (at..at + len)
            .step_by(len - vm::GRANULE)
            .all(|at| unsafe { libc::mincore(at as *mut _, vm::GRANULE, seen.as_mut_ptr()) } != 0)
    }

    #[test]
    fn a_range_is_moved_dropped_and_unmapped_once() {
        alone("workers=0,pressure=off", |heap| {
            let unmapping = &heap.unmapping;
            let len = 2 * PIECE_BYTES + 3 * vm::GRANULE;
            let from = mapped(len + vm::GRANULE) + vm::GRANULE;
            // SAFETY: this thread's range. Then the range is one mapping.
            unsafe { vm::advise(from - vm::GRANULE, vm::GRANULE, libc::MADV_DONTFORK).unwrap() };
            let entry = unmapping.take().unwrap();
            // SAFETY: this thread's entry and range.
            unsafe { entry.fill(from, len).unwrap() };
            assert!(!vm::is_resident(from) && !vm::is_resident(from + len - vm::GRANULE));
            entry.state.store(READY, Ordering::Release);
            let start = entry.start.load(Ordering::Relaxed);
            assert_eq!(start % vm::HUGE, from % vm::HUGE);
            for _ in 0..2 {
                assert!(entry.drop_piece());
            }
            assert!(!is_free(start, len) && vm::is_resident(start + len - vm::GRANULE));
            assert!(entry.drop_piece() && !entry.drop_piece());
            assert!(is_free(start, len) && entry.state.load(Ordering::Relaxed) == FREE);
        });
    }

    #[test]
    fn a_child_unmaps_what_was_on_its_way() {
        alone("workers=0,pressure=off", |heap| {
            let from = mapped(LEAST_BYTES);
            let entry = heap.unmapping.take().unwrap();
            // SAFETY: this thread's entry and range; there is no other thread.
            unsafe {
                entry.fill(from, LEAST_BYTES).unwrap();
                let start = entry.start.load(Ordering::Relaxed);
                heap.unmapping.begin_in_child();
                assert!(is_free(start, LEAST_BYTES));
            }
        });
    }

    /// Without a worker, or with the last entry taken, the caller unmaps.
    #[test]
    fn the_caller_unmaps_what_no_worker_can() {
        alone("workers=0,pressure=off", |heap| {
            let from = mapped(LEAST_BYTES);
            // SAFETY: this thread's range.
            unsafe { heap.unmap(from, LEAST_BYTES).unwrap() };
            assert!(is_free(from, LEAST_BYTES));
            // SAFETY: nothing is there.
            assert_eq!(unsafe { heap.unmap(from + 1, 4096) }, Err(Errno::EINVAL));
        });
    }
}
