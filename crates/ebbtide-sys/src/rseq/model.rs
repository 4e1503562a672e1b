//! The operations in plain Rust, on one slab, for whoever holds that slab alone.
//!
//! This is the pseudo-code of [`super::section`]: each line there names the line here that it
//! implements.

use super::{CALLS_OFFSET, Counting, SIZES_OFFSET, STACK_BYTES, STACKS, stack_start};
use core::sync::atomic::{AtomicU32, Ordering};

/// A slab held alone: by the lock of the portable mode, by a drainer, or by a test.
pub struct Slab {
    address: usize,
}

impl Slab {
    /// # Safety
    /// The slab is mapped writable and was reset once; nobody else uses it while this lives.
    pub unsafe fn new(address: usize) -> Self {
        Self { address }
    }

    fn header(&self, class: usize) -> usize {
        debug_assert!(class < STACKS);
        // SAFETY: headers lie in the first page of the slab.
        unsafe { *((self.address + class * 8) as *const usize) }
    }

    /// `INV-RSEQ-1`: the one store by which an operation takes effect.
    fn commit(&mut self, class: usize, header: usize) {
        // SAFETY: as in `header`.
        unsafe { *((self.address + class * 8) as *mut usize) = header };
    }

    fn entry(address: usize) -> usize {
        // SAFETY: called for entries of a stack page or the guard below them.
        unsafe { *(address as *const usize) }
    }

    fn set_entry(address: usize, value: usize) {
        // SAFETY: as in `entry`.
        unsafe { *(address as *mut usize) = value };
    }

    /// Takes the newest entry.
    pub fn pop(&mut self, class: usize) -> Option<usize> {
        let header = self.header(class);
        let entry = Self::entry(header - 8);
        if entry == 0 {
            return None;
        }
        self.commit(class, header - 8);
        Some(entry)
    }

    /// Takes the newest entry, unless the countdown is at its end then. Each count is a step of its own.
    pub fn pop_counted(&mut self, class: usize, counting: Counting) -> Option<usize> {
        let header = self.header(class);
        let entry = Self::entry(header - 8);
        if entry == 0 {
            return None;
        }
        let is_due = match counting {
            Counting::Size(size) => self.count(SIZES_OFFSET, size) <= 0,
            Counting::Call => self.count(CALLS_OFFSET, 1) <= 0,
            Counting::Both(size) => {
                self.count(CALLS_OFFSET, 1) <= 0 || self.count(SIZES_OFFSET, size) <= 0
            }
        };
        if is_due {
            return None;
        }
        self.commit(class, header - 8);
        Some(entry)
    }

    /// Counts a word down: the one store is the commit. Returns what is left.
    pub fn count(&mut self, offset: usize, value: usize) -> i64 {
        let word = (self.address + offset) as *mut i64;
        // SAFETY: a word of the first page, behind the headers.
        unsafe {
            *word = (*word).wrapping_sub(value as i64);
            *word
        }
    }

    /// Puts an entry on top. `false`: full, or the top is the same entry.
    pub fn push(&mut self, class: usize, entry: usize) -> bool {
        let header = self.header(class);
        if header.is_multiple_of(STACK_BYTES) || Self::entry(header - 8) == entry {
            return false;
        }
        Self::set_entry(header, entry);
        self.commit(class, header + 8);
        true
    }

    /// Takes up to `entries.len()` of the newest entries, newest first.
    pub fn pop_batch(&mut self, class: usize, entries: &mut [usize]) -> usize {
        let mut header = self.header(class);
        let mut count = 0;
        while count < entries.len() {
            let entry = Self::entry(header - 8);
            if entry == 0 {
                break;
            }
            entries[count] = entry;
            header -= 8;
            count += 1;
        }
        if count > 0 {
            self.commit(class, header);
        }
        count
    }

    /// Puts `entries` on top, in order, as far as there is room. An empty stack gets room for
    /// `capacity` entries first.
    pub fn push_batch(&mut self, class: usize, entries: &[usize], capacity: usize) -> usize {
        let mut header = self.header(class);
        if Self::entry(header - 8) == 0 {
            header = stack_start(self.address, class, capacity);
            Self::set_entry(header - 8, 0);
            // A step of its own: the entries may be written over the old guard.
            self.commit(class, header);
        }
        let room = (header.wrapping_neg() % STACK_BYTES) / 8;
        let count = entries.len().min(room);
        for &entry in &entries[..count] {
            Self::set_entry(header, entry);
            header += 8;
        }
        self.commit(class, header);
        count
    }

    /// Copies up to `into.len()` of the newest entries, newest first, and leaves them. Returns their number. While sections
    /// run, the copy is only a hint: each word is an entry that was there at some time.
    pub fn peek(&self, class: usize, into: &mut [usize]) -> usize {
        let header = self.header(class);
        for (count, place) in into.iter_mut().enumerate() {
            *place = Self::entry(header - 8 * (count + 1));
            if *place == 0 {
                return count;
            }
        }
        into.len()
    }

    /// The number of entries. A count made while sections run is only a hint.
    pub fn len(&self, class: usize) -> usize {
        let mut header = self.header(class);
        let mut count = 0;
        while Self::entry(header - 8) != 0 && count < super::MAX_CAPACITY {
            header -= 8;
            count += 1;
        }
        count
    }

    /// Whether the stack of `class` has no entry.
    pub fn is_empty(&self, class: usize) -> bool {
        Self::entry(self.header(class) - 8) == 0
    }
}

/// Adds to a CPU's word, for whoever is alone there: the one store is the commit.
///
/// # Safety
/// `word + (cpu << UNIT_SHIFT)` is an aligned word that nobody else writes meanwhile.
pub unsafe fn add(word: usize, cpu: usize, value: u64) {
    let place = (word + (cpu << super::UNIT_SHIFT)) as *mut u64;
    // SAFETY: by contract.
    unsafe { *place = (*place).wrapping_add(value) };
}

/// As [`add`], unless `flag` is set. `false`: it is.
///
/// # Safety
/// As [`add`].
pub unsafe fn add_unless(flag: &AtomicU32, word: usize, cpu: usize, value: u64) -> bool {
    if flag.load(Ordering::Relaxed) != 0 {
        return false;
    }
    // SAFETY: by contract.
    unsafe { add(word, cpu, value) };
    true
}
