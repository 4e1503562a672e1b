//! The profile of sampled objects: its area in the process's memory, and the file of a dump. Little-endian 64-bit words.
//!
//! ```text
//!   the area                                          the file
//!   0                  the words of Area              0                 the words of File
//!   STACKS_BYTES       stack 0: Stack, LIFETIMES      FILE_BYTES        the used part of the area: File::area_bytes
//!                      words, MAX_FRAMES words        behind it         the text of /proc/self/maps: File::maps_bytes
//!   + STACK_BYTES      stack 1
//!    …                 up to Area::stacks, the used part
//! ```
//!
//! The address of the area is [`Places::profile`](crate::records::Places::profile) of the statistics page. What lies behind the used part reads
//! zero. A tool reads the process's memory while the process runs: it reads `Area` first, then the stacks.
//!
//! # What is counted
//!
//! Each byte that the program asks for is the first of a sample with the same probability, 1 / rate. So an object of `s` bytes is sampled with
//! probability `1 - exp(-s / rate)`, and a sampled object stands for `1 / (1 - exp(-s / rate))` objects. With rate 1 each object is sampled and stands
//! for itself. The words hold the sampled objects
//! themselves: a tool multiplies. All objects of a `Stack` have the same rate and nearly the same size, so it may use their mean size.
//!
//! # Stacks
//!
//! A `Stack` has the objects of one size class that one list of return addresses asked for at one rate in threads of one name. It is filled before
//! `Area::stacks` counts it. Its frames, class, rate and name never change, and it stays where it is.
//!
//! # Peaks
//!
//! The peak is the time at which the live objects stood for most bytes. `peak_objects` and `peak_bytes` of a `Stack` are valid only if its `peak`
//! equals `Area::peak`. Otherwise the stack has not changed since then, and its live figures are those of the peak.

/// The first word of the area.
pub const MAGIC: u64 = u64::from_le_bytes(*b"EBBPROF1");
/// The first word of a dump.
pub const FILE_MAGIC: u64 = u64::from_le_bytes(*b"EBBDUMP1");
/// The version of area and file. A later one may move anything behind this word.
pub const VERSION: u64 = 1;

/// Where the stacks begin in the area, in bytes.
pub const STACKS_BYTES: usize = 4096;
/// Most stacks of a profile.
pub const MAX_STACKS: usize = 16_384;
/// Most frames of a stack. Frames further out are cut off.
pub const MAX_FRAMES: usize = 64;
/// Buckets of lifetimes: below 2^10 ns, then one for each doubling; the last has no bound.
pub const LIFETIMES: usize = 32;
/// The bucket of a lifetime.
pub const fn lifetime_bucket(ns: u64) -> usize {
    let doublings = (ns >> 10).checked_ilog2();
    match doublings {
        None => 0,
        Some(at) if (at as usize) < LIFETIMES - 2 => at as usize + 1,
        Some(_) => LIFETIMES - 1,
    }
}
/// Bytes of the longest name of a thread.
pub const NAME_BYTES: usize = 16;

/// Bytes from one stack to the next.
pub const STACK_BYTES: usize = (Stack::COUNT + LIFETIMES + MAX_FRAMES) * 8;
/// Where the lifetimes of a stack begin: how many sampled objects were freed after a time of that bucket.
pub const LIFETIMES_AT: usize = Stack::COUNT * 8;
/// Where the frames of a stack begin: return addresses, the innermost first, `Stack::frames` of them. The call ends one byte before.
pub const FRAMES_AT: usize = LIFETIMES_AT + LIFETIMES * 8;
/// Bytes of the area.
pub const AREA_BYTES: usize = STACKS_BYTES + MAX_STACKS * STACK_BYTES;
/// Where the area begins in a dump.
pub const FILE_BYTES: usize = 4096;

/// Bytes of the used part of an area.
pub const fn used_bytes(stacks: usize) -> usize {
    STACKS_BYTES + stacks * STACK_BYTES
}

words! {
    /// The beginning of the area.
    Area
    magic: "[`MAGIC`].";
    version: "[`VERSION`].";
    rate: "Mean distance of two samples in bytes; 0: sampling is off now.";
    stacks: "Stacks in use, at most [`MAX_STACKS`].";
    unwinder: "How stacks are found: an [`Unwinder`].";
    begun_ns: "When sampling was first switched on: nanoseconds of `CLOCK_MONOTONIC`.";
    live_objects: "Sampled objects that are live and have a stack.";
    live_bytes: "Their bytes, as asked for.";
    live_estimate: "About the bytes that they stand for: for each the larger of rate + half its size, and its size.";
    total_objects: "Objects sampled so far, also those without a stack.";
    peak: "The number of the peak. It rises when `live_estimate` exceeds all earlier values.";
    peak_estimate: "`live_estimate` at the peak.";
    peak_ns: "When the peak was: nanoseconds of `CLOCK_MONOTONIC`.";
    dropped: "Samples without a stack, because all stacks were in use.";
    missed: "Samples that were not taken: no frames to be had, or a sample within a sample.";
}

words! {
    /// The beginning of a stack.
    Stack
    hash: "For the library.";
    rate: "The rate at which its objects were sampled.";
    class: "Their size class as `records::class_bytes` has it, which for this purpose goes on beyond 256 KiB.";
    frames: "How many frames it has, at most [`MAX_FRAMES`].";
    name_low: "The first eight bytes of the threads' name, ended by zeros. Each run of digits in it is one `#`. 0: not known.";
    name_high: "The other eight bytes.";
    live_objects: "Sampled objects that are live.";
    live_bytes: "Their bytes, as asked for.";
    total_objects: "Sampled objects so far.";
    total_bytes: "Their bytes.";
    peak: "The number of the peak to which the next two belong.";
    peak_objects: "Sampled objects that were live at that peak.";
    peak_bytes: "Their bytes.";
    spare: "0.";
}

words! {
    /// The beginning of a dump.
    File
    magic: "[`FILE_MAGIC`].";
    version: "[`VERSION`].";
    area_bytes: "Bytes of the used part of the area.";
    maps_bytes: "Bytes of the text of `/proc/self/maps`.";
    pid: "The process.";
    name_low: "The first eight bytes of the name of the program's file, ended by zeros.";
    name_high: "The other eight bytes.";
    time_ns: "When the dump was made: nanoseconds of `CLOCK_MONOTONIC`.";
    unix_ns: "The same in nanoseconds since 1970.";
}

/// How stacks are found.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinder {
    /// Not at all: only the caller of the allocator is known.
    None = 0,
    /// By frame pointers. Frames of code without them are missing, and those beyond are wrong or missing.
    FramePointers = 1,
    /// By the unwind tables of the program and its libraries.
    Tables = 2,
}

impl Unwinder {
    /// From the number in the area.
    pub fn of(number: u64) -> Option<Self> {
        [Self::None, Self::FramePointers, Self::Tables]
            .into_iter()
            .find(|&unwinder| unwinder as u64 == number)
    }
}

const _: () = assert!(Area::COUNT * 8 <= STACKS_BYTES && File::COUNT * 8 <= FILE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_a_bucket_for_each_doubling() {
        let expected = [
            (0, 0),
            (1023, 0),
            (1024, 1),
            (2047, 1),
            (2048, 2),
            (1 << 39, 30),
            (1 << 40, 31),
            (u64::MAX, 31),
        ];
        for (ns, bucket) in expected {
            assert_eq!(lifetime_bucket(ns), bucket, "{ns}");
        }
    }

    #[test]
    fn unwinders_have_numbers() {
        let all = [Unwinder::None, Unwinder::FramePointers, Unwinder::Tables];
        assert!(all.iter().all(|&one| Unwinder::of(one as u64) == Some(one)));
        assert_eq!(Unwinder::of(3), None);
    }
}
