//! Batches: what gathers keep their ranges in beyond the first few. A free list for the process, behind one lock.

use super::Range;
use crate::base::ranks;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use ebbtide_sys::lock::Lock;
use ebbtide_sys::vm;

/// Ranges of a batch: it fills a page.
pub(in crate::reclaim) const BATCH: usize = 510;

#[repr(C)]
pub(in crate::reclaim) struct Batch {
    pub next: *mut Batch,
    pub len: usize,
    pub ranges: [Range; BATCH],
}

const _: () = assert!(size_of::<Batch>() == 4096);

/// Free batches. Never returned to the kernel: there are few.
pub struct Batches {
    free: *mut Batch,
    /// How many of [`FIRST`] have been handed out.
    first_out: usize,
}

impl Batches {
    /// Forgets the list, which may not be whole. No gather holds a batch any more.
    pub fn forget(&mut self) {
        (self.free, self.first_out) = (ptr::null_mut(), 0);
    }
}

/// The first batches need no mapping, so that something can be released where none is to be had: near a limit
/// of locked memory, say, a worker without capabilities gets none. Untouched until used.
pub(in crate::reclaim) struct First(UnsafeCell<[Batch; FIRST_BATCHES]>);

// SAFETY: each batch is handed out once, under the lock of [`BATCHES`].
unsafe impl Sync for First {}

/// How many those are: one for each of two gathers.
pub(in crate::reclaim) const FIRST_BATCHES: usize = 2;

pub(in crate::reclaim) static FIRST: First = First(UnsafeCell::new(
    [const {
        Batch {
            next: ptr::null_mut(),
            len: 0,
            ranges: [Range::new(0, 0); BATCH],
        }
    }; FIRST_BATCHES],
));

// SAFETY: the list is owned by whoever holds its lock.
unsafe impl Send for Batches {}

/// The process's free batches.
pub static BATCHES: Lock<Batches> = Lock::new(
    ranks::BATCHES,
    Batches {
        free: ptr::null_mut(),
        first_out: 0,
    },
);

/// Tests make the next requests for a batch fail.
#[cfg(test)]
pub static REFUSE_BATCHES: core::sync::atomic::AtomicBool =
    core::sync::atomic::AtomicBool::new(false);

/// Batches mapped at a time.
const CHUNK: usize = 16;

/// An empty batch.
pub(in crate::reclaim) fn take_batch() -> Option<NonNull<Batch>> {
    #[cfg(test)]
    if REFUSE_BATCHES.load(core::sync::atomic::Ordering::Relaxed) {
        return None;
    }
    if let Some(batch) = pop_batch() {
        return Some(batch);
    }
    let chunk = NonNull::new(vm::map(CHUNK * size_of::<Batch>()).ok()? as *mut Batch)?;
    // SAFETY: inside the mapping, each batch once.
    (1..CHUNK).for_each(|index| put_batch(unsafe { chunk.add(index) }));
    Some(chunk)
}

fn pop_batch() -> Option<NonNull<Batch>> {
    let mut batches = BATCHES.lock();
    let batch = match NonNull::new(batches.free) {
        Some(batch) => {
            // SAFETY: batches on the list are ours and mapped.
            batches.free = unsafe { batch.as_ref() }.next;
            batch
        }
        None if batches.first_out == FIRST_BATCHES => return None,
        None => {
            batches.first_out += 1;
            // SAFETY: inside the array; this number is handed out once.
            NonNull::new(unsafe { FIRST.0.get().cast::<Batch>().add(batches.first_out - 1) })?
        }
    };
    // Emptied under the lock: a child that is forked while this thread goes on finds it on the list or empty, never
    // handed out with the link of before.
    // SAFETY: off the list, and not handed out yet.
    unsafe { ((*batch.as_ptr()).next, (*batch.as_ptr()).len) = (ptr::null_mut(), 0) };
    Some(batch)
}

pub(in crate::reclaim) fn put_batch(batch: NonNull<Batch>) {
    let mut batches = BATCHES.lock();
    // SAFETY: the caller owned it and gives it up.
    unsafe { (*batch.as_ptr()).next = batches.free };
    batches.free = batch.as_ptr();
}
