//! The release engine: decides which free memory is released to the kernel, when, and by which thread.
//!
//! | due | calm | past the backlog cap | memory is short ([`pressure`](super::pressure)) |
//! |---|---|---|---|
//! | up to 1 MiB ([`FLOOR_FRAMES`](plan::FLOOR_FRAMES)) | kept | kept | in place on the next slow path |
//! | to 8 MiB ([`IN_PLACE_FRAMES`]) | in place on a slow path, 1 MiB a call | the same | the same |
//! | above | a worker, after the window; the program does nothing | the freeing thread takes pieces | workers at once, and the freeing thread takes pieces |
//!
//! *Due* is the free memory that the recent peak does not explain ([`ebbtide_zone::retain`]), and all of it while memory
//! is short. It consists of free frames of the zones and of empty frames of half-used spans. If huge pages must be split
//! for a release, threads of the program leave it to a worker ([`kernel`](super::kernel)).
//!
//! Frames are *claimed* first, under their zone's or class's lock, into a [`gather`](super::gather). No lock is held while
//! the kernel works. Then the frames are put back, clean.

use super::lazy::Take;
#[cfg(feature = "plan-log")]
use super::log;
use super::pacing::is_time;
use super::workers;
use crate::base::config::AUTO;
use crate::base::releaser::Releaser;
use crate::base::source::{Outside, Round};
use crate::base::stats;
use crate::reclaim::{Heap, the_heap};
use core::sync::atomic::Ordering;
use ebbtide_sys::features::WORKERS;
use ebbtide_sys::thread::Affinity;
use ebbtide_sys::{clock, process};
use ebbtide_zone::plan::{
    self, Actors, Backlog, Bounds, IN_PLACE_FRAMES, Next, Pace, Remaining, RequestPlan, Tick,
    TickPlan, Wake,
};
use ebbtide_zone::{BLOCK_FRAMES, Counters, FRAME_BYTES};

/// A growth step of this many blocks (64 MiB) makes a worker in advance.
const EXPECT_BLOCKS: u32 = 32;
/// Milliseconds between checks of the free memory, if pressure is not watched.
const ROOM_MS: u64 = 1000;
/// A window of the caches lasts as long as free memory is kept, and at least this long.
const LEAST_WINDOW_MS: u64 = 100;

impl Heap {
    /// Slow paths call this to have due memory released. It acts at most once in [`TICK_MS`](plan::TICK_MS), or
    /// when much has been freed since: no further call of the program may follow.
    #[inline]
    pub fn tick(&self) {
        let now = clock::now_ms();
        let tick_ms = &self.pacing.tick_ms;
        let last = tick_ms.load(Ordering::Relaxed);
        let freed = self.freed.load(Ordering::Relaxed);
        if plan::tick_is_due(now, last, freed, self.keeps_nothing())
            && tick_ms
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.tick_now(now);
        }
        if self.grown.load(Ordering::Relaxed) > 0 {
            self.look_after_growth();
        }
        if self.allowance.is_over_budget() {
            self.pay_for_growth(now);
        }
    }

    #[cold]
    fn tick_now(&self, now: u64) {
        let mut bounds = self.bounds(now);
        let tick = Tick {
            now_ms: now,
            asked_ms: self.pacing.asked_ms.load(Ordering::Relaxed),
            freed_bytes: self.freed.swap(0, Ordering::Relaxed),
            backlog: self.backlog(now, &bounds),
        };
        let mut outside = Outside::default();
        if tick.asks_outside() {
            self.pacing.asked_ms.store(now, Ordering::Relaxed);
            self.keep_owners_limit(Releaser::SlowPath);
            outside = self.ask_sources(now);
            if bounds.is_limited {
                // The part of the user's limit that is left for the zones may have changed.
                bounds = self.bounds(now);
            }
        }
        self.freed_since(tick.freed_bytes);
        self.refresh_page(now);
        self.look_for_request(now, Releaser::SlowPath);
        self.notify_growth();
        let Outside { spare, waiting } = outside;
        if cfg!(feature = "plan-log") || !tick.is_quiet(spare, waiting, &bounds) {
            self.give_on_tick(&tick, outside, &bounds);
        }
        if tick.asks_outside()
            && self.max_workers() > 0
            && self.workers.count() == 0
            && self.quarantines_much()
        {
            // If the program stops now, nothing else finds the quarantine idle.
            self.wake(Wake::Call);
        }
        stats::publish_released(&self.config);
    }

    /// Memory that all sources keep outside the zones. The sources also pass on what was not used lately.
    fn ask_sources(&self, now: u64) -> Outside {
        let mut outside = Outside::default();
        let sources = self.parts().sources();
        sources.for_each(|source| source.tick(self, now, &mut outside));
        outside
    }

    fn give_on_tick(&self, tick: &Tick, outside: Outside, bounds: &Bounds) {
        let actors = self.actors();
        let plan = tick.decide(outside.spare, outside.waiting, bounds, &actors);
        let called = matches!(plan, TickPlan::Much { wake, .. } if self.wake(wake));
        #[cfg(feature = "plan-log")]
        log::line(
            "t",
            (tick, tick.asks_outside(), outside, bounds),
            (&actors, &plan, called),
        );
        match plan {
            TickPlan::Nothing => {}
            TickPlan::Little {
                frames,
                may_make_worker: true,
            } => self.release_due(frames, Releaser::SlowPath),
            TickPlan::Little { frames, .. } => self.release_due(frames, Releaser::Tick),
            TickPlan::Much { beside, .. } if called => self.release_due(beside, Releaser::SlowPath),
            TickPlan::Much {
                alone, alone_lazy, ..
            } => {
                let now = tick.now_ms;
                self.retry_unsplit(now);
                self.ask_sources(now);
                self.release_due(alone, Releaser::SlowPath);
                self.release_in_place(alone_lazy, Take::Lazy, Releaser::SlowPath);
                self.depopulate_some(now);
            }
        }
    }

    /// Wakes a worker, or makes one. `false`: there is no worker, so the caller must do the work.
    fn wake(&self, wake: Wake) -> bool {
        let called = match wake {
            Wake::Never => false,
            Wake::NotNeeded => true,
            Wake::Call => self.call_workers(1),
        };
        if called && self.config.pressure {
            self.pressure.expect_sample(&self.allowance);
        }
        called
    }

    /// Ensures that `wanted` workers exist, and wakes the sleeping ones. `false`: there is none.
    pub fn call_workers(&self, wanted: usize) -> bool {
        heap_workers().call(wanted)
    }

    /// The threads that may act on a tick.
    fn actors(&self) -> Actors {
        let config = &self.config;
        Actors {
            workers: plan::Workers {
                count: self.workers.count() as u64,
                most: self.max_workers() as u64,
                can_be_made: WORKERS.may_work(),
                next_ms: self.workers.next_ms.load(Ordering::SeqCst),
                are_watching: self.pressure.is_watched() || !config.pressure,
            },
            has_forked: self.forked.load(Ordering::Relaxed),
            has_huge_pages: config.thp,
        }
    }

    /// How much free memory may stay.
    pub(super) fn bounds(&self, now: u64) -> Bounds {
        Bounds {
            window_ms: self.control.retain_ms().into(),
            is_short: self.allowance.is_short(now),
            is_limited: self.allowance.limit().is_some(),
            cap_frames: self.room_frames(now).min(self.allowance.dirty_limit()),
        }
    }

    /// Chooses the releaser of a request to release everything.
    fn releaser_of_everything<'a>(&self, by: Releaser<'a>) -> Releaser<'a> {
        if by.is_worker() {
            return by;
        }
        let (kept, _) = self.sum(|counters| (counters.loose_dirty() + counters.loose_lazy(), 0));
        match plan::request(kept, self.waiting_frames(), &self.actors()) {
            RequestPlan::InPlace => Releaser::Tick,
            RequestPlan::WithWorkers => by,
        }
    }

    /// Whether free memory is released at once (`retain_ms=0`).
    pub(super) fn keeps_nothing(&self) -> bool {
        self.control.retain_ms() == 0
    }

    /// Reads the backlog of the zones, and updates their demand.
    pub(super) fn backlog(&self, now: u64, bounds: &Bounds) -> Backlog {
        let own_cap = (self.config.retain_max / FRAME_BYTES) as u64;
        let zones = self.live_zones().len() as u64;
        let room = bounds.cap_frames / zones;
        let cap = room.min(own_cap / zones);
        let mut backlog = Backlog::default();
        let mut in_parts = 0;
        for zone in self.live_zones() {
            let mut data = zone.lock.lock();
            let counters = data.state.counters();
            data.retain.observe(now, counters.in_use);
            let taken = core::mem::take(&mut data.taken);
            data.refaults.observe(now, taken);
            backlog.lazy += counters.loose_lazy();
            let (dirty, loose) = (counters.dirty, counters.loose_dirty());
            // Dirty frames come first in the headroom; lazy frames get the rest.
            let lazy_cap = room.saturating_sub(dirty);
            backlog.lazy_due += Self::lazy_due(&mut data, now, &counters, lazy_cap);
            backlog.dirty += loose;
            let in_whole = u64::from(counters.resident_free_blocks) * u64::from(BLOCK_FRAMES);
            in_parts += loose.saturating_sub(in_whole);
            let due = data
                .retain
                .due(now, bounds.window_ms, counters.in_use, dirty, Some(cap));
            // Pinned frames stay, and serve requests like the others that are kept.
            backlog.due += due.min(loose);
        }
        // Unsplit frames cannot be released for now. They lie in partial blocks.
        let held = (self.unsplit.frames() as u64).min(in_parts);
        backlog.dirty -= held;
        backlog.due = backlog.due.min(backlog.dirty);
        backlog
    }

    /// Free frames that may be kept, by the free memory of the machine and the cgroup.
    pub(super) fn room_frames(&self, now: u64) -> u64 {
        if self.allowance.is_short(now) {
            return 0;
        }
        self.allowance.room_frames()
    }

    /// Whether much more is kept than the headroom allows: other processes have grown, or much was freed. While
    /// memory is short, rounds come when they are due.
    pub fn keeps_too_much(&self, now: u64) -> bool {
        let most = self.room_frames(now).saturating_add(IN_PLACE_FRAMES);
        let (in_spans, _) = self.excess_in_spans(now);
        let much =
            self.kept_frames() > most || in_spans as u64 / FRAME_BYTES as u64 > IN_PLACE_FRAMES;
        much && !self.allowance.is_short(now)
    }

    /// Whether more is kept than slow paths release.
    pub fn keeps_much(&self) -> bool {
        self.kept_frames() > IN_PLACE_FRAMES || self.waiting_frames() > IN_PLACE_FRAMES
    }

    /// Two sums over the zones.
    pub(super) fn sum(&self, of: impl Fn(Counters) -> (u64, u64)) -> (u64, u64) {
        let all = self.live_zones().iter().map(|zone| of(zone.counters()));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Called after the heap has grown: calls the hooks. After a step of [`EXPECT_BLOCKS`] or more it makes a
    /// worker, because that memory will be freed some day.
    #[cold]
    fn look_after_growth(&self) {
        let step = self.grown.swap(0, Ordering::Relaxed);
        self.notify_growth();
        if step >= EXPECT_BLOCKS && self.max_workers() > 0 {
            heap_workers().expect();
        }
    }

    /// Most workers.
    pub fn max_workers(&self) -> usize {
        match self.config.workers {
            AUTO => (self.most_releasers() / 2).clamp(1, 4),
            workers => workers,
        }
    }

    /// Most threads that release at the same time, including the calling one: one for each CPU.
    pub(super) fn most_releasers(&self) -> usize {
        self.cpus.load(Ordering::Relaxed)
    }

    /// Reads how many CPUs the process has now: the main thread's or this worker's, whichever are more. The thread
    /// that made the worker may be bound to few CPUs, and the main thread may be, too.
    fn update_cpu_count(&self) {
        if self.most_releasers() == usize::MAX {
            return;
        }
        let of = |thread| Affinity::of(thread).count();
        let cpus = of(process::id()).max(of(0));
        if cpus > 0 {
            self.cpus.store(cpus, Ordering::Relaxed);
        }
    }

    /// Drains all caches and releases all free memory. Returns the bytes released.
    pub fn release_everything(&self, by: Releaser) -> usize {
        let before = stats::released();
        self.drain_all(by);
        let by = self.releaser_of_everything(by);
        for source in self.parts().holders {
            source.give_all(self, by);
        }
        stats::publish_released(&self.config);
        stats::released() - before
    }

    /// One round of the coordinator: releases due memory. Returns for what to wait next.
    pub fn round(&self, now: u64, by: Releaser) -> Next {
        self.update_cpu_count();
        if !self.config.pressure && is_time(&self.pacing.room_ms, now, ROOM_MS) {
            self.sample_limits();
        }
        self.retry_unsplit(now);
        self.keep_owners_limit(by);
        let bounds = self.bounds(now);
        let backlog = self.backlog(now, &bounds);
        let may_be_lazy = by.is_worker() && backlog.due > 0 && self.may_go_lazy();
        let plan = plan::round(&backlog, &bounds, may_be_lazy);
        let lazy_first = plan.lazy_first;
        self.release_zones(plan.due, backlog.due, Take::Due { lazy_first }, by);
        self.release_zones(plan.lazy, plan.lazy, Take::Lazy, by);
        let window = bounds.window_ms.max(LEAST_WINDOW_MS);
        let mut left = Remaining {
            is_expecting: self.workers.is_expecting(),
            ..Remaining::default()
        };
        let round = Round {
            now,
            ends_window: is_time(&self.pacing.window_ms, now, window),
            by,
        };
        for source in self.parts().sources() {
            source.give_due(self, &round, &mut left);
        }
        // The program continued meanwhile.
        left.quarantined_bytes = self.quarantined_bytes() as u64;
        self.refresh_page(now);
        stats::publish(&self.config);
        let pace = Pace {
            window_ms: bounds.window_ms,
            lazy_ms: self.config.lazy_ms.into(),
            is_active: self.pacing.is_active(now),
        };
        let next = left.next(&pace);
        #[cfg(feature = "plan-log")]
        log::line(
            "r",
            (now, &backlog, &bounds, may_be_lazy),
            (&plan, &left, &pace, &next),
        );
        next
    }
}

/// The workers, whose state lives as long as the process.
pub(super) fn heap_workers() -> &'static workers::Workers {
    // SAFETY: every caller has come through the heap, and `workers` is no lock.
    unsafe { &the_heap().workers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;
    use crate::front::heap;
    use crate::front::requests::free_inside;

    #[test]
    fn ticks_empty_rings_that_nobody_uses() {
        alone("workers=0,pressure=off,harden=on", |heap| {
            let object = heap.allocate_hardened(100, 16);
            free_inside(heap, object);
            assert!(heap.quarantined_bytes() > 0);
            heap.tick_now(clock::now_ms() + 1000);
            assert_eq!(heap.quarantined_bytes(), 0);
        });
    }

    #[test]
    fn ticks_put_back_runs_that_nobody_wants() {
        alone("workers=0,pressure=off,thp=off", |heap| {
            let run = heap.allocate_large(300 * FRAME_BYTES, 1).unwrap();
            free_inside(heap, run.address);
            assert_eq!(heap.spares.frames(), 300);
            (1..20).for_each(|look| heap.tick_now(clock::now_ms() + look * plan::OUTSIDE_CHECK_MS));
            assert_eq!(heap.spares.frames(), 0);
        });
    }

    #[test]
    fn cpus_that_come_and_go_are_seen() {
        let heap = heap().unwrap().enter_uncounted();
        let allowed = process::allowed_cpus();
        heap.cpus.store(allowed + 1000, Ordering::Relaxed);
        assert_eq!(heap.most_releasers(), allowed + 1000);
        heap.round(clock::now_ms(), Releaser::Tick);
        assert_eq!(heap.most_releasers(), allowed);
        // The number of CPUs must not be read, because the system call is not allowed.
        heap.cpus.store(usize::MAX, Ordering::Relaxed);
        heap.round(clock::now_ms(), Releaser::Tick);
        assert_eq!(heap.most_releasers(), usize::MAX);
        heap.cpus.store(allowed, Ordering::Relaxed);
    }
}
