//! Memory pressure: how workers detect that memory is short, and what the program's threads then do.
//!
//! ```text
//!   limits, PSI, levels ── sampled by ──▶ Watcher ──▶ Policy ──▶ pressed?  ──▶ nothing is deferred
//!   (a worker, 25 times a second while    │                 └─▶ budget ──▶ calls that take fresh frames
//!    there is memory to return; more      └─ headroom ─▶ at most half of it is retained
//!    often while others grow near the limit)
//! ```
//!
//! Only workers sample: reading a file needs a descriptor, and the descriptor table of the program is its own. The
//! program's threads read two words of [`Allowance`]:
//! - While [`Allowance::is_short`], all free memory is due.
//! - Every frame that is taken fresh is paid from a budget. A thread that finds the budget spent wakes a worker.
//!   Meanwhile it releases as much as was taken beyond the budget, so that usage does not grow however late the worker
//!   comes. If huge pages must be split for that share, the call waits until workers have taken the part that is left to
//!   them, for at most [`PATIENCE_MS`].
//!
//! | module | contents |
//! |---|---|
//! | [`plan::pressure`] | the decisions: a pure state machine |
//! | [`watcher`] | the files that a worker watches |

pub mod watcher;

use super::lazy::Take;
use super::owned::release_owned;
use super::pacing::is_time;
use crate::base::config::{Config, Limit};
use crate::base::releaser::Releaser;
use crate::base::source::Cached;
use crate::base::stats::{self, word};
use crate::pages::allowance::Allowance;
use crate::reclaim::Heap;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::pressure::{Group, Groups, PressureEnvironment};
use ebbtide_sys::{clock, pressure};
use ebbtide_zone::plan::pressure::{Policy, Sample, Verdict};
use ebbtide_zone::plan::{self, LimitPlan};
use ebbtide_zone::{Counters, FRAME_BYTES};
use watcher::Watcher;

/// Least interval between two calls for the worker because the budget is spent.
const CALL_MS: u64 = 10;
/// A call that pays waits at most this long for a worker that is busy with a round.
const PATIENCE_MS: u64 = 20;
/// Frames that may be taken fresh until a worker that was just called has sampled: 32 MiB.
const FIRST_BUDGET: u64 = 8192;

/// The state of a process's memory pressure.
pub struct Pressure {
    /// The worker that samples, as its number plus 1. 0: no worker does. `usize::MAX`: no worker can.
    watched_by: AtomicUsize,
    /// Guarded by `watched_by`.
    policy: UnsafeCell<Policy>,
    /// The settings of the environment. Written at the start only.
    had_event: UnsafeCell<PressureEnvironment>,
    /// When a worker was last called.
    called_ms: AtomicU64,
}

// SAFETY: `policy` is reached by the worker whose number is in `watched_by`, or by a child's only thread; `told` is
// not written to once there are others.
unsafe impl Sync for Pressure {}

impl Pressure {
    /// No pressure is known.
    pub const fn new() -> Self {
        Self {
            watched_by: AtomicUsize::new(0),
            policy: UnsafeCell::new(Policy::new()),
            had_event: UnsafeCell::new(PressureEnvironment::NOTHING),
            called_ms: AtomicU64::new(0),
        }
    }

    /// Called at the start, when a descriptor may be opened and closed.
    ///
    /// # Safety
    /// This thread is alone.
    pub unsafe fn start(&self, config: &Config, ram: usize, allowance: &Allowance) {
        if config.pressure && !config.basic_syscalls {
            // SAFETY: by contract.
            unsafe { *self.had_event.get() = PressureEnvironment::from_environment() };
        }
        let is_part = matches!(config.limit, Limit::Percent(_));
        let group = is_part.then(|| Groups::find().memory).flatten();
        let smallest = group.and_then(|group| group.smallest_limit());
        set_limit(allowance, config.limit, smallest, ram);
    }

    /// Called in a forked child.
    ///
    /// # Safety
    /// This thread is alone.
    pub unsafe fn begin(&self) {
        self.watched_by.store(0, Ordering::Relaxed);
        // SAFETY: by contract.
        unsafe { *self.policy.get() = Policy::new() };
    }

    /// Opens the watcher of a worker.
    pub fn open_watcher(&self, now_ms: u64) -> Watcher {
        // SAFETY: written before there was a worker.
        Watcher::open(unsafe { &*self.had_event.get() }, now_ms)
    }

    /// Whether a worker samples, or no worker can.
    pub fn is_watched(&self) -> bool {
        self.watched_by.load(Ordering::Relaxed) != 0
    }

    /// A worker was called. If no worker watched pressure, the budget is small until it has sampled.
    pub fn expect_sample(&self, allowance: &Allowance) {
        if !self.is_watched() {
            allowance.lower_budget(FIRST_BUDGET);
        }
    }

    /// A worker found that it cannot open files: no worker samples, and the budget has no bound.
    ///
    /// A thread in [`Self::expect_sample`] may have seen no watching worker just before this call, and lower the
    /// budget just after it. No order of the two words prevents that, and no worker would sample and lift the bound
    /// again. So a thread that finds the budget spent checks `watched_by` first ([`Self::take_overdraft`]). It then
    /// pays for nothing, however late the budget was lowered.
    pub fn expect_no_sample(&self, allowance: &Allowance) {
        self.watched_by.store(usize::MAX, Ordering::Relaxed);
        allowance.lift();
    }

    /// Frames taken beyond the budget; the caller must release as many. `None`: there are none, or the bound waits
    /// for a sample that never comes.
    fn take_overdraft(&self, allowance: &Allowance) -> Option<u64> {
        if allowance.is_over_budget() && self.watched_by.load(Ordering::Relaxed) == usize::MAX {
            allowance.lift();
        }
        allowance.take_overdraft()
    }

    /// Whether worker `number` samples. If no worker did, this one does from now on.
    pub fn claim_watch(&self, number: usize) -> bool {
        let (mine, order) = (number + 1, Ordering::Acquire);
        match self.watched_by.compare_exchange(0, mine, order, order) {
            Ok(_) => true,
            Err(other) => other == mine,
        }
    }

    /// Worker `number` stops sampling. There is nothing to return, so the budget has no bound, and the last
    /// headroom is no longer valid.
    pub fn end_watch(&self, number: usize, allowance: &Allowance) {
        if self.watched_by.load(Ordering::Relaxed) == number + 1 {
            allowance.lift();
            allowance.set_room(u64::MAX);
            self.watched_by.store(0, Ordering::Release);
        }
    }
}

impl Heap {
    /// Samples pressure and publishes the result to the program's threads. Called by the worker that has claimed
    /// the watch.
    pub fn sample_pressure(&self, watcher: &mut Watcher, now: u64) -> Verdict {
        let (room, had_event) = watcher.sample(now);
        // Without a known limit, the kept memory has no known bound.
        self.allowance.set_room(room.map_or(u64::MAX, for_reuse));
        self.note_limit(|| watcher.limit());
        let sample = Sample {
            now_ms: now,
            room,
            potential: self.potential(),
            resident: pressure::resident().unwrap_or(u64::MAX),
            had_event,
        };
        // SAFETY: this worker is `watched_by`.
        let policy = unsafe { &mut *self.pressure.policy.get() };
        let verdict = policy.sample(&sample);
        let budget = verdict.budget.map(|bytes| bytes / FRAME_BYTES as u64);
        self.allowance.set_budget(budget);
        self.allowance.set_calm_at(policy.calm_at_ms());
        stats::set_pressure(verdict.pressed, room);
        if verdict.event {
            stats::count(word!(pressure_events), 1);
        }
        verdict
    }

    /// The user's limit may be a percentage of `smallest`, which may have changed.
    fn note_limit(&self, smallest: impl FnOnce() -> Option<u64>) {
        if let Limit::Percent(_) = self.control.limit() {
            self.apply_limit(smallest());
        }
    }

    /// Applies the user's limit. A percentage is of the `smallest` limit of the process's groups, at most of the RAM.
    pub fn apply_limit(&self, smallest: Option<u64>) {
        // Another thread may change it meanwhile.
        loop {
            let limit = self.control.limit();
            set_limit(&self.allowance, limit, smallest, self.ram);
            if self.control.limit() == limit {
                return;
            }
        }
    }

    /// Reads only the limits, without a watcher. Called by a worker.
    pub fn sample_limits(&self) {
        let group = Groups::find().memory;
        let nearest = group.as_ref().and_then(Group::nearest);
        let machine = pressure::machine();
        if let Some(room) = machine.map(|machine| machine.nearer(nearest)).or(nearest) {
            self.allowance.set_room(for_reuse(room));
        }
        self.note_limit(|| group.and_then(|group| group.smallest_limit()));
    }

    /// Bytes that the heap has resident, or will have resident when the program touches all of its memory.
    fn potential(&self) -> u64 {
        let own = |zone: Counters| zone.in_use + zone.dirty + zone.lazy + zone.claimed;
        let (frames, _) = self.sum(|counters| (own(counters), 0));
        let slack = self.slack.load(Ordering::Relaxed) as u64;
        frames.saturating_sub(slack) * FRAME_BYTES as u64
    }

    /// A slow path found the budget spent: it calls the worker, and releases as much as was taken beyond the
    /// budget.
    #[cold]
    pub fn pay_for_growth(&self, now: u64) {
        let Some(share) = self.pressure.take_overdraft(&self.allowance) else {
            return;
        };
        if is_time(&self.pressure.called_ms, now, CALL_MS) && !self.call_workers(1) {
            // No worker can be made now, so no worker samples: pay once, not each time.
            self.allowance.lift();
        }
        let released = self.release_some(share);
        stats::count(word!(paid_bytes), released * FRAME_BYTES as u64);
    }

    /// Releases up to `frames` free frames in this thread, due or not: from the zones, then from spans. Returns the
    /// number of frames.
    fn release_some(&self, frames: u64) -> u64 {
        let take = Take::Due { lazy_first: false };
        let mut released = self.release_in_place(frames, take, Releaser::SlowPath);
        if released < frames && self.config.depopulate {
            for class in self.reclaimable.marked() {
                if released >= frames {
                    break;
                }
                if self.central[class].spans.lock().waiting(class) > 0 {
                    let bytes = (frames - released) as usize * FRAME_BYTES;
                    released += self.depopulate(class, bytes, Releaser::SlowPath);
                }
            }
        }
        // A thread that wants more memory does not run ahead of the workers that release it.
        let start = clock::precise_ns();
        let has_worker = || self.workers.count() > 0;
        self.slots
            .wait_for_workers(PATIENCE_MS, has_worker, |owned| {
                release_owned(self, owned, Releaser::SlowPath);
            });
        stats::raise(word!(longest_stall_ns), clock::precise_ns() - start);
        released
    }

    /// If the user has set a limit, checks the memory kept outside the zones, and releases the part above the
    /// limit.
    pub fn keep_owners_limit(&self, by: Releaser) {
        let Some(limit) = self.allowance.limit() else {
            return;
        };
        let (mut cached, mut in_spans) = (self.cached_frames(), self.waiting_frames());
        let plan = plan::limit(cached, in_spans, limit);
        if plan != LimitPlan::Nothing {
            if plan == LimitPlan::CachesAndSpans {
                self.drain_all(by);
            }
            self.depopulate_everything(by);
            (cached, in_spans) = (self.cached_frames(), self.waiting_frames());
        }
        self.allowance.set_kept(cached + in_spans);
    }

    /// Frames that the caches keep.
    fn cached_frames(&self) -> u64 {
        let Cached { objects, runs } = self.cached();
        ((objects + runs) / FRAME_BYTES) as u64
    }

    pub(super) fn waiting_frames(&self) -> u64 {
        (self.waiting_in_spans() / FRAME_BYTES) as u64
    }
}

/// Frames that may be kept for reuse, computed from the headroom.
fn for_reuse(room: pressure::Room) -> u64 {
    room.least / 2 / FRAME_BYTES as u64
}

/// Sets the user's limit. A percentage applies to the `smallest` limit of the process's groups, at most to the RAM.
fn set_limit(allowance: &Allowance, limit: Limit, smallest: Option<u64>, ram: usize) {
    let bytes = limit.bytes_of(smallest.unwrap_or(u64::MAX).min(ram as u64));
    allowance.set_limit(bytes.map(|bytes| bytes / FRAME_BYTES as u64));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_budget_is_paid_once() {
        let (pressure, allowance) = (Pressure::new(), Allowance::new());
        pressure.expect_sample(&allowance);
        allowance.count_fresh(FIRST_BUDGET + 5);
        assert!(allowance.is_over_budget());
        assert_eq!(pressure.take_overdraft(&allowance), Some(5));
        assert_eq!(pressure.take_overdraft(&allowance), None);
        allowance.count_fresh(3);
        assert_eq!(pressure.take_overdraft(&allowance), Some(3));
    }

    #[test]
    fn a_child_knows_nothing_of_what_was_left() {
        let (pressure, allowance) = (Pressure::new(), Allowance::new());
        assert!(pressure.claim_watch(0));
        allowance.set_room(1);
        // SAFETY: no other thread knows of it.
        unsafe { pressure.begin() };
        allowance.begin_in_child();
        assert_eq!(allowance.room_frames(), u64::MAX);
        assert!(!pressure.is_watched());
    }

    #[test]
    fn nobody_pays_for_a_look_that_never_comes() {
        let (pressure, allowance) = (Pressure::new(), Allowance::new());
        // A thread finds no watching worker; a worker finds that it may open no file; then the thread lowers the
        // budget.
        let found_nobody = !pressure.is_watched();
        pressure.expect_no_sample(&allowance);
        assert!(found_nobody);
        allowance.lower_budget(FIRST_BUDGET);
        allowance.count_fresh(FIRST_BUDGET + 5);
        assert_eq!(pressure.take_overdraft(&allowance), None);
        assert!(!allowance.is_over_budget());
        pressure.expect_sample(&allowance);
        allowance.count_fresh(1 << 40);
        assert!(!allowance.is_over_budget(), "and so it stays");
    }
}
