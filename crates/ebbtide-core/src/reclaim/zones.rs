//! Claims free frames of the zones into gathers: in pieces for several threads, or step by step.

use super::gather::Gather;
use super::gather::batches::BATCHES;
use super::lazy::{Take, add};
use super::owned::release_owned;
use super::slots::Owned;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::source::{Round, Source};
use crate::base::stats::{self, word};
use crate::pages::frames::view;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_sys::lock::Rank;
use ebbtide_sys::{process, vm};
use ebbtide_zone::plan::Remaining;
use ebbtide_zone::{BLOCK_FRAMES, Claim, Counters, FRAME_BYTES, Frame};

/// Least frames of a piece for one worker: 32 MiB.
const PIECE_FRAMES: u64 = 8192;
/// A piece is also at least this part of the whole: each call interrupts the CPUs of the other threads.
const MOST_LEAST_PIECES: u64 = 32;

impl Heap {
    /// Frames opened so far: in use, kept, or released.
    pub fn open_frames(&self) -> u64 {
        self.sum(|counters| (counters.open, 0)).0
    }

    /// Free frames that hold memory, including spare runs, less pinned and unsplit frames.
    pub(super) fn kept_frames(&self) -> u64 {
        let (dirty, lazy) = self.sum(|counters| (counters.loose_dirty(), counters.loose_lazy()));
        (dirty + lazy + self.spares.frames()).saturating_sub(self.unsplit.frames() as u64)
    }

    /// Releases up to `frames` due frames in this thread.
    pub(super) fn release_due(&self, frames: u64, by: Releaser) {
        // Lazy frames are rarely worth it for such a small amount. But without a window, this is the only release.
        let lazy_first = self.keeps_nothing() && self.may_go_lazy();
        self.release_in_place(frames, Take::Due { lazy_first }, by);
    }

    /// Releases up to `frames` in this thread. Returns how many were claimed for the release.
    pub(super) fn release_in_place(&self, frames: u64, take: Take, by: Releaser) -> u64 {
        let mut left = frames;
        for zone in 0..self.live_zones().len() {
            if left == 0 || super::owned::holds_back(self, by) {
                break;
            }
            let Some(mut owned) = self.slots.take(by.owner()) else {
                break;
            };
            left -= self.gather_zone(zone, owned.gather(), left, take).min(left);
            self.count_taken(owned.gather(), take, by);
            release_owned(self, owned, by);
        }
        frames - left
    }

    /// Releases at most `frames`, in this thread and as many workers as allowed. `dirty` of the frames are worth
    /// sharing out.
    ///
    /// Each piece is half of a fair share of the remaining frames: few calls, and all threads end together.
    pub(super) fn release_zones(&self, frames: u64, dirty: u64, take: Take, by: Releaser) {
        let helpers = match by {
            Releaser::Explicit | Releaser::SlowPath => self.max_workers(),
            Releaser::Tick => 0,
            Releaser::Worker { .. } => self.max_workers().saturating_sub(1),
        };
        let helpers = helpers.min(self.most_releasers() - 1);
        let block = u64::from(BLOCK_FRAMES);
        let least = (dirty / MOST_LEAST_PIECES).max(PIECE_FRAMES);
        // Whole blocks: no huge page is split at the border between two pieces.
        let most = (u64::from(self.config.threshold) / block).max(1) * block;
        let (mut left, mut to_share) = (frames, dirty);
        for zone in 0..self.live_zones().len() {
            while left > 0 {
                let Some(mut owned) = self.slots.take(by.owner()) else {
                    return;
                };
                let half_share = to_share / (2 * (helpers as u64 + 1));
                let piece = half_share.max(least).next_multiple_of(block).min(most);
                let claimed = self.gather_zone(zone, owned.gather(), left.min(piece), take);
                if claimed == 0 {
                    break;
                }
                self.count_taken(owned.gather(), take, by);
                left -= claimed.min(left);
                to_share -= claimed.min(to_share);
                if left > 0 && self.slots.queued() < helpers {
                    match self.share(owned, helpers, by) {
                        Ok(()) => continue,
                        Err(back) => owned = back,
                    }
                }
                release_owned(self, owned, by);
            }
        }
    }

    /// Counts what the kernel has taken of lazy frames. That is a system call for each pageblock, so only workers ask.
    fn count_taken(&self, gather: &mut Gather, take: Take, by: Releaser) {
        if take != Take::Lazy || !by.is_worker() || self.config.basic_syscalls {
            return;
        }
        gather.for_each(|range| {
            let bytes = range.frames() as usize * FRAME_BYTES;
            let address = self.region().address(Frame(range.first));
            if let Some(resident) = vm::resident_bytes(address, bytes) {
                stats::count(word!(lazy_taken_bytes), (bytes - resident) as u64);
            }
        });
    }

    /// Hands a piece to the `helpers` workers. `Err`: there is no worker.
    fn share<'a>(
        &'a self,
        owned: Owned<'a>,
        helpers: usize,
        by: Releaser,
    ) -> Result<(), Owned<'a>> {
        let here = process::current_cpu_raw();
        self.workers.avoid_cpu.store(here, Ordering::Relaxed);
        let wanted = self.slots.queued() + 1 + usize::from(by.is_worker());
        self.slots.hand_over(owned)?;
        // A busy worker takes the piece next: its current piece began before this one, and is larger than the piece
        // that the caller releases now.
        if self.workers.busy() >= helpers || self.call_workers(wanted.min(self.max_workers())) {
            return Ok(());
        }
        self.slots.take_queued(true, by.owner()).map_or(Ok(()), Err)
    }

    /// Claims up to about `frames` frames of a zone. Returns their number.
    fn gather_zone(&self, zone: usize, gather: &mut Gather, frames: u64, take: Take) -> u64 {
        let before = gather.frames();
        let mut room = match take {
            Take::Due { lazy_first: true } => self.lazy_room(zone),
            _ => 0,
        };
        while gather.frames() - before < frames && gather.reserve() {
            let left = (frames - (gather.frames() - before)).min(u64::from(u32::MAX)) as u32;
            let claim = {
                let mut data = self.zones[zone].lock.lock();
                let claim = take.claim(self.region(), &mut data, left);
                let to_lazy = room > 0 && claim.is_some_and(|claim| self.can_be_lazy(&claim));
                add(gather, claim, to_lazy);
                if to_lazy {
                    room = room.saturating_sub(claim.map_or(0, |claim| claim.frames().into()));
                }
                claim
            };
            let Some(claim) = claim else { break };
            if let Claim::Frames { block, .. } = claim
                && !self.can_be_lazy(&claim)
                && gather.reserve()
            {
                // All of a huge page is resident, touched or not.
                let mut data = self.zones[zone].lock.lock();
                let rest = view(self.region(), &mut data.state, 0).claim_free(block);
                add(gather, rest, false);
            }
        }
        gather.frames() - before
    }
}

/// The zones, and the batches that store claims.
pub struct Zones;

impl Source<Heap> for Zones {
    fn locks(&self, heap: &Heap, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            ranks::ZONE => heap.live_zones().iter().for_each(|zone| each(&zone.lock)),
            ranks::BATCHES => each(&BATCHES),
            _ => {}
        }
    }

    /// The round has released the due frames before it came to the other sources.
    fn give_due(&self, heap: &Heap, round: &Round, left: &mut Remaining) {
        let backlog = heap.backlog(round.now, &heap.bounds(round.now));
        left.dirty += backlog.dirty;
        left.lazy = backlog.lazy;
        left.unsplit = heap.unsplit.all() as u64;
        left.unsplit_retry_ms = heap.unsplit.next_retry_ms();
    }

    fn give_all(&self, heap: &Heap, by: Releaser) {
        // Blocks are claimed with their clean frames. So the number of all free frames is the bound.
        let held = |counters: Counters| counters.loose_dirty() + counters.loose_lazy();
        let (free, held) = heap.sum(|counters| (counters.free, held(counters)));
        heap.release_zones(free, held, Take::All, by);
        heap.join(by);
    }

    unsafe fn child(&self, heap: &Heap) {
        heap.clear_unsplit();
    }

    unsafe fn abandon(&self, heap: &Heap) {
        BATCHES.lock().forget();
        for zone in heap.live_zones() {
            zone.give_up(heap.region());
        }
    }
}

#[cfg(test)]
mod tests;
