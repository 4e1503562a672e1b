//! The policy of the per-CPU data allocator: which area of which chunk is taken, and which pages are released.
//!
//! A *chunk* has one *unit* of [`UNIT_BYTES`] for each CPU. An *area* lies at the same offset in all units of its chunk, so
//! one map serves all of them, and a page means that page of every unit. A *shard* is a set of chunks behind one lock. Like
//! the zones, this is pure state over numbers; the caller passes the storage in as slices.
//!
//! ```text
//!  Shard<'a> ─┬─ ShardState   list heads, counters                              (one per shard)
//!             └─ [Chunk]      area map, hints, populated pages, links           (one per chunk)
//! ```
//!
//! | state of a chunk | on list | provides areas | empty pages count as stock |
//! |---|---|---|---|
//! | unused | unused | no | it has none |
//! | active | its slot | first, fullest first | yes |
//! | sidelined | its slot among sidelined chunks | when no active chunk fits | no |
//! | free | free | after those | yes |
//! | isolated | none | no: its empty pages are being released | no |
//!
//! A round isolates an active chunk with many empty pages, releases them from the end, and sidelines the chunk. If the
//! stock is below [`HIGH`] at that moment and the chunk has empty pages left, it becomes active instead. A sidelined chunk
//! becomes active again when the first area is taken from it. Areas can be freed in all states.
//!
//! Small and large areas have chunks of their own ([`SMALL_GRANULES`]), so that small areas, which tend to live long, pin
//! no pages of large ones.
//!
//! # Invariants
//! Checked by [`Shard::check_invariants`].
//! * `INV-PERCPU-1` A granule is free or in exactly one area, and areas do not overlap; per-page counts are exact.
//! * `INV-PERCPU-2` A page that holds a part of an area is marked populated; a page that may be resident is.
//! * `INV-PERCPU-3` Hints bound the free runs from above.
//! * `INV-PERCPU-4` A chunk is on the one list that its state and hint say, the counters equal a recount.
//! * `INV-PERCPU-5` No area is taken from an isolated chunk, and its claimed pages hold none until they are put
//!   back.
//! * `INV-PERCPU-6` Zeroed storage is valid and means "nothing opened".
//! * `INV-PERCPU-9` Pages are populated and released in whole aligned groups, the pages of a page of the kernel. A group
//!   is empty if none of its pages holds a part of an area.
//!
//! Origin: Linux `mm/percpu.c` and its partial depopulation (5.14).

mod area;
mod check;
mod chunk;
mod round;
mod shard;

pub use chunk::{Chunk, State};
pub use round::{Claimed, Scope, runs};
pub use shard::{Counters, Misuse, Putting, Shard, ShardState, Taken};

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 256 << 10;
/// The unit of the area map.
pub const GRANULE_BYTES: usize = 8;
/// Pages of a unit: one bit map word.
pub const UNIT_PAGES: usize = 64;
/// Granules of a page.
pub const PAGE_GRANULES: u32 = 512;
/// Granules of a unit.
pub const UNIT_GRANULES: u32 = UNIT_PAGES as u32 * PAGE_GRANULES;
/// Areas of up to this many granules are small.
pub const SMALL_GRANULES: u32 = 16;
/// Populated empty pages that rounds leave in a shard.
pub const HIGH: u32 = 4;
/// A number that no chunk has.
pub const NONE: u32 = u32::MAX;

const _: () = assert!(UNIT_BYTES == UNIT_GRANULES as usize * GRANULE_BYTES);
