//! What a worker looks at while it waits: pressure, and whether much has been freed.

use super::Worker;
use crate::base::stats;
use crate::reclaim::pressure::watcher::Watcher;
use core::sync::atomic::Ordering;
use ebbtide_sys::clock;
use ebbtide_zone::plan::IDLE_MS;
use ebbtide_zone::plan::pressure::SAMPLE_MS;

/// A round that comes early, because memory is getting short, waits for so many times what the last one took.
const EARLY_ROUND_FACTOR: u64 = 8;

/// What a coordinator while it watches pressure waits for.
#[derive(Default)]
pub struct WatchSchedule {
    /// What this worker looks at pressure with, while it is the one that does.
    watcher: Option<Watcher>,
    /// The next look.
    sample_at_ms: u64,
    /// From then on a round may come early.
    early_round_at_ms: u64,
    /// Frames open at the last look of a worker made in advance, and how long it sleeps until the next.
    open: u64,
    pause_ms: u64,
}

impl WatchSchedule {
    /// Whether this worker watches pressure.
    pub(super) fn are_open(&self) -> bool {
        self.watcher.is_some()
    }

    /// A round has ended, and took so long.
    pub fn after_round(&mut self, now_ms: u64, took_ms: u64) {
        self.early_round_at_ms = now_ms + EARLY_ROUND_FACTOR * took_ms;
    }

    /// How long a worker made in advance sleeps, of a heap that has opened so many frames: a program that has just
    /// grown may free it all at once; on busy CPUs each look interrupts it.
    pub(super) fn pause(&mut self, open: u64) -> u64 {
        self.pause_ms = if open > self.open {
            SAMPLE_MS.0
        } else {
            (self.pause_ms * 2).clamp(SAMPLE_MS.0, IDLE_MS)
        };
        self.open = open;
        self.pause_ms
    }
}

impl Worker<'_> {
    /// Looks at pressure, if nobody else does; releases everything when it is time to. `true`: it did.
    pub(super) fn watch(&mut self) -> bool {
        let (heap, watch) = (self.heap, &mut self.watch);
        let now = clock::now_ms();
        watch.sample_at_ms = now + SAMPLE_MS.0;
        if !heap.pressure.claim_watch(self.number) {
            return false;
        }
        let open = || heap.pressure.open_watcher(now);
        let watcher = watch.watcher.get_or_insert_with(open);
        let verdict = heap.look_at_pressure(watcher, now);
        stats::set_pressure_sources(watcher.sources());
        stats::publish(&heap.config);
        watch.sample_at_ms = now + verdict.next_ms;
        if verdict.release {
            heap.release_everything(self.by);
        }
        verdict.release
    }

    /// Another worker may look at pressure.
    pub(super) fn close_watcher(&mut self) {
        if self.watch.watcher.take().is_some() {
            let heap = self.heap;
            heap.pressure.end_watch(self.number, &heap.allowance);
        }
    }

    /// Sleeps until it is woken, `ms` are over, or more is kept than what is left allows; while it watches pressure.
    pub(super) fn sleep_watching(&mut self, seen: u32, ms: u64) {
        let (heap, workers) = (self.heap, &self.heap.workers);
        let end = clock::now_ms() + ms;
        loop {
            let watches = self.watch.are_open();
            let expects = !watches && workers.is_expecting();
            let mut until = end;
            if watches {
                until = end.min(self.watch.sample_at_ms);
            } else if expects {
                until = end.min(clock::now_ms() + self.watch.pause(heap.open_frames()));
                workers.next_ms.store(until, Ordering::SeqCst);
            }
            self.rest(seen, until.saturating_sub(clock::now_ms()));
            if expects {
                // Whoever frees much from here on calls: the look below may come too early for it.
                workers.next_ms.store(u64::MAX, Ordering::SeqCst);
            }
            let woken = workers.wake.load(Ordering::SeqCst) != seen;
            if woken || self.lease.is_over() || clock::now_ms() >= end || !watches && !expects {
                return;
            }
            let has_much = if expects {
                heap.keeps_much()
            } else {
                // Perhaps nothing is left to give, or to wait for.
                let released = self.watch();
                let now = clock::now_ms();
                released || now >= self.watch.early_round_at_ms && heap.keeps_too_much(now)
            };
            if has_much {
                return;
            }
        }
    }
}
