//! Requests: the functions that the C functions and the Rust allocator call.
//!
//! Nothing here touches `errno`; a null pointer is the only error.
//!
//! Concurrency: any thread may call at any time after the loader has mapped the library. Cost: a few nanoseconds if the
//! CPU's cache serves the request (no lock, no atomic instruction). Otherwise one or two locks for each [`CLASS`] batch.
//! Large allocations take a zone's lock, and `free` of them is O(pageblocks / 64).

use crate::heap;
use core::ptr;
use core::sync::atomic::Ordering;
use ebbtide_core::base::countdown::{COUNTDOWN, GUARD_COUNTDOWN};
use ebbtide_core::base::message::Message;
pub use ebbtide_core::base::size_class::MIN_ALIGN;
use ebbtide_core::base::size_class::{CLASS, MAX_SMALL, TABLE_MAX, aligned_class_of, class_of};
use ebbtide_core::front::requests::free_inside;
use ebbtide_core::front::{FAST, Front, fork, started_heap};
use ebbtide_core::objects::find::Allocation;
use ebbtide_core::reclaim::Heap;
use ebbtide_sys::rseq::{Counting, SECTIONS, section};
use ebbtide_sys::unwind::Registers;
use ebbtide_sys::vm;
use ebbtide_zone::FRAME_BYTES;

/// The largest alignment of a request.
pub const MAX_ALIGN: usize = 1 << 30;

/// Allocates `size` bytes at a multiple of 16; null when out of memory. `size` 0 returns a distinct address.
#[inline]
pub fn allocate(size: usize) -> *mut u8 {
    let object = allocate_fast(size);
    if object.is_null() {
        return allocate_slow(size);
    }
    object
}

/// Pops an object from this CPU's stack, if it has one. Null: call [`allocate_slow`].
#[inline(always)]
pub fn allocate_fast(size: usize) -> *mut u8 {
    if SECTIONS && size < FAST.sizes.load(Ordering::Acquire) {
        // As `div_ceil`, which does not know that this cannot overflow.
        let steps = (size + (MIN_ALIGN - 1)) >> MIN_ALIGN.ilog2();
        // SAFETY: the limit is at most `TABLE_MAX` + 1.
        let class =
            unsafe { *ebbtide_core::base::size_class::SMALL_TABLE.get_unchecked(steps) } as usize;
        // SAFETY: only the section mode passes the compare.
        return unsafe { section::pop(&FAST.stacks(), class) } as *mut u8;
    }
    ptr::null_mut()
}

/// [`allocate_fast`] while requests are counted for a profile. Null: call [`allocate_fast_guarded`].
#[inline(always)]
pub fn allocate_fast_sized(size: usize) -> *mut u8 {
    match SECTIONS && size.wrapping_sub(1) < FAST.sized.load(Ordering::Acquire) {
        // SAFETY: only the section mode passes the compare, with a size of 1 to `TABLE_MAX`.
        true => unsafe { pop_counted(size, Counting::Size(size)) },
        false => ptr::null_mut(),
    }
}

/// [`allocate_fast`] while requests are counted for guarded allocations. Null: call [`allocate_slowly`].
#[inline(always)]
pub fn allocate_fast_guarded(size: usize) -> *mut u8 {
    let less = size.wrapping_sub(1);
    if SECTIONS && less < FAST.numbered.load(Ordering::Acquire) {
        // SAFETY: as in `allocate_fast_sized`.
        return unsafe { pop_counted(size, Counting::Call) };
    }
    if SECTIONS && less < FAST.both.load(Ordering::Acquire) {
        // SAFETY: as above.
        return unsafe { pop_counted(size, Counting::Both(size)) };
    }
    ptr::null_mut()
}

/// Requests for nothing are counted elsewhere: they count as one byte.
///
/// # Safety
/// The section mode; `size` is 1 to [`TABLE_MAX`].
#[inline(always)]
unsafe fn pop_counted(size: usize, counting: Counting) -> *mut u8 {
    let steps = ((size - 1) >> MIN_ALIGN.ilog2()) + 1;
    // SAFETY: by contract.
    unsafe {
        let class = *ebbtide_core::base::size_class::SMALL_TABLE.get_unchecked(steps);
        section::pop_counted(&FAST.stacks(), class as usize, counting) as *mut u8
    }
}

/// [`allocate`] after [`allocate_fast`] returned null.
#[inline(never)]
pub fn allocate_slow(size: usize) -> *mut u8 {
    let object = allocate_fast_sized(size);
    if object.is_null() {
        return allocate_unsized(size);
    }
    object
}

#[inline(never)]
fn allocate_unsized(size: usize) -> *mut u8 {
    let object = allocate_fast_guarded(size);
    if object.is_null() {
        return allocate_slowly(size);
    }
    object
}

/// [`allocate`] without the fast paths: for an empty stack, a sample, sizes above the table, the portable mode,
/// `harden=on`, and the first call.
#[inline(never)]
pub fn allocate_slowly(size: usize) -> *mut u8 {
    if FAST.counts() {
        return allocate_counted(size, MIN_ALIGN).0;
    }
    if size > MAX_SMALL {
        return allocate_large(size, 1).0;
    }
    let hardened = allocate_at_once(size, MIN_ALIGN);
    if hardened != 0 {
        return hardened as *mut u8;
    }
    if size <= TABLE_MAX {
        return refill(class_of(size), size, MIN_ALIGN);
    }
    allocate_class(class_of(size), size, MIN_ALIGN)
}

/// With `harden=on`: an object that needs no lock. 0: none.
#[inline]
fn allocate_at_once(size: usize, align: usize) -> usize {
    // The first request starts the heap further on, where it is counted.
    started_heap().map_or(0, |front| front.allocate_at_once(size, align))
}

/// Allocates an object of the class for a request: from the CPU's cache if it has one.
#[inline]
fn allocate_class(class: usize, size: usize, align: usize) -> *mut u8 {
    if FAST.uses_sections() {
        // SAFETY: just asked.
        let object = unsafe { section::pop(&FAST.stacks(), class) };
        if object != 0 {
            return object as *mut u8;
        }
    }
    refill(class, size, align)
}

/// Serves the request after the CPU's stack was empty, or without a fast path.
#[cold]
#[inline(never)]
fn refill(class: usize, size: usize, align: usize) -> *mut u8 {
    if is_first_counted() {
        return allocate_counted(size, align).0;
    }
    let inside = |heap: &Heap| match heap.is_hardened() {
        true => heap.allocate_hardened(size, align),
        false => heap.allocate_object(class),
    };
    serve(size, align, |heap| (inside(heap), false)).0
}

/// Whether this is the first request, which starts the heap, and the configuration says that each request counts.
fn is_first_counted() -> bool {
    FAST.base.load(Ordering::Relaxed) == 0 && heap().is_some() && FAST.counts()
}

/// Serves a request while requests are sampled or guarded. Returns the address, and whether the memory reads zero.
#[inline(never)]
fn allocate_counted(size: usize, align: usize) -> (*mut u8, bool) {
    let guard = FAST.guard.load(Ordering::Relaxed);
    if guard != 0
        && GUARD_COUNTDOWN.counts(1, guard)
        && let Some(object) = allocate_guarded(size, align)
    {
        return (object, false);
    }
    let rate = FAST.rate.load(Ordering::Relaxed);
    if rate != 0
        && COUNTDOWN.counts(size, rate)
        && let Some(sampled) = allocate_sampled(size, align, rate)
    {
        return sampled;
    }
    let class = match align <= MIN_ALIGN && size <= MAX_SMALL {
        true => Some(class_of(size)),
        false => aligned_class_of(size, align),
    };
    match class {
        Some(class) => (allocate_class(class, size, align), false),
        None => allocate_frames(size.max(1), align),
    }
}

#[cold]
#[inline(never)]
fn allocate_guarded(size: usize, align: usize) -> Option<*mut u8> {
    let object = heap()?.enter()?.take_guarded(size, align)?;
    Some(object as *mut u8)
}

#[cold]
#[inline(never)]
fn allocate_sampled(size: usize, align: usize, rate: usize) -> Option<(*mut u8, bool)> {
    if size > isize::MAX as usize {
        return None;
    }
    let start = Registers::here();
    let heap = heap()?.enter()?;
    let sampled = heap.allocate_sampled(size, align, rate, &start)?;
    Some((sampled.address as *mut u8, sampled.clean))
}

/// Counts a large allocation that was resized as a request of its new size.
#[inline(never)]
fn count_resized(heap: &Heap, address: usize, size: usize, rate: usize) {
    if COUNTDOWN.counts(size, rate) {
        heap.sample_large(address, size, rate, &Registers::here());
    }
}

/// Allocates whole frames. Returns the address, and whether the memory reads zero.
#[inline(never)]
fn allocate_large(size: usize, align: usize) -> (*mut u8, bool) {
    match FAST.counts() || is_first_counted() {
        false => allocate_frames(size, align),
        true => allocate_counted(size, align),
    }
}

fn allocate_frames(size: usize, align: usize) -> (*mut u8, bool) {
    if size > isize::MAX as usize {
        return (ptr::null_mut(), false);
    }
    serve(size, align, |heap| {
        let large = heap.allocate_large(size, align);
        large.map_or((0, false), |large| (large.address, large.clean))
    })
}

/// Serves a request in the heap, or from the reserve while another thread forks. Returns the address, and whether
/// the memory reads zero.
#[inline]
fn serve(
    size: usize,
    align: usize,
    inside: impl FnOnce(&Heap) -> (usize, bool),
) -> (*mut u8, bool) {
    let Some(front) = heap() else {
        return (ptr::null_mut(), false);
    };
    let (address, clean) = match front.enter() {
        Some(heap) => inside(&heap),
        None => match front.reserve().allocate(size, align) {
            Some(object) => (object, false),
            None => inside(&front.enter_after_fork()),
        },
    };
    (address as *mut u8, clean)
}

/// Allocates `size` bytes that read zero; null when out of memory. Memory that is known to be fresh
/// from the kernel is not cleared again.
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    let (address, clean) = if size > MAX_SMALL {
        allocate_large(size, 1)
    } else {
        (allocate(size), false)
    };
    if !address.is_null() && !clean {
        // SAFETY: the allocation has at least `size` bytes.
        unsafe { address.write_bytes(0, size) };
    }
    address
}

/// Allocates `size` bytes at a multiple of `align`, a power of two up to [`MAX_ALIGN`]; null when out
/// of memory or `align` is too large.
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    debug_assert!(align.is_power_of_two());
    if align <= MIN_ALIGN {
        return allocate(size);
    }
    if FAST.counts() && align <= MAX_ALIGN {
        return allocate_counted(size, align).0;
    }
    match aligned_class_of(size, align) {
        Some(class) => match allocate_at_once(size, align) {
            0 => allocate_class(class, size, align),
            hardened => hardened as *mut u8,
        },
        None if align <= MAX_ALIGN => allocate_large(size.max(1), align).0,
        None => ptr::null_mut(),
    }
}

/// Frees an allocation; null is ignored. Any other address that is not an allocation ends the process with one line
/// on stderr, at the latest when the address reaches its span.
///
/// # Safety
/// `address` is null or a live allocation of this allocator, not used afterwards.
#[inline]
pub unsafe fn free(address: *mut u8) {
    if SECTIONS {
        let limit = FAST.units.load(Ordering::Acquire);
        let offset = (address as usize).wrapping_sub(FAST.base.load(Ordering::Relaxed));
        // The low bits, which are set unless the offset is a multiple of 16, rotate to the top: far above the
        // limit.
        let unit = offset.rotate_right(MIN_ALIGN.ilog2());
        if unit < limit {
            let classes = FAST.classes.load(Ordering::Relaxed);
            // SAFETY: class bytes can be read for the whole region (`INV-REGION-2`).
            let class = unsafe { *((classes + unit / (FRAME_BYTES / MIN_ALIGN)) as *const u8) };
            // SAFETY: the limit is only above 0 in the section mode; an object is not 0. If there is no object, the
            // class is 0 or `LARGE`, and nothing is pushed (`INV-CLASS-1`).
            if unsafe { section::push(&FAST.stacks(), class as usize, address as usize) } {
                return;
            }
        }
    }
    // SAFETY: by contract.
    unsafe { free_slow(address) }
}

/// [`free`] without the fast path: for a full stack, large allocations, the portable mode, `harden=on`, null, and
/// misuse.
#[inline(never)]
unsafe fn free_slow(address: *mut u8) {
    if address.is_null() {
        return;
    }
    let heap = heap_with(address as usize);
    let address = address as usize;
    if !heap.free_at_once(address) {
        free_entering(heap, address);
    }
}

/// [`free_slow`] for what the heap must free.
#[inline(never)]
fn free_entering(heap: &Front, address: usize) {
    if heap.reserve().contains(address) {
        return heap.reserve().free(address);
    }
    let heap = match heap.enter() {
        Some(heap) => heap,
        None if fork::free_later(heap, address) => return,
        None => heap.enter_after_fork(),
    };
    free_inside(&heap, address);
}

/// The usable bytes at `address`, at least the requested bytes; 0 for null.
///
/// # Safety
/// As [`free`], but the allocation stays live.
pub unsafe fn usable_size(address: *const u8) -> usize {
    if address.is_null() {
        return 0;
    }
    let heap = heap_with(address as usize);
    match heap.find(address as usize) {
        Allocation::Object(class) if heap.is_hardened() => {
            heap.size_hardened(class, address as usize, "size asked of ")
        }
        Allocation::Object(class) => CLASS[class].size as usize,
        Allocation::Large(head) => heap.large_bytes(head),
        Allocation::Reserve => heap.reserve().size(address as usize, "size asked of "),
        Allocation::Guarded => heap.size_guarded(address as usize, "size asked of "),
        Allocation::Empty => {
            heap.empties().check(address as usize, "size asked of ");
            0
        }
        Allocation::None => heap.mistaken(address as usize, "size asked of "),
    }
}

/// Changes the size of an allocation, keeping the content up to the smaller size; null when out of memory, and the
/// old allocation is then unchanged. Neither `address` is null nor `size` 0.
///
/// An object that shrinks to no less than half of its class stays where it is. Large allocations grow in place or
/// have their pages moved, if that works.
///
/// # Safety
/// As [`free`].
pub unsafe fn reallocate(address: *mut u8, size: usize) -> *mut u8 {
    let heap = heap_with(address as usize);
    if size > isize::MAX as usize {
        return ptr::null_mut();
    }
    let old = match heap.find(address as usize) {
        Allocation::Object(class) if heap.is_hardened() => {
            match heap.resize_hardened(class, address as usize, size) {
                Ok(()) => return address,
                Err(old) => old,
            }
        }
        Allocation::Object(class) => {
            let old = CLASS[class].size as usize;
            if size <= old && size > old / 2 {
                return address;
            }
            old
        }
        Allocation::Large(head) => {
            if size > MAX_SMALL
                && let Some(heap) = heap.enter()
                && let Some(moved) = heap.resize_large(head, size)
            {
                let rate = FAST.rate.load(Ordering::Relaxed);
                if rate != 0 {
                    count_resized(&heap, moved, size, rate);
                }
                return moved as *mut u8;
            }
            heap.large_bytes(head)
        }
        Allocation::Reserve => heap.reserve().size(address as usize, "realloc of "),
        Allocation::Guarded => heap.size_guarded(address as usize, "realloc of "),
        Allocation::Empty => {
            heap.empties().check(address as usize, "realloc of ");
            0
        }
        Allocation::None => heap.mistaken(address as usize, "realloc of "),
    };
    let fresh = allocate(size);
    if !fresh.is_null() {
        // SAFETY: both are live and have that many bytes; the owner of the old allocation wants it freed.
        unsafe {
            ptr::copy_nonoverlapping(address, fresh, old.min(size));
            free(address);
        }
    }
    fresh
}

/// Checks that `address` can have been allocated with `size` (and with an alignment, if `aligned`), and ends the
/// process if not: callers of the sized forms of `free` promise it.
///
/// # Safety
/// As [`usable_size`].
pub unsafe fn check_size(address: *mut u8, size: usize, aligned: bool) {
    if address.is_null() {
        return;
    }
    // SAFETY: by contract.
    let usable = unsafe { usable_size(address) };
    let heap = heap_with(address as usize);
    let is_exact = heap.is_hardened()
        || matches!(
            heap.find(address as usize),
            Allocation::Reserve | Allocation::Guarded
        );
    let fits = if is_exact {
        // A large allocation with `harden=on` has at least one byte.
        size == usable || size == 0 && usable == 1
    } else if aligned {
        size <= usable
    } else if usable > MAX_SMALL {
        // Large allocations always have exactly the pages that they need.
        vm::whole_pages(size) == usable
    } else {
        // In place, `reallocate` leaves an object down to half of its class.
        size <= usable && (usable <= MIN_ALIGN || size > usable / 2)
    };
    if !fits {
        Message::new()
            .text("free of ")
            .address(address as usize)
            .text(" with size ")
            .number(size)
            .text(", but it has ")
            .number(usable)
            .text(" bytes")
            .abort();
    }
}

/// The heap for an allocation of its own. Before the heap's start there is no allocation.
#[inline]
fn heap_with(address: usize) -> &'static Front {
    heap().unwrap_or_else(|| not_ours(address))
}

#[cold]
fn not_ours(address: usize) -> ! {
    Message::new()
        .text("free of ")
        .address(address)
        .text(", which is not from this allocator")
        .abort()
}
