//! The marked whose spans got enough back to be looked at, one bit each, so that who asks what waits in all spans need not
//! take the locks of all marked: without marks there is nothing.
//!
//! A class's bit is written under the lock of its spans, read without. Reading and setting are ordered with what a worker says of its next
//! look, and whoever puts memory into spans reads: one of the two sees the other.

use crate::base::size_class::CLASSES;
use core::sync::atomic::{AtomicU64, Ordering};

/// Words of the map.
const WORDS: usize = CLASSES.div_ceil(64);

/// See the module's header.
pub struct ReclaimableClasses([AtomicU64; WORDS]);

impl ReclaimableClasses {
    /// No class has any.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// The class has some.
    #[inline]
    pub fn mark(&self, class: usize) {
        let (word, bit) = (&self.0[class / 64], 1 << (class % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// The class has none any more.
    pub fn unmark(&self, class: usize) {
        self.0[class / 64].fetch_and(!(1 << (class % 64)), Ordering::Relaxed);
    }

    /// The marked that have some. What is noted meanwhile may be missed.
    pub fn marked(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut left = word.load(Ordering::SeqCst);
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn marked_classes_come_in_order() {
        let marks = ReclaimableClasses::new();
        let marked_in_order = |marks: &ReclaimableClasses| marks.marked().collect::<Vec<_>>();
        assert!(marked_in_order(&marks).is_empty());
        for class in [96, 1, 63, 64, 1] {
            marks.mark(class);
        }
        assert_eq!(marked_in_order(&marks), [1, 63, 64, 96]);
        marks.unmark(64);
        assert_eq!(marked_in_order(&marks), [1, 63, 96]);
    }
}
