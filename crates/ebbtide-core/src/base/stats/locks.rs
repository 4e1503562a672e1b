//! What the locks cost (`lockstat=on`): sums for [`super::Stats`], and the second half of the page.

use super::layout::WORDS;
use super::set;
use ebbtide_sys::lockstat;

/// What each lock rank cost: see [`write_locks`].
const RANKS: usize = 512;
const RANK_WORDS: usize = 8 + 2 * lockstat::BUCKETS;
const _: () = assert!(RANKS + crate::base::ranks::NAMES.len() * RANK_WORDS <= WORDS);

/// Sums over all locks.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LockTotals {
    /// Acquisitions.
    pub taken: u64,
    /// Of these, such that had to wait.
    pub contended: u64,
    /// How long they waited.
    pub wait_ns: u64,
    /// How long locks were held.
    pub hold_ns: u64,
}

impl LockTotals {
    pub(super) fn add(&mut self, rank: &lockstat::Figures) {
        self.taken += rank.taken;
        self.contended += rank.contended;
        self.wait_ns += rank.waits.sum_ns;
        self.hold_ns += rank.holds.sum_ns;
    }
}

/// What the locks of each rank cost so far, by name; zeros without `lockstat`.
pub fn locks() -> impl Iterator<Item = (&'static str, lockstat::Figures)> {
    let ranks = crate::base::ranks::NAMES.iter();
    ranks.map(|&(rank, name)| (name, lockstat::figures(rank)))
}

/// A record a rank: the rank and one, acquisitions, contended ones, sum and longest of waits, the same of holds, a
/// spare word; then the histograms of waits and of holds.
pub(super) fn write_locks() {
    for (at, &(rank, _)) in crate::base::ranks::NAMES.iter().enumerate() {
        let figures = lockstat::figures(rank);
        let (waits, holds) = (&figures.waits, &figures.holds);
        let head = [
            u64::from(rank.0) + 1,
            figures.taken,
            figures.contended,
            waits.sum_ns,
            waits.longest_ns,
            holds.sum_ns,
            holds.longest_ns,
            0,
        ];
        let words = head.iter().chain(&waits.buckets).chain(&holds.buckets);
        for (word, &value) in words.enumerate() {
            set(RANKS + at * RANK_WORDS + word, value as usize);
        }
    }
}
