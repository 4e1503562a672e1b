//! The statistics page, `stats_dir/PID.ebb`: little-endian 64-bit words.
//!
//! ```text
//!   0      MAGIC
//!   1      the words of Figures, the first of which is the version
//!   512    one record for each lock rank (lockstat), to the end
//! ```
//!
//! The process writes the words one by one, without a lock: each is exact, two of them need not be from the same instant.

use crate::{figures, ranks};

/// Words of the page.
pub const WORDS: usize = 1024;
/// The first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"EBBSTAT1");
/// Where the words of [`crate::Figures`] begin.
pub const FIRST: usize = 1;

/// The word of the statistics page that holds a field of [`Figures`](crate::Figures).
#[macro_export]
macro_rules! word {
    ($field:ident) => {
        $crate::page::FIRST + ::core::mem::offset_of!($crate::Figures, $field) / 8
    };
}

/// Where the records of lock ranks begin.
pub const LOCKS: usize = 512;
/// Buckets of a histogram of durations: below 32 ns, then one for each doubling; the last has no bound.
pub const BUCKETS: usize = 20;
/// Words before the histograms of a record: rank and one, acquisitions, contended ones, sum and longest of waits, the same of
/// holds, a spare word. Then the histogram of waits, then that of holds.
pub const LOCK_HEAD: usize = 8;
/// Words of a record.
pub const LOCK_WORDS: usize = LOCK_HEAD + 2 * BUCKETS;

const _: () = assert!(FIRST + figures::COUNT <= LOCKS);
const _: () = assert!(LOCKS + ranks::ALL.len() * LOCK_WORDS <= WORDS);
