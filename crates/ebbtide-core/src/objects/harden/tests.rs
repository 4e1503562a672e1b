//! Words, guards and poison of objects. What ends the process: `tests/tests/harden.rs`.

extern crate std;

use super::*;
use crate::alone::{alone, holds};
use crate::base::size_class::aligned_class_of;
use crate::base::size_class::{MAX_SMALL, class_of};
use crate::reclaim::Heap;
use ebbtide_zone::FRAME_BYTES;

pub const HARDENED: &str =
    "harden=on,workers=0,pressure=off,lazyfree=off,thp=off,retain_ms=3600000";

fn word_of(heap: &Heap, class: usize, object: usize) -> u32 {
    heap.word(class, object).unwrap().load(Ordering::Relaxed)
}

/// What stands behind `size` bytes that were asked for, and no more.
fn is_guarded(object: usize, size: usize, room: usize) -> bool {
    let guard = (room - size).min(GUARD_BYTES);
    let behind = object + size + guard;
    holds(object + size, guard, GUARD)
        && (guard < GUARD_BYTES || size + guard == room || !holds(behind, 1, GUARD))
}

#[test]
fn a_word_follows_its_object() {
    alone(HARDENED, |heap| {
        for size in [0, 1, 15, 16, 100, 1000, 5000, MAX_SMALL - 1] {
            let object = heap.allocate_hardened(size, 1);
            // One byte more, so that there is always a guard.
            let class = class_of(size + 1);
            let room = CLASS[class].size as usize;
            assert_eq!(word_of(heap, class, object), LIVE + size as u32);
            assert_eq!(heap.size_hardened(class, object, ""), size);
            assert!(is_guarded(object, size, room), "{size} bytes");
            // Its neighbours have words of their own.
            if CLASS[class].objects > 1 {
                assert_eq!(word_of(heap, class, object + room), NEVER);
            }
            heap.free_hardened(class, object);
            assert_eq!(word_of(heap, class, object), FREED);
            assert!(holds(object, room.min(POISON_BYTES), POISON));
            check_poison(class, object);
        }
    });
}

#[test]
fn only_the_start_of_an_object_has_a_word() {
    alone(HARDENED, |heap| {
        let class = class_of(48);
        let about = &CLASS[class];
        let size = about.size as usize;
        let first = heap.allocate_hardened(size - 1, 1);
        assert!(heap.word(class, first).is_some());
        for inside in [1, 16, size - 1] {
            assert!(heap.word(class, first + inside).is_none(), "{inside}");
        }
        let region = heap.region();
        let span = region.address(Frame(heap.span_start(region.frame(first))));
        let end = span + about.objects as usize * size;
        assert!(heap.word(class, end - size).is_some());
        assert!(heap.word(class, end).is_none(), "behind the span");
        heap.free_hardened(class, first);
    });
}

#[test]
fn a_resize_in_place_moves_the_guard() {
    alone(HARDENED, |heap| {
        let class = class_of(1001);
        let room = CLASS[class].size as usize;
        let object = heap.allocate_hardened(1000, 1);
        for size in [room - 1, room / 2, 1000, 600] {
            assert_eq!(heap.resize_hardened(class, object, size), Ok(()));
            assert_eq!(heap.size_hardened(class, object, ""), size);
            assert!(is_guarded(object, size, room), "{size} bytes");
        }
        for size in [room, room / 2 - 1, 1] {
            assert_eq!(heap.resize_hardened(class, object, size), Err(600));
            assert_eq!(heap.size_hardened(class, object, ""), 600);
        }
        heap.free_hardened(class, object);
    });
}

#[test]
fn aligned_objects_have_guards_too() {
    alone(HARDENED, |heap| {
        for align in [16, 64, 4096] {
            let object = heap.allocate_hardened(align, align);
            assert!(object.is_multiple_of(align));
            let class = aligned_class_of(align + 1, align).unwrap();
            assert!(is_guarded(object, align, CLASS[class].size as usize));
            heap.free_hardened(class, object);
        }
        // No class is aligned so: whole frames, with a guard of their own.
        let large = heap.allocate_hardened(100, 8192);
        assert!(large.is_multiple_of(8192));
        assert!(holds(large + 100, FRAME_BYTES - 100, GUARD));
        assert!(heap.free_large(heap.region().frame(large)));
    });
}

#[test]
fn without_it_objects_have_no_words() {
    alone(crate::alone::CALM, |heap| {
        assert!(!heap.is_hardened());
        assert_eq!(heap.region().states, 0);
    });
}
