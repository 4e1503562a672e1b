//! A futex lock with a rank.
//!
//! ```text
//!  state  meaning                              set by
//!  0      free                                 the holder, on unlock
//!  1      held, no thread waits                a taker that found 0
//!  2      held, a thread may be waiting        a taker about to sleep, or one that slept and took it
//!  3      held, a thread has waited too long   a taker that was woken in vain `PATIENCE` times
//!  4      handed on to a thread that slept     the holder, on unlock of 3
//! ```
//!
//! A thread that arrives may take a free lock before the thread that was woken for it runs. That is fast, and unfair.
//! So that a loop cannot keep other threads out, a waiter that was woken in vain sets state 3, and the next unlock
//! hands the lock on. Then only threads that slept may take it. If none of them is left (a process that shares the
//! memory was killed), any thread may take it after a moment of sleep. See
//! `docs/decisions/0016-a-starved-waiter-gets-the-lock.md`.
//!
//! The lock works before libc is ready, allocates nothing, starts nothing, and keeps `errno`. It does not poison and
//! is not re-entrant.
//!
//! - `INV-LOCK-1`: a thread takes locks in ascending [`Rank`] only. Debug builds check it on each
//!   [`Lock::lock`]; fork handlers take whole ranks in order through [`Lock::lock_for_fork`].
//! - `INV-LOCK-2`: no holder makes a system call that can block.
//! - `INV-LOCK-3`: at most one thread holds it, and a waiter is woken in vain a bounded number of times.
//!
//! Orderings: the successful exchange acquires, the unlocking one releases; they are partners.
//! Source: Drepper, *Futexes are tricky*, mutex 3.

use crate::call::{Sysno, syscall};
pub use crate::lockstat::Rank;
use crate::{clock, lockstat};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const STARVED: u32 = 3;
const HANDED: u32 = 4;

/// Number of checks before a taker sleeps: about as long as the longest hold.
const SPINS: u32 = 100;
/// Number of sleeps in vain after which a taker asks that the lock is handed on.
const PATIENCE: u32 = 2;
/// A lock was handed on to threads that slept. A taker that has not slept yet waits this long before it may take it.
const HANDED_NS: u32 = 100_000_000;

/// A value behind a futex.
pub struct Lock<T> {
    state: AtomicU32,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock of the given rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            rank,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, sleeping until it is free.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        debug::taking(self.rank);
        if lockstat::is_on() {
            return self.lock_clocked();
        }
        self.acquire();
        Guard::new(self)
    }

    /// Takes the lock if it is free now.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if !self.try_acquire() {
            return None;
        }
        debug::taking_any_order(self.rank);
        let mut guard = Guard::new(self);
        if lockstat::is_on() {
            lockstat::taken(self.rank);
            guard.since = lockstat::now();
        }
        Some(guard)
    }

    /// Whether a thread sleeps until the lock is free.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.state.load(Ordering::Relaxed) == AWAITED
    }

    #[cold]
    fn lock_clocked(&self) -> Guard<'_, T> {
        if !self.try_acquire() {
            let start = clock::precise_ns();
            self.acquire_contended();
            lockstat::waited_since(self.rank, start);
        }
        lockstat::taken(self.rank);
        Guard {
            lock: self,
            since: lockstat::now(),
        }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn acquire(&self) {
        if !self.try_acquire() {
            self.acquire_contended();
        }
    }

    /// Takes the lock after contention. Returns how often the thread slept.
    #[cold]
    fn acquire_contended(&self) -> u32 {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE && self.try_acquire() {
                return 0;
            }
        }
        let mut sleeps = 0;
        loop {
            let seen = self.state.load(Ordering::Relaxed);
            let (next, taken) = ask(seen, sleeps);
            if next != seen
                && self
                    .state
                    .compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if taken {
                return sleeps;
            }
            futex_wait_ns(&self.state, next, (next == HANDED).then_some(HANDED_NS));
            sleeps += 1;
        }
    }

    #[inline]
    fn release(&self) {
        let freed = self
            .state
            .compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed);
        if freed.is_err() {
            self.release_awaited();
        }
    }

    #[cold]
    fn release_awaited(&self) {
        // A waiter may raise the state meanwhile; no thread lowers it.
        let awaited =
            self.state
                .compare_exchange(AWAITED, FREE, Ordering::Release, Ordering::Relaxed);
        if awaited.is_err() {
            self.state.store(HANDED, Ordering::Release);
        }
        futex_wake(&self.state, 1);
    }

    /// Takes the lock for a fork, without a guard. Several locks of one rank may be held this way.
    pub fn lock_for_fork(&self) {
        self.acquire();
    }

    /// Undoes [`Self::lock_for_fork`], in the parent or in the child.
    ///
    /// # Safety
    /// This thread, or the thread that it was forked from, took the lock by [`Self::lock_for_fork`].
    pub unsafe fn unlock_after_fork(&self) {
        self.release();
    }

    /// Frees the lock, whichever thread held it, and returns the value.
    ///
    /// # Safety
    /// No other thread exists in this process, and the value is put into a known state now.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn reset(&self) -> &mut T {
        self.state.store(FREE, Ordering::Relaxed);
        // SAFETY: by contract no other thread runs.
        unsafe { &mut *self.value.get() }
    }
}

/// The next state for a taker that has slept `sleeps` times, and whether the taker has the lock then. If not, it
/// sleeps.
const fn ask(seen: u32, sleeps: u32) -> (u32, bool) {
    match seen {
        // Other threads may be waiting behind this one.
        FREE => (AWAITED, true),
        HANDED if sleeps > 0 => (AWAITED, true),
        HANDED => (HANDED, false),
        _ if sleeps >= PATIENCE => (STARVED, false),
        STARVED => (STARVED, false),
        _ => (AWAITED, false),
    }
}

/// Access to the value; frees the lock when dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Start of the hold, see [`lockstat`]; 0: not measured.
    since: u64,
}

impl<'a, T> Guard<'a, T> {
    #[inline]
    fn new(lock: &'a Lock<T>) -> Self {
        Self { lock, since: 0 }
    }

    #[cold]
    fn release_clocked(&self) {
        let until = lockstat::now();
        self.lock.release();
        lockstat::held(self.lock.rank, self.since, until);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as the guard lives, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        debug::dropping(self.lock.rank);
        if self.since != 0 {
            return self.release_clocked();
        }
        self.lock.release();
    }
}

/// Sleeps while `word` holds `value`. May wake up spuriously.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    futex_wait_ns(word, value, None);
}

/// The same for at most so many nanoseconds, less than a second.
fn futex_wait_ns(word: &AtomicU32, value: u32, most_ns: Option<u32>) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let most = most_ns.map(|ns| libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(ns),
    });
    let most = most.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `word` is a live futex word; `most` is null or a time that lives until the call is over.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), operation, value, most) };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is only an address for the kernel.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), operation, count) };
}

/// The checker of `INV-LOCK-1`: a mask of held ranks per thread, in debug builds.
#[cfg(debug_assertions)]
mod debug {
    use super::Rank;
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    struct Slot {
        thread: AtomicU32,
        held: AtomicU64,
    }

    /// Two threads can share a slot. One of them goes unchecked while the other holds locks.
    static SLOTS: [Slot; 1 << 14] = [const {
        Slot {
            thread: AtomicU32::new(0),
            held: AtomicU64::new(0),
        }
    }; 1 << 14];

    fn slot() -> Option<&'static Slot> {
        let id = crate::identity::thread_id();
        let slot = &SLOTS[id as usize % SLOTS.len()];
        let owner = slot.thread.load(Ordering::Relaxed);
        if owner == id {
            return Some(slot);
        }
        let free = slot.held.load(Ordering::Relaxed) == 0;
        (free
            && slot
                .thread
                .compare_exchange(owner, id, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok())
        .then_some(slot)
    }

    pub fn taking(rank: Rank) {
        if let Some(slot) = slot() {
            let held = slot.held.load(Ordering::Relaxed);
            assert!(
                held >> rank.0 == 0,
                "lock of rank {} taken while holding {held:#b}",
                rank.0
            );
            slot.held.store(held | 1 << rank.0, Ordering::Relaxed);
        }
    }

    pub fn taking_any_order(rank: Rank) {
        if let Some(slot) = slot() {
            slot.held.fetch_or(1 << rank.0, Ordering::Relaxed);
        }
    }

    pub fn dropping(rank: Rank) {
        if let Some(slot) = slot() {
            slot.held.fetch_and(!(1 << rank.0), Ordering::Relaxed);
        }
    }
}

#[cfg(not(debug_assertions))]
mod debug {
    use super::Rank;
    #[inline]
    pub fn taking(_: Rank) {}
    #[inline]
    pub fn taking_any_order(_: Rank) {}
    #[inline]
    pub fn dropping(_: Rank) {}
}

#[cfg(test)]
mod tests;
