//! How much free memory may be kept, and how many frames may be taken fresh. The last sample sets both; threads that free
//! or allocate read them.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// No bound. Sums with it do not overflow.
const NO_BOUND: i64 = i64::MAX / 2;

/// The current allowance. Each word is correct by itself; the words may be of different moments.
pub struct Allowance {
    /// Memory is short until this time, in milliseconds.
    calm_at_ms: AtomicU64,
    /// Frames that may be taken fresh.
    budget: AtomicI64,
    /// The user's limit on kept frames. `u64::MAX`: no limit.
    limit: AtomicU64,
    /// Frames kept in caches and spans at the last check.
    kept: AtomicU64,
    /// Frames that may be kept, by the headroom. `u64::MAX`: not known.
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

    /// Called in a forked child. The child has its parent's limit until its own worker checks it. The parent's
    /// headroom is not valid here: no worker of the child samples yet.
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

    /// Sets the time until which memory is short.
    pub fn set_calm_at(&self, ms: u64) {
        self.calm_at_ms.store(ms, Ordering::Relaxed);
    }

    /// The user's limit on kept frames.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != u64::MAX)
    }

    /// See [`Self::limit`].
    pub fn set_limit(&self, frames: Option<u64>) {
        self.limit
            .store(frames.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Dirty frames that the user's limit allows.
    pub fn dirty_limit(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.kept.load(Ordering::Relaxed))
    }

    /// Sets the frames that are kept in caches and spans.
    pub fn set_kept(&self, frames: u64) {
        self.kept.store(frames, Ordering::Relaxed);
    }

    /// Frames that may be kept, by the headroom.
    pub fn room_frames(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// See [`Self::room_frames`].
    pub fn set_room(&self, frames: u64) {
        self.room.store(frames, Ordering::Relaxed);
    }

    /// Counts frames that an allocation takes fresh: not touched since they were released.
    #[inline]
    pub fn count_fresh(&self, frames: u64) {
        self.budget.fetch_sub(frames as i64, Ordering::Relaxed);
    }

    /// Whether more frames were taken fresh than the budget allowed.
    #[inline]
    pub fn is_over_budget(&self) -> bool {
        self.budget.load(Ordering::Relaxed) < 0
    }

    /// Sets the number of frames that may be taken fresh. `None`: any number.
    pub fn set_budget(&self, frames: Option<u64>) {
        let budget = frames.map_or(NO_BOUND, |frames| frames.min(NO_BOUND as u64) as i64);
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// Lowers the budget to at most `frames`.
    pub fn lower_budget(&self, frames: u64) {
        self.budget.fetch_min(frames as i64, Ordering::Relaxed);
    }

    /// Removes the bound of the budget.
    pub fn lift(&self) {
        self.budget.store(NO_BOUND, Ordering::Relaxed);
    }

    /// Takes the frames beyond the budget; the caller must release as many. `None`: there are none.
    pub fn take_overdraft(&self) -> Option<u64> {
        let over = self.budget.load(Ordering::Relaxed);
        (over < 0).then(|| {
            self.budget.fetch_sub(over, Ordering::Relaxed);
            over.unsigned_abs()
        })
    }
}
