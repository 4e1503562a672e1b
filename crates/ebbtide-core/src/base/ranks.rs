//! The one order of locks. A thread takes locks downwards in this list. A fork takes all of them in this order, `FORK`
//! before all others; [`crate::reclaim::Heap::for_each_lock`] names them.

use ebbtide_interface::ranks;
pub use ebbtide_interface::ranks::ALL;
use ebbtide_sys::lock::{Lock, Rank};

/// Forks with handlers, one at a time. It is held from the first handler to the last, also while a handler inside
/// ours allocates. [`crate::reclaim::Heap::for_each_lock`] does not name it.
pub const FORK: Rank = Rank(ranks::FORK);
/// Drains of other CPUs' caches, one at a time. This is the only lock that is held across a system call
/// (membarrier, which does not sleep), so that a fork finds no drain half done.
pub const DRAIN: Rank = Rank(ranks::DRAIN);
/// The full batches of a class; one lock a class.
pub const TRANSFER: Rank = Rank(ranks::TRANSFER);
/// The spans of a class; one lock a class.
pub const SPANS: Rank = Rank(ranks::SPANS);
/// A zone; one lock a zone.
pub const ZONE: Rank = Rank(ranks::ZONE);
/// The table of span records.
pub const RECORDS: Rank = Rank(ranks::RECORDS);
/// Free batches of gathers.
pub const BATCHES: Rank = Rank(ranks::BATCHES);
/// The chunks of per-CPU data of a shard; one lock a shard.
pub const PERCPU: Rank = Rank(ranks::PERCPU);
/// Memory that a CPU freed lately: its spare run, one lock a CPU up to 64; with `harden=on` its quarantine, one
/// lock a CPU.
pub const FREED: Rank = Rank(ranks::FREED);
/// Slots of guarded allocations, one lock; and the action of SIGSEGV.
pub const GUARDED: Rank = Rank(ranks::GUARDED);
/// A CPU's cache in the portable mode; one lock a CPU.
pub const CPU: Rank = Rank(ranks::CPU);
/// The profile of sampled objects.
pub const PROFILE: Rank = Rank(ranks::PROFILE);

/// The interface of a lock for the fork handlers.
pub trait ForkLock {
    /// Takes the lock.
    fn take(&self);
    /// Frees the lock.
    ///
    /// # Safety
    /// This thread took it before the fork.
    unsafe fn free(&self);
    /// Makes the lock free, whichever thread held it.
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
