//! What a worker looks at while it waits: pressure, and whether much has been freed.

use super::Rest;
use crate::base::releaser::Releaser;
use crate::base::stats;
use crate::reclaim::Heap;
use crate::reclaim::pressure::watcher::Watcher;
use core::sync::atomic::Ordering;
use ebbtide_sys::clock;
use ebbtide_zone::plan::IDLE_MS;
use ebbtide_zone::plan::pressure::LOOK_MS;

/// A round that comes early, because memory is getting short, waits for so many times what the last one took.
const EARLY_SHARE: u64 = 8;

/// What a coordinator with its eyes open waits for.
#[derive(Default)]
pub struct Eyes {
    /// The next look.
    look_at_ms: u64,
    /// From then on a round may come early.
    early_at_ms: u64,
    /// Frames open at the last look of a worker made in advance, and how long it sleeps until the next.
    open: u64,
    pause_ms: u64,
}

impl Eyes {
    /// A round has ended, and took so long.
    pub fn after_round(&mut self, now_ms: u64, took_ms: u64) {
        self.early_at_ms = now_ms + EARLY_SHARE * took_ms;
    }

    /// How long a worker made in advance sleeps, of a heap that has opened so many frames: a program that has just
    /// grown may free it all at once; on busy CPUs each look interrupts it.
    pub(super) fn pause(&mut self, open: u64) -> u64 {
        self.pause_ms = if open > self.open {
            LOOK_MS.0
        } else {
            (self.pause_ms * 2).clamp(LOOK_MS.0, IDLE_MS)
        };
        self.open = open;
        self.pause_ms
    }
}

/// Looks at pressure, if nobody else does; releases everything when it is time to. `true`: it did.
pub fn watch(
    heap: &Heap,
    watcher: &mut Option<Watcher>,
    eyes: &mut Eyes,
    number: usize,
    by: Releaser,
) -> bool {
    let now = clock::now_ms();
    eyes.look_at_ms = now + LOOK_MS.0;
    if !heap.pressure.claim_watch(number) {
        return false;
    }
    let watcher = watcher.get_or_insert_with(|| heap.pressure.open_eyes(now));
    let verdict = heap.look_at_pressure(watcher, now);
    stats::set_pressure_sources(watcher.sources());
    stats::publish(&heap.config);
    eyes.look_at_ms = now + verdict.next_ms;
    if verdict.release {
        heap.release_everything(by);
    }
    verdict.release
}

/// Sleeps until it is woken, `ms` are over, or more is kept than what is left allows; with its eyes open.
pub fn sleep_watching(
    heap: &Heap,
    watcher: &mut Option<Watcher>,
    eyes: &mut Eyes,
    number: usize,
    by: Releaser,
    rest: Rest,
) {
    let workers = &heap.workers;
    let (seen, permit) = (rest.seen, rest.permit);
    let end = clock::now_ms() + rest.ms;
    loop {
        let watches = watcher.is_some();
        let expects = !watches && workers.is_expecting();
        let until = if watches {
            end.min(eyes.look_at_ms)
        } else if expects {
            end.min(clock::now_ms() + eyes.pause(heap.open_frames()))
        } else {
            end
        };
        if expects {
            workers.next_ms.store(until, Ordering::SeqCst);
        }
        workers.rest(Rest {
            seen,
            ms: until.saturating_sub(clock::now_ms()),
            permit,
        });
        if expects {
            // Whoever frees much from here on calls: the look below may come too early for it.
            workers.next_ms.store(u64::MAX, Ordering::SeqCst);
        }
        let woken = workers.wake.load(Ordering::SeqCst) != seen;
        if woken || permit.is_over() || clock::now_ms() >= end || !watches && !expects {
            return;
        }
        if expects {
            if heap.keeps_much() {
                return;
            }
            continue;
        }
        // Perhaps nothing is left to give, or to wait for.
        let released = watch(heap, watcher, eyes, number, by);
        let now = clock::now_ms();
        if released || now >= eyes.early_at_ms && heap.keeps_too_much(now) {
            return;
        }
    }
}
