//! Depopulation: the coordinating worker does it, in its rounds; without workers, slow paths do.

use super::areas;
use super::memory::{self, RANGES};
use super::space::{self, Place};
use crate::heap::{ForkLock, Front, Heap, the_heap};
use crate::ranks;
use crate::release::releaser::Releaser;
use crate::sources::{Cached, Hook, Round, Source};
use crate::stats::{self, Stats};
use core::sync::atomic::{AtomicU64, Ordering};
use ebbtide_sys::clock;
use ebbtide_sys::lock::Rank;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::Scope;
use ebbtide_zone::plan::{FLOOR_FRAMES, Left};

/// Milliseconds between rounds: a page that was empty from one to the next goes.
const ROUND_MS: u64 = 250;
/// Empty bytes of a shard that are not worth a thread.
const FLOOR_BYTES: usize = 1 << 20;
/// Milliseconds between calls for a worker.
const CALL_MS: u64 = 10;
/// Chunks that a thread of the program depopulates at once.
const IN_PLACE: usize = 4;

static LAST_ROUND_MS: AtomicU64 = AtomicU64::new(0);
static LAST_CALL_MS: AtomicU64 = AtomicU64::new(0);

impl Heap {
    /// Frees call this when a page became empty: sees to it that somebody looks.
    #[inline]
    pub(super) fn percpu_emptied(&self, stock: u32) {
        if stock as usize * space::units() * FRAME_BYTES > FLOOR_BYTES {
            self.percpu_call();
        }
    }

    #[cold]
    fn percpu_call(&self) {
        let now = clock::now_ms();
        let last = LAST_CALL_MS.load(Ordering::Relaxed);
        if now.wrapping_sub(last) < CALL_MS
            || LAST_CALL_MS
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
            // One that waits for a free does not look at these pages.
            || !self.workers.is_expecting() && self.workers.look_before(now + ROUND_MS)
        {
            return;
        }
        let called = self.max_workers() > 0 && the_heap().workers.call(1);
        if !called && now.wrapping_sub(LAST_ROUND_MS.load(Ordering::Relaxed)) >= ROUND_MS {
            let mut left = IN_PLACE;
            let more = self.depopulate_percpu(self.percpu_scope(), Releaser::Program, || {
                left = left.saturating_sub(1);
                left > 0
            });
            if !more {
                LAST_ROUND_MS.store(now, Ordering::Relaxed);
            }
        }
    }

    /// The coordinator's turn. Frames that another one will find, more than the floor if any: one or two turns
    /// end it. So too shortly after a call: what becomes empty within [`CALL_MS`] of it makes no other.
    fn percpu_round(&self, now: u64, by: Releaser) -> u64 {
        if space::shards() == 0 {
            return 0;
        }
        let scope = self.percpu_scope();
        if self.pressure.is_on(now) {
            self.percpu_release_all(by);
        } else if now.wrapping_sub(LAST_ROUND_MS.load(Ordering::Relaxed)) >= ROUND_MS {
            LAST_ROUND_MS.store(now, Ordering::Relaxed);
            self.depopulate_percpu(scope, by, || true);
        }
        let pages: u64 = (0..space::shards())
            .map(|shard| self.percpu.with(shard, |shard| shard.due_pages(scope)))
            .sum();
        let last_call = LAST_CALL_MS.load(Ordering::Relaxed);
        let is_quiet = now.saturating_sub(last_call) >= 2 * CALL_MS;
        match pages * space::units() as u64 {
            0 if is_quiet => 0,
            frames => frames.max(FLOOR_FRAMES + 1),
        }
    }

    /// Gives every empty page back.
    fn percpu_release_all(&self, by: Releaser) {
        let scope = match self.percpu_scope() {
            Scope::FreeChunks => Scope::FreeChunks,
            _ => Scope::Everything,
        };
        self.depopulate_percpu(scope, by, || true);
    }

    fn percpu_scope(&self) -> Scope {
        if self.settings().config.percpu_depopulate {
            Scope::Due
        } else {
            Scope::FreeChunks
        }
    }

    /// A round through all shards, as long as `go_on` says so. Whether it was cut short.
    fn depopulate_percpu(
        &self,
        scope: Scope,
        by: Releaser,
        mut go_on: impl FnMut() -> bool,
    ) -> bool {
        let runs = (RANGES / (space::units() + 1)).max(1) as u32;
        for shard in 0..space::shards() {
            self.percpu.with(shard, |shard| shard.begin_round(scope));
            while let Some(claimed) = self.percpu.with(shard, |shard| shard.claim(scope, runs)) {
                let place = Place {
                    shard,
                    chunk: claimed.chunk,
                };
                let start = clock::precise_ns();
                // SAFETY: INV-PERCPU-5.
                let released = unsafe { memory::release(place, claimed.pages) };
                let took = clock::precise_ns() - start;
                if by.is_worker() {
                    stats::count_worker(took);
                } else {
                    stats::count_stall(took);
                }
                self.percpu
                    .with(shard, |shard| shard.finish(claimed, released));
                if released == 0 {
                    break;
                }
                let pages = released.count_ones() as usize * space::units();
                stats::count_released(pages * FRAME_BYTES);
                if !go_on() {
                    return true;
                }
            }
        }
        false
    }
}

/// Per-CPU data of the program.
pub struct PerCpuData;

impl Source for PerCpuData {
    fn locks(&self, heap: &Heap, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::PERCPU {
            heap.percpu.locks().for_each(|shard| each(shard));
        }
    }

    fn cached(&self, _heap: &Heap) -> Cached {
        Cached::default()
    }

    fn tend(&self, heap: &Heap, round: &Round, left: &mut Left) {
        left.note(heap.percpu_round(round.now, round.by));
    }

    fn give_all(&self, heap: &Heap, by: Releaser) {
        heap.percpu_release_all(by);
    }

    /// What the parent's threads were giving back is as populated as before, and what one was starting is carried out.
    /// Pages are copied at different moments: a spill unit's word may have been seen with what a thread added, and the
    /// note of its page without.
    unsafe fn child(&self, heap: &Heap) {
        space::finish_start();
        for shard in 0..space::shards() {
            heap.percpu.with(shard, |areas| {
                areas.take_back();
                for chunk in 0..areas.end() {
                    let spill = space::spill(Place { shard, chunk });
                    spill.fetch_or(areas.populated(chunk), Ordering::Relaxed);
                }
            });
        }
    }

    /// The areas so far stay readable, and freeing them does nothing.
    unsafe fn abandon(&self, heap: &Heap) {
        space::finish_start();
        for shard in 0..space::shards() {
            let end = heap.percpu.with(shard, |shard| {
                shard.abandon();
                shard.end()
            });
            // SAFETY: by contract. What this thread has is in chunks that it saw open.
            unsafe { space::empty_behind(shard, end) };
        }
    }
}

impl Hook for PerCpuData {
    fn started(&self, _front: &Front) {}
    fn forked(&self, _front: &Front) {}
    fn look(&self, _heap: &Heap) {}
    fn ends(&self, _heap: &Heap) {}

    fn account(&self, heap: &Heap, stats: &mut Stats) {
        stats.metadata += areas::record_bytes(heap);
        stats.percpu = areas::stats_inside(heap).populated_bytes;
    }
}
