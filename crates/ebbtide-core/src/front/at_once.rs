//! With `harden=on` and sections: requests for objects that need no lock, and so do not enter the heap.
//!
//! They are what the fast paths are without `harden=on`: sections on this CPU's stacks, with the work of
//! [`crate::objects::harden`] on the object alone. A fork parks the stacks, and then these requests fail like the fast
//! paths. A child whose fork ran no handlers finds the stacks parked too. Whoever fails here enters the heap, which checks for
//! forks.

use crate::front::Front;
use crate::front::fork::free_later;
use crate::front::requests::free_inside;
use crate::objects::find::Allocation;
use crate::objects::harden::quarantine::{Entry, has_small_places};
use crate::pages::Settings;
use crate::reclaim::Heap;
use ebbtide_sys::clock;

impl Front {
    /// An object for `size` bytes at a multiple of `align`. 0: the heap must serve the request.
    #[inline]
    pub fn allocate_at_once(&self, size: usize, align: usize) -> usize {
        match self.stacked_heap() {
            Some(heap) => Self::take_at_once(heap, size, align),
            None => 0,
        }
    }

    #[inline]
    fn take_at_once(heap: &Heap, size: usize, align: usize) -> usize {
        if size == 0 {
            return 0;
        }
        let Some(layout) = Settings::small_layout(size, align) else {
            return Self::take_any_at_once(heap, size, align);
        };
        match heap.pop_at_once(layout.class) {
            0 => 0,
            place => heap.begin_small_life(layout, place, size),
        }
    }

    #[inline(never)]
    fn take_any_at_once(heap: &Heap, size: usize, align: usize) -> usize {
        let Some(layout) = heap.layout(size, align) else {
            return 0;
        };
        match heap.pop_at_once(layout.class) {
            0 => 0,
            place => heap.begin_life(layout, place, size),
        }
    }

    /// Frees an object of little memory. `false`: the heap must do it.
    #[inline]
    pub fn free_at_once(&self, address: usize) -> bool {
        let Some(heap) = self.stacked_heap() else {
            return false;
        };
        let entry = match heap.find(address) {
            Allocation::Object(class) if has_small_places(class) => heap.end_small(class, address),
            Allocation::Object(class) if heap.is_stacked(class) => heap.end_stacked(class, address),
            _ => return false,
        };
        if !heap.stack(entry) {
            self.keep_freed(entry);
        }
        true
    }

    /// The heap, if it hardens objects and has sections. A thread that was switched out first checks what is idle.
    #[inline]
    fn stacked_heap(&self) -> Option<&'static Heap> {
        let heap = self.heap();
        if !heap.is_hardened() || !heap.caches.uses_sections() {
            return None;
        }
        if heap.caches.was_switched() {
            self.look_after_pause();
        }
        Some(heap)
    }

    /// Does nothing while a thread forks.
    #[cold]
    #[inline(never)]
    fn look_after_pause(&self) {
        if let Some(heap) = self.try_enter() {
            heap.scan_quarantine(clock::now_ms());
            heap.tick();
        }
    }

    /// Puts a freed object into the quarantine after this CPU's stack did not take it.
    #[cold]
    #[inline(never)]
    fn keep_freed(&self, entry: Entry) {
        let Some(heap) = self.enter() else {
            // The fork may take long. The object waits in the queue of all frees, which knows live objects only.
            self.heap().revive(entry);
            if !free_later(self, entry.object()) {
                free_inside(&self.enter_after_fork(), entry.object());
            }
            return;
        };
        heap.spill(entry);
        heap.tick();
    }
}
