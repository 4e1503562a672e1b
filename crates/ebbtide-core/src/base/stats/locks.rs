//! The cost of the locks (`dev=lockstat:on`): sums in [`Figures`], and a record for each rank in the page's second half.

use super::page::set;
use crate::base::ranks::{ALL, ZONE};
use ebbtide_interface::Figures;
use ebbtide_interface::page::{BUCKETS, LOCK_WORDS, LOCKS};
use ebbtide_sys::lock::Rank;
use ebbtide_sys::lockstat;

const _: () = assert!(BUCKETS == lockstat::BUCKETS);

/// The cost of the locks of each rank so far, by name; zeros without `lockstat`.
pub fn locks() -> impl Iterator<Item = (&'static str, lockstat::Figures)> {
    ALL.iter()
        .map(|&(rank, name)| (name, lockstat::figures(Rank(rank))))
}

/// Sums over all locks, and those of zones.
pub(super) fn sum_up(figures: &mut Figures) {
    (figures.lock_acquisitions, figures.lock_contended) = (0, 0);
    (figures.lock_wait_ns, figures.lock_hold_ns) = (0, 0);
    for (_, rank) in locks() {
        figures.lock_acquisitions += rank.taken;
        figures.lock_contended += rank.contended;
        figures.lock_wait_ns += rank.waits.sum_ns;
        figures.lock_hold_ns += rank.holds.sum_ns;
    }
    let zones = lockstat::figures(ZONE);
    (figures.zone_acquisitions, figures.zone_contended) = (zones.taken, zones.contended);
    (figures.zone_wait_ns, figures.zone_hold_ns) = (zones.waits.sum_ns, zones.holds.sum_ns);
}

/// Writes a record for each rank: see [`ebbtide_interface::page`].
pub(super) fn write_locks() {
    for (at, (&(rank, _), (_, figures))) in ALL.iter().zip(locks()).enumerate() {
        let (waits, holds) = (&figures.waits, &figures.holds);
        let head = [
            u64::from(rank) + 1,
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
            set(LOCKS + at * LOCK_WORDS + word, value);
        }
    }
}
