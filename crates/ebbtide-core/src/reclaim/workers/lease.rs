//! How long a worker may live: while it may do no more than the main thread.
//!
//! A worker inherits the filters and the user of the thread that made it. A program that locks itself in later with
//! seccomp(2), or that changes its user, binds its own threads; libc does not know a worker, and a filter without
//! `SECCOMP_FILTER_FLAG_TSYNC` binds one thread. Whoever can write to the program's memory could make a worker do what
//! the program may not. So once in [`CHECK_MS`] a worker compares the main thread's rights with what it found at its own
//! start, and ends when they differ. The next one is made by a thread of the program, and inherits.
//!
//! A program that binds itself through the C library's functions finds no worker: those in front of them
//! ([`Workers::end_all`](super::Workers::end_all)) end all workers first.
//!
//! Signals are blocked in workers. One that is sent to a worker means that the program waits for all threads to handle
//! it, as libpsx does: the worker ends, and is waited for no longer.
//!
//! A worker that cannot be sure of its own rights ends [`UNSURE_MS`] after its start:
//! - It has no table of its own, or cannot read `/proc`.
//! - The main thread had a filter at the first look, and no worker saw the same rights before this one was made. The
//!   main thread may have installed the filter in between.
//!
//! [Decision 0066](../../../../../docs/decisions/0066-workers-have-an-rseq-area-and-no-extra-rights.md).

use core::sync::atomic::{AtomicU64, Ordering};
use ebbtide_sys::clock;
use ebbtide_sys::thread::{self, Rights};

/// A worker looks so often.
pub const CHECK_MS: u64 = 1000;
/// So long lives one that is not sure.
const UNSURE_MS: u64 = 10_000;

/// What all workers of a process go by.
pub struct LeaseTerms {
    /// The main thread's rights, as a worker saw them last.
    seen: AtomicU64,
    /// A worker made by then ends.
    ended_ms: AtomicU64,
}

impl LeaseTerms {
    /// No worker has seen anything, and none must end.
    pub const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
        }
    }

    /// As at the start.
    pub fn reset(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.ended_ms.store(0, Ordering::Relaxed);
    }

    /// Every worker that was made until now ends.
    pub fn end(&self) {
        self.ended_ms.store(clock::now_ms(), Ordering::SeqCst);
    }
}

/// See the module's header.
pub struct Lease {
    made_ms: u64,
    /// What the main thread might do at the start; `None`: cannot be read.
    rights: Option<u32>,
    next_ms: u64,
    /// The end, if nothing comes before it.
    end_ms: u64,
}

/// A sight of the main thread's rights: the digest, and when it was over, in milliseconds modulo 2^32.
fn sight(digest: u32, ms: u64) -> u64 {
    u64::from(digest) << 32 | u64::from(ms as u32)
}

/// Whether that digest was seen before a moment less than 24 days ago.
fn was_seen_before(last: u64, digest: u32, ms: u64) -> bool {
    let age = (ms as u32).wrapping_sub(last as u32);
    (last >> 32) as u32 == digest && age != 0 && age < 1 << 31
}

impl Lease {
    /// For a worker made at `made_ms`.
    pub fn new(may_open: bool, made_ms: u64, terms: &LeaseTerms) -> Self {
        let seen = terms.seen.load(Ordering::Acquire);
        let now = clock::now_ms();
        let rights = may_open.then(Rights::of_main_thread).flatten();
        let end_ms = match &rights {
            Some(rights) if !rights.has_own_user() => 0,
            Some(rights) if !rights.is_filtered => u64::MAX,
            Some(rights) if was_seen_before(seen, rights.digest, made_ms) => u64::MAX,
            _ => now + UNSURE_MS,
        };
        if let Some(rights) = &rights {
            let now = sight(rights.digest, clock::now_ms());
            terms.seen.store(now, Ordering::Release);
        }
        Self {
            made_ms,
            rights: rights.map(|rights| rights.digest),
            next_ms: now + CHECK_MS,
            end_ms,
        }
    }

    /// Whether the worker must end.
    pub fn is_over(&self) -> bool {
        self.end_ms == 0
    }

    /// How long a worker may sleep now.
    pub fn pause_ms(&self, now_ms: u64) -> u64 {
        self.next_ms.min(self.end_ms).saturating_sub(now_ms)
    }

    /// Whether the worker may go on. Looks, when it is time to.
    pub fn holds(&mut self, now_ms: u64, terms: &LeaseTerms) -> bool {
        if self.made_ms <= terms.ended_ms.load(Ordering::SeqCst) {
            self.end_ms = 0;
        }
        if now_ms < self.next_ms && now_ms < self.end_ms {
            return true;
        }
        self.next_ms = now_ms + CHECK_MS;
        if now_ms >= self.end_ms || !self.look(terms) {
            self.end_ms = 0;
        }
        !self.is_over()
    }

    fn look(&mut self, terms: &LeaseTerms) -> bool {
        // Before the process's own: what is taken in between seems to be this thread's, and a worker ends in vain.
        let pending = thread::pending_signals();
        let seen = self.rights.is_some().then(Rights::of_main_thread).flatten();
        let Some(rights) = seen else {
            if self.rights.take().is_some() {
                // A filter that has come for all threads.
                self.end_ms = self.end_ms.min(clock::now_ms() + UNSURE_MS);
            }
            return pending & thread::SIGNAL_TO_ALL == 0;
        };
        let now = sight(rights.digest, clock::now_ms());
        terms.seen.store(now, Ordering::Release);
        self.rights == Some(rights.digest) && pending & !rights.pending == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sight_counts_from_the_next_millisecond_on() {
        let last = sight(7, 1 << 40);
        assert!(was_seen_before(last, 7, (1 << 40) + 1));
        assert!(!was_seen_before(last, 7, 1 << 40));
        assert!(!was_seen_before(last, 7, (1 << 40) - 1));
        assert!(!was_seen_before(last, 8, (1 << 40) + 1));
        // Across the end of the count.
        assert!(was_seen_before(sight(7, u64::from(u32::MAX)), 7, 1 << 32));
    }

    #[test]
    fn one_that_is_not_sure_ends() {
        let terms = LeaseTerms::new();
        let mut lease = Lease::new(false, 1, &terms);
        let now = clock::now_ms();
        assert!(lease.holds(now, &terms) && lease.pause_ms(now) <= CHECK_MS);
        assert!(lease.holds(now + CHECK_MS, &terms));
        assert!(!lease.holds(now + UNSURE_MS + 1, &terms) && lease.is_over());
        assert!(!lease.holds(now, &terms), "for good");
    }

    #[test]
    fn a_change_of_the_main_thread_s_rights_is_its_end() {
        let terms = LeaseTerms::new();
        let mut lease = Lease::new(true, 1, &terms);
        let now = clock::now_ms();
        if lease.rights.is_none() {
            return;
        }
        assert!(lease.holds(now + CHECK_MS, &terms));
        lease.rights = lease.rights.map(|digest| digest ^ 1);
        assert!(lease.holds(now + CHECK_MS, &terms), "not looked at yet");
        assert!(!lease.holds(now + 2 * CHECK_MS, &terms));
    }
    #[test]
    fn who_was_made_before_all_had_to_end_ends() {
        let terms = LeaseTerms::new();
        let now = clock::now_ms();
        let mut before = Lease::new(false, now, &terms);
        assert!(before.holds(now, &terms));
        terms.end();
        let after = terms.ended_ms.load(Ordering::Relaxed) + 1;
        assert!(!before.holds(now, &terms) && before.is_over());
        assert!(Lease::new(false, after, &terms).holds(after, &terms));
        terms.reset();
        assert!(Lease::new(false, now, &terms).holds(now, &terms));
    }
}
