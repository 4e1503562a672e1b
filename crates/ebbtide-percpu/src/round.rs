//! Depopulation of per-CPU data: the coordinating worker does it in its rounds. Without workers, slow paths do it.

use crate::areas;
use crate::memory::{self, RANGES};
use crate::space::{self, PerCpuData, Place};
use core::sync::atomic::Ordering;
use ebbtide_core::base::ranks::{self, ForkLock};
use ebbtide_core::base::releaser::Releaser;
use ebbtide_core::base::source::{Round, Source};
use ebbtide_core::base::stats::{self, Figures};
use ebbtide_core::reclaim::Heap;
use ebbtide_core::reclaim::sources::Hook;
use ebbtide_sys::clock;
use ebbtide_sys::lock::Rank;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::Scope;
use ebbtide_zone::plan::{FLOOR_FRAMES, Remaining};

/// Milliseconds between rounds: a page that was empty from one round to the next is released.
const ROUND_MS: u64 = 250;
/// Fewer empty bytes of a shard than this are not worth a thread.
const FLOOR_BYTES: usize = 1 << 20;
/// Milliseconds between calls for a worker.
const CALL_MS: u64 = 10;
/// Chunks that a thread of the program depopulates at once.
const IN_PLACE: usize = 4;

impl PerCpuData {
    /// Called by a free when a page became empty: ensures that a thread depopulates, if the shard's stock is worth
    /// it.
    pub(crate) fn emptied(&self, heap: &Heap, stock: u32) {
        if stock as usize * space::units() * FRAME_BYTES <= FLOOR_BYTES {
            return;
        }
        let now = clock::now_ms();
        let (call, order) = (&self.last_call_ms, Ordering::Relaxed);
        let last = call.load(order);
        if now.wrapping_sub(last) < CALL_MS
            || call.compare_exchange(last, now, order, order).is_err()
            // A worker made in advance does not scan these pages.
            || !heap.workers.is_expecting() && heap.workers.look_before(now + ROUND_MS)
        {
            return;
        }
        let called = heap.max_workers() > 0 && heap.call_workers(1);
        if !called
            && self.is_due(now)
            && self.depopulate(heap, Scope::Due, Releaser::SlowPath, IN_PLACE)
        {
            self.last_round_ms.store(now, Ordering::Relaxed);
        }
    }

    fn is_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.last_round_ms.load(Ordering::Relaxed)) >= ROUND_MS
    }

    /// One round through all shards, until `most` chunks have released pages. `false`: the round was cut short.
    fn depopulate(&self, heap: &Heap, scope: Scope, by: Releaser, mut most: usize) -> bool {
        let scope = allowed(heap, scope);
        let runs = (RANGES / (space::units() + 1)).max(1) as u32;
        for shard in 0..space::shards() {
            self.with(heap, shard, |shard| shard.begin_round(scope));
            while let Some(claimed) = self.with(heap, shard, |shard| shard.claim(scope, runs)) {
                let chunk = claimed.chunk;
                let start = clock::precise_ns();
                // SAFETY: INV-PERCPU-5.
                let released = unsafe { memory::release(Place { shard, chunk }, claimed.pages) };
                by.count(clock::precise_ns() - start);
                self.with(heap, shard, |shard| shard.finish(claimed, released));
                if released == 0 {
                    break;
                }
                let pages = released.count_ones() as usize * space::units();
                stats::count_released(pages * FRAME_BYTES);
                most -= 1;
                if most == 0 {
                    return false;
                }
            }
        }
        true
    }
}

/// The part of `scope` that the configuration allows.
fn allowed(heap: &Heap, scope: Scope) -> Scope {
    if heap.config.percpu_depopulate {
        scope
    } else {
        Scope::FreeChunks
    }
}

impl Source<Heap> for PerCpuData {
    fn locks(&self, _heap: &Heap, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::PERCPU {
            self.locks().for_each(|shard| each(shard));
        }
    }

    /// Notes the frames that another round will find, more than the floor if any: one or two rounds then release
    /// them. This also covers pages that become empty within [`CALL_MS`] of a call, which make no other call.
    fn give_due(&self, heap: &Heap, round: &Round, left: &mut Remaining) {
        let now = round.now;
        if heap.allowance.is_short(now) {
            self.give_all(heap, round.by);
        } else if self.is_due(now) {
            self.last_round_ms.store(now, Ordering::Relaxed);
            self.depopulate(heap, Scope::Due, round.by, usize::MAX);
        }
        let scope = allowed(heap, Scope::Due);
        let pages: u64 = (0..space::shards())
            .map(|shard| self.with(heap, shard, |shard| shard.due_pages(scope)))
            .sum();
        let last_call = self.last_call_ms.load(Ordering::Relaxed);
        let is_quiet = now.saturating_sub(last_call) >= 2 * CALL_MS;
        left.note(match pages * space::units() as u64 {
            0 if is_quiet => 0,
            frames => frames.max(FLOOR_FRAMES + 1),
        });
    }

    fn give_all(&self, heap: &Heap, by: Releaser) {
        self.depopulate(heap, Scope::Everything, by, usize::MAX);
    }

    /// Pages that the parent's threads were releasing count as populated again. A start that a thread had begun is
    /// completed. Pages are copied at different moments: a word of a spill unit may have been copied with an
    /// addition, and the mark of its page without it.
    unsafe fn child(&self, heap: &Heap) {
        space::finish_start();
        for shard in 0..space::shards() {
            self.with(heap, shard, |areas| {
                areas.take_back();
                for chunk in 0..areas.end() {
                    let spill = space::spill(Place { shard, chunk });
                    spill.fetch_or(areas.populated(chunk), Ordering::Relaxed);
                }
            });
        }
    }

    /// The old areas stay readable, and freeing them does nothing.
    unsafe fn abandon(&self, heap: &Heap) {
        space::finish_start();
        for shard in 0..space::shards() {
            let end = self.with(heap, shard, |shard| shard.abandon());
            // SAFETY: by contract. This thread's areas are in chunks that it saw open.
            unsafe { space::empty_behind(shard, end) };
        }
    }
}

impl Hook for PerCpuData {
    fn add_figures(&self, heap: &Heap, figures: &mut Figures) {
        let (own, record_bytes) = areas::stats_inside(heap);
        figures.metadata_bytes += record_bytes as u64;
        figures.percpu_bytes = own.populated_bytes as u64;
        figures.percpu_sidelined_chunks = own.sidelined_chunks as u64;
        figures.percpu_depopulated_bytes = own.depopulated_bytes as u64;
    }
}
