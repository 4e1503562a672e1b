//! Runs of frames from the zones, and the opening of new frames.
//!
//! A request goes to the zone that is home to its CPU, then to at most [`FALLOVERS`] siblings, those of the same node
//! first. If none of these has a fitting run, the home zone opens the next step of its range (4 MiB, doubling to 64 MiB).
//! Only if that is refused, all siblings are asked, and open more. A run from a sibling is counted. When it is put back, it
//! goes to that sibling, because the run's number shows its zone.
//!
//! No lock is held while a step is opened. Threads that find the same zone full may open the same step; the first to
//! finish adds it.
//!
//! The first 16 MiB of a zone are kept from huge pages, so that small processes stay small. Ebbtide asks for huge pages in
//! the part behind them.

use crate::base::ranks;
use crate::base::stats::{self, word};
use crate::pages::Pages;
use crate::pages::region::{Region, flag};
use crate::pages::span::PER_BLOCK;
use core::sync::atomic::{AtomicU32, Ordering};
use ebbtide_sys::features::HUGE_PAGES;
use ebbtide_sys::lock::Lock;
use ebbtide_sys::{Errno, process, vm};
use ebbtide_zone::refault::{Recent, Refaults};
use ebbtide_zone::retain::Retain;
use ebbtide_zone::{
    BLOCK_FRAMES, Block, Counters, Extent, FRAME_BYTES, Frame, PutError, Run, TakeMode, Zone,
    ZoneState,
};

/// Blocks at a zone's start that are kept from huge pages.
const START_BLOCKS: u32 = 8;
/// The first and the largest step of an opening, in blocks.
const STEPS: (u32, u32) = (2, 32);

/// Siblings that are tried before the home zone opens more.
const FALLOVERS: usize = 2;

/// A zone with its lock.
pub struct ZoneSlot {
    /// The zone's state and its demand.
    pub lock: Lock<ZoneData>,
    /// The end of all blocks that any thread has begun to open. Stored before the memory can be touched.
    opening: AtomicU32,
    /// With `harden=on`, frames from this one on have no access yet: none of them was taken so far.
    pub(super) accessible: AtomicU32,
}

/// The data that a zone's lock guards, beside the zone's records.
pub struct ZoneData {
    /// Policy state.
    pub state: ZoneState,
    /// The recent peak.
    pub retain: Retain,
    /// Frames taken since the last tick that were not dirty.
    pub taken: u64,
    /// The reuse of frames that were given up.
    pub refaults: Refaults,
    /// Frames that became lazy less than `lazy_ms` ago.
    pub lazied: Recent,
}

impl ZoneSlot {
    /// Not usable before [`Self::begin`].
    pub const fn new() -> Self {
        let data = ZoneData {
            state: ZoneState::new(0, 0),
            retain: Retain::new(),
            taken: 0,
            refaults: Refaults::new(),
            lazied: Recent::new(0),
        };
        Self {
            lock: Lock::new(ranks::ZONE, data),
            opening: AtomicU32::new(0),
            accessible: AtomicU32::new(0),
        }
    }

    /// Called in a child, when other threads of the parent may have been opening more: forgets every opened block.
    /// The zone continues behind the last block that any of them can have touched.
    pub fn give_up(&self, region: &Region) {
        let mut data = self.lock.lock();
        let behind = self.opening.load(Ordering::Relaxed);
        view(region, &mut data.state, 0).reset_above(Block(behind));
    }

    /// Sets the range of the zone, and the time that frames stay lazy.
    pub fn begin(&self, first: u32, limit: u32, lazy_ms: u32) {
        let mut data = self.lock.lock();
        data.state = ZoneState::with_group(first, limit, vm::page_frames());
        data.lazied = Recent::new(u64::from(lazy_ms));
        self.accessible
            .store(first * BLOCK_FRAMES, Ordering::Relaxed);
    }

    /// Works on the zone under its lock: bounded work without system calls.
    #[inline]
    pub fn with<R>(&self, region: &Region, work: impl FnOnce(&mut Zone) -> R) -> R {
        work(&mut view(region, &mut self.lock.lock().state, 0))
    }

    /// The zone's counts.
    pub fn counters(&self) -> Counters {
        self.lock.lock().state.counters()
    }
}

/// The zone over its opened records and `more` blocks behind them.
pub fn view<'a>(region: &'a Region, state: &'a mut ZoneState, more: u32) -> Zone<'a> {
    let first = state.first_block().0;
    let count = state.open_end().0 - first + more;
    // SAFETY: the owner of `state` holds the zone's lock, its first block is a multiple of 64, and opened blocks
    // have records (`INV-REGION-2`).
    let (blocks, words) = unsafe { region.records(first, count) };
    Zone::new(state, blocks, words)
}

impl Pages {
    /// Blocks in a zone's range: whole GiB. The last zone's range goes on to the end.
    fn zone_part(&self) -> u32 {
        let unit = ebbtide_zone::ZONE_ALIGN_BLOCKS;
        self.region().blocks / unit / self.domains.zones() as u32 * unit
    }

    /// Sets the ranges of the zones.
    pub(super) fn begin_zones(&self) {
        let part = self.zone_part();
        let zones = self.domains.zones() as u32;
        for (index, zone) in (0..zones).zip(&self.zones) {
            let limit = match index + 1 {
                next if next == zones => self.region().blocks,
                next => part * next,
            };
            zone.begin(part * index, limit, self.config.lazy_ms);
        }
    }

    fn take_mode(&self) -> TakeMode {
        if self.config.cluster {
            TakeMode::Cluster
        } else {
            TakeMode::FrameByFrame
        }
    }

    /// Takes a run inside one pageblock. `None`: out of memory or address space.
    pub fn take_run(&self, frames: u32, align_frames: u32) -> Option<Run> {
        let mode = self.take_mode();
        let run = self.take(1, 0, |zone| zone.take_run(frames, align_frames, mode))?;
        if !self.give_access(run.first, run.frames) {
            self.put_run(run.first, run.frames, 0);
            return None;
        }
        Some(run)
    }

    /// Takes whole pageblocks, with `slack` address space behind them if it is free.
    pub fn take_blocks(&self, blocks: u32, align_blocks: u32, slack: u32) -> Option<Extent> {
        // Enough for an aligned run wherever the opened end is now.
        let need = blocks.checked_add(align_blocks - 1)?;
        let unused = u64::from(slack) * u64::from(BLOCK_FRAMES);
        self.take(need, unused, |zone| {
            zone.take_blocks(blocks, align_blocks, slack)
        })
    }

    /// Returns what `attempt` takes from a zone. If needed, at least `need` blocks are opened for it. `slack`:
    /// frames that are taken too and stay unused.
    fn take<R>(
        &self,
        need: u32,
        slack: u64,
        attempt: impl Fn(&mut Zone) -> Option<R>,
    ) -> Option<R> {
        let zones = self.live_zones();
        let domains = &self.domains;
        let home = match zones.len() {
            1 => 0,
            _ => domains.home(process::current_cpu()),
        };
        let from = |zone: usize| self.take_from(&zones[zone], slack, &attempt);
        let opening = |zone: usize| {
            while self.open_more(&zones[zone], need) {
                let taken = from(zone);
                if taken.is_some() {
                    return taken;
                }
            }
            None
        };
        if let Some(taken) = from(home) {
            return Some(taken);
        }
        let mut taken = domains.siblings(home).take(FALLOVERS).find_map(from);
        if taken.is_none() {
            if let Some(taken) = opening(home) {
                return Some(taken);
            }
            // Out of address space, or at a limit: try every zone.
            let anywhere = |zone| from(zone).or_else(|| opening(zone));
            taken = domains.siblings(home).find_map(anywhere);
        }
        if taken.is_some() {
            stats::count(word!(fallovers), 1);
        }
        taken
    }

    /// Counts the part that may not be resident.
    fn take_from<R>(
        &self,
        slot: &ZoneSlot,
        slack: u64,
        attempt: impl FnOnce(&mut Zone) -> Option<R>,
    ) -> Option<R> {
        let mut data = slot.lock.lock();
        let before = data.state.counters();
        let taken = attempt(&mut view(self.region(), &mut data.state, 0))?;
        let after = data.state.counters();
        data.retain.rise(after.in_use);
        let other = (before.free - before.dirty) - (after.free - after.dirty);
        let fresh = other.saturating_sub(slack);
        data.taken += fresh;
        drop(data);
        self.allowance.count_fresh(fresh);
        if after.lazy < before.lazy {
            let bytes = (before.lazy - after.lazy) * FRAME_BYTES as u64;
            stats::count(word!(lazy_reused_bytes), bytes);
        }
        Some(taken)
    }

    /// Opens the zone's next step, at least `need` blocks. `false`: the zone is at its end, or the kernel refused.
    fn open_more(&self, slot: &ZoneSlot, need: u32) -> bool {
        let (start, opened, room) = {
            let state = &slot.lock.lock().state;
            (state.open_end().0, state.opened(), state.unopened())
        };
        if room < need {
            return false;
        }
        let region = self.region();
        let step = opened.clamp(STEPS.0, STEPS.1).max(need).min(room);
        let open = |&step: &u32| {
            slot.opening.fetch_max(start + step, Ordering::Relaxed);
            self.open_records(step * PER_BLOCK).is_some()
                && region.open(start, step, !self.is_hardened()).is_ok()
        };
        // Under a limit, opens only as much as needed.
        let Some(step) = [step, need].into_iter().find(open) else {
            return false;
        };
        self.advise_huge(Block(start), step);
        // If memory is locked, the kernel has already populated it.
        let last = Frame((start + step) * BLOCK_FRAMES - 1);
        let resident = !self.config.basic_syscalls && vm::is_resident(region.address(last));
        let mut data = slot.lock.lock();
        if data.state.open_end().0 == start {
            let mut zone = view(region, &mut data.state, step);
            if resident {
                zone.open_resident(step);
            } else {
                zone.open(step);
            }
        }
        drop(data);
        self.grown.fetch_max(step, Ordering::Relaxed);
        true
    }

    /// Tells the kernel where huge pages are wanted.
    fn advise_huge(&self, first: Block, count: u32) {
        let small = if self.config.thp {
            START_BLOCKS
                .saturating_sub(self.blocks_into_zone(first))
                .min(count)
        } else {
            count
        };
        let behind = Block(first.0 + small).first_frame();
        let (small, large) = (small * BLOCK_FRAMES, (count - small) * BLOCK_FRAMES);
        self.advise_frames(first.first_frame(), small, libc::MADV_NOHUGEPAGE);
        self.advise_frames(behind, large, libc::MADV_HUGEPAGE);
    }

    /// Gives one of the two advices on huge pages.
    fn advise_frames(&self, first: Frame, frames: u32, advice: i32) {
        if frames > 0 && HUGE_PAGES.may_work() {
            let (address, bytes) = (self.region().address(first), frames as usize * FRAME_BYTES);
            // SAFETY: opened frames of ours; the advice changes no content.
            let advised = unsafe { vm::advise(address, bytes, advice) };
            // Other errors may pass.
            if matches!(advised, Ok(()) | Err(Errno::EINVAL)) {
                let _ = HUGE_PAGES.latch(advised);
            }
        }
    }

    /// The mapping of whole blocks is fresh, and they hold no memory: clears their flags.
    ///
    /// No other allocation has a part of them.
    pub fn note_fresh_blocks(&self, first: Block, count: u32) {
        self.advise_huge(first, count);
        for block in (first.0..first.0 + count).map(Block) {
            // SAFETY: the blocks are opened.
            let before = unsafe { self.region().flags(block) }.swap(0, Ordering::Relaxed);
            if before & flag::SMALL != 0 {
                self.small_blocks.fetch_sub(1, Ordering::Relaxed);
            }
            if before & flag::MOVE != 0 {
                self.moves.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The mapping of a part of a block is fresh: gives it the advice of its block.
    pub fn note_fresh_part(&self, first: Frame, frames: u32) {
        let is_small = self.flags_of(first.block()) & flag::SMALL != 0 || !self.may_be_huge(first);
        let advice = if is_small {
            libc::MADV_NOHUGEPAGE
        } else {
            libc::MADV_HUGEPAGE
        };
        self.advise_frames(first, frames, advice);
    }

    /// The zone that a block belongs to.
    pub fn zone_of(&self, block: Block) -> &ZoneSlot {
        &self.live_zones()[self.zone_number(block)]
    }

    /// The number of a block's zone.
    pub(super) fn zone_number(&self, block: Block) -> usize {
        let last = self.domains.zones() - 1;
        let number = block.0.checked_div(self.zone_part()).unwrap_or(0);
        (number as usize).min(last)
    }

    /// Blocks between its zone's start and a block.
    fn blocks_into_zone(&self, block: Block) -> u32 {
        block.0 - self.zone_part() * self.zone_number(block) as u32
    }

    /// Returns a run. The first `touched` frames of it are dirty, the rest as clean as before.
    pub fn put_run(&self, first: Frame, frames: u32, touched: u32) {
        let mode = self.take_mode();
        let is_clean = touched > 0 && self.close_frames(first, frames);
        let touched = if is_clean { 0 } else { touched };
        let put = self.zone_of(first.block()).with(self.region(), |zone| {
            if touched > 0 {
                zone.put_run(first, touched, true, mode)?;
            }
            if touched < frames {
                zone.put_run(Frame(first.0 + touched), frames - touched, false, mode)?;
            }
            Ok(())
        });
        self.expect_put(put);
    }

    /// Returns a run of at most 64 frames in one hold of its zone's lock. Bit `n` of `dirty` says that frame `n` of
    /// it is dirty.
    pub fn put_cluster(&self, first: Frame, frames: u32, dirty: u64) {
        let mode = self.take_mode();
        let is_clean = dirty != 0 && self.close_frames(first, frames);
        let dirty = if is_clean { 0 } else { dirty };
        let put = self.zone_of(first.block()).with(self.region(), |zone| {
            let mut at = 0;
            while at < frames {
                let is_dirty = dirty >> at & 1 == 1;
                let same = if is_dirty { !dirty } else { dirty } >> at;
                let count = same.trailing_zeros().min(frames - at);
                zone.put_run(Frame(first.0 + at), count, is_dirty, mode)?;
                at += count;
            }
            Ok(())
        });
        self.expect_put(put);
    }

    /// Returns whole pageblocks, the first `dirty` of them dirty.
    pub fn put_blocks(&self, first: Block, blocks: u32, dirty: u32) {
        let is_clean = dirty > 0 && self.close_frames(first.first_frame(), blocks * BLOCK_FRAMES);
        let dirty = if is_clean { 0 } else { dirty };
        let put = self.zone_of(first).with(self.region(), |zone| {
            zone.put_blocks(first, blocks, dirty).map(drop)
        });
        self.expect_put(put);
    }

    /// A refused put means that our own records are wrong: stop before they corrupt memory.
    pub fn expect_put(&self, put: Result<(), PutError>) {
        if let Err(error) = put {
            crate::base::message::Message::new()
                .text("internal error: frames put twice at ")
                .address(self.region().address(error.first))
                .abort();
        }
    }

    /// See [`flag`]. The block is opened.
    pub fn flags_of(&self, block: Block) -> u8 {
        // SAFETY: only called for opened blocks.
        unsafe { self.region().flags(block) }.load(Ordering::Relaxed)
    }

    /// Whether a huge page may lie behind a frame: in the growth range, and not kept from huge pages.
    pub fn may_be_huge(&self, frame: Frame) -> bool {
        self.config.thp
            && HUGE_PAGES.known() == Some(true)
            && self.blocks_into_zone(frame.block()) >= START_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that another thread of the parent opens may have any size, and may have content in frames that the
    /// child takes for clean.
    #[test]
    fn a_child_goes_on_behind_what_others_were_opening() {
        let region = *crate::front::heap().unwrap().region();
        let slot = ZoneSlot::new();
        let first = region.blocks / 64 * 64 - 2048;
        slot.begin(first, region.blocks, 5000);
        slot.opening.store(first + 1000, Ordering::Relaxed);
        slot.give_up(&region);
        let data = slot.lock.lock();
        assert_eq!(data.state.open_end(), Block(first + 1000));
        assert!(data.state.is_frozen(Block(first + 999).first_frame()));
    }
}
