//! What the library and its tools agree on, each item defined once: figures, the statistics page,
//! keys, lock ranks, and the combinations under which the library does not work.
//!
//! The library fills, the tools read, and `include/ebbtide.h` repeats the figures for C (a test compares it). There is no code here
//! that decides or acts.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// Defines a struct of 64-bit words, which the library stores one by one and a tool reads from memory or a file.
macro_rules! words {
    ($(#[$about:meta])* $struct:ident $($name:ident: $meaning:literal;)*) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct $struct {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl $struct {
            /// How many words there are.
            pub const COUNT: usize = size_of::<$struct>() / 8;

            /// The words, in order.
            pub fn words(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// From words, in order.
            pub fn from_words(mut word: impl FnMut(usize) -> u64) -> Self {
                Self { $($name: word(core::mem::offset_of!(Self, $name) / 8),)* }
            }
        }
    };
}

pub mod figures;
pub mod guard;
pub mod kernels;
pub mod keys;
pub mod known;
pub mod page;
pub mod profile;
pub mod records;

pub use figures::Figures;

/// The lock ranks. A thread takes locks in ascending order.
pub mod ranks {
    macro_rules! ranks {
        ($($name:ident = $rank:literal;)*) => {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: u8 = $rank;)*

            /// All of them by name, in order.
            pub const ALL: [(u8, &str); [$($rank),*].len()] = [$(($rank, stringify!($name))),*];
        };
    }
    ranks! {
        FORK = 1;
        DRAIN = 5;
        TRANSFER = 10;
        SPANS = 20;
        ZONE = 30;
        RECORDS = 40;
        BATCHES = 50;
        PERCPU = 56;
        FREED = 58;
        GUARDED = 59;
        CPU = 60;
        PROFILE = 62;
    }
}

/// Optional kernel features in the order of their bits in [`Figures::worked`] and [`Figures::refused`].
pub const FEATURES: [&str; 16] = [
    "membarrier",
    "mremap",
    "hugepage",
    "wipeonfork",
    "process_madvise",
    "pagemap_scan",
    "workers",
    "madvise_free",
    "dontneed_locked",
    "reaper",
    "populate",
    "dontneed",
    "rseq_unregister",
    "process_vm_writev",
    "rseq_register",
    "process_vm_readv",
];

/// Sources of memory pressure in the order of their bits in [`Figures::pressure_sources`].
pub const PRESSURE_SOURCES: [&str; 6] = [
    "machine",
    "cgroup limit",
    "PSI",
    "pressure level",
    "event channel",
    "events not wanted",
];
