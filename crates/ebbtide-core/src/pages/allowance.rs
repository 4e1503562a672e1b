//! How much free memory may be kept, and how much may be taken afresh: what was last found out, for whoever frees and
//! takes.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// No bound. Far from where sums wrap.
const NO_BOUND: i64 = i64::MAX / 2;

/// See above. Each word is right by itself; together they are of no one moment.
pub struct Allowance {
    /// Memory is short until then, in milliseconds.
    calm_at_ms: AtomicU64,
    /// Frames that may be taken afresh.
    budget: AtomicI64,
    /// What the owner lets us keep, in frames; `u64::MAX`: no bound.
    limit: AtomicU64,
    /// Frames kept in caches and spans, as of the last look at them.
    kept: AtomicU64,
    /// Frames that may be kept, by what memory is left; `u64::MAX`: not known.
    room: AtomicU64,
}

impl Allowance {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            calm_at_ms: AtomicU64::new(0),
            budget: AtomicI64::new(NO_BOUND),
            limit: AtomicU64::new(u64::MAX),
            kept: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
        }
    }

    /// In a forked child. What the owner lets it keep is its parent's, until somebody looks. What a parent saw left of its
    /// limit says nothing here: nobody looks yet.
    pub fn begin_in_child(&self) {
        self.lift();
        self.set_kept(0);
        self.set_room(u64::MAX);
    }

    /// Whether memory is short: nothing is deferred.
    #[inline]
    pub fn is_short(&self, now_ms: u64) -> bool {
        now_ms < self.calm_at_ms.load(Ordering::Relaxed)
    }

    /// Memory is short until then.
    pub fn set_calm_at(&self, ms: u64) {
        self.calm_at_ms.store(ms, Ordering::Relaxed);
    }

    /// What the owner lets us keep, in frames.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != u64::MAX)
    }

    /// See [`Self::limit`].
    pub fn set_limit(&self, frames: Option<u64>) {
        self.limit
            .store(frames.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Frames that the owner lets us keep dirty.
    pub fn dirty_limit(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.kept.load(Ordering::Relaxed))
    }

    /// So many frames are kept in caches and spans.
    pub fn set_kept(&self, frames: u64) {
        self.kept.store(frames, Ordering::Relaxed);
    }

    /// Frames that may be kept, by what memory is left.
    pub fn room_frames(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// See [`Self::room_frames`].
    pub fn set_room(&self, frames: u64) {
        self.room.store(frames, Ordering::Relaxed);
    }

    /// Notes that frames were taken which nobody has touched since they were released.
    #[inline]
    pub fn count_fresh(&self, frames: u64) {
        self.budget.fetch_sub(frames as i64, Ordering::Relaxed);
    }

    /// Whether more was taken afresh than there was room for.
    #[inline]
    pub fn is_over_budget(&self) -> bool {
        self.budget.load(Ordering::Relaxed) < 0
    }

    /// So many frames may be taken afresh. `None`: any number.
    pub fn set_budget(&self, frames: Option<u64>) {
        let budget = frames.map_or(NO_BOUND, |frames| frames.min(NO_BOUND as u64) as i64);
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// At most so many may.
    pub fn lower_budget(&self, frames: u64) {
        self.budget.fetch_min(frames as i64, Ordering::Relaxed);
    }

    /// Nothing bounds anybody.
    pub fn lift(&self) {
        self.budget.store(NO_BOUND, Ordering::Relaxed);
    }

    /// What was taken beyond the budget, which is the caller's to make up for. `None`: nothing.
    pub fn take_overdraft(&self) -> Option<u64> {
        let over = self.budget.load(Ordering::Relaxed);
        (over < 0).then(|| {
            self.budget.fetch_sub(over, Ordering::Relaxed);
            over.unsigned_abs()
        })
    }
}
