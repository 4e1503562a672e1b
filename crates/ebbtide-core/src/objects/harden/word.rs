//! The word of a place: its state, the requested bytes, and the bytes in front of them.

use crate::base::size_class::{MAX_SMALL, MIN_ALIGN};

/// Bits of the requested size.
const SIZE_BITS: u32 = 19;
/// Bits of the bytes in front, in units of [`MIN_ALIGN`].
const FRONT_BITS: u32 = 11;
const STATE_SHIFT: u32 = SIZE_BITS + FRONT_BITS;

const _: () = assert!(MAX_SMALL < 1 << SIZE_BITS && STATE_SHIFT + 2 == u32::BITS);

/// See the table in the module above. A word is one value, so all of it changes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub u32);

/// The state in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The place was never handed out, as far as its record knows.
    Never,
    /// Its object was freed.
    Freed,
    /// Its object is live.
    Live,
}

impl Word {
    /// An object of `size` bytes that begins `front` bytes behind the start of its place.
    pub fn live(size: usize, front: usize) -> Self {
        debug_assert!(size < 1 << SIZE_BITS && front.is_multiple_of(MIN_ALIGN));
        debug_assert!(front / MIN_ALIGN < 1 << FRONT_BITS);
        let front = (front / MIN_ALIGN) as u32;
        Self(2 << STATE_SHIFT | front << SIZE_BITS | size as u32)
    }

    /// The same object, freed.
    pub fn freed(self) -> Self {
        Self(1 << STATE_SHIFT | self.0 & !(3 << STATE_SHIFT))
    }

    /// The state.
    pub fn state(self) -> State {
        match self.0 >> STATE_SHIFT {
            0 => State::Never,
            1 => State::Freed,
            _ => State::Live,
        }
    }

    /// The requested bytes.
    pub fn size(self) -> usize {
        (self.0 & ((1 << SIZE_BITS) - 1)) as usize
    }

    /// The bytes in front of the object.
    pub fn front(self) -> usize {
        (self.0 >> SIZE_BITS & ((1 << FRONT_BITS) - 1)) as usize * MIN_ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_what_it_was_made_of() {
        assert_eq!(Word(0).state(), State::Never);
        for size in [0, 1, MAX_SMALL - 1, MAX_SMALL] {
            for front in [0, 16, 32, 4096, 32752] {
                let live = Word::live(size, front);
                for (word, state) in [(live, State::Live), (live.freed(), State::Freed)] {
                    assert_eq!(word.state(), state);
                    assert_eq!((word.size(), word.front()), (size, front));
                }
            }
        }
    }
}
