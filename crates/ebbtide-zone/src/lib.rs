//! The page-level policy of Ebbtide: which frames are free, which are allocated next, which may be released.
//!
//! Pure state over frame *numbers*. There is no memory behind it, nothing is allocated, no lock is taken and no system
//! call is made: the caller holds the zone's lock and passes the storage in as slices.
//!
//! ```text
//!  Zone<'a> ──┬─ ZoneState          counters, list heads, scan hints            (one per zone)
//!             ├─ [BlockWord]        one bit per pageblock: free, dirty, …       (64 pageblocks a record)
//!             └─ [Pageblock]        three bit maps of 512 frames, counts, links (one per pageblock)
//! ```
//!
//! # States
//! Of a pageblock:
//!
//! | kind | where it is written | set by |
//! |---|---|---|
//! | unopened | number ≥ `open_end` | initial state |
//! | whole-free | `BlockWord::free` | `open`, `put_blocks`, the last `put_run` or `put_claim` |
//! | partial | `BlockWord::partial`; the record is valid | `take_run`, `put_run` into a large one |
//! | claimed | `BlockWord::claimed` | `claim_dirty` |
//! | large | open, none of the bits above | `take_blocks`, `grow_blocks` |
//! | frozen | number < `base` | `reset_above` |
//!
//! Of a free frame: **dirty** (resident, old content), **lazy** (`MADV_FREE` given), **clean** (zero on next touch).
//!
//! # Invariants
//! All are checked by [`Zone::check_invariants`].
//! * `INV-ZONE-1` A frame is in exactly one place: the free map, its owner, or a claim.
//! * `INV-ZONE-2` In a partial block `dirty ⊆ free`, `lazy ⊆ free` and `dirty ∩ lazy = ∅`.
//! * `INV-ZONE-3` The bits `free`, `partial` and `claimed` of a block exclude each other.
//! * `INV-ZONE-4` For whole-free and partial blocks the bit `dirty` (`lazy`) says that a free frame of the block is
//!   dirty (lazy) and not pinned. For others both are zero.
//! * `INV-ZONE-5` `all` is set only on whole-free blocks, with exactly one of `dirty` and `lazy`; every frame is in
//!   that state and the record is stale. Whole-free, not `all`, and dirty or lazy: the record's words and counts
//!   are valid. Whole-free with none of the three: clean, the record is stale (it is written when converted).
//! * `INV-ZONE-6` A partial block with a free frame is on the list of `floor(log2(max_run))`, once; every other
//!   block is on no list. `max_run` is exact, and so are the counts and `clusters`.
//! * `INV-ZONE-7` The counters equal a recount.
//! * `INV-ZONE-8` The hints are valid bounds: see [`ZoneState`].
//! * `INV-ZONE-10` A claim consists of whole aligned groups of frames, the frames of a page of the kernel. Dirty and lazy
//!   frames of groups that are not wholly free are counted as pinned.
//! * `INV-ZONE-9` Zeroed storage is valid and means "nothing opened".
//!
//! Neighbours: the lock, the memory and the clock live in the crate `ebbtide_core`.

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod bits;
mod blocks;
mod check;
mod claim;
mod frame;
pub mod low_water;
mod pageblock;
pub mod percpu;
pub mod plan;
mod put;
pub mod refault;
pub mod retain;
mod state;
mod take;

pub use blocks::Extent;
pub use check::{FrameState, Violation};
pub use claim::{Claim, PutState};
pub use frame::*;
pub use pageblock::{BlockWord, Pageblock};
pub use put::{Put, PutError, PutErrorKind};
pub use state::{Counters, Zone, ZoneState};
pub use take::{Run, TakeMode};
