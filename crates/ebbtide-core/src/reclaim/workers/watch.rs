//! What a worker checks while it waits: memory pressure, and whether much has been freed.

use super::Worker;
use crate::base::stats;
use crate::reclaim::pressure::watcher::Watcher;
use core::sync::atomic::Ordering;
use ebbtide_sys::clock;
use ebbtide_zone::plan::IDLE_MS;
use ebbtide_zone::plan::pressure::SAMPLE_MS;

/// After a round, the next early round waits this many times the duration of that round. An early round is one that
/// comes because memory is getting short.
const EARLY_ROUND_FACTOR: u64 = 8;

/// The times for which a coordinator waits while it watches pressure.
#[derive(Default)]
pub struct WatchSchedule {
    /// This worker's watcher, while it is the worker that samples pressure.
    watcher: Option<Watcher>,
    /// The next sample.
    sample_at_ms: u64,
    /// An early round is allowed from this time on.
    early_round_at_ms: u64,
    /// Of a worker made in advance: the opened frames at its last check, and how long it sleeps until the next.
    open: u64,
    pause_ms: u64,
}

impl WatchSchedule {
    /// Whether this worker watches pressure.
    pub(super) fn are_open(&self) -> bool {
        self.watcher.is_some()
    }

    /// Notes that a round has ended, and how long it took.
    pub fn after_round(&mut self, now_ms: u64, took_ms: u64) {
        self.early_round_at_ms = now_ms + EARLY_ROUND_FACTOR * took_ms;
    }

    /// How long a worker made in advance sleeps, given the frames that the heap has opened. A program that has just
    /// grown may free all its memory at once. On busy CPUs each check interrupts the program.
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
    /// Samples pressure if no other worker does, and releases everything if the sample demands it. `true`:
    /// everything was released.
    pub(super) fn watch(&mut self) -> bool {
        let (heap, watch) = (self.heap, &mut self.watch);
        let now = clock::now_ms();
        watch.sample_at_ms = now + SAMPLE_MS.0;
        if !heap.pressure.claim_watch(self.number) {
            return false;
        }
        let open = || heap.pressure.open_watcher(now);
        let watcher = watch.watcher.get_or_insert_with(open);
        let verdict = heap.sample_pressure(watcher, now);
        stats::set_pressure_sources(watcher.sources());
        stats::publish(&heap.config);
        watch.sample_at_ms = now + verdict.next_ms;
        if verdict.release {
            heap.release_everything(self.by);
        }
        verdict.release
    }

    /// Closes the watcher. Another worker may sample pressure from now on.
    pub(super) fn close_watcher(&mut self) {
        if self.watch.watcher.take().is_some() {
            let heap = self.heap;
            heap.pressure.end_watch(self.number, &heap.allowance);
        }
    }

    /// Sleeps until the worker is woken, `ms` have passed, or more is kept than the headroom allows. Samples
    /// meanwhile, if it watches pressure.
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
                // From now on a thread that frees much memory calls the worker: the check below may come too early
                // to see that memory.
                workers.next_ms.store(u64::MAX, Ordering::SeqCst);
            }
            let woken = workers.wake.load(Ordering::SeqCst) != seen;
            if woken || self.lease.is_over() || clock::now_ms() >= end || !watches && !expects {
                return;
            }
            let has_much = if expects {
                heap.keeps_much()
            } else {
                // Perhaps there is nothing left to release or to wait for.
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
