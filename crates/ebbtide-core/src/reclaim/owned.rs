//! One gather, released by whoever owns it.

use super::slots::Owned;
use crate::base::releaser::{Owner, Releaser};
use crate::base::stats::{self, word};
use crate::reclaim::Heap;
use ebbtide_sys::clock;

/// Whether workers have so much to do that this one had better claim nothing: it might not get rid of it.
pub fn holds_back(heap: &Heap, by: Releaser) -> bool {
    matches!(by, Releaser::SlowPath | Releaser::Tick)
        && heap.slots.is_crowded()
        && heap.workers.count() > 0
}

/// Releases a gather and puts its ranges back, or leaves that to a worker in part.
pub fn release_owned<'a>(heap: &'a Heap, mut owned: Owned<'a>, by: Releaser) {
    let start = clock::precise_ns();
    let leave = match by {
        Releaser::Explicit | Releaser::SlowPath => heap.max_workers() > 0,
        Releaser::Tick => heap.workers.count() > 0,
        Releaser::Worker { .. } => false,
    };
    let (_, left) = super::kernel::release(heap, owned.gather(), by, leave);
    if left {
        let waits = matches!(by, Releaser::Explicit);
        match leave_to_worker(heap, owned, waits) {
            Ok(()) => {
                return stats::raise(word!(longest_stall_ns), clock::precise_ns() - start);
            }
            Err(back) => owned = back,
        }
        // Else workers have too much to do: what is left goes back as it was, and is due still.
        if waits || heap.workers.count() == 0 {
            super::kernel::release(heap, owned.gather(), by, false);
        }
    }
    heap.put_back(owned.gather(), true);
    by.count(clock::precise_ns() - start);
}

/// `Err`: there is no worker, or no room and `waits` is not set.
fn leave_to_worker<'a>(heap: &'a Heap, owned: Owned<'a>, waits: bool) -> Result<(), Owned<'a>> {
    let most = heap.max_workers().min(heap.most_releasers());
    let wanted = (heap.slots.queued() + 1).min(most);
    if !heap.call_workers(wanted) {
        return Err(owned);
    }
    heap.slots
        .leave(owned, waits, || heap.workers.count() > 0)?;
    if heap.call_workers(wanted) {
        return Ok(());
    }
    // They have left meanwhile.
    heap.slots
        .take_queued(true, Owner::PROGRAM)
        .map_or(Ok(()), Err)
}

impl Heap {
    /// What is on its way: helps, oldest first, then waits. What a worker leaves behind that is killed meanwhile is on its
    /// way too.
    pub(super) fn join(&self, by: Releaser) {
        let left = || by.is_worker() || self.workers.count() == 0;
        let is_gone = |owner| self.workers.is_gone(owner);
        self.slots.join(left, by.owner(), is_gone, |owned| {
            release_owned(self, owned, by);
        });
    }

    /// Workers were killed: what they had claimed is free again, as it was.
    pub(super) fn put_back_orphans(&self) {
        let is_gone = |owner| self.workers.is_gone(owner);
        while let Some(mut owned) = self.slots.take_orphan(Owner::PROGRAM, is_gone) {
            self.put_back(owned.gather(), false);
        }
    }
}
