//! Requests for no bytes: addresses without memory. Every access to them ends with SIGSEGV.
//!
//! The addresses lie in a reservation without access, outside of the heap's region. A map has one bit for each: set while
//! the address is handed out. They are handed out round and round, so a freed address comes again late.
//!
//! All of it is atomic words. So it needs no lock, and a child that is copied in the middle of an operation finds a map
//! that works.

use crate::base::message::Message;
use crate::base::size_class::MIN_ALIGN;
use crate::base::stats::{self, Owner};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::vm;

/// Most addresses at a time; further requests get an object.
const ADDRESSES: usize = 1 << 18;
const BYTES: usize = ADDRESSES * MIN_ALIGN;
/// Addresses with a bit in the same word.
const PER_WORD: usize = u64::BITS as usize;
const WORDS: usize = ADDRESSES / PER_WORD;
/// Most words that a request reads.
const TRIES: usize = 64;

/// The addresses. None before [`Self::start`].
pub struct Empties {
    /// The first address.
    base: AtomicUsize,
    /// Address of the map.
    map: AtomicUsize,
    /// Where the next search begins.
    next: AtomicUsize,
}

impl Empties {
    /// No addresses.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            map: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
        }
    }

    /// Reserves the addresses. `false`: no address space.
    pub fn start(&self) -> bool {
        let Ok(base) = vm::reserve(BYTES, vm::page()) else {
            return false;
        };
        let Ok(map) = vm::map(WORDS * size_of::<u64>()) else {
            vm::unmap(base, BYTES);
            return false;
        };
        stats::note_range(Owner::Records, base, BYTES);
        stats::note_range(Owner::Records, map, WORDS * size_of::<u64>());
        self.map.store(map, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        true
    }

    /// Whether an address lies in the reservation.
    pub fn contains(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && address.wrapping_sub(base) < BYTES
    }

    /// Hands out an address. `None`: none was found.
    pub fn allocate(&self) -> Option<usize> {
        if self.base.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed) % ADDRESSES;
        for step in 0..TRIES {
            let number = (start / PER_WORD + step) % WORDS;
            let from = if step == 0 { start % PER_WORD } else { 0 };
            let free = !self.word(number).load(Ordering::Relaxed) & (u64::MAX << from);
            if free == 0 {
                continue;
            }
            let bit = free.trailing_zeros() as usize;
            let before = self.word(number).fetch_or(1 << bit, Ordering::Relaxed);
            if before >> bit & 1 == 0 {
                let taken = number * PER_WORD + bit;
                if taken != start {
                    self.next.store(taken + 1, Ordering::Relaxed);
                }
                return Some(self.base.load(Ordering::Relaxed) + taken * MIN_ALIGN);
            }
        }
        None
    }

    /// Takes an address back. Ends the process if it is not handed out.
    pub fn free(&self, address: usize) {
        let (word, bit) = self.bit(address, "free of ");
        if word.fetch_and(!bit, Ordering::Relaxed) & bit == 0 {
            mistaken("double free of ", address, ", an allocation of 0 bytes");
        }
    }

    /// Ends the process if the address is not handed out.
    pub fn check(&self, address: usize, call: &str) {
        let (word, bit) = self.bit(address, call);
        if word.load(Ordering::Relaxed) & bit == 0 {
            mistaken(
                call,
                address,
                ", an allocation of 0 bytes that was freed before",
            );
        }
    }

    fn bit(&self, address: usize, call: &str) -> (&AtomicU64, u64) {
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        if !offset.is_multiple_of(MIN_ALIGN) {
            mistaken(
                call,
                address,
                ", which is not aligned to 16 bytes and so no allocation",
            );
        }
        let number = offset / MIN_ALIGN;
        (self.word(number / PER_WORD), 1 << (number % PER_WORD))
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        debug_assert!(number < WORDS);
        let map = self.map.load(Ordering::Relaxed);
        // SAFETY: the map is there whenever an address is, and has this many words; all access is atomic.
        unsafe { &*((map + number * size_of::<u64>()) as *const AtomicU64) }
    }
}

#[cold]
fn mistaken(call: &str, address: usize, why: &str) -> ! {
    Message::new().text(call).address(address).text(why).abort()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn addresses_are_apart_and_come_again_late() {
        let empties = Empties::new();
        assert!(empties.allocate().is_none() && !empties.contains(0));
        assert!(empties.start());
        let first = empties.allocate().unwrap();
        assert!(empties.contains(first) && first.is_multiple_of(MIN_ALIGN));
        empties.check(first, "");
        empties.free(first);
        for _ in 1..ADDRESSES {
            let other = empties.allocate().unwrap();
            assert_ne!(other, first);
            empties.free(other);
        }
        assert_eq!(empties.allocate(), Some(first), "round and round");
    }

    #[test]
    fn all_addresses_are_handed_out_once() {
        let empties = Empties::new();
        assert!(empties.start());
        let mut all: Vec<usize> = (0..ADDRESSES).map_while(|_| empties.allocate()).collect();
        assert_eq!(all.len(), ADDRESSES);
        assert!(empties.allocate().is_none());
        // A free address is found from a little before it on.
        let freed = all[PER_WORD * 70];
        empties.free(freed);
        let found = (0..ADDRESSES).find_map(|_| empties.allocate());
        assert_eq!(found, Some(freed));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), ADDRESSES);
    }
}
