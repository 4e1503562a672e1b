//! The heap's records, as an observer reads them in the memory of a running process.
//!
//! The statistics page has their addresses ([`Places`]) and the library's own mappings ([`Owner`]). The crates that own the records check
//! with constants that these offsets are theirs. An observer reads while the process runs, so it expects any value.

/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 4096;
/// Frames of a pageblock.
pub const BLOCK_FRAMES: u64 = 512;
/// Size classes, with class 0, which means "no class".
pub const CLASSES: usize = 97;
/// The class byte of a large allocation's first frame.
pub const LARGE: u8 = CLASSES as u8;

/// Bytes of an object of a class: 16-byte steps up to 128 B, then eight steps to a doubling.
pub const fn class_bytes(class: usize) -> usize {
    if class <= 8 {
        return class * 16;
    }
    let doubling = (class - 9) / 8;
    let step = (class - 9) % 8 + 1;
    (128 << doubling) + step * (16 << doubling)
}

/// The record of a pageblock. Its bit maps have a bit a frame.
pub mod pageblock {
    /// Bytes of a record.
    pub const BYTES: usize = 256;
    /// Frames that are free.
    pub const FREE: usize = 64;
    /// Free frames with old content.
    pub const DIRTY: usize = 128;
    /// Free frames that the kernel may take.
    pub const LAZY: usize = 192;
}

/// The record of 64 pageblocks, a word each with a bit a pageblock.
pub mod block_word {
    /// Bytes of a record.
    pub const BYTES: usize = 64;
    /// Whole-free pageblocks.
    pub const FREE: usize = 0;
    /// Some free frame is dirty. If neither this bit nor the next is set for a whole-free pageblock, all its frames are clean.
    pub const DIRTY: usize = 8;
    /// Some free frame is lazy.
    pub const LAZY: usize = 16;
    /// Whole-free, and all frames are in the state of the bit `DIRTY` or `LAZY`: the pageblock's record is stale.
    pub const ALL: usize = 24;
    /// Some frame is not free, and the pageblock's record is valid.
    pub const PARTIAL: usize = 32;
    /// The whole pageblock is being released.
    pub const CLAIMED: usize = 40;
}

/// The record of a span or of a large allocation.
pub mod span {
    /// Bytes of a record.
    pub const BYTES: usize = 128;
    /// The first frame, 32 bits.
    pub const FIRST: usize = 8;
    /// Frames, 32 bits; those in use of a large allocation.
    pub const FRAMES: usize = 12;
    /// Whole pageblocks that a large allocation owns, 32 bits; its frames may end before these.
    pub const BLOCKS: usize = 16;
    /// The class, 8 bits; 0 for a large allocation.
    pub const CLASS: usize = 20;
    /// A bit an object: set while the object is in the span.
    pub const MAP: usize = 64;
    /// Bytes of the map.
    pub const MAP_BYTES: usize = 64;
}

/// The sample in the record of a sampled object: a large allocation that has frames of its own whatever its size. Its words lie where a
/// span has its map.
pub mod sample {
    /// The size that the program asked for, in bytes; 0: the allocation is not sampled.
    pub const SIZE: usize = super::span::MAP;
    /// When it was allocated: nanoseconds of `CLOCK_MONOTONIC`.
    pub const TIME_NS: usize = SIZE + 8;
    /// The number of its stack in the profile, 32 bits; [`NO_STACK`]: the profile had no room for it.
    pub const STACK: usize = TIME_NS + 8;
    /// The thread that allocated it, 32 bits; 0: not known.
    pub const THREAD: usize = STACK + 4;
    /// See [`STACK`].
    pub const NO_STACK: u32 = u32::MAX;
}

/// The slab of a CPU: the stacks of free objects that it caches.
pub mod slab {
    /// Bytes from one slab to the next.
    pub const BYTES: u64 = 100 * STACK_BYTES;
    /// Bytes of a stack. The slab begins with a page of headers, one a class: the address behind the stack's newest entry. Older entries
    /// lie below it, down to a zero.
    pub const STACK_BYTES: u64 = 8192;
    /// Bytes of the page of headers.
    pub const HEADER_BYTES: u64 = 4096;
}

words! {
    /// Addresses of the records: words of the statistics page from [`page::PLACES`](crate::page::PLACES) on. 0: not started.
    Places
    base: "Frame 0.";
    blocks: "The number of pageblocks.";
    classes: "A class byte a frame.";
    span_ids: "The number of the span record, 32 bits a frame; valid where the class byte is not 0.";
    pageblocks: "The records of pageblocks.";
    block_words: "The records of 64 pageblocks.";
    spans: "The span records.";
    slabs: "The slab of CPU 0.";
    cpus: "The number of slabs.";
    profile: "The profile's area, as `profile::Area` has it; 0: sampling was never on.";
}

macro_rules! owners {
    ($($name:ident = $number:literal: $meaning:literal;)*) => {
        /// What a mapping of the library is for.
        #[repr(u64)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Owner {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Owner {
            /// From the number in the record.
            pub fn of(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

owners! {
    Heap = 1: "The program's memory.";
    Records = 2: "Records.";
    PerCpu = 3: "Per-CPU data.";
    Reserve = 4: "The memory that serves threads during a fork.";
    Profile = 5: "The profile of sampled objects.";
    Guarded = 6: "Guarded allocations.";
}

/// Words of the record of a mapping of the library: owner, address, bytes.
pub const RANGE_WORDS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_keep_their_order() {
        let places = Places::from_words(|at| at as u64);
        assert_eq!((places.base, places.profile), (0, 9));
        assert!(
            places
                .words()
                .iter()
                .enumerate()
                .all(|(at, &word)| at as u64 == word)
        );
    }

    #[test]
    fn owners_have_numbers() {
        let all = [
            Owner::Heap,
            Owner::Records,
            Owner::PerCpu,
            Owner::Reserve,
            Owner::Profile,
            Owner::Guarded,
        ];
        assert!(
            all.iter()
                .all(|&owner| Owner::of(owner as u64) == Some(owner))
        );
        assert_eq!((Owner::of(0), Owner::of(7)), (None, None));
    }

    #[test]
    fn classes_grow_to_256_kib() {
        assert_eq!(
            (class_bytes(1), class_bytes(8), class_bytes(9)),
            (16, 128, 144)
        );
        assert_eq!(class_bytes(CLASSES - 1), 256 << 10);
    }
}
