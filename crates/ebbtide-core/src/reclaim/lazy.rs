//! Decides whether due frames become lazy first, or clean at once.
//!
//! ```text
//!          due, wanted again often                lazy_ms over, headroom short, pressure
//!   dirty ────────────────────────▶ lazy ───────────────────────────────────────────▶ clean
//!     └──────────────────────────────────────────────────────────────────────────────▶
//!          due, else
//! ```
//!
//! A lazy frame (`MADV_FREE`) can be allocated at once. The first store takes it back from the kernel, and costs a quarter
//! of a page fault. Until that store the frame reads as before or as zero. So an allocation counts it as dirty: `calloc`
//! clears it.
//!
//! A lazy frame stays in RSS until the kernel takes it. So only frames that are soon reused become lazy
//! ([`ebbtide_zone::refault`] decides for each zone), and not for long: workers make them clean without a call of the
//! program. Without workers no frame becomes lazy. If a worker ends and no other can be made, slow paths of the program
//! make the due frames clean.
//!
//! Only whole pageblocks become lazy, and frames where no huge page can be: the kernel would split a huge page.
//! Pages that a forked child shares stay as they are. They become clean together with the other frames.

use super::Heap;
use super::gather::{Gather, Range};
use crate::base::config::LazyFree;
use crate::pages::frames::{ZoneData, view};
use crate::pages::region::{Region, flag};
use core::sync::atomic::{AtomicBool, Ordering};
use ebbtide_sys::features::LAZY_FREE;
use ebbtide_sys::process;
use ebbtide_zone::{Claim, Counters};

/// In older kernels, lazy pages race with direct reads into them.
const FIRST_KERNEL: (u32, u32) = (5, 18);
/// Whether the kernel's version is known, and [`LAZY_FREE`] refused for an older kernel.
static KERNEL_ASKED: AtomicBool = AtomicBool::new(false);

/// Which free frames a gather takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Dirty frames. With `lazy_first`, they become lazy if the zone's experience favours it.
    Due {
        /// Whether they become lazy before they are clean.
        lazy_first: bool,
    },
    /// Lazy frames. They become clean.
    Lazy,
    /// Both kinds. They become clean.
    All,
}

impl Take {
    /// Claims up to `frames` of a zone.
    pub fn claim(self, region: &Region, data: &mut ZoneData, frames: u32) -> Option<Claim> {
        let before = data.state.counters().dirty;
        let mut zone = view(region, &mut data.state, 0);
        let claim = match self {
            Take::Due { .. } => zone.claim_dirty(frames, false),
            Take::Lazy => zone.claim_lazy(frames),
            Take::All => zone.claim_dirty(frames, true),
        };
        if let Take::Due { .. } = self {
            // A release on demand says nothing about frames that will be needed again.
            data.refaults.give_up(before - data.state.counters().dirty);
        }
        claim
    }
}

impl Heap {
    /// Whether frames may become lazy in this process now.
    pub fn may_go_lazy(&self) -> bool {
        let short = self.allowance.is_short(ebbtide_sys::clock::now_ms());
        if self.config.lazyfree == LazyFree::Off || self.max_workers() == 0 || short {
            return false;
        }
        if !KERNEL_ASKED.load(Ordering::Acquire) {
            if process::kernel_version().is_none_or(|version| version < FIRST_KERNEL) {
                LAZY_FREE.refuse();
            }
            // Stored after the refusal: a thread that sees this flag does not use the refused call.
            KERNEL_ASKED.store(true, Ordering::Release);
        }
        LAZY_FREE.may_work()
    }

    /// How many of a zone's due frames may become lazy first.
    pub fn lazy_room(&self, zone: usize) -> u64 {
        if self.config.lazyfree == LazyFree::Always {
            return u64::MAX;
        }
        let data = self.zones[zone].lock.lock();
        let counters = data.state.counters();
        // Claimed frames may be about to become lazy.
        let lazy = counters.lazy + counters.claimed;
        data.refaults.lazy_limit().saturating_sub(lazy)
    }

    /// Whether a claim can become lazy without splitting a huge page.
    pub fn can_be_lazy(&self, claim: &Claim) -> bool {
        let Claim::Frames { block, .. } = *claim else {
            return true;
        };
        !self.may_be_huge(block.first_frame()) || self.flags_of(block) & flag::SMALL != 0
    }

    /// Lazy frames that have been lazy for `lazy_ms`, or that exceed the headroom (`cap` frames).
    pub fn lazy_due(data: &mut ZoneData, now: u64, counters: &Counters, cap: u64) -> u64 {
        data.lazied.advance(now);
        let young = data.lazied.all();
        let due = counters.lazy.saturating_sub(young.min(cap));
        due.min(counters.loose_lazy())
    }
}

/// Adds a claim's ranges. Space for them was reserved.
pub fn add(gather: &mut Gather, claim: Option<Claim>, to_lazy: bool) {
    for (first, frames) in claim.iter().flat_map(Claim::runs) {
        let range = Range::new(first.0, frames);
        let added = gather.add(if to_lazy { range.to_lazy() } else { range });
        debug_assert!(added, "INV-GATHER-2");
    }
}

#[cfg(test)]
mod tests;
