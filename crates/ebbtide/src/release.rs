//! Free frames back to the kernel.
//!
//! Frames are *claimed* first: taken out of the free map, so that nobody is given them meanwhile. A
//! claim stands in [`Claims`] until its frames are put back, so that a forked child, whose parent's
//! threads were at work, can put them back as dirty.
//!
//! Here the work is done in place, on slow paths, in bounded pieces: at a [`Heap::tick`] what the recent
//! peak does not explain any more, and on request or out of memory everything.

use crate::frames::view;
use crate::heap::{Heap, heap};
use crate::stats;
use core::sync::atomic::{AtomicU64, Ordering};
use ebbtide_sys::{clock, vm};
use ebbtide_zone::{BLOCK_BYTES, Block, Claim, FRAME_BYTES, Outcome};

/// Claims on their way at most.
const MAX_CLAIMS: usize = 64;
/// Frames always kept for reuse: 1 MiB.
const FLOOR_FRAMES: u64 = 256;
/// Frames released per zone and tick at most: 16 MiB, about half a millisecond.
const TICK_FRAMES: u64 = 4096;
/// Milliseconds between ticks.
const TICK_MS: u64 = 10;

/// The claims that are out.
pub struct Claims {
    slots: [Option<Claim>; MAX_CLAIMS],
}

impl Claims {
    /// None.
    pub const NEW: Self = Self {
        slots: [None; MAX_CLAIMS],
    };

    fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(Option::is_none)
    }

    /// Takes all claims out: for a forked child.
    pub fn take_all(&mut self) -> [Option<Claim>; MAX_CLAIMS] {
        core::mem::replace(self, Self::NEW).slots
    }
}

/// When the last tick was.
static LAST_TICK_MS: AtomicU64 = AtomicU64::new(0);

impl Heap {
    /// Slow paths call this: gives back what is due, at most once in [`TICK_MS`].
    #[inline]
    pub fn tick(&self) {
        let now = clock::now_ms();
        let last = LAST_TICK_MS.load(Ordering::Relaxed);
        if now.wrapping_sub(last) >= TICK_MS
            && LAST_TICK_MS
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.release_due(now);
        }
    }

    #[cold]
    fn release_due(&self, now: u64) {
        let config = &self.settings().config;
        let cap =
            (config.retain_max != usize::MAX).then_some((config.retain_max / FRAME_BYTES) as u64);
        for zone in 0..self.live_zones().len() {
            let due = {
                let mut data = self.zones[zone].lock.lock();
                let counters = data.state.counters();
                let high = core::mem::replace(&mut data.high, counters.in_use);
                data.retain.observe(now, high.max(counters.in_use));
                data.retain.observe(now, counters.in_use);
                let window = u64::from(config.retain_ms);
                data.retain
                    .due(now, window, counters.in_use, counters.dirty, cap)
            };
            if due > FLOOR_FRAMES {
                self.release_frames(zone, (due - FLOOR_FRAMES).min(TICK_FRAMES));
            }
        }
        stats::refresh(self, now);
    }

    /// Releases up to about `frames` dirty frames of a zone. Bytes given back.
    fn release_frames(&self, zone: usize, frames: u64) -> usize {
        let mut released = 0;
        while released < frames {
            let left = (frames - released).min(u64::from(u32::MAX)) as u32;
            let Some((slot, claim)) = self.claim(zone, left) else {
                break;
            };
            let done = self.release_claim(&claim);
            let outcome = if done { Outcome::Clean } else { Outcome::Dirty };
            self.unclaim(zone, slot, claim, outcome);
            if !done {
                break;
            }
            released += u64::from(claim.frames());
        }
        released as usize * FRAME_BYTES
    }

    fn claim(&self, zone: usize, frames: u32) -> Option<(usize, Claim)> {
        let mut data = self.zones[zone].lock.lock();
        let mut claims = self.claims.lock();
        let slot = claims.free_slot()?;
        let claim = view(self.region(), &mut data.state, 0).claim_dirty(frames, true)?;
        claims.slots[slot] = Some(claim);
        Some((slot, claim))
    }

    fn unclaim(&self, zone: usize, slot: usize, claim: Claim, outcome: Outcome) {
        let mut data = self.zones[zone].lock.lock();
        let put = view(self.region(), &mut data.state, 0).put_claim(claim, outcome);
        self.claims.lock().slots[slot] = None;
        drop(data);
        self.expect_put(put.map(drop));
    }

    /// Puts back as dirty what the parent's threads had claimed.
    pub fn put_back_claims(&self) {
        let claims = self.claims.lock().take_all();
        for claim in claims.into_iter().flatten() {
            let zone = self.zone_of(claim.block());
            let put = zone.with(self.region(), |zone| zone.put_claim(claim, Outcome::Dirty));
            self.expect_put(put.map(drop));
        }
    }

    fn release_claim(&self, claim: &Claim) -> bool {
        match *claim {
            Claim::Blocks { first, count } => self.release_blocks(first, count),
            Claim::Frames { .. } => claim.runs().fold(true, |all, (first, frames)| {
                let address = self.region().address(first);
                // SAFETY: claimed frames: free, and nobody is given them now.
                all & unsafe { release_range(address, frames as usize * FRAME_BYTES) }
            }),
        }
    }

    fn release_blocks(&self, first: Block, count: u32) -> bool {
        let address = self.region().address(first.first_frame());
        // SAFETY: claimed blocks: free, and nobody is given them now.
        let done = unsafe { release_range(address, count as usize * BLOCK_BYTES) };
        for block in first.0..first.0 + count {
            // SAFETY: claimed blocks are opened.
            let moved = unsafe { self.region().moved(Block(block)) };
            if done && moved.load(Ordering::Relaxed) != 0 {
                let address = self.region().address(Block(block).first_frame());
                // SAFETY: as above; it has just been emptied.
                if unsafe { vm::remap_fresh(address, BLOCK_BYTES) }.is_ok() {
                    moved.store(0, Ordering::Relaxed);
                    self.advise_again(Block(block));
                }
            }
        }
        done
    }
}

/// Drains all caches and gives everything free back. Bytes given back.
pub fn release_everything(heap: &Heap) -> usize {
    crate::fork::notice(heap);
    heap.drain_all();
    (0..heap.live_zones().len())
        .map(|zone| heap.release_frames(zone, u64::MAX))
        .sum()
}

/// Gives all free memory of the process back to the kernel, from the caches of all CPUs too. Returns
/// the bytes given back; 0 when nothing was free. Blocks for as long as that takes: about 0.1 µs a
/// page. Any thread may call it at any time.
pub fn release_all() -> usize {
    heap().map_or(0, release_everything)
}

/// Releases a range and counts it. `false`: refused.
///
/// # Safety
/// Frames that nobody else is given now, and whose content nobody needs.
pub unsafe fn release_range(address: usize, bytes: usize) -> bool {
    // SAFETY: by contract.
    let done = unsafe { vm::release(address, bytes) }.is_ok();
    if done {
        stats::count_released(bytes);
    }
    done
}
