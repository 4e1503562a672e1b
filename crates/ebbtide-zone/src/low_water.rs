//! Low water: how much of what is kept a whole window did without.
//!
//! The least that was kept at any moment of a window is what nobody needed in it. CPU stacks, full batches and empty
//! pages of per-CPU data give that much at the end of each window. The caller says when a window ends: at a time, or
//! with a round. What is unused goes after one to two windows.
//!
//! [`Retain`](crate::retain::Retain) says the same of spans and zones, from the other side: what the peak of use over a
//! sliding window does not need again. What goes as a whole after some rounds or milliseconds without any use has neither:
//! one use, also one that adds, begins its count anew.

/// The least that was kept since the window began, in units of the caller's. Plain data: the caller's lock guards it,
/// or the caller keeps the number in an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowWater<T>(pub T);

impl<T: Copy + Ord> LowWater<T> {
    /// Notes what is kept now, and says what the window did without so far. To be called after each decrease, or as
    /// often as the caller looks. `ends`: a new window begins, with what is kept now.
    #[inline]
    pub fn note(&mut self, kept: T, ends: bool) -> T {
        let least = self.0.min(kept);
        self.0 = if ends { kept } else { least };
        least
    }
}
