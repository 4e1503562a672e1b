//! The one order of locks. A thread takes them downwards in this list; a fork takes all of them, in
//! this order, `FORK` before all others, which [`crate::reclaim::Heap::for_each_lock`] names.

use ebbtide_sys::lock::{Lock, Rank};

/// Forks with handlers, one at a time; held from the first handler to the last, also while a handler inside ours
/// allocates. Not one of those that [`crate::reclaim::Heap::for_each_lock`] names.
pub const FORK: Rank = Rank(1);
/// Drains of other CPUs' caches, one at a time. The one lock that is held across a system call
/// (membarrier, which does not sleep), so that a fork finds no drain half done.
pub const DRAIN: Rank = Rank(5);
/// The full batches of a class; one lock a class.
pub const TRANSFER: Rank = Rank(10);
/// The spans of a class; one lock a class.
pub const SPANS: Rank = Rank(20);
/// A zone; one lock a zone.
pub const ZONE: Rank = Rank(30);
/// The table of span records.
pub const RECORDS: Rank = Rank(40);
/// Free batches of gathers.
pub const BATCHES: Rank = Rank(50);
/// The chunks of per-CPU data of a shard; one lock a shard.
pub const PERCPU: Rank = Rank(56);
/// What a CPU freed lately: its spare run, one lock a CPU up to 64; with `harden=on` its quarantine, one lock a CPU.
pub const FREED: Rank = Rank(58);
/// A CPU's cache in the portable mode; one lock a CPU.
pub const CPU: Rank = Rank(60);

/// All of them by name, in order.
pub const NAMES: [(Rank, &str); 10] = [
    (FORK, "FORK"),
    (DRAIN, "DRAIN"),
    (TRANSFER, "TRANSFER"),
    (SPANS, "SPANS"),
    (ZONE, "ZONE"),
    (RECORDS, "RECORDS"),
    (BATCHES, "BATCHES"),
    (PERCPU, "PERCPU"),
    (FREED, "FREED"),
    (CPU, "CPU"),
];

/// A lock as the fork handlers see it.
pub trait ForkLock {
    /// Takes it.
    fn take(&self);
    /// Frees it.
    ///
    /// # Safety
    /// This thread took it before the fork.
    unsafe fn free(&self);
    /// Makes it free whoever held it.
    ///
    /// # Safety
    /// No other thread exists.
    unsafe fn force_free(&self);
}

impl<T> ForkLock for Lock<T> {
    fn take(&self) {
        self.lock_for_fork();
    }

    unsafe fn free(&self) {
        // SAFETY: by contract.
        unsafe { self.unlock_after_fork() };
    }

    unsafe fn force_free(&self) {
        // SAFETY: by contract.
        unsafe { self.reset() };
    }
}
