//! The process to which the heap belongs.
//!
//! A `vfork` child works in its parent's memory. It must not make a worker, a helper or a statistics page there: they
//! would end with the child, or serve the wrong process. So the process that began the heap is recorded, and asked for.
//!
//! The child may also be the one that begins the heap, by the first `malloc` of all. Then the heap belongs to no process
//! until a thread of the parent asks.

use core::sync::atomic::{AtomicU32, Ordering};
use ebbtide_sys::{process, rseq};

/// 0: no process yet.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Called when the heap begins.
pub fn begin() {
    if !rseq::may_be_vfork_child() {
        begin_in_child();
    }
}

/// Called in a forked child, whose memory is its own.
pub fn begin_in_child() {
    OWNER.store(process::id(), Ordering::Release);
}

/// Whether the heap belongs to this process. A process of libc's threads takes a heap that belongs to none.
pub fn is_own() -> bool {
    let me = process::id();
    let owner = match OWNER.load(Ordering::Acquire) {
        0 if !rseq::may_be_vfork_child() => OWNER
            .compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|other| other, |_| me),
        owner => owner,
    };
    owner == me
}

/// The process to which the heap belongs; 0 if there is none yet.
pub fn id() -> u32 {
    OWNER.load(Ordering::Acquire)
}
