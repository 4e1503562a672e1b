//! Dirty to lazy to clean: which way due frames take.
//!
//! ```text
//!          due, wanted again often                lazy_ms over, room short, pressure
//!   dirty ────────────────────────▶ lazy ───────────────────────────────────────────▶ clean
//!     └──────────────────────────────────────────────────────────────────────────────▶
//!          due, else
//! ```
//!
//! A lazy frame (`MADV_FREE`) can be handed out at once: the first store takes it back, and costs a quarter
//! of a fault. Until then it reads as before or zero, so it counts as dirty for whoever gets it: `calloc`
//! clears it. It stays in RSS until the kernel wants it, so it is for frames that come back soon
//! ([`ebbtide_zone::refault`] decides for each zone), and not for long: workers make it clean without a
//! call of the program's. Without workers nothing becomes lazy. If a worker ends and no other can be made, slow
//! paths of the program make clean what is due.
//!
//! Only whole pageblocks become lazy, and frames where no huge page can be: the kernel would split one.
//! Pages that a forked child shares stay as they are; they go clean with the others.

use super::Heap;
use super::gather::{Gather, Range};
use crate::base::config::LazyFree;
use crate::pages::frames::{ZoneData, view};
use crate::pages::region::{Region, flag};
use core::sync::atomic::{AtomicBool, Ordering};
use ebbtide_sys::features::LAZY_FREE;
use ebbtide_sys::process;
use ebbtide_zone::{Claim, Counters};

/// Before, lazy pages race with direct reads into them.
const FIRST_KERNEL: (u32, u32) = (5, 18);
/// Whether the kernel's version is known, and [`LAZY_FREE`] refused for an older one.
static KERNEL_ASKED: AtomicBool = AtomicBool::new(false);

/// Which free frames a gather takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Dirty ones. With `lazy_first`, they become lazy where the zone's experience says so.
    Due {
        /// Whether they become lazy before they are clean.
        lazy_first: bool,
    },
    /// Lazy ones, to clean.
    Lazy,
    /// Both, to clean.
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
            // What is released on demand says nothing about what would be wanted again.
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
            // Behind the refusal: whoever sees this does not use what is not to be used.
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
        // What is in claims may be about to become lazy.
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

    /// Lazy frames that were so for `lazy_ms`, or for which there is no room (`cap` frames).
    pub fn lazy_due(data: &mut ZoneData, now: u64, counters: &Counters, cap: u64) -> u64 {
        data.lazied.advance(now);
        let young = data.lazied.all();
        counters.lazy.saturating_sub(young.min(cap))
    }
}

/// Adds a claim's ranges; room was reserved.
pub fn add(gather: &mut Gather, claim: Option<Claim>, to_lazy: bool) {
    for (first, frames) in claim.iter().flat_map(Claim::runs) {
        let range = Range::new(first.0, frames);
        let added = gather.add(if to_lazy { range.to_lazy() } else { range });
        debug_assert!(added, "INV-GATHER-2");
    }
}

#[cfg(test)]
mod tests;
