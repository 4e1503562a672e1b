//! Memory that is short: who looks, who is told, what then happens.
//!
//! ```text
//!   limits, PSI, levels ── looked at by ──▶ Watcher ──▶ Policy ──▶ pressed?  ──▶ nothing is deferred
//!   (a worker, 25 times a second while      │                 └─▶ budget ──▶ calls that take fresh frames
//!    there is memory to give; more often    └─ room ─▶ half of it bounds what is kept
//!    while others grow near the limit)
//! ```
//!
//! Only workers look: reading a file needs a descriptor, and the program's table is its own. The program
//! is told by two words. While [`Allowance::is_short`], all that is free is due. And every frame that is taken
//! afresh is paid from a budget: who finds it spent wakes the worker, and meanwhile releases as much as was
//! taken beyond it, so that usage does not grow however late the worker comes. A call waits for that share, and,
//! where huge pages must be split for it, until workers have taken what is left to them, for [`PATIENCE_MS`] at most.
//!
//! | module | what it is |
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
use ebbtide_zone::plan::pressure::{Look, Policy, Verdict};
use ebbtide_zone::plan::{self, LimitPlan};
use ebbtide_zone::{Counters, FRAME_BYTES};
use watcher::Watcher;

/// Between calls for the worker because the budget is spent.
const CALL_MS: u64 = 10;
/// A call that pays waits for a worker that is busy with a round at most so long.
const PATIENCE_MS: u64 = 20;
/// What may be taken until a worker that has just been called has looked: 32 MiB.
const FIRST_BUDGET: u64 = 8192;

/// What a process knows of pressure.
pub struct Pressure {
    /// The worker that looks, by number and 1; 0: none.
    watched_by: AtomicUsize,
    /// Guarded by `watched_by`.
    policy: UnsafeCell<Policy>,
    /// What the environment said. Written at the start only.
    told: UnsafeCell<PressureEnvironment>,
    /// When a worker was last called for.
    called_ms: AtomicU64,
}

// SAFETY: `policy` is reached by the worker whose number is in `watched_by`, or by a child's only thread; `told` is not
// written to once there are others.
unsafe impl Sync for Pressure {}

impl Pressure {
    /// Nothing known.
    pub const fn new() -> Self {
        Self {
            watched_by: AtomicUsize::new(0),
            policy: UnsafeCell::new(Policy::new()),
            told: UnsafeCell::new(PressureEnvironment::NOTHING),
            called_ms: AtomicU64::new(0),
        }
    }

    /// Called at the start, while a descriptor may come and go.
    ///
    /// # Safety
    /// This thread is alone.
    pub unsafe fn start(&self, config: &Config, ram: usize, allowance: &Allowance) {
        if config.pressure && !config.basic_syscalls {
            // SAFETY: by contract.
            unsafe { *self.told.get() = PressureEnvironment::from_environment() };
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

    /// The watcher of a worker.
    pub fn open_watcher(&self, now_ms: u64) -> Watcher {
        // SAFETY: written before there was a worker.
        Watcher::open(unsafe { &*self.told.get() }, now_ms)
    }

    /// Whether a worker looks.
    pub fn is_watched(&self) -> bool {
        self.watched_by.load(Ordering::Relaxed) != 0
    }

    /// A worker was called: if none watched pressure, not much may happen until it has looked.
    pub fn expect_look(&self, allowance: &Allowance) {
        if !self.is_watched() {
            allowance.lower_budget(FIRST_BUDGET);
        }
    }

    /// A worker found that it cannot open anything: nobody looks, and nothing bounds anybody.
    ///
    /// A thread in [`Self::expect_look`] may have found nobody just before, and lower the budget just after
    /// this. No order of two words prevents that, and nobody would look and lift it again: so who finds the
    /// budget spent looks here first ([`Self::take_overdraft`]). It then pays for nothing, however late the
    /// budget was lowered.
    pub fn expect_no_look(&self, allowance: &Allowance) {
        self.watched_by.store(usize::MAX, Ordering::Relaxed);
        allowance.lift();
    }

    /// What was taken beyond the budget, which is the caller's to make up for. `None`: nothing, or the bound
    /// waits for a look that never comes.
    fn take_overdraft(&self, allowance: &Allowance) -> Option<u64> {
        if allowance.is_over_budget() && self.watched_by.load(Ordering::Relaxed) == usize::MAX {
            allowance.lift();
        }
        allowance.take_overdraft()
    }

    /// Whether worker `number` is the one that looks, from now on if nobody was.
    pub fn claim_watch(&self, number: usize) -> bool {
        let (mine, order) = (number + 1, Ordering::Acquire);
        match self.watched_by.compare_exchange(0, mine, order, order) {
            Ok(_) => true,
            Err(other) => other == mine,
        }
    }

    /// Worker `number` looks no more: there is nothing to give, so nothing bounds anybody, and what was left
    /// of a limit says nothing about later.
    pub fn end_watch(&self, number: usize, allowance: &Allowance) {
        if self.watched_by.load(Ordering::Relaxed) == number + 1 {
            allowance.lift();
            allowance.set_room(u64::MAX);
            self.watched_by.store(0, Ordering::Release);
        }
    }
}

impl Heap {
    /// Looks at pressure, by the worker that has claimed to, and tells the program.
    pub fn look_at_pressure(&self, watcher: &mut Watcher, now: u64) -> Verdict {
        let (room, told) = watcher.look(now);
        // Where nothing tells any more, nothing is known to be bounded.
        self.allowance.set_room(room.map_or(u64::MAX, for_reuse));
        self.note_limit(|| watcher.limit());
        let look = Look {
            now_ms: now,
            room,
            potential: self.potential(),
            resident: pressure::resident().unwrap_or(u64::MAX),
            told,
        };
        // SAFETY: this worker is `watched_by`.
        let policy = unsafe { &mut *self.pressure.policy.get() };
        let verdict = policy.look(&look);
        let budget = verdict.budget.map(|bytes| bytes / FRAME_BYTES as u64);
        self.allowance.set_budget(budget);
        self.allowance.set_calm_at(policy.calm_at_ms());
        stats::set_pressure(verdict.pressed, room);
        if verdict.event {
            stats::count(word!(pressure_events), 1);
        }
        verdict
    }

    /// The owner's limit may be a part of `limit`, which may have changed.
    fn note_limit(&self, limit: impl FnOnce() -> Option<u64>) {
        if let part @ Limit::Percent(_) = self.config.limit {
            set_limit(&self.allowance, part, limit(), self.ram);
        }
    }

    /// Without a watcher: the limits alone. By a worker.
    pub fn look_at_limits(&self) {
        let group = Groups::find().memory;
        let nearest = group.as_ref().and_then(Group::nearest);
        let machine = pressure::machine();
        if let Some(room) = machine.map(|machine| machine.nearer(nearest)).or(nearest) {
            self.allowance.set_room(for_reuse(room));
        }
        self.note_limit(|| group.and_then(|group| group.smallest_limit()));
    }

    /// Bytes that the heap may have resident, or will have when all of it is touched.
    fn potential(&self) -> u64 {
        let own = |zone: Counters| zone.in_use + zone.dirty + zone.lazy + zone.claimed;
        let (frames, _) = self.sum(|counters| (own(counters), 0));
        let slack = self.slack.load(Ordering::Relaxed) as u64;
        frames.saturating_sub(slack) * FRAME_BYTES as u64
    }

    /// A slow path found the budget spent: the worker is to look, and this call releases as much as was
    /// taken beyond it.
    #[cold]
    pub fn pay_for_growth(&self, now: u64) {
        let Some(share) = self.pressure.take_overdraft(&self.allowance) else {
            return;
        };
        if is_time(&self.pressure.called_ms, now, CALL_MS) && !self.call_workers(1) {
            // No thread is to be had now, so nobody looks: pay once, not for ever.
            self.allowance.lift();
        }
        let released = self.release_some(share);
        stats::count(word!(paid_bytes), released * FRAME_BYTES as u64);
    }

    /// Releases up to `frames` of what is free, due or not, in this thread: from the zones, then from
    /// spans. How many.
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
        // Whoever wants more does not run ahead of those who give back.
        let start = clock::precise_ns();
        let has_worker = || self.workers.count() > 0;
        self.slots
            .wait_for_workers(PATIENCE_MS, has_worker, |owned| {
                release_owned(self, owned, Releaser::SlowPath);
            });
        stats::raise(word!(longest_stall_ns), clock::precise_ns() - start);
        released
    }

    /// Looks at what is kept outside the zones, where the owner has set a limit, and gives back what is
    /// above it.
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

    /// What the caches hold.
    fn cached_frames(&self) -> u64 {
        let Cached { objects, runs } = self.cached();
        ((objects + runs) / FRAME_BYTES) as u64
    }

    pub(super) fn waiting_frames(&self) -> u64 {
        (self.waiting_in_spans() / FRAME_BYTES) as u64
    }
}

/// Frames that may be kept for reuse, by what is left.
fn for_reuse(room: pressure::Room) -> u64 {
    room.least / 2 / FRAME_BYTES as u64
}

/// A percentage is of the `smallest` limit of the process's groups, at most of RAM.
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
        pressure.expect_look(&allowance);
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
        // SAFETY: nobody else knows of it.
        unsafe { pressure.begin() };
        allowance.begin_in_child();
        assert_eq!(allowance.room_frames(), u64::MAX);
        assert!(!pressure.is_watched());
    }

    #[test]
    fn nobody_pays_for_a_look_that_never_comes() {
        let (pressure, allowance) = (Pressure::new(), Allowance::new());
        // A thread finds nobody; a worker finds that it may open nothing; then the thread lowers the budget.
        let found_nobody = !pressure.is_watched();
        pressure.expect_no_look(&allowance);
        assert!(found_nobody);
        allowance.lower_budget(FIRST_BUDGET);
        allowance.count_fresh(FIRST_BUDGET + 5);
        assert_eq!(pressure.take_overdraft(&allowance), None);
        assert!(!allowance.is_over_budget());
        pressure.expect_look(&allowance);
        allowance.count_fresh(1 << 40);
        assert!(!allowance.is_over_budget(), "and so it stays");
    }
}
