//! Requests of the program that its fast paths do not serve.
//!
//! If a request fails, Ebbtide releases all free memory and tries the request once more. Each request ends with a
//! [`tick`](crate::reclaim::Heap::tick); the thread holds no lock at that point.

use crate::base::releaser::Releaser;
use crate::base::size_class::MIN_ALIGN;
use crate::objects::find::Allocation;
use crate::pages::large::{self, Large, Resized};
use crate::reclaim::Heap;
use core::num::NonZeroUsize;
use ebbtide_sys::unwind::Registers;
use ebbtide_zone::Frame;

impl Heap {
    /// Tries a request, and tries once more after all free memory was released.
    fn serve<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        let served = attempt().or_else(|| {
            self.release_everything(Releaser::Explicit);
            attempt()
        });
        self.tick();
        served
    }

    /// Allocates an object of `class`. 0: out of memory.
    #[cold]
    #[inline(never)]
    pub fn allocate_object(&self, class: usize) -> usize {
        match self.pop(class) {
            0 => self
                .serve(|| NonZeroUsize::new(self.refill(class)))
                .map_or(0, NonZeroUsize::get),
            object => object,
        }
    }

    /// With `harden=on`: an object for `size` bytes (at most [`crate::base::size_class::MAX_SMALL`]) at a multiple of `align`,
    /// an address without memory for 0 bytes, or a large allocation if there is no class for it. 0: out of memory.
    #[cold]
    #[inline(never)]
    pub fn allocate_hardened(&self, size: usize, align: usize) -> usize {
        if size == 0
            && align <= MIN_ALIGN
            && let Some(empty) = self.empties.allocate()
        {
            return empty;
        }
        let Some(layout) = self.layout(size, align) else {
            let large = self.allocate_large(size.max(1), align);
            return large.map_or(0, |large| large.address);
        };
        match self.allocate_object(layout.class) {
            0 => 0,
            place => self.begin_life(layout, place, size),
        }
    }

    /// Allocates `size` bytes (above 0) in whole frames at a multiple of `align` (a power of two).
    pub fn allocate_large(&self, size: usize, align: usize) -> Option<Large> {
        if !self.grants(size, align) {
            return None;
        }
        let taken = self.serve(|| self.take_large(size, align));
        self.large_changed(size);
        taken
    }

    /// Allocates a sampled object for a request of `size` bytes that was made at `start`. `None`: it is not sampled.
    #[cold]
    pub fn allocate_sampled(
        &self,
        size: usize,
        align: usize,
        rate: usize,
        start: &Registers,
    ) -> Option<Large> {
        if self.look_for_dump(Releaser::SlowPath) {
            // The signal made this request due, not chance.
            return None;
        }
        let origin = self.origin(start)?;
        let Some(large) = self.allocate_large(size.max(1), align) else {
            self.miss_sample();
            return None;
        };
        let head = self.region().frame(large.address);
        self.begin_sample(head, size, rate, &origin);
        Some(large)
    }

    /// Makes a large allocation a sampled object, after it was resized.
    #[cold]
    pub fn sample_large(&self, address: usize, size: usize, rate: usize, start: &Registers) {
        if self.look_for_dump(Releaser::SlowPath) {
            return;
        }
        if let Some(origin) = self.origin(start) {
            self.begin_sample(self.region().frame(address), size, rate, &origin);
        }
    }

    /// Frees a large allocation. `false`: another thread just freed it.
    pub fn free_large(&self, head: Frame) -> bool {
        let freed = self.give_up_large(head, true);
        if let Some(bytes) = freed {
            self.large_changed(bytes);
        }
        self.tick();
        freed.is_some()
    }

    /// Resizes a large allocation to `size` bytes. `None`: the caller must copy it.
    pub fn resize_large(&self, head: Frame, size: usize) -> Option<usize> {
        let before = self.large_bytes(head);
        let resized = self.serve(|| match self.try_resize(head, size) {
            Resized::NoRoom => None,
            done => Some(done),
        });
        let Some(Resized::At(address)) = resized else {
            return None;
        };
        self.large_changed(size.abs_diff(before));
        self.end_sample_of(self.region().frame(address));
        Some(address)
    }
}

/// Frees an allocation of the heap. Ends the process if `address` is no allocation.
pub fn free_inside(heap: &Heap, address: usize) {
    match heap.find(address) {
        Allocation::Object(class) if heap.is_hardened() => heap.free_hardened(class, address),
        Allocation::Object(class) if heap.push(class, address) => return,
        Allocation::Object(class) => heap.overflow(class, address),
        Allocation::Large(head) if heap.free_large(head) => return,
        Allocation::Large(head) => large::double_free(heap.region(), head),
        Allocation::Reserve => return heap.reserve.free(address),
        Allocation::Guarded => heap.free_guarded(address),
        Allocation::Empty => heap.empties.free(address),
        Allocation::None => heap.mistaken(address, "free of "),
    }
    heap.tick();
}
