//! What each holder of free memory provides, and is asked by. The list of them is [`Parts`](crate::reclaim::sources::Parts).

use crate::base::ranks::ForkLock;
use crate::base::releaser::Releaser;
use ebbtide_sys::lock::Rank;
use ebbtide_zone::plan::Remaining;

/// What a holder of free memory provides, in every heap `H` that its room is a part of.
pub trait Source<H>: Sync {
    /// Calls `each` for its locks of a rank.
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock));

    /// Adds what it keeps as it is: nothing, unless it is a cache. Takes its locks, one at a time.
    fn cached(&self, _heap: &H, _sum: &mut Cached) {}

    /// A tick of the program's passes by, some ten times a second. Gives what nobody has wanted lately, and notes what else it
    /// keeps.
    fn tick(&self, _heap: &H, _now: u64, _outside: &mut Outside) {}

    /// Gives back what is due or idle, in a round of the coordinating worker. Notes what is left to wait for.
    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining);

    /// Gives all that it keeps.
    fn give_all(&self, heap: &H, by: Releaser);

    /// Nobody looks at it from now on: a worker ends, or the process. Gives what it keeps until somebody looks.
    fn unattended(&self, _heap: &H) {}

    /// Makes it whole in a forked child whose parent's locks were held during the copy, if that is not enough.
    ///
    /// # Safety
    /// No other thread exists in this process.
    unsafe fn child(&self, _heap: &H) {}

    /// Forgets all that it keeps, in a child that cannot know what the parent's threads were at.
    ///
    /// # Safety
    /// No other thread exists in this process, and all locks are free.
    unsafe fn abandon(&self, heap: &H);
}

/// What caches keep, in bytes.
#[derive(Default)]
pub struct Cached {
    /// Free objects of spans.
    pub objects: usize,
    /// Free runs of frames.
    pub runs: usize,
}

/// What is kept outside the zones, in frames, as far as a tick asks.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outside {
    /// To be used again as it is.
    pub spare: u64,
    /// In half-used spans.
    pub waiting: u64,
}

/// A round of the coordinating worker.
pub struct Round<'a> {
    /// Milliseconds.
    pub now: u64,
    /// A window has ended in which the least that each cache kept was noted.
    pub ends_window: bool,
    /// Who releases.
    pub by: Releaser<'a>,
}
