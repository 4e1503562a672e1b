//! Size classes: 16-byte steps up to 256 B, then eight to a doubling up to 256 KiB.
//!
//! A request is rounded up to its class, which wastes at most 1/9 above 128 B. Every class is a
//! multiple of 16. A span of a class is a run of at most 64 frames with at most 512 objects.
//! Class 0 means "no class". The spacing is that of jemalloc's classes with twice the steps.

use core::ops::Deref;
pub use ebbtide_interface::records::CLASSES;
use ebbtide_interface::records::class_bytes;
use ebbtide_sys::vm;
use ebbtide_zone::FRAME_BYTES;

const CLUSTER_FRAMES: usize = ebbtide_zone::CLUSTER_FRAMES as usize;

/// The alignment of every allocation.
pub const MIN_ALIGN: usize = 16;
/// The largest request that a class serves. Larger requests get whole frames.
pub const MAX_SMALL: usize = 256 << 10;
/// The largest request that [`SMALL_TABLE`] covers.
pub const TABLE_MAX: usize = 1024;
/// Most objects in a span.
pub const MAX_OBJECTS: usize = 512;
/// Most objects in a batch: the number that moves between a CPU's cache and the central lists in one step.
pub const MAX_BATCH: usize = 64;

/// The constants of a class.
#[derive(Clone, Copy)]
pub struct Class {
    /// Bytes of an object.
    pub size: u32,
    /// Frames of a span.
    pub frames: u16,
    /// Objects of a span.
    pub objects: u16,
    /// Objects moved in one step.
    pub batch: u16,
    /// Most objects in one CPU's cache.
    pub capacity: u16,
    /// Most full batches in the transfer list.
    pub transfer: u16,
    /// `ceil(2^32 / (size / 16))`: division by the size as a multiplication.
    reciprocal: u64,
}

impl Class {
    /// The number of the object that begins at `offset` (bytes from the span's start). `None`: none begins there.
    #[inline]
    pub fn object_at(&self, offset: usize) -> Option<usize> {
        if offset >= self.frames as usize * FRAME_BYTES {
            return None;
        }
        let index = ((offset as u64 / 16 * self.reciprocal) >> 32) as usize;
        let begins = index < self.objects as usize && index * self.size as usize == offset;
        begins.then_some(index)
    }

    /// The number of the object around `offset`, a multiple of 16 bytes. `None`: there is none.
    #[inline]
    pub fn object_around(&self, offset: usize) -> Option<usize> {
        let index = ((offset as u64 / 16 * self.reciprocal) >> 32) as usize;
        (index < self.objects as usize).then_some(index)
    }
}

/// All classes, with the spans for the kernel's page size.
pub struct Classes(());

/// All classes.
pub static CLASS: Classes = Classes(());

/// Spans for pages of 1, 4 and 16 frames.
static FOR_4_KIB: [Class; CLASSES] = build(1);
static FOR_16_KIB: [Class; CLASSES] = build(4);
static FOR_64_KIB: [Class; CLASSES] = build(16);

impl Deref for Classes {
    type Target = [Class; CLASSES];

    #[inline]
    fn deref(&self) -> &Self::Target {
        match vm::page_frames() {
            1 => &FOR_4_KIB,
            4 => &FOR_16_KIB,
            _ => &FOR_64_KIB,
        }
    }
}

/// The class of a request of up to [`TABLE_MAX`] bytes, by `(size + 15) / 16`.
pub static SMALL_TABLE: [u8; TABLE_MAX / 16 + 1] = {
    let mut table = [1; TABLE_MAX / 16 + 1];
    let mut index = 1;
    while index < table.len() {
        table[index] = class_of(index * 16) as u8;
        index += 1;
    }
    table
};

/// The class of a request of 0 to [`MAX_SMALL`] bytes.
#[inline]
pub const fn class_of(size: usize) -> usize {
    if size <= 128 {
        return if size == 0 { 1 } else { size.div_ceil(16) };
    }
    let last = size - 1;
    let doubling = last.ilog2() as usize; // 7 for 129..=256
    // Eight steps of 2^(doubling - 3) bytes each; the top bit of `last` counts as eight.
    (doubling - 7) * 8 + (last >> (doubling - 3)) + 1
}

/// The smallest class for `size` bytes whose objects all lie at multiples of `align`, a power of two (at most a frame).
/// `None`: whole frames must serve the request.
pub const fn aligned_class_of(size: usize, align: usize) -> Option<usize> {
    if align > FRAME_BYTES || size > MAX_SMALL {
        return None;
    }
    // Masks, because a division takes longer than the rest.
    let below = align - 1;
    let rounded = if size == 0 {
        align
    } else {
        (size + below) & !below
    };
    let mut class = if rounded > MAX_SMALL {
        CLASSES
    } else {
        class_of(rounded)
    };
    while class < CLASSES {
        if CLASS_SIZES[class] & below == 0 {
            return Some(class);
        }
        class += 1;
    }
    None
}

const CLASS_SIZES: [usize; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        sizes[class] = class_bytes(class);
        class += 1;
    }
    sizes
};

const fn build(page_frames: usize) -> [Class; CLASSES] {
    let none = Class {
        size: 0,
        frames: 0,
        objects: 0,
        batch: 0,
        capacity: 0,
        transfer: 0,
        reciprocal: 0,
    };
    let mut classes = [none; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        classes[class] = describe(CLASS_SIZES[class], page_frames);
        class += 1;
    }
    classes
}

const fn describe(size: usize, page_frames: usize) -> Class {
    let frames = span_frames(size, page_frames);
    let objects = clamp(frames * FRAME_BYTES / size, 1, MAX_OBJECTS);
    let batch = clamp((64 << 10) / size, 1, MAX_BATCH);
    Class {
        size: size as u32,
        frames: frames as u16,
        objects: objects as u16,
        batch: batch as u16,
        capacity: clamp(
            (256 << 10) / size,
            2 * batch,
            ebbtide_sys::rseq::MAX_CAPACITY,
        ) as u16,
        transfer: clamp((512 << 10) / (batch * size), 2, 32) as u16,
        reciprocal: (1u64 << 32).div_ceil(size as u64 / 16),
    }
}

/// The number of frames of a span. A run with 512 objects if it fits in a cluster. Otherwise the run of at most a
/// cluster that wastes the least, the longer one of equals. From a page of the kernel on, the run has whole pages, so
/// that no page lies in two spans.
const fn span_frames(size: usize, page_frames: usize) -> usize {
    let full = (MAX_OBJECTS * size).div_ceil(FRAME_BYTES);
    if full < page_frames {
        return full;
    }
    if full <= CLUSTER_FRAMES {
        return full / page_frames * page_frames;
    }
    let mut best = CLUSTER_FRAMES;
    let mut frames = CLUSTER_FRAMES;
    // At least half a cluster: fewer, larger spans.
    while frames >= CLUSTER_FRAMES / 2 && frames * FRAME_BYTES >= size {
        let waste = frames * FRAME_BYTES % size * CLUSTER_FRAMES / frames;
        if waste < best * FRAME_BYTES % size * CLUSTER_FRAMES / best {
            best = frames;
        }
        frames -= page_frames;
    }
    best
}

const fn clamp(value: usize, low: usize, high: usize) -> usize {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

const _: () = assert!(CLASS_SIZES[CLASSES - 1] == MAX_SMALL);
const _: () = assert!(class_of(MAX_SMALL) == CLASSES - 1);
const _: () = assert!(CLASSES < ebbtide_sys::rseq::STACKS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_gets_the_smallest_class_that_holds_it() {
        for size in 1..=MAX_SMALL {
            let class = class_of(size);
            assert!(CLASS_SIZES[class] >= size, "{size}");
            assert!(CLASS_SIZES[class - 1] < size, "{size}");
            if size <= TABLE_MAX {
                assert_eq!(SMALL_TABLE[size.div_ceil(16)] as usize, class);
            }
        }
        assert_eq!((class_of(0), SMALL_TABLE[0]), (1, 1));
    }

    #[test]
    fn internal_waste_is_an_eighth_at_most() {
        for size in 129..=MAX_SMALL {
            let rounded = CLASS_SIZES[class_of(size)];
            assert!((rounded - size) * 8 <= rounded, "{size} in {rounded}");
        }
    }

    #[test]
    fn spans_hold_their_objects() {
        for class in &FOR_4_KIB[1..] {
            let (size, objects) = (class.size as usize, class.objects as usize);
            let bytes = class.frames as usize * FRAME_BYTES;
            assert!(size.is_multiple_of(16) && class.frames as usize <= CLUSTER_FRAMES);
            assert!((1..=MAX_OBJECTS).contains(&objects) && objects * size <= bytes);
            assert!(
                (bytes - objects * size) * 16 <= bytes,
                "{size}: span leaves too much over"
            );
            assert!(class.batch <= class.capacity && class.batch > 0);
        }
    }

    /// No page of the kernel lies in two spans, except of classes whose spans are shorter than a page. So a span of large
    /// objects may leave up to a quarter over, with pages of 64 KiB.
    #[test]
    fn spans_are_whole_pages() {
        for (table, page_frames) in [(&FOR_16_KIB, 4), (&FOR_64_KIB, 16)] {
            for (class, small) in table.iter().zip(&FOR_4_KIB).skip(1) {
                let (size, frames) = (class.size as usize, class.frames as usize);
                assert!(
                    frames.is_multiple_of(page_frames) || class.objects as usize == MAX_OBJECTS
                );
                assert!(frames.is_multiple_of(page_frames) || frames < page_frames);
                let (bytes, used) = (frames * FRAME_BYTES, class.objects as usize * size);
                assert!(used <= bytes && frames <= CLUSTER_FRAMES);
                let most = if size <= 32 << 10 { 16 } else { 4 };
                assert!((bytes - used) * most <= bytes, "{size}: {used} of {bytes}");
                assert_eq!((class.size, class.batch), (small.size, small.batch));
            }
        }
    }

    #[test]
    fn division_is_exact() {
        for class in [&FOR_4_KIB, &FOR_16_KIB, &FOR_64_KIB]
            .iter()
            .flat_map(|table| &table[1..])
        {
            let size = class.size as usize;
            for offset in (0..class.frames as usize * FRAME_BYTES).step_by(16) {
                let number = offset / size;
                let begins = offset % size == 0 && number < class.objects as usize;
                assert_eq!(class.object_at(offset), begins.then_some(number));
                let around = (number < class.objects as usize).then_some(number);
                assert_eq!(class.object_around(offset), around);
            }
            assert_eq!(class.object_at(8), None);
        }
    }

    #[test]
    fn aligned_requests() {
        assert_eq!(aligned_class_of(100, 64), Some(class_of(128)));
        assert_eq!(
            aligned_class_of(0, 4096).map(|class| CLASS_SIZES[class]),
            Some(4096)
        );
        assert_eq!(aligned_class_of(1, 8192), None);
        for shift in 4..=12 {
            for size in (1..MAX_SMALL).step_by(37) {
                let Some(class) = aligned_class_of(size, 1 << shift) else {
                    continue;
                };
                assert!(CLASS_SIZES[class] >= size);
                assert!(CLASS_SIZES[class].is_multiple_of(1 << shift));
            }
        }
    }
}
