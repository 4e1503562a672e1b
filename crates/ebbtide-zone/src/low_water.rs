//! Low water: the part of a cache that was not needed for a whole window.
//!
//! The least that a cache kept at any moment of a window is the part that no request needed in it. CPU stacks, full
//! batches and empty pages of per-CPU data pass on that much at the end of each window. The caller decides when a window
//! ends: at a time, or with a round. Unused memory is passed on after one to two windows.
//!
//! [`Retain`](crate::retain::Retain) is the counterpart for spans and zones: it finds the part that the peak of use over a
//! sliding window does not need again. Caches that are emptied as a whole, after some rounds or milliseconds without any
//! use, need neither. One use restarts their count, also a use that adds.

/// The least that was kept since the window began, in the caller's units. Plain data: the caller's lock guards it,
/// or the caller keeps the number in an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowWater<T>(pub T);

impl<T: Copy + Ord> LowWater<T> {
    /// Notes the amount that is kept now, and returns the amount that the window has not needed so far. Call it
    /// after each decrease, or as often as the caller scans. `ends`: a new window begins with the amount that is
    /// kept now.
    #[inline]
    pub fn note(&mut self, kept: T, ends: bool) -> T {
        let least = self.0.min(kept);
        self.0 = if ends { kept } else { least };
        least
    }
}
