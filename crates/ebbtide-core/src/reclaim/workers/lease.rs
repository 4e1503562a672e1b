//! The lease: how long a worker may live. It lives only while its rights are the main thread's.
//!
//! A worker inherits the filters and the user of the thread that made it. A program that later restricts itself with
//! seccomp(2), or changes its user, changes only its own threads. Libc does not know a worker, and a filter without
//! `SECCOMP_FILTER_FLAG_TSYNC` applies to one thread. An attacker that can write to the program's memory could make a
//! worker do what the program may not. So every [`CHECK_MS`] a worker compares the main thread's rights with those that it
//! read at its own start, and ends when they differ. A thread of the program makes the next worker, which inherits the new
//! rights.
//!
//! A program that restricts itself through the C library's functions has no worker then: Ebbtide's functions in front of
//! them end all workers first ([`Workers::end_all`](super::Workers::end_all)).
//!
//! Signals are blocked in workers. A signal to a worker means that the program waits for all threads to handle it, as
//! libpsx does. The worker then ends, and the program no longer waits for it.
//!
//! A worker that another worker has made inherits that one's filters, not those of a thread of the program. It ends at once if the main thread's
//! rights are not those that its maker had.
//!
//! A worker that cannot be sure of its own rights ends [`UNSURE_MS`] after its start. There are three cases:
//! - The worker has no descriptor table of its own, or cannot read `/proc`.
//! - The main thread had a filter at the worker's first check, and no worker saw the same rights before this worker was
//!   made. The main thread may have installed the filter in between.
//! - The main thread has a filter, and another worker has made this worker.
//!
//! [Decision 0066](../../../../../docs/decisions/0066-workers-have-an-rseq-area-and-no-extra-rights.md).

use core::sync::atomic::{AtomicU64, Ordering};
use ebbtide_sys::thread::{self, Rights};
use ebbtide_sys::{clock, rseq};

/// Interval between two checks of a worker.
pub const CHECK_MS: u64 = 1000;
/// Lifetime of a worker that is not sure of its rights.
const UNSURE_MS: u64 = 10_000;

/// The state that the leases of all workers of a process share.
pub struct LeaseTerms {
    /// The main thread's rights, as a worker last read them.
    seen: AtomicU64,
    /// Workers made up to this time end.
    ended_ms: AtomicU64,
}

impl LeaseTerms {
    /// No worker has read the rights, and no worker must end.
    pub const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
        }
    }

    /// Resets to the state at the start.
    pub fn reset(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.ended_ms.store(0, Ordering::Relaxed);
    }

    /// Ends every worker that was made until now.
    pub fn end(&self) {
        self.ended_ms.store(clock::now_ms(), Ordering::SeqCst);
    }
}

/// See the module's header.
pub struct Lease {
    made_ms: u64,
    /// The main thread's rights at the worker's start. `None`: they cannot be read.
    rights: Option<u32>,
    next_ms: u64,
    /// The latest end of the worker.
    end_ms: u64,
}

/// One reading of the main thread's rights: the digest, and the time when the reading was finished, in milliseconds
/// modulo 2^32.
fn sight(digest: u32, ms: u64) -> u64 {
    u64::from(digest) << 32 | u64::from(ms as u32)
}

/// Whether `last` shows that digest, read before `ms`, by less than 24 days.
fn was_seen_before(last: u64, digest: u32, ms: u64) -> bool {
    let age = (ms as u32).wrapping_sub(last as u32);
    (last >> 32) as u32 == digest && age != 0 && age < 1 << 31
}

impl Lease {
    /// The lease of a worker made at `made_ms`, by a worker with these rights or (`None`) a thread of the program.
    pub fn new(may_open: bool, made_ms: u64, maker: Option<u32>, terms: &LeaseTerms) -> Self {
        let seen = terms.seen.load(Ordering::Acquire);
        let now = clock::now_ms();
        let rights = may_open.then(Rights::of_main_thread).flatten();
        let end_ms = match &rights {
            Some(rights) if !rights.has_own_user() => 0,
            Some(rights) if maker.is_some_and(|digest| digest != rights.digest) => 0,
            Some(rights) if !rights.is_filtered => u64::MAX,
            Some(rights) if maker.is_none() && was_seen_before(seen, rights.digest, made_ms) => {
                u64::MAX
            }
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

    /// The main thread's rights at the worker's start, as far as known.
    pub fn rights(&self) -> Option<u32> {
        self.rights
    }

    /// Whether the worker must end.
    pub fn is_over(&self) -> bool {
        self.end_ms == 0
    }

    /// How long the worker may sleep before the next check.
    pub fn pause_ms(&self, now_ms: u64) -> u64 {
        self.next_ms.min(self.end_ms).saturating_sub(now_ms)
    }

    /// Whether the worker may go on. Checks the rights when a check is due.
    pub fn holds(&mut self, now_ms: u64, terms: &LeaseTerms) -> bool {
        if self.made_ms <= terms.ended_ms.load(Ordering::SeqCst) {
            self.end_ms = 0;
        }
        if now_ms < self.next_ms && now_ms < self.end_ms {
            return true;
        }
        self.next_ms = now_ms + CHECK_MS;
        if now_ms >= self.end_ms || !self.check_rights(terms) {
            self.end_ms = 0;
        }
        !self.is_over()
    }

    fn check_rights(&mut self, terms: &LeaseTerms) -> bool {
        // Read before the process's pending signals. In the other order, a signal that the process takes in between
        // would seem to be this thread's, and the worker would end without need.
        let pending = thread::pending_signals();
        let seen = self.rights.is_some().then(Rights::of_main_thread).flatten();
        let Some(rights) = seen else {
            if self.rights.take().is_some() {
                // A filter was installed for all threads meanwhile.
                self.end_ms = self.end_ms.min(clock::now_ms() + UNSURE_MS);
            }
            return pending & thread::SIGNAL_TO_ALL == 0;
        };
        let now = sight(rights.digest, clock::now_ms());
        terms.seen.store(now, Ordering::Release);
        if rights.is_filtered && self.rights != Some(rights.digest) {
            // The new filter may kill a thread for the call.
            rseq::stop();
        }
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
        // Across the wrap of the millisecond counter.
        assert!(was_seen_before(sight(7, u64::from(u32::MAX)), 7, 1 << 32));
    }

    #[test]
    fn one_that_is_not_sure_ends() {
        let terms = LeaseTerms::new();
        let mut lease = Lease::new(false, 1, None, &terms);
        let now = clock::now_ms();
        assert!(lease.holds(now, &terms) && lease.pause_ms(now) <= CHECK_MS);
        assert!(lease.holds(now + CHECK_MS, &terms));
        assert!(!lease.holds(now + UNSURE_MS + 1, &terms) && lease.is_over());
        assert!(!lease.holds(now, &terms), "for good");
    }

    #[test]
    fn one_made_by_a_worker_with_other_rights_ends_at_once() {
        let terms = LeaseTerms::new();
        let first = Lease::new(true, 1, None, &terms);
        let Some(rights) = first.rights() else { return };
        assert!(!Lease::new(true, 1, Some(rights), &terms).is_over());
        assert!(Lease::new(true, 1, Some(rights ^ 1), &terms).is_over());
    }

    #[test]
    fn a_change_of_the_main_thread_s_rights_is_its_end() {
        let terms = LeaseTerms::new();
        let mut lease = Lease::new(true, 1, None, &terms);
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
        let mut before = Lease::new(false, now, None, &terms);
        assert!(before.holds(now, &terms));
        terms.end();
        let after = terms.ended_ms.load(Ordering::Relaxed) + 1;
        assert!(!before.holds(now, &terms) && before.is_over());
        assert!(Lease::new(false, after, None, &terms).holds(after, &terms));
        terms.reset();
        assert!(Lease::new(false, now, None, &terms).holds(now, &terms));
    }
}
