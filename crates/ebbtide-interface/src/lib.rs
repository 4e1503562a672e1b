//! What the library and its tools agree on, each item defined once: figures, the statistics page,
//! keys, lock ranks, and the combinations under which the library does not work.
//!
//! The library fills, the tools read, and `include/ebbtide.h` repeats the figures for C (a test compares it). There is no code here
//! that decides or acts.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod figures;
pub mod kernels;
pub mod keys;
pub mod known;
pub mod page;
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
        CPU = 60;
    }
}

/// Optional kernel features in the order of their bits in [`Figures::worked`] and [`Figures::refused`].
pub const FEATURES: [&str; 15] = [
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
