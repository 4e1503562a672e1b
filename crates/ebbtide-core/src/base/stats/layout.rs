//! The words of the page that others read.

/// The first half are single figures; the second is of lock ranks: see [`super::locks`].
pub const WORDS: usize = 1024;
pub const MAGIC: u64 = u64::from_le_bytes(*b"EBBSTAT1");
pub const VERSION: u64 = 1;
// Places of the words; the rest is zero. 33 was another figure's: it stays zero.
pub const PID: usize = 2;
pub const RELEASED: usize = 3;
pub const LIVE: usize = 4;
pub const DIRTY: usize = 5;
pub const OPENED: usize = 6;
pub const MODE: usize = 7;
pub const CALLS: usize = 8;
pub const CACHED: usize = 9;
pub const METADATA: usize = 10;
pub const LAZY: usize = 11;
pub const PENDING: usize = 12;
pub const WORKER_NS: usize = 13;
pub const LONGEST_STALL_NS: usize = 14;
pub const REFAULTED: usize = 15;
pub const HELD: usize = 16;
pub const IN_SPANS: usize = 17;
/// Two masks, one bit for each of `features::ALL`: those that were tried and worked, and were refused.
pub const WORKED: usize = 18;
pub const REFUSED: usize = 19;
pub const LAZIED: usize = 24;
pub const LAZY_ZONES: usize = 25;
pub const REUSED: usize = 26;
pub const UNUSED: usize = 27;
/// The process that takes memory back after the end, and when the end began (`CLOCK_MONOTONIC`), if in order.
pub const HELPER: usize = 106;
pub const END_NS: usize = 107;
pub const FALLOVERS: usize = 32;
pub const PERCPU: usize = 96;
pub const PRESSURE_EVENTS: usize = 28;
pub const PRESSURE_STATE: usize = 29;
pub const LIMIT_LEFT: usize = 30;
pub const LIMIT: usize = 31;
/// Bytes that calls released because they had taken more afresh than there was room for.
pub const PAID: usize = 128;
/// What is looked at, bits of `reclaim::pressure::watcher::Watcher::sources`.
pub const PRESSURE_SOURCES: usize = 129;
/// When the main thread left the memory at the program's end, as the helper saw it (`CLOCK_MONOTONIC`).
pub const LEFT_NS: usize = 130;
/// When the figures that are not counted as they come were written (milliseconds of `CLOCK_MONOTONIC`).
pub const WRITTEN_MS: usize = 140;
// Values of `PRESSURE_STATE`.
pub const CALM: u64 = 1;
pub const SHORT: u64 = 2;
