//! Depopulation: the coordinating worker does it, in its rounds; without workers, slow paths do.

use crate::areas;
use crate::memory::{self, RANGES};
use crate::space::{self, PERCPU, PerCpuData, Place};
use core::sync::atomic::Ordering;
use ebbtide_core::base::ranks;
use ebbtide_core::base::ranks::ForkLock;
use ebbtide_core::base::releaser::Releaser;
use ebbtide_core::base::source::{Round, Source};
use ebbtide_core::base::stats::{self, Stats};
use ebbtide_core::reclaim::Heap;
use ebbtide_core::reclaim::sources::Hook;
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

/// Frees call this when a page became empty: sees to it that somebody looks.
#[inline]
pub fn emptied(heap: &Heap, stock: u32) {
    if stock as usize * space::units() * FRAME_BYTES > FLOOR_BYTES {
        call(heap);
    }
}

#[cold]
fn call(heap: &Heap) {
    let now = clock::now_ms();
    let last = PERCPU.last_call_ms.load(Ordering::Relaxed);
    if now.wrapping_sub(last) < CALL_MS
        || PERCPU.last_call_ms
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        // One that waits for a free does not look at these pages.
        || !heap.workers.is_expecting() && heap.workers.look_before(now + ROUND_MS)
    {
        return;
    }
    let called = heap.max_workers() > 0 && heap.call_workers(1);
    if !called && now.wrapping_sub(PERCPU.last_round_ms.load(Ordering::Relaxed)) >= ROUND_MS {
        let mut left = IN_PLACE;
        let more = depopulate(heap, scope(heap), Releaser::Program, || {
            left = left.saturating_sub(1);
            left > 0
        });
        if !more {
            PERCPU.last_round_ms.store(now, Ordering::Relaxed);
        }
    }
}

/// The coordinator's turn. Frames that another one will find, more than the floor if any: one or two turns
/// end it. So too shortly after a call: what becomes empty within [`CALL_MS`] of it makes no other.
fn turn(heap: &Heap, now: u64, by: Releaser) -> u64 {
    if space::shards() == 0 {
        return 0;
    }
    let scope = scope(heap);
    if heap.allowance.is_short(now) {
        release_all(heap, by);
    } else if now.wrapping_sub(PERCPU.last_round_ms.load(Ordering::Relaxed)) >= ROUND_MS {
        PERCPU.last_round_ms.store(now, Ordering::Relaxed);
        depopulate(heap, scope, by, || true);
    }
    let pages: u64 = (0..space::shards())
        .map(|shard| PERCPU.with(heap, shard, |shard| shard.due_pages(scope)))
        .sum();
    let last_call = PERCPU.last_call_ms.load(Ordering::Relaxed);
    let is_quiet = now.saturating_sub(last_call) >= 2 * CALL_MS;
    match pages * space::units() as u64 {
        0 if is_quiet => 0,
        frames => frames.max(FLOOR_FRAMES + 1),
    }
}

/// Gives every empty page back.
fn release_all(heap: &Heap, by: Releaser) {
    let scope = match scope(heap) {
        Scope::FreeChunks => Scope::FreeChunks,
        _ => Scope::Everything,
    };
    depopulate(heap, scope, by, || true);
}

fn scope(heap: &Heap) -> Scope {
    if heap.config.percpu_depopulate {
        Scope::Due
    } else {
        Scope::FreeChunks
    }
}

/// A round through all shards, as long as `go_on` says so. Whether it was cut short.
fn depopulate(heap: &Heap, scope: Scope, by: Releaser, mut go_on: impl FnMut() -> bool) -> bool {
    let runs = (RANGES / (space::units() + 1)).max(1) as u32;
    for shard in 0..space::shards() {
        PERCPU.with(heap, shard, |shard| shard.begin_round(scope));
        while let Some(claimed) = PERCPU.with(heap, shard, |shard| shard.claim(scope, runs)) {
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
            PERCPU.with(heap, shard, |shard| shard.finish(claimed, released));
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

impl Source for PerCpuData {
    type Room = Heap;

    fn locks(&self, _heap: &Heap, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::PERCPU {
            PERCPU.locks().for_each(|shard| each(shard));
        }
    }

    fn tend(&self, heap: &Heap, round: &Round, left: &mut Left) {
        left.note(turn(heap, round.now, round.by));
    }

    fn give_all(&self, heap: &Heap, by: Releaser) {
        release_all(heap, by);
    }

    /// What the parent's threads were giving back is as populated as before, and what one was starting is carried out.
    /// Pages are copied at different moments: a spill unit's word may have been seen with what a thread added, and the
    /// note of its page without.
    unsafe fn child(&self, heap: &Heap) {
        space::finish_start();
        for shard in 0..space::shards() {
            PERCPU.with(heap, shard, |areas| {
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
            let end = PERCPU.with(heap, shard, |shard| {
                shard.abandon();
                shard.end()
            });
            // SAFETY: by contract. What this thread has is in chunks that it saw open.
            unsafe { space::empty_behind(shard, end) };
        }
    }
}

impl Hook for PerCpuData {
    fn account(&self, heap: &Heap, stats: &mut Stats) {
        stats.metadata += areas::record_bytes(heap);
        stats.percpu = areas::stats_inside(heap).populated_bytes;
    }
}
