//! How long frames stay lazy, and whether they become so.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::refault::{Recent, Refaults, WINDOW_MS};
use proptest::prelude::*;

#[test]
fn what_is_recent_gets_old_once() {
    let mut recent = Recent::new(800);
    recent.advance(5_000);
    recent.add(10);
    assert_eq!((recent.advance(5_799), recent.all()), (0, 10));
    recent.add(7);
    assert_eq!((recent.advance(5_900), recent.all()), (10, 7));
    assert_eq!(recent.remove(3), 3);
    assert_eq!((recent.advance(u64::MAX), recent.all()), (4, 0));
    assert_eq!(recent.advance(u64::MAX), 0);
    let mut none = Recent::new(0);
    none.add(1);
    assert_eq!(none.advance(100), 1);
}

#[test]
fn the_newest_are_taken_out_first() {
    let mut recent = Recent::new(800);
    for now in [5_000, 5_100, 5_200] {
        recent.advance(now);
        recent.add(10);
    }
    assert_eq!((recent.remove(15), recent.all()), (15, 15));
    assert_eq!(recent.advance(5_900), 10, "the oldest are all there");
    assert_eq!(recent.advance(6_000), 5);
    assert_eq!((recent.remove(15), recent.advance(6_100)), (0, 0));
}

/// A frame that is wanted again saves 1600 + 110 - 450 = 1260 ns; each one that is made lazy costs 135 ns.
#[test]
fn the_costs_decide_to_the_frame() {
    let judged = |given_up, reused| {
        let mut zone = Refaults::new();
        zone.give_up(given_up);
        zone.observe(1, reused);
        zone
    };
    // 3 * 1260 = 28 * 135.
    assert!(judged(27, 3).lazy_first());
    assert!(!judged(28, 3).lazy_first());
    // Once it is so, it ends at twice the cost.
    for (more, stays) in [(29, true), (30, false)] {
        let mut zone = judged(27, 3);
        zone.give_up(more);
        zone.observe(2, 0);
        assert_eq!(zone.lazy_first(), stays, "{more} more");
    }
}

#[test]
fn old_evidence_counts_half() {
    let mut zone = Refaults::new();
    zone.give_up(100);
    zone.observe(1, 40);
    zone.observe(WINDOW_MS * 2 - 1, 0);
    assert_eq!(zone.evidence(), (20, 60));
    zone.observe(WINDOW_MS * 2, 0);
    assert_eq!(zone.evidence(), (10, 30));
    zone.observe(WINDOW_MS * 4, 0);
    assert_eq!(zone.evidence(), (2, 7));
}

#[test]
fn reuse_makes_it_lazy_and_waste_makes_it_clean() {
    let mut zone = Refaults::new();
    let mut now = 50_000;
    zone.observe(now, 0);
    assert!(!zone.lazy_first(), "nothing is known");
    zone.give_up(1000);
    now += 3000;
    // New memory before anything was given up would not count; this replaces it.
    zone.observe(now, 800);
    assert_eq!(zone.evidence(), (800, 0));
    assert!(zone.lazy_first() && zone.lazy_limit() == 1600);
    // The rest is unused when its time is over.
    now += WINDOW_MS;
    zone.observe(now, 0);
    assert_eq!(zone.evidence(), (400, 200));
    assert!(zone.lazy_first());
    for _ in 0..8 {
        zone.give_up(1000);
        now += WINDOW_MS * 2;
        zone.observe(now, 5000);
    }
    assert!(!zone.lazy_first(), "{:?}", zone.evidence());
    // What is known fades; the decision stays.
    now += WINDOW_MS * 100;
    zone.observe(now, 0);
    assert_eq!((zone.evidence(), zone.lazy_first()), ((0, 0), false));
}

/// What is given up is judged when its time is over, what comes back at once.
#[test]
fn a_few_that_come_back_do_not_hold_many() {
    let mut zone = Refaults::new();
    zone.observe(50_000, 0);
    zone.give_up(10_000);
    zone.observe(50_100, 50);
    assert_eq!((zone.lazy_first(), zone.lazy_limit()), (false, 0));
    zone.observe(51_000, 1950);
    assert_eq!((zone.lazy_first(), zone.lazy_limit()), (true, 4000));
    // Many more are given up now, and none of them is wanted yet.
    zone.give_up(100_000);
    zone.observe(51_100, 0);
    assert_eq!((zone.lazy_first(), zone.lazy_limit()), (false, 0));
}

#[test]
fn growth_alone_is_no_reuse() {
    let mut zone = Refaults::default();
    for tick in 0..1000 {
        zone.observe(tick * 10, 100_000);
    }
    assert_eq!((zone.evidence(), zone.lazy_first()), ((0, 0), false));
}

#[test]
fn the_border_lies_at_a_tenth_and_half_of_it() {
    for (reused, lazy) in [(0, false), (5, false), (11, true), (100, true)] {
        let mut zone = Refaults::new();
        // All is judged between two halvings.
        zone.observe(5_000, 0);
        zone.give_up(100);
        zone.observe(14_000, reused);
        zone.observe(17_000, 0);
        assert_eq!(zone.evidence(), (reused, 100 - reused));
        assert_eq!(zone.lazy_first(), lazy, "{reused} of 100");
    }
}

proptest! {
    #[test]
    fn every_frame_is_judged_once(steps in prop::collection::vec((0u64..4000, 0u64..500, 0u64..500), 1..80)) {
        let mut recent = Recent::new(WINDOW_MS);
        let (mut now, mut added, mut gone) = (0, vec![], 0);
        for (wait, add, take) in steps {
            now += wait;
            gone += recent.advance(now);
            recent.add(add);
            added.push((now, add));
            gone += recent.remove(take);
            let all: u64 = added.iter().map(|a| a.1).sum();
            prop_assert_eq!(recent.all() + gone, all);
            // Nothing stays longer than the window and an eighth.
            let young: u64 = added.iter().filter(|a| a.0 + WINDOW_MS * 9 / 8 >= now).map(|a| a.1).sum();
            prop_assert!(recent.all() <= young);
        }
    }

    #[test]
    fn nothing_is_forgotten_early(steps in prop::collection::vec((0u64..4000, 0u64..500), 1..80)) {
        let mut recent = Recent::new(WINDOW_MS);
        let (mut now, mut added) = (0, vec![]);
        for (wait, add) in steps {
            now += wait;
            recent.advance(now);
            recent.add(add);
            added.push((now, add));
            let young: u64 = added.iter().filter(|a| a.0 + WINDOW_MS >= now).map(|a| a.1).sum();
            prop_assert!(recent.all() >= young);
        }
    }
}
