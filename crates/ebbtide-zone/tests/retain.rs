//! Retain by demand.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::retain::Retain;
use proptest::prelude::*;

const W: u64 = 1000;

#[test]
fn the_peak_is_kept_for_a_window() {
    let mut r = Retain::new();
    r.observe(10_000, 100);
    assert_eq!(r.due(10_000, W, 10, 90, None), 0);
    assert_eq!(r.due(10_999, W, 10, 90, None), 0);
    assert_eq!(r.due(10_999, W, 10, 95, None), 5);
    assert_eq!(r.due(11_000, W, 10, 90, None), 90);
}

#[test]
fn a_level_counts_until_the_next_look() {
    let mut r = Retain::new();
    // In use for five seconds, then freed: the peak ends with the free.
    r.observe(0, 1 << 18);
    r.observe(5_000, 0);
    assert_eq!(r.due(5_001, W, 0, 1 << 18, None), 0);
    assert_eq!(r.due(5_999, W, 0, 1 << 18, None), 0);
    assert_eq!(r.due(6_200, W, 0, 1 << 18, None), 1 << 18);
}

/// A rise between two observations counts as if it had been observed at the second, whatever is in use by then.
#[test]
fn a_rise_between_observations_counts() {
    let (mut r, mut seen) = (Retain::new(), Retain::new());
    for (now, rise, in_use) in [(100, 50, 20), (900, 10, 30), (1_500, 40, 0), (2_400, 0, 5)] {
        r.rise(rise);
        r.rise(rise / 2);
        r.observe(now, in_use);
        seen.observe(now, rise);
        seen.observe(now, in_use);
        for later in (now..now + 1_500).step_by(50) {
            assert_eq!(r.peak(later), seen.peak(later), "at {now}, by {later} ms");
        }
    }
    assert_eq!(r.peak(2_400), 40);
}

#[test]
fn a_loop_over_temporaries_never_refaults() {
    let mut r = Retain::new();
    for round in 0..100 {
        let t = round * 900;
        r.observe(t, 250_000);
        r.observe(t + 600, 1000);
        assert_eq!(r.due(t + 899, W, 1000, 249_000, None), 0);
    }
}

#[test]
fn a_cap_bounds_what_is_kept() {
    let mut r = Retain::default();
    r.observe(0, 100);
    assert_eq!(r.due(1, W, 10, 90, Some(30)), 60);
    assert_eq!(r.due(1, W, 10, 90, Some(0)), 90);
    assert_eq!(r.due(1, W, 10, 20, Some(30)), 0);
}

#[test]
fn nothing_observed_and_odd_windows() {
    let mut r = Retain::new();
    assert_eq!(r.due(u64::MAX, W, 0, 7, None), 7);
    r.observe(0, 100);
    assert_eq!(r.due(1, 0, 0, 7, None), 7);
    r.observe(5, 100);
    assert_eq!(r.due(5, 3, 0, 7, None), 0);
    r.observe(u64::MAX, 5);
    assert_eq!(r.due(u64::MAX - 1, u64::MAX, 0, 5, None), 0);
}

#[test]
fn a_new_window_carries_the_peak_over() {
    let mut r = Retain::new();
    r.observe(500, 100);
    assert_eq!(r.due(600, 4000, 0, 100, None), 0);
    assert_eq!(r.due(4499, 4000, 0, 100, None), 0);
    assert_eq!(r.due(4500, 4000, 0, 100, None), 100);
}

/// The part of the window that runs takes nobody's place: the oldest one may hold the peak still.
#[test]
fn the_oldest_part_counts_to_its_end() {
    let mut r = Retain::new();
    r.observe(124, 100);
    r.observe(124, 0);
    // Part 8: part 0 is not over for another tenth of a second.
    r.observe(1_010, 0);
    assert_eq!(r.peak(1_010), 100);
    r.observe(1_123, 0);
    assert_eq!((r.peak(1_123), r.peak(1_124)), (100, 0));
}

/// The peak that is carried over stands in the part in which it was seen: parts that begin later do not wipe it.
#[test]
fn a_peak_that_was_carried_over_is_kept_for_the_new_window() {
    for later in [1_900, 2_005, 2_105, 2_205, 2_305, 2_405, 2_505, 2_604] {
        let mut r = Retain::new();
        r.observe(1_805, 100);
        r.observe(1_805, 0);
        assert_eq!(r.due(1_805, 800, 0, 100, None), 0);
        r.observe(later, 0);
        assert_eq!(r.peak(later), 100, "at {later} ms");
        r.observe(2_605, 0);
        assert_eq!(r.peak(2_605), 0);
    }
}

proptest! {
    /// Never below the true peak of the window, never above the peak of a window an eighth (and a bit) longer.
    #[test]
    fn the_peak_is_bounded(steps in prop::collection::vec((0u64..700, 0u64..1000), 1..60), wait in 0u64..1500) {
        let mut r = Retain::new();
        let mut levels = vec![];
        let mut now = 0;
        for (dt, level) in steps {
            now += dt;
            r.observe(now, level);
            levels.push((now, level));
        }
        let last = now;
        now += wait;
        // A level lasts from its observation to the next one.
        let peak = |window: u64| {
            let until = |i: usize| levels.get(i + 1).map_or(last, |l| l.0);
            (0..levels.len()).filter(|&i| until(i) + window > now).map(|i| levels[i].1).max().unwrap_or(0)
        };
        prop_assert!(r.peak(now) >= peak(W));
        prop_assert!(r.peak(now) <= peak(W + W / 8 + 1));
    }
}
