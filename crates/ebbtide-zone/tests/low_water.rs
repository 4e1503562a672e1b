//! What a window did without.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::low_water::LowWater;
use proptest::prelude::*;

#[test]
fn what_came_in_this_window_may_be_needed() {
    let mut low = LowWater(0);
    assert_eq!(low.note(5, false), 0);
    assert_eq!(low.note(5, true), 0);
    assert_eq!(low.note(5, true), 5, "nobody needed them");
}

#[test]
fn the_least_counts_wherever_it_was_in_the_window() {
    let mut low = LowWater(9u16);
    for (kept, least) in [(7, 7), (2, 2), (8, 2)] {
        assert_eq!(low.note(kept, false), least);
    }
    assert_eq!(low.note(6, true), 2);
    assert_eq!(low, LowWater(6), "the next window begins with what is kept");
    assert_eq!(low.note(3, true), 3, "the last look belongs to its window");
}

proptest! {
    /// Of each window exactly the least that was kept in it, its first and its last moment counted.
    #[test]
    fn it_is_the_least_of_the_window(steps in prop::collection::vec((0u32..100, prop::bool::ANY), 1..60)) {
        let mut low = LowWater(50);
        let mut window = vec![50];
        for (kept, ends) in steps {
            window.push(kept);
            prop_assert_eq!(Some(low.note(kept, ends)), window.iter().copied().min());
            if ends {
                window = vec![kept];
            }
        }
    }
}
