//! The statistics page, `stats_dir/PID.ebb`: little-endian 64-bit words.
//!
//! ```text
//!   0      MAGIC
//!   1      the words of Figures, the first of which is the version
//!   320    the library's own mappings: 32 records of three words (records::Owner, address, bytes)
//!   416    the words of records::Places
//!   432    one record for each lock rank (lockstat)
//!   1014   the name of the program's file, as far as two words hold it, ended by zeros
//!   1016   an observer's request: its number, then its text, ended by zeros; the only words that the process does not write
//! ```
//!
//! The process writes the words one by one, without a lock: each is exact, two of them need not be from the same instant.

use crate::{figures, ranks, records};

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

/// Where the records of the library's own mappings begin.
pub const RANGES: usize = 320;
/// How many mappings are recorded at most.
pub const MAX_RANGES: usize = 32;
/// Where the words of [`records::Places`] begin.
pub const PLACES: usize = 416;
/// Where the records of lock ranks begin.
pub const LOCKS: usize = 432;
/// Where an observer's request begins. An observer writes the text first, then a number that is one above the last. The process does
/// the request once, and then writes the number to [`request_done`](crate::Figures::request_done).
pub const REQUEST: usize = WORDS - 8;
/// Where the name of the program's file is.
pub const NAME: usize = REQUEST - 2;
/// The longest part of a name that the page has, in bytes.
pub const MAX_NAME_BYTES: usize = (REQUEST - NAME) * 8;
/// The request to release all free memory. Every other request is an item of the configuration.
pub const RELEASE: &[u8] = b"release";
/// The longest text of a request, in bytes.
pub const MAX_REQUEST_BYTES: usize = (WORDS - REQUEST - 1) * 8;

/// Buckets of a histogram of durations: below 32 ns, then one for each doubling; the last has no bound.
pub const BUCKETS: usize = 20;
/// Words before the histograms of a record: rank and one, acquisitions, contended ones, sum and longest of waits, the same of
/// holds, a spare word. Then the histogram of waits, then that of holds.
pub const LOCK_HEAD: usize = 8;
/// Words of a record.
pub const LOCK_WORDS: usize = LOCK_HEAD + 2 * BUCKETS;

const _: () = assert!(FIRST + figures::COUNT <= RANGES);
const _: () = assert!(RANGES + MAX_RANGES * records::RANGE_WORDS <= PLACES);
const _: () = assert!(PLACES + records::Places::COUNT <= LOCKS);
const _: () = assert!(LOCKS + ranks::ALL.len() * LOCK_WORDS <= NAME);
