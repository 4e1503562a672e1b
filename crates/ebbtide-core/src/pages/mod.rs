//! Runs of frames: the region, its zones, and the users of whole frames.
//!
//! | module | contents |
//! |---|---|
//! | [`region`] | address space, and the flat arrays beside it |
//! | [`frames`] | runs of frames from the zones; opens new frames |
//! | [`span`] | records of runs that are in use |
//! | [`unsplit`] | blocks whose huge page could not be split |
//! | [`allowance`] | how much free memory may be kept, how many frames may be taken fresh |
//! | [`large`] | large allocations: whole frames, without spans |
//! | [`samples`] | sampled objects, and the profile that they make |
//! | [`spare`] | the last run that each CPU freed |

pub mod allowance;
pub mod frames;
pub mod large;
pub mod region;
pub mod samples;
pub mod span;
pub mod spare;
pub mod unsplit;

use crate::base::config::{Config, MAX_ZONES};
use crate::base::domains::Domains;
use crate::base::ranks;
use crate::pages::allowance::Allowance;
use crate::pages::frames::ZoneSlot;
use crate::pages::large::guard::Kept;
use crate::pages::region::Region;
use crate::pages::samples::Samples;
use crate::pages::span::SpanTable;
use crate::pages::spare::SpareRuns;
use crate::pages::unsplit::UnsplitBlocks;
use core::cell::UnsafeCell;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use ebbtide_sys::lock::Lock;
use ebbtide_zone::Frame;

/// Settings that are constant after the start.
#[derive(Clone, Copy)]
pub struct Settings {
    /// As configured.
    pub config: Config,
    /// Addresses of the region and its arrays.
    pub region: Region,
    /// The home zone of each CPU.
    pub domains: Domains,
    /// RAM plus swap, the bound of a single request. `usize::MAX` when unknown or when it does not apply.
    pub request_limit: usize,
    /// Bytes of RAM; `usize::MAX` when unknown.
    pub ram: usize,
    /// Whether ranges can be closed to access without a mapping of their own (`harden=on`, Linux 6.13).
    pub has_guard_pages: bool,
}

impl Settings {
    /// Addresses of the region and its arrays.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether objects have words (`harden=on`).
    #[inline]
    pub fn is_hardened(&self) -> bool {
        self.region.states != 0
    }
}

/// All frames of the process, and their owners.
pub struct Pages {
    settings: UnsafeCell<Settings>,
    /// Set in a child of a fork that skipped the handlers: parts of the heap are given up.
    pub abandoned: AtomicBool,
    /// Frames that large allocations own and do not use: slack, and the rest of a last block.
    pub slack: AtomicUsize,
    /// Places to which pages were moved, and that are not ordinary mappings again yet.
    pub moves: AtomicUsize,
    /// Blocks that are kept from huge pages.
    pub small_blocks: AtomicUsize,
    /// Blocks that could not be split at the last try.
    pub unsplit: UnsplitBlocks,
    /// The largest step by which a zone has grown since the last tick, in blocks. 0: no zone has grown.
    pub grown: AtomicU32,
    /// Bytes freed since the last tick.
    pub freed: AtomicUsize,
    /// How much free memory may be kept, and how many frames may be taken fresh.
    pub allowance: Allowance,
    /// The first [`Domains::zones`] are in use.
    pub zones: [ZoneSlot; MAX_ZONES],
    /// Span records.
    pub records: Lock<SpanTable>,
    /// Large allocations freed lately, with `harden=on`.
    pub kept: Lock<Kept>,
    /// Runs freed lately.
    pub spares: SpareRuns,
    /// Sampled objects.
    pub samples: Samples,
}

// SAFETY: `settings` is written once, before any other thread has the heap; the other fields guard themselves.
unsafe impl Sync for Pages {}

impl Pages {
    /// Not usable before [`Self::begin`].
    pub const fn new() -> Self {
        Self {
            settings: UnsafeCell::new(Settings {
                config: Config::DEFAULT,
                region: Region::NONE,
                domains: Domains::ONE,
                request_limit: usize::MAX,
                ram: usize::MAX,
                has_guard_pages: false,
            }),
            abandoned: AtomicBool::new(false),
            slack: AtomicUsize::new(0),
            moves: AtomicUsize::new(0),
            small_blocks: AtomicUsize::new(0),
            unsplit: UnsplitBlocks::new(),
            grown: AtomicU32::new(0),
            freed: AtomicUsize::new(0),
            allowance: Allowance::new(),
            zones: [const { ZoneSlot::new() }; MAX_ZONES],
            records: Lock::new(ranks::RECORDS, SpanTable::NEW),
            kept: Lock::new(ranks::FREED, Kept::NONE),
            spares: SpareRuns::new(),
            samples: Samples::new(),
        }
    }

    /// Writes the settings that are constant from now on, and gives the zones their ranges.
    ///
    /// # Safety
    /// Called once, before any other thread has the heap.
    pub unsafe fn begin(&self, settings: Settings) {
        // SAFETY: by contract.
        unsafe { *self.settings.get() = settings };
        self.begin_zones();
    }

    /// The zones in use.
    pub fn live_zones(&self) -> &[ZoneSlot] {
        &self.zones[..self.domains.zones()]
    }

    /// Notes that memory was freed, for the next tick.
    #[inline]
    pub fn count_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a frame is in a part of the heap given up after a fork without handlers.
    #[inline]
    pub fn is_abandoned(&self, frame: Frame) -> bool {
        let is_frozen = || {
            let zone = self.zone_of(frame.block()).lock.lock();
            zone.state.is_frozen(frame)
        };
        self.abandoned.load(Ordering::Relaxed) && is_frozen()
    }
}

impl Deref for Pages {
    type Target = Settings;

    #[inline]
    fn deref(&self) -> &Settings {
        // SAFETY: no longer written when another thread has the heap.
        unsafe { &*self.settings.get() }
    }
}
