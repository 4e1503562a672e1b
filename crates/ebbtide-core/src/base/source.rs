//! The interface of a source: a holder of free memory. [`Parts`](crate::reclaim::sources::Parts) lists all sources.

use crate::base::ranks::ForkLock;
use crate::base::releaser::Releaser;
use ebbtide_sys::lock::Rank;
use ebbtide_zone::plan::Remaining;

/// The interface of a holder of free memory, in every heap `H` that its layer is a part of.
pub trait Source<H>: Sync {
    /// Calls `each` for the source's locks of a rank.
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock));

    /// Adds the memory that a cache keeps unchanged; other sources add nothing. Takes the source's locks, one at a
    /// time.
    fn cached(&self, _heap: &H, _sum: &mut Cached) {}

    /// Called on a tick of the program, about ten times a second. Passes on memory that was not used lately, and
    /// notes what else the source keeps.
    fn tick(&self, _heap: &H, _now: u64, _outside: &mut Outside) {}

    /// Passes on memory that is due or idle, in a round of the coordinating worker. Notes the memory that is left to
    /// wait for.
    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining);

    /// Passes on all memory that it keeps.
    fn give_all(&self, heap: &H, by: Releaser);

    /// Called when a worker or the process ends, so that no worker scans the source from now on. Passes on the
    /// memory that it keeps only until the next scan.
    fn unattended(&self, _heap: &H) {}

    /// Makes the source whole in a forked child whose parent's locks were held during the copy, if that is not
    /// enough.
    ///
    /// # Safety
    /// No other thread exists in this process.
    unsafe fn child(&self, _heap: &H) {}

    /// Forgets all memory that it keeps, in a child that cannot know what the parent's threads were doing.
    ///
    /// # Safety
    /// No other thread exists in this process, and all locks are free.
    unsafe fn abandon(&self, heap: &H);
}

/// The memory that caches keep, in bytes.
#[derive(Default)]
pub struct Cached {
    /// Free objects of spans.
    pub objects: usize,
    /// Free runs of frames.
    pub runs: usize,
}

/// The memory kept outside the zones, in frames, as far as a tick needs it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outside {
    /// Kept to be reused unchanged.
    pub spare: u64,
    /// Empty frames in half-used spans.
    pub waiting: u64,
}

/// A round of the coordinating worker.
pub struct Round<'a> {
    /// Milliseconds.
    pub now: u64,
    /// A window of the low-water counts has ended.
    pub ends_window: bool,
    /// The thread that releases.
    pub by: Releaser<'a>,
}
