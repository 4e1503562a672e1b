//! The gate of the heap's slow paths: closed while a thread forks.
//!
//! A forking thread holds every lock of the heap while libc waits for locks of its own. A thread that holds one of libc's
//! locks and allocates must not wait for that fork. So each request that a fast path does not serve passes this gate
//! first ([`Front::enter`](crate::front::Front::enter)):
//!
//! ```text
//!  open    the request counts itself in, works, and counts itself out
//!  closed  the request stays outside: the reserve serves it (crate::objects::reserve)
//! ```
//!
//! A fork closes the gate, waits until the requests inside have left, and then takes the locks. Workers do not pass the
//! gate: they hold no lock of libc's, so they may wait for a fork. Neither do calls such as `malloc_trim`, which libc
//! never makes under a lock of its own.
//!
//! - `INV-GATE-1`: no thread that counted itself in waits for a lock that a fork holds. The exception is a thread that
//!   was inside for longer than [`PATIENCE_MS`], or shares its counter with such a thread.
//!
//! A thread that was killed inside never counts itself out. A fork waits for it once. Later forks leave it out of the
//! count (`Shard::lost`).
//!
//! Orderings: counting in and closing are sequentially consistent. Either the fork sees the count, or the slow path sees
//! the gate closed.

use ebbtide_sys::lock::futex_wake;
use ebbtide_sys::{clock, thread};

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Counters: threads are spread over them by their number.
const SHARDS: usize = 64;
/// Longest time in all that a fork waits for the threads inside.
const PATIENCE_MS: u64 = 100;
/// How often a fork checks before it yields its CPU, and how often before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 20;

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// See the module's header.
pub struct Gate {
    state: AtomicU32,
    /// Whether this fork has kept a thread outside for the longest time that a thread waits.
    long: AtomicBool,
    shards: [Shard; SHARDS],
}

#[repr(align(64))]
struct Shard {
    /// Number of slow paths inside.
    inside: AtomicU32,
    /// Number of those for which a fork has waited in vain.
    lost: AtomicU32,
}

/// A thread that is counted in, until it is dropped.
#[must_use]
pub struct Inside<'a>(&'a Shard);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

impl Gate {
    /// Open; no thread is inside.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(OPEN),
            long: AtomicBool::new(false),
            shards: [const {
                Shard {
                    inside: AtomicU32::new(0),
                    lost: AtomicU32::new(0),
                }
            }; SHARDS],
        }
    }

    /// Counts a thread in. `None`: closed.
    #[inline]
    pub(super) fn enter(&self, thread: usize) -> Option<Inside<'_>> {
        let shard = &self.shards[(thread >> 12) % SHARDS];
        shard.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(shard);
        (self.state.load(Ordering::SeqCst) == OPEN).then_some(inside)
    }

    /// Sleeps until the gate is open, at most `most_ms` milliseconds.
    pub(super) fn wait_until_open(&self, most_ms: u64) {
        thread::wait(&self.state, CLOSED, most_ms);
        self.long.store(self.is_closed(), Ordering::Relaxed);
    }

    /// Whether the fork that keeps threads outside takes long: a hint.
    pub(super) fn is_closed_for_long(&self) -> bool {
        self.is_closed() && self.long.load(Ordering::Relaxed)
    }

    /// Whether a fork keeps threads outside now.
    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLOSED
    }

    /// Closes the gate, and waits for the threads inside.
    pub(super) fn close(&self) {
        self.long.store(false, Ordering::Relaxed);
        self.state.store(CLOSED, Ordering::SeqCst);
        let mut until_ms = None;
        for shard in &self.shards {
            shard.wait_until_empty(&mut until_ms);
        }
    }

    /// Opens the gate.
    pub(super) fn open(&self) {
        self.state.store(OPEN, Ordering::Release);
        futex_wake(&self.state, u32::MAX >> 1);
    }

    /// Resets the gate in a forked child: open, with no thread inside.
    pub(super) fn reset(&self) {
        for shard in &self.shards {
            shard.inside.store(0, Ordering::Relaxed);
            shard.lost.store(0, Ordering::Relaxed);
        }
        self.state.store(OPEN, Ordering::Release);
    }
}

impl Shard {
    /// Waits until no thread is inside. `until_ms`: the end of the fork's patience; `None` before its first wait.
    fn wait_until_empty(&self, until_ms: &mut Option<u64>) {
        for check in 0u32.. {
            let inside = self.inside.load(Ordering::SeqCst);
            let lost = self.lost.load(Ordering::Relaxed).min(inside);
            self.lost.store(lost, Ordering::Relaxed);
            if inside == lost {
                return;
            }
            if check < SPINS {
                core::hint::spin_loop();
                continue;
            }
            let now = clock::now_ms();
            if now >= *until_ms.get_or_insert(now + PATIENCE_MS) {
                self.lost.store(inside, Ordering::Relaxed);
                return;
            }
            if check < SPINS + YIELDS {
                thread::give_way();
            } else {
                thread::wait(&self.inside, inside, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_closed_gate_lets_nobody_in() {
        let gate = Gate::new();
        drop(gate.enter(1 << 12).expect("open"));
        gate.close();
        assert!(gate.is_closed() && gate.enter(1 << 12).is_none());
        gate.open();
        assert!(gate.enter(1 << 12).is_some());
    }

    #[test]
    fn closing_waits_for_those_inside() {
        let gate = Gate::new();
        let inside = gate.enter(5 << 12).expect("open");
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close());
            while !gate.is_closed() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            assert!(!closing.is_finished());
            drop(inside);
            closing.join().unwrap();
        });
    }

    /// A fork waits once for a thread that never leaves, and still waits for threads that enter later.
    #[test]
    fn the_lost_are_waited_for_once() {
        let gate = Gate::new();
        core::mem::forget(gate.enter(0));
        let takes = || {
            let start = Instant::now();
            gate.close();
            gate.open();
            start.elapsed()
        };
        assert!(takes() >= Duration::from_millis(PATIENCE_MS / 2));
        assert!(takes() < Duration::from_millis(PATIENCE_MS / 2));
        let later = gate.enter(0);
        assert!(takes() >= Duration::from_millis(PATIENCE_MS / 2));
        drop(later);
        assert!(takes() < Duration::from_millis(PATIENCE_MS / 2));
        gate.reset();
        assert_eq!(gate.shards[0].inside.load(Ordering::Relaxed), 0);
    }
}
