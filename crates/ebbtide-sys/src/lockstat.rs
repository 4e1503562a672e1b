//! Lock cost by rank: how often locks are taken and awaited, how long threads wait, and how long locks are held.
//!
//! It is off until [`start`] is called, before there is a second thread. While off, a lock pays one predictable
//! branch. While on, each lock reads the clock twice. It adds to shared counters only after it was freed, so that
//! holds do not get longer; the cost of one clock reading is subtracted each time. Waits are measured in wall time,
//! because a waiter sleeps. Holds are measured in wall time or in the thread's CPU time ([`Holds`]). CPU time leaves
//! out what the hypervisor and the scheduler take away, but a reading of it is a system call.

use crate::clock;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The place of a lock in the one order in which locks are taken. Below 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u8);

/// Buckets of a histogram of times: the first below 32 ns, then one for each doubling. The last one (from 8 ms) has
/// no end.
pub const BUCKETS: usize = 20;
/// Powers of two of nanoseconds that share the first bucket.
const FIRST_LOG: u32 = 4;

/// The clock for holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// Monotonic time.
    Wall,
    /// CPU time of the thread.
    Cpu,
}

const OFF: u8 = 0;
const WALL: u8 = 1;
const CPU: u8 = 2;
static MODE: AtomicU8 = AtomicU8::new(OFF);
/// The cost of one reading in nanoseconds: of the wall clock, and of the clock for holds.
static READS_NS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

struct Sums {
    sum_ns: AtomicU64,
    longest_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

struct RankSums {
    taken: AtomicU64,
    contended: AtomicU64,
    waits: Sums,
    holds: Sums,
}

static RANKS: [RankSums; 64] = [const { RankSums::new() }; 64];

/// A set of measured durations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// Their sum.
    pub sum_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Number of durations in each bucket.
    pub buckets: [u64; BUCKETS],
}

/// The cost of all locks of one rank so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Figures {
    /// Acquisitions.
    pub taken: u64,
    /// Acquisitions that found the lock held.
    pub contended: u64,
    /// Time until contended acquisitions had the lock.
    pub waits: Times,
    /// Time from an acquisition to the release.
    pub holds: Times,
}

/// Switches the figures on. Only the single thread of a process may call this.
pub fn start(holds: Holds) {
    let mode = match holds {
        Holds::Wall => WALL,
        Holds::Cpu => CPU,
    };
    READS_NS[0].store(cost(clock::precise_ns), Ordering::Relaxed);
    READS_NS[1].store(
        cost(match holds {
            Holds::Wall => clock::precise_ns,
            Holds::Cpu => clock::thread_cpu_ns,
        }),
        Ordering::Relaxed,
    );
    MODE.store(mode, Ordering::Relaxed);
}

/// The cost of a reading: the smallest distance between two readings in a row.
fn cost(read: fn() -> u64) -> u64 {
    let pairs = (0..64).map(|_| {
        let first = read();
        read() - first
    });
    pairs.min().unwrap_or(0)
}

/// Whether figures are counted.
#[inline]
pub fn is_on() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// The cost of one reading of the clock for holds, which is subtracted from each hold.
pub fn read_ns() -> u64 {
    READS_NS[1].load(Ordering::Relaxed)
}

/// The figures of a rank. Each is read at its own moment.
pub fn figures(rank: Rank) -> Figures {
    let rank = &RANKS[usize::from(rank.0)];
    Figures {
        taken: rank.taken.load(Ordering::Relaxed),
        contended: rank.contended.load(Ordering::Relaxed),
        waits: rank.waits.load(),
        holds: rank.holds.load(),
    }
}

/// Sets all figures to zero: in a forked child.
pub fn forget() {
    for rank in &RANKS {
        rank.taken.store(0, Ordering::Relaxed);
        rank.contended.store(0, Ordering::Relaxed);
        rank.waits.clear();
        rank.holds.clear();
    }
}

/// The start or the end of a hold, for [`held`]. Never 0.
pub(crate) fn now() -> u64 {
    let now = match MODE.load(Ordering::Relaxed) {
        CPU => clock::thread_cpu_ns(),
        _ => clock::precise_ns(),
    };
    now.max(1)
}

pub(crate) fn taken(rank: Rank) {
    RANKS[usize::from(rank.0)]
        .taken
        .fetch_add(1, Ordering::Relaxed);
}

/// Counts a contended acquisition that began at `start` in wall time.
pub(crate) fn waited_since(rank: Rank, start: u64) {
    let rank = &RANKS[usize::from(rank.0)];
    rank.contended.fetch_add(1, Ordering::Relaxed);
    let ns = clock::precise_ns().saturating_sub(start);
    rank.waits
        .add(ns.saturating_sub(READS_NS[0].load(Ordering::Relaxed)));
}

/// Counts a hold from `since` to `until`.
pub(crate) fn held(rank: Rank, since: u64, until: u64) {
    let ns = until.saturating_sub(since).saturating_sub(read_ns());
    RANKS[usize::from(rank.0)].holds.add(ns);
}

fn bucket_of(ns: u64) -> usize {
    (ns.max(1).ilog2().saturating_sub(FIRST_LOG) as usize).min(BUCKETS - 1)
}

/// Durations in this bucket and below are shorter than the result.
pub const fn bucket_end_ns(bucket: usize) -> u64 {
    2 << (FIRST_LOG + bucket as u32)
}

impl Sums {
    const fn new() -> Self {
        Self {
            sum_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    fn add(&self, ns: u64) {
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.fetch_max(ns, Ordering::Relaxed);
        }
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    fn load(&self) -> Times {
        Times {
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            longest_ns: self.longest_ns.load(Ordering::Relaxed),
            buckets: core::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
        }
    }

    fn clear(&self) {
        self.sum_ns.store(0, Ordering::Relaxed);
        self.longest_ns.store(0, Ordering::Relaxed);
        let buckets = self.buckets.iter();
        buckets.for_each(|bucket| bucket.store(0, Ordering::Relaxed));
    }
}

impl RankSums {
    const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            waits: Sums::new(),
            holds: Sums::new(),
        }
    }
}

impl Times {
    /// An upper bound, by bucket, of all but the longest `1 - share` of the durations; 0 if there are none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let all: u64 = self.buckets.iter().sum();
        let mut left = (all as f64 * share) as u64;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            if count > left {
                return bucket_end_ns(bucket).min(self.longest_ns);
            }
            left -= count;
        }
        self.longest_ns
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::lock::Lock;

    /// The only test that switches the figures on. Other tests of this process may count too, in other ranks.
    #[test]
    fn a_long_hold_is_a_long_wait() {
        const RANK: Rank = Rank(63);
        static LOCK: Lock<u32> = Lock::new(RANK, 0);
        *LOCK.lock() += 1;
        assert_eq!(figures(RANK), Figures::default(), "off");
        start(Holds::Wall);
        drop(LOCK.lock());
        let guard = LOCK.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| *LOCK.lock() += 1);
            while !LOCK.is_awaited() {
                std::thread::yield_now();
            }
            std::thread::sleep(core::time::Duration::from_millis(20));
            drop(guard);
        });
        MODE.store(OFF, Ordering::Relaxed);
        let seen = figures(RANK);
        assert_eq!((seen.taken, seen.contended), (3, 1));
        assert!(seen.holds.longest_ns >= 19_000_000, "{seen:?}");
        assert!(seen.waits.sum_ns >= 10_000_000, "{seen:?}");
        assert_eq!(seen.holds.buckets.iter().sum::<u64>(), 3);
        // A short hold is a long one if the thread is preempted.
        assert!(seen.holds.buckets[BUCKETS - 1] >= 1);
        forget();
        assert_eq!(figures(RANK), Figures::default());
    }

    #[test]
    fn buckets_double() {
        assert_eq!((bucket_of(0), bucket_of(31), bucket_of(32)), (0, 0, 1));
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bucket_end_ns(bucket) - 1), bucket);
            assert_eq!(bucket_of(bucket_end_ns(bucket)), bucket + 1);
        }
        let mut times = Times {
            longest_ns: 1 << 20,
            ..Times::default()
        };
        assert_eq!(Times::default().quantile_ns(0.5), 0);
        (times.buckets[0], times.buckets[3]) = (99, 1);
        assert_eq!((times.quantile_ns(0.5), times.quantile_ns(0.99)), (32, 256));
    }
}
