//! Slots, their bounds and their queue. Reports are tested in `tests/tests/guard.rs`.

extern crate std;

use super::*;
use crate::alone::{alone, holds};
use std::vec::Vec;

/// A pool, of which the program itself takes no slot.
const POOL: &str = "guard=4000000000,workers=0,pressure=off,lazyfree=off,thp=off";

#[test]
fn a_freed_slot_has_no_memory_and_waits() {
    alone(POOL, |heap| {
        let first = heap.take_guarded(100, 1).unwrap();
        assert!(vm::is_resident(first));
        heap.free_guarded(first);
        assert!(!vm::is_resident(first));
        // A second one takes another slot, and so on.
        for _ in 1..SAMPLED.slots[0] {
            let other = heap.take_guarded(100, 1).unwrap();
            assert_ne!(other / vm::page(), first / vm::page());
            heap.free_guarded(other);
        }
        let again = heap.take_guarded(100, 1).unwrap();
        assert_eq!(again / vm::page(), first / vm::page());
        heap.free_guarded(again);
    });
}

#[test]
fn live_objects_are_bounded() {
    alone(POOL, |heap| {
        let take = |size| core::iter::from_fn(move || heap.take_guarded(size, 1));
        let large: Vec<usize> = take(MOST_BYTES).collect();
        assert_eq!(large.len(), SAMPLED.live_bytes / MOST_BYTES);
        assert_eq!(heap.guarded.live_bytes(), SAMPLED.live_bytes);
        large.iter().for_each(|&object| heap.free_guarded(object));
        let small: Vec<usize> = take(1).collect();
        assert_eq!(small.len(), SAMPLED.slots[0]);
        assert!(heap.take_guarded(vm::page() + 1, 1).is_some());
        small.iter().for_each(|&object| heap.free_guarded(object));
        assert_eq!(heap.take_guarded(MOST_BYTES + 1, 1), None);
        assert_eq!(heap.take_guarded(1, 2 * vm::page()), None);
    });
}

#[test]
fn objects_lie_at_both_edges_of_a_pattern() {
    alone(POOL, |heap| {
        let mut at_start = 0;
        for _ in 0..200 {
            let object = heap.take_guarded(100, 16).unwrap();
            let start = object / vm::page() * vm::page();
            let behind = start + vm::page() - object - 100;
            assert!(holds(start, object - start, PATTERN) && holds(object + 100, behind, PATTERN));
            assert!(object == start || behind < 16);
            at_start += usize::from(object == start);
            assert_eq!(heap.guarded.size(object, ""), 100);
            heap.free_guarded(object);
        }
        assert!((40..160).contains(&at_start), "{at_start}");
    });
}

/// A child whose parent had threads does not trust the queue; it frees the objects that it has.
#[test]
fn an_abandoned_pool_gives_nothing() {
    alone(POOL, |heap| {
        let object = heap.take_guarded(100, 1).unwrap();
        // SAFETY: this test's process has no other thread that works inside the heap.
        unsafe { Slots.abandon(heap) };
        assert_eq!(heap.take_guarded(100, 1), None);
        heap.free_guarded(object);
        assert!(!vm::is_resident(object));
    });
}
