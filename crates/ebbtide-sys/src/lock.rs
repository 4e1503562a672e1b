//! A futex lock with a rank.
//!
//! ```text
//!  state  meaning                          set by
//!  0      free                             the holder, on unlock
//!  1      held, nobody waits               a taker that found 0
//!  2      held, somebody may be waiting    a taker about to sleep
//! ```
//!
//! Works before libc is ready, allocates nothing, starts nothing, and keeps `errno`. It does not
//! poison and is not re-entrant.
//!
//! - `INV-LOCK-1`: a thread takes locks in ascending [`Rank`] only. Debug builds check it on each
//!   [`Lock::lock`]; fork handlers take whole ranks in order through [`Lock::lock_for_fork`].
//! - `INV-LOCK-2`: no holder makes a system call that can block.
//!
//! Orderings: the successful exchange acquires, the unlocking one releases; they are partners.
//! Source: Drepper, *Futexes are tricky*, mutex 3.

use crate::call::{Sysno, syscall};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// How long a taker looks on before it sleeps: about as long as the longest hold.
const SPINS: u32 = 100;

/// The place of a lock in the one order in which locks are taken, below 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u8);

/// A value behind a futex.
pub struct Lock<T> {
    state: AtomicU32,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, whoever holds the lock.
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
        self.acquire();
        Guard { lock: self }
    }

    /// Takes the lock if it is free now.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let taken = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.ok()?;
        debug::taking_any_order(self.rank);
        Some(Guard { lock: self })
    }

    #[inline]
    fn acquire(&self) {
        let taken = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.acquire_contended();
        }
    }

    #[cold]
    fn acquire_contended(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            futex_wait(&self.state, AWAITED);
        }
    }

    #[inline]
    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == AWAITED {
            futex_wake(&self.state, 1);
        }
    }

    /// Takes the lock for a fork, without a guard; several of one rank may be held so.
    pub fn lock_for_fork(&self) {
        self.acquire();
    }

    /// Undoes [`Self::lock_for_fork`], in the parent or in the child.
    ///
    /// # Safety
    /// This thread, or the one that it was forked from, took it so.
    pub unsafe fn unlock_after_fork(&self) {
        self.release();
    }

    /// Makes the lock free whoever held it, and hands out the value.
    ///
    /// # Safety
    /// No other thread exists in this process, and the value is put into a known state now.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn reset(&self) -> &mut T {
        self.state.store(FREE, Ordering::Relaxed);
        // SAFETY: by contract nobody else runs.
        unsafe { &mut *self.value.get() }
    }
}

/// Access to the value; frees the lock when dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
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
        self.lock.release();
    }
}

/// Sleeps while `word` holds `value`. Wakes up spuriously too.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is a live futex word; no timeout.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), operation, value, 0) };
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

    /// Threads that share a slot with another one go unchecked while that one holds locks.
    static SLOTS: [Slot; 1 << 14] = [const {
        Slot {
            thread: AtomicU32::new(0),
            held: AtomicU64::new(0),
        }
    }; 1 << 14];

    fn slot() -> Option<&'static Slot> {
        let id = crate::process::thread_id();
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
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn excludes_and_wakes() {
        static LOCK: Lock<u64> = Lock::new(Rank(1), 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *LOCK.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*LOCK.lock(), 80_000);
        let guard = LOCK.lock();
        assert!(LOCK.try_lock().is_none());
        drop(guard);
        assert!(LOCK.try_lock().is_some());
    }

    /// The positive control of the rank checker.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "taken while holding")]
    fn descending_ranks_are_caught() {
        let (low, high) = (Lock::new(Rank(1), ()), Lock::new(Rank(2), ()));
        let _high = high.lock();
        let _low = low.lock();
    }
}
