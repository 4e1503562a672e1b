//! The pages of a heap, by state.

use ebbtide_interface::records::CLASSES;

/// Bytes of pages, by where the pages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Resident.
    pub resident: u64,
    /// Swapped out.
    pub swapped: u64,
}

impl Bytes {
    /// Adds bytes of a page.
    pub fn add(&mut self, page: Where, bytes: u64) {
        match page {
            Where::Resident => self.resident += bytes,
            Where::Swapped => self.swapped += bytes,
        }
    }
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// In memory.
    Resident,
    /// In swap space.
    Swapped,
}

/// The pages of the heap by state.
#[derive(Clone, Debug)]
pub struct Sorted {
    /// Objects that the program has.
    pub small: Bytes,
    /// Large allocations.
    pub large: Bytes,
    /// Objects in the caches of CPUs.
    pub cached: Bytes,
    /// Free between objects.
    pub in_spans: Bytes,
    /// Of that, pages without any object: a release returns them.
    pub empty_pages: Bytes,
    /// Free, with old content.
    pub dirty: Bytes,
    /// Free, and the kernel may take it.
    pub lazy: Bytes,
    /// Free, in a page of the kernel that also holds something in use: only where its pages are larger than frames.
    pub pinned: Bytes,
    /// Free and clean, or behind a large allocation in its last pageblock, but in a huge page.
    pub clean: Bytes,
    /// Spare runs of CPUs, and pages that are being released.
    pub waiting: Bytes,
    /// Resident bytes of each class: in use, and free between objects.
    pub classes: [(u64, u64); CLASSES],
}

impl Default for Sorted {
    fn default() -> Self {
        let none = Bytes::default();
        Self {
            small: none,
            large: none,
            cached: none,
            in_spans: none,
            empty_pages: none,
            dirty: none,
            lazy: none,
            pinned: none,
            clean: none,
            waiting: none,
            classes: [(0, 0); CLASSES],
        }
    }
}
