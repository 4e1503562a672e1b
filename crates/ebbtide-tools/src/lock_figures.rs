//! The cost of the library's locks, as its statistics page shows it (`dev=lockstat:on|cpu`).

use std::collections::BTreeMap;

use ebbtide_interface::page::{BUCKETS, LOCK_HEAD, LOCK_WORDS};
use ebbtide_interface::ranks;
use serde::Serialize;

use crate::out;

/// A set of measured durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Their sum.
    pub sum_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Number of durations below 32 ns, below 64 ns, and so on; the last bucket has no upper bound.
    pub histogram: Vec<u64>,
}

/// The locks of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankFigures {
    /// The rank's name.
    pub rank: &'static str,
    /// Acquisitions.
    pub taken: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Time that they waited.
    pub waits: Times,
    /// Time for which locks were held.
    pub holds: Times,
}

/// Reads the records. `words` are the words of the page's second half.
pub fn parse(words: &[u64]) -> Vec<RankFigures> {
    let records = words.chunks_exact(LOCK_WORDS);
    records
        .take_while(|record| record[0] != 0)
        .map(|record| {
            let times = |at: usize, buckets: usize| Times {
                sum_ns: record[at],
                longest_ns: record[at + 1],
                histogram: record[buckets..buckets + BUCKETS].to_vec(),
            };
            let known = ranks::ALL
                .iter()
                .find(|(rank, _)| u64::from(*rank) + 1 == record[0]);
            RankFigures {
                rank: known.map_or("unknown", |(_, name)| name),
                taken: record[1],
                contended: record[2],
                waits: times(3, LOCK_HEAD),
                holds: times(5, LOCK_HEAD + BUCKETS),
            }
        })
        .collect()
}

impl Times {
    fn add(&mut self, more: &Times) {
        // A page can hold any number.
        self.sum_ns = self.sum_ns.saturating_add(more.sum_ns);
        self.longest_ns = self.longest_ns.max(more.longest_ns);
        self.histogram.resize(BUCKETS, 0);
        let both = self.histogram.iter_mut().zip(&more.histogram);
        both.for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }

    /// An upper bound, by bucket, of all but the longest `1 - share` of the durations; 0 if there are none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let all = self
            .histogram
            .iter()
            .fold(0, |all: u64, &count| all.saturating_add(count));
        let mut left = (all as f64 * share) as u64;
        for (bucket, &count) in self.histogram.iter().enumerate() {
            if count > left {
                return (32 << bucket).min(self.longest_ns);
            }
            left -= count;
        }
        self.longest_ns
    }
}

/// Adds the figures of several processes, by rank; ranks that were never taken are left out.
pub fn sum<'a>(processes: impl Iterator<Item = &'a [RankFigures]>) -> Vec<RankFigures> {
    let place = |rank: &str| ranks::ALL.iter().position(|(_, name)| *name == rank);
    let mut sums: BTreeMap<Option<usize>, RankFigures> = BTreeMap::new();
    for one in processes.flatten().filter(|one| one.taken > 0) {
        let sum = sums.entry(place(one.rank)).or_default();
        sum.rank = one.rank;
        sum.taken = sum.taken.saturating_add(one.taken);
        sum.contended = sum.contended.saturating_add(one.contended);
        sum.waits.add(&one.waits);
        sum.holds.add(&one.holds);
    }
    sums.into_values().collect()
}

/// The titles of [`table`], each with the width of its column.
const HEAD: &str =
    "  lock            taken contended    share  wait p99   longest hold mean  hold p99   longest";

/// A table for people; empty if there are no figures.
pub fn table(locks: &[RankFigures]) -> String {
    if locks.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{HEAD}\n");
    for lock in locks {
        let mean = lock.holds.sum_ns / lock.taken.max(1);
        text.push_str(&format!(
            "  {:<10}{:>11}{:>10}{:>8.3}%{:>10}{:>10}{:>10}{:>10}{:>10}\n",
            lock.rank,
            lock.taken,
            lock.contended,
            lock.contended as f64 * 100.0 / lock.taken.max(1) as f64,
            out::duration(lock.waits.quantile_ns(0.99)),
            out::duration(lock.waits.longest_ns),
            out::duration(mean),
            out::duration(lock.holds.quantile_ns(0.99)),
            out::duration(lock.holds.longest_ns),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second half of a page, with one record.
    fn words() -> Vec<u64> {
        let mut words = vec![0; 512];
        words[..8].copy_from_slice(&[31, 100, 2, 500, 400, 6_000, 90, 0]);
        words[8 + 3] = 2;
        words[8 + BUCKETS] = 99;
        words[8 + BUCKETS + 1] = 1;
        words
    }

    #[test]
    fn records_are_read_and_added() {
        let one = parse(&words());
        assert_eq!(one.len(), 1);
        assert_eq!(
            (one[0].rank, one[0].taken, one[0].contended),
            ("ZONE", 100, 2)
        );
        assert_eq!((one[0].waits.sum_ns, one[0].holds.longest_ns), (500, 90));
        let both = sum([one.as_slice(), &one].into_iter());
        assert_eq!((both[0].taken, both[0].holds.sum_ns), (200, 12_000));
        assert_eq!(both[0].holds.histogram[0], 198);
        assert_eq!(both[0].holds.quantile_ns(0.5), 32);
        assert_eq!(both[0].waits.quantile_ns(0.99), 256);
        let text = table(&both);
        assert!(text.contains("ZONE") && text.contains("2.000%"), "{text}");
        assert!(parse(&[0; 512]).is_empty() && table(&[]).is_empty());
    }
}
