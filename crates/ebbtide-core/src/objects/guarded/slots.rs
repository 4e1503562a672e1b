//! Where the slots lie, and where an object lies in its slot. Numbers only.
//!
//! ```text
//!  │guard│slot 0│guard│slot 1│guard│ … │guard│ slot n          │guard│ …
//!         a page       a page              MOST_BYTES
//! ```
//!
//! Only the pages of an object are accessible, those at the start of its slot. Everything else is a guard.

use ebbtide_sys::vm;

/// Kinds of slots: for objects of at most a page, and for larger ones.
pub const KINDS: usize = 2;
/// The largest object that gets a slot.
pub const MOST_BYTES: usize = 1 << 20;

/// All slots. The number of a slot counts through both kinds.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The first guard page.
    pub base: usize,
    /// Slots of each kind.
    pub counts: [usize; KINDS],
}

/// A slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub number: usize,
    /// The address of its first page.
    pub start: usize,
}

/// The kind of slot for an object of this size.
pub fn kind_for(size: usize) -> usize {
    usize::from(size > vm::page())
}

/// The address of an object in its slot: at the end or at the start of its pages.
pub fn place(start: usize, pages_bytes: usize, size: usize, align: usize, at_end: bool) -> usize {
    match at_end {
        true => (start + pages_bytes - size) & !(align - 1),
        false => start,
    }
}

impl Layout {
    /// Bytes from a slot of this kind to the next.
    fn stride(kind: usize) -> usize {
        [vm::page(), MOST_BYTES][kind] + vm::page()
    }

    /// Bytes of all slots and guards.
    pub fn bytes(&self) -> usize {
        vm::page() + self.counts[0] * Self::stride(0) + self.counts[1] * Self::stride(1)
    }

    /// How many slots there are.
    pub fn count(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Whether an address lies in a slot or a guard.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.bytes()
    }

    /// A slot by its number.
    pub fn slot(&self, number: usize) -> Slot {
        let kind = self.kind_of(number);
        let first = [0, self.counts[0]][kind];
        let before = first * Self::stride(0) + (number - first) * Self::stride(kind);
        Slot {
            number,
            start: self.base + vm::page() + before,
        }
    }

    /// The kind of a slot.
    pub fn kind_of(&self, number: usize) -> usize {
        usize::from(number >= self.counts[0])
    }

    /// The slot that an address lies in, or in whose guard behind it. `None`: the first guard.
    pub fn slot_at(&self, address: usize) -> Option<Slot> {
        let offset = (address - self.base).checked_sub(vm::page())?;
        let small = self.counts[0] * Self::stride(0);
        let number = match offset.checked_sub(small) {
            None => offset / Self::stride(0),
            Some(behind) => self.counts[0] + behind / Self::stride(1),
        };
        Some(self.slot(number))
    }

    /// Whether an address lies in the guard between two slots.
    pub fn is_between(&self, address: usize) -> bool {
        self.slot_at(address).is_none_or(|slot| {
            let end = slot.start + Self::stride(self.kind_of(slot.number)) - vm::page();
            address >= end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        base: 1 << 30,
        counts: [3, 2],
    };

    #[test]
    fn each_address_belongs_to_one_slot() {
        let page = vm::page();
        let end = LAYOUT.base + LAYOUT.bytes();
        assert!(LAYOUT.contains(LAYOUT.base) && LAYOUT.contains(end - 1));
        assert!(!LAYOUT.contains(LAYOUT.base - 1) && !LAYOUT.contains(end));
        assert!(LAYOUT.slot_at(LAYOUT.base).is_none() && LAYOUT.is_between(LAYOUT.base));
        let mut next = LAYOUT.base + page;
        for number in 0..LAYOUT.count() {
            let slot = LAYOUT.slot(number);
            let most = [page, MOST_BYTES][LAYOUT.kind_of(number)];
            assert_eq!((slot.number, slot.start), (number, next));
            for inside in [0, 1, most - 1, most, most + page - 1] {
                let address = slot.start + inside;
                assert_eq!(LAYOUT.slot_at(address), Some(slot));
                assert_eq!(LAYOUT.is_between(address), inside >= most);
            }
            next = slot.start + most + page;
        }
        assert_eq!(next, end);
    }

    #[test]
    fn an_object_ends_as_near_to_the_guard_as_it_may() {
        let page = vm::page();
        for size in [0, 1, 16, 100, 4000, page] {
            for align in [16, 64, 256, page] {
                let pages = vm::whole_pages(size.max(1));
                let object = place(page, pages, size, align, true);
                assert!(object.is_multiple_of(align) && object >= page);
                assert!(page + pages - object - size < align);
                assert_eq!(place(page, pages, size, align, false), page);
            }
        }
        assert_eq!((kind_for(page), kind_for(page + 1)), (0, 1));
    }
}
