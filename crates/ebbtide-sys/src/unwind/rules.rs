//! Rules of addresses that were unwound lately. Reading the tables again takes most of a microsecond for a frame.
//!
//! A place has two words, `address ^ rule` and `rule`. Threads and signal handlers read and write them without a lock. A mixture of two rules
//! would fit an address only by chance, and makes a stack wrong, not a read unsafe: what a rule leads to is read by the kernel. The same holds for an
//! address whose library was unloaded. The next `dlopen` of the program clears the places ([`forget`]).

use super::processor::{FRAME, STACK};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PLACES_SHIFT: u32 = 11;

struct Place {
    check: AtomicU64,
    rule: AtomicU64,
}

static PLACES: [Place; 1 << PLACES_SHIFT] = [const {
    Place {
        check: AtomicU64::new(0),
        rule: AtomicU64::new(0),
    }
}; 1 << PLACES_SHIFT];
/// Whether a place is in use.
static ARE_USED: AtomicBool = AtomicBool::new(false);

/// How a frame is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// The tables say that there is no caller.
    Outermost,
    /// The caller's stack pointer is a register and an offset; the return address, and perhaps the caller's frame pointer, are at distances from it.
    Plain {
        /// [`FRAME`] or [`STACK`].
        register: usize,
        offset: u32,
        return_at: i16,
        frame_at: Option<i16>,
    },
}

/// Of a word: it is a rule, its kinds, and where its numbers begin.
const IS_RULE: u64 = 1;
const IS_OUTERMOST: u64 = 1 << 1;
const BY_FRAME: u64 = 1 << 2;
const HAS_FRAME: u64 = 1 << 3;
const RETURN_AT: u32 = 8;
const FRAME_AT: u32 = 24;
const OFFSET: u32 = 40;

impl Rule {
    /// `None`: it does not fit into a word.
    fn word(self) -> Option<u64> {
        let Self::Plain {
            register,
            offset,
            return_at,
            frame_at,
        } = self
        else {
            return Some(IS_RULE | IS_OUTERMOST);
        };
        let base = match register {
            FRAME => BY_FRAME,
            STACK => 0,
            _ => return None,
        };
        let half = |number: i16, at| u64::from(number.cast_unsigned()) << at;
        let frame = frame_at.map_or(0, |at| HAS_FRAME | half(at, FRAME_AT));
        let fits = offset < 1 << (u64::BITS - OFFSET);
        fits.then_some(
            IS_RULE | base | frame | half(return_at, RETURN_AT) | u64::from(offset) << OFFSET,
        )
    }

    fn of(word: u64) -> Self {
        if word & IS_OUTERMOST != 0 {
            return Self::Outermost;
        }
        let half = |at| ((word >> at) as u16).cast_signed();
        Self::Plain {
            register: if word & BY_FRAME != 0 { FRAME } else { STACK },
            offset: (word >> OFFSET) as u32,
            return_at: half(RETURN_AT),
            frame_at: (word & HAS_FRAME != 0).then(|| half(FRAME_AT)),
        }
    }
}

fn place(address: usize) -> &'static Place {
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACES[(hash >> (u64::BITS - PLACES_SHIFT)) as usize]
}

/// The rule of an address, if it is known.
pub(super) fn find(address: usize) -> Option<Rule> {
    let place = place(address);
    let rule = place.rule.load(Ordering::Relaxed);
    let is_of = place.check.load(Ordering::Relaxed) ^ rule == address as u64;
    (is_of && rule & IS_RULE != 0).then(|| Rule::of(rule))
}

/// Keeps the rule of an address.
pub(super) fn keep(address: usize, rule: Rule) {
    let Some(rule) = rule.word() else { return };
    ARE_USED.store(true, Ordering::Relaxed);
    let place = place(address);
    place.rule.store(rule, Ordering::Relaxed);
    place.check.store(address as u64 ^ rule, Ordering::Relaxed);
}

/// Forgets all rules: other code may come to addresses that have some.
pub fn forget() {
    if ARE_USED.swap(false, Ordering::Relaxed) {
        PLACES
            .iter()
            .for_each(|place| place.rule.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found_by_their_address_only() {
        let plain = |register, offset, return_at, frame_at| Rule::Plain {
            register,
            offset,
            return_at,
            frame_at,
        };
        let rules = [
            Rule::Outermost,
            plain(STACK, 8, -8, None),
            plain(FRAME, 16, -8, Some(-16)),
            plain(STACK, (1 << 24) - 1, i16::MIN, Some(i16::MAX)),
        ];
        for (at, rule) in rules.into_iter().enumerate() {
            let address = 0x7f12_3456_0000 + at * 3;
            keep(address, rule);
            assert_eq!(find(address), Some(rule));
            assert_eq!(find(address + 1), None);
        }
        assert_eq!(find(0), None);
        keep(5, plain(STACK, 1 << 24, -8, None));
        keep(6, plain(STACK + 1, 8, -8, None));
        assert_eq!((find(5), find(6)), (None, None));
        forget();
        assert!((0..rules.len()).all(|at| find(0x7f12_3456_0000 + at * 3).is_none()));
    }
}
