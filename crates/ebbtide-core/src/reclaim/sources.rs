//! The sources: all holders of free memory, in one list.
//!
//! ```text
//!   quarantine ─┐
//!   spare runs ─┤                    ┌────────── caches: keep objects and runs as they are
//!   CPU stacks ─┼▶ transfer ─▶ spans ─▶ zones ─▶ the kernel
//!   per-CPU data ────────────────────────────────▲
//! ```
//!
//! Every operation on all sources goes through [`Parts`]: a fork, a child that gives the heap up, a drain, a release of
//! everything, the user's limit, a tick, a round, the statistics. The list is a constant of the crate `ebbtide`. A new
//! cache is a file with a [`Source`], and a line in that list.
//!
//! * `INV-SOURCE-1` Each source gives to sources behind it in the list, or to the kernel: one pass empties all.
//! * `INV-SOURCE-2` Every lock of the heap belongs to one source. A fork takes the locks by rank, and the locks of one
//!   rank in the order of their sources in the list.

use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::source::{Cached, Source};
use crate::base::stats::Figures;
use crate::reclaim::Heap;
use ebbtide_sys::lock::Rank;

/// A part of the heap that is called at a few events of the process's life, and at no others. By default a hook
/// does nothing.
pub trait Hook: Sync {
    /// The heap has started. Called once, mostly in the main thread.
    fn on_start(&self, _heap: &Heap) {}

    /// Called in a forked child, whose heap is whole again.
    fn on_fork_child(&self, _heap: &Heap) {}

    /// Called on slow paths, when the heap may have grown. No lock is held.
    fn on_growth(&self, _heap: &Heap) {}

    /// The process ends in order.
    fn on_exit(&self, _heap: &Heap) {}

    /// Adds its share of the statistics.
    fn add_figures(&self, _heap: &Heap, _figures: &mut Figures) {}
}

/// The parts of the process's heap: one constant, passed to its start.
pub struct Parts {
    /// Sources that give to spans and zones, not to the kernel. They give first, in this order.
    pub caches: &'static [&'static dyn Source<Heap>],
    /// All other sources, in the order in which they give.
    pub holders: &'static [&'static dyn Source<Heap>],
    /// See [`Hook`].
    pub hooks: &'static [&'static dyn Hook],
}

impl Parts {
    /// All sources, in the order in which they give.
    pub fn sources(&self) -> impl Iterator<Item = &'static dyn Source<Heap>> {
        self.caches.iter().chain(self.holders).copied()
    }
}

impl Heap {
    /// Calls `each` for every lock, in the order of [`ranks`].
    pub fn for_each_lock(&self, mut each: impl FnMut(&dyn ForkLock)) {
        for (rank, _) in ranks::ALL {
            for source in self.parts().sources() {
                source.locks(self, Rank(rank), &mut each);
            }
        }
    }

    /// Empties all caches into spans and zones.
    pub fn drain_all(&self, by: Releaser) {
        for cache in self.parts().caches {
            cache.give_all(self, by);
        }
    }

    /// Called when no worker scans the sources from now on.
    pub fn leave_unattended(&self) {
        let sources = self.parts().sources();
        sources.for_each(|source| source.unattended(self));
    }

    /// The memory that all caches keep.
    pub fn cached(&self) -> Cached {
        let mut sum = Cached::default();
        let sources = self.parts().sources();
        sources.for_each(|source| source.cached(self, &mut sum));
        sum
    }

    /// Calls the hooks after the heap may have grown. No lock may be held.
    pub fn notify_growth(&self) {
        self.parts()
            .hooks
            .iter()
            .for_each(|hook| hook.on_growth(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::heap;

    #[test]
    fn one_pass_empties_the_caches() {
        let heap = &*heap().unwrap().enter_uncounted();
        // Other tests allocate beside this one.
        let emptied = (0..50).any(|_| {
            let object = heap.allocate_object(crate::base::size_class::class_of(100));
            assert!(object != 0);
            crate::front::requests::free_inside(heap, object);
            heap.drain_all(Releaser::Explicit);
            heap.cached().objects == 0
        });
        assert!(emptied);
    }
}
