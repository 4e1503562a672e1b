//! Words, guards and poison of objects. Misuse that ends the process is tested in `tests/tests/harden.rs`.

extern crate std;

use super::*;
use crate::alone::{alone, holds as all_are};
use crate::base::size_class::{CLASSES, MAX_SMALL};
use crate::reclaim::Heap;

pub const HARDENED: &str =
    "harden=on,workers=0,pressure=off,lazyfree=off,thp=off,retain_ms=3600000";

fn word_of(heap: &Heap, class: usize, object: usize) -> Word {
    Word(heap.word(class, object).unwrap().0.load(Ordering::Relaxed))
}

/// Whether the bytes on both sides of the requested `size` are guards.
fn is_guarded(heap: &Heap, layout: Layout, object: usize, size: usize) -> bool {
    let Layout { class, front } = layout;
    let before = heap.shape(class).before(front);
    let behind = heap.shape(class).end - front - size;
    let enough = heap.is_paged(class) || (before == GUARD_BYTES && behind >= GUARD_BYTES);
    enough
        && all_are(object - before, before, GUARD)
        && all_are(object + size, behind.min(MOST_BEHIND), GUARD)
}

/// Frees an object of the class.
fn free(heap: &Heap, class: usize, object: usize) {
    heap.free_hardened(class, object);
}

#[test]
fn a_word_follows_its_object() {
    alone(HARDENED, |heap| {
        for size in [1, 15, 16, 100, 1000, 3000] {
            let object = heap.allocate_hardened(size, 1);
            let layout = heap.layout(size, 1).unwrap();
            let class = layout.class;
            let room = CLASS[class].size as usize;
            assert_eq!(word_of(heap, class, object), Word::live(size, GUARD_BYTES));
            assert_eq!(heap.size_hardened(class, object, ""), size);
            assert!(is_guarded(heap, layout, object, size), "{size} bytes");
            // The neighbouring objects have words of their own.
            if CLASS[class].objects > 1 {
                assert_eq!(word_of(heap, class, object + room), Word(0));
            }
            free(heap, class, object);
            assert_eq!(word_of(heap, class, object).state(), State::Freed);
            assert!(all_are(
                object,
                (room - GUARD_BYTES).min(POISON_BYTES),
                POISON
            ));
            heap.check_poison(class, object, GUARD_BYTES);
        }
    });
}

#[test]
fn each_request_has_a_place_with_room() {
    alone(HARDENED, |heap| {
        for align in [1, 16, 64, 1024, 2048, 4096] {
            for size in (0..MAX_SMALL).step_by(41).chain([3072, 3073, 4095, 4096]) {
                let Some(layout) = heap.layout(size, align) else {
                    assert!(size > MAX_SMALL / 2);
                    continue;
                };
                let Layout { class, front } = layout;
                assert!(
                    front.is_multiple_of(align)
                        && (CLASS[class].size as usize).is_multiple_of(align)
                );
                let room = heap.shape(class).end - front;
                if heap.is_paged(class) {
                    assert!(size <= room && room < size.max(1) + align.max(MIN_ALIGN));
                    assert!(align > MOST_ALIGN || size * 2 > memory_of(class, true) / 2);
                } else {
                    assert!(front >= GUARD_BYTES && size + GUARD_BYTES <= room);
                }
                assert_eq!(Word::live(size, front).front(), front);
            }
        }
        if heap.has_guard_pages {
            assert!((1..CLASSES).any(|class| heap.is_paged(class)));
        }
    });
}

#[test]
fn only_the_start_of_an_object_is_one() {
    alone(HARDENED, |heap| {
        let layout = heap.layout(48, 1).unwrap();
        let about = &CLASS[layout.class];
        let size = about.size as usize;
        let first = heap.allocate_hardened(48, 1);
        let place = first - GUARD_BYTES;
        for inside in [0, 16, 48, size - 16] {
            let (_, found) = heap.word(layout.class, place + inside).unwrap();
            assert_eq!(found, place);
        }
        let region = heap.region();
        let span = region.address(Frame(heap.span_start(region.frame(first))));
        let end = span + about.objects as usize * size;
        assert!(heap.word(layout.class, end - size).is_some());
        assert!(heap.word(layout.class, end).is_none(), "behind the span");
        free(heap, layout.class, first);
    });
}

#[test]
fn a_resize_in_place_moves_the_guard() {
    alone(HARDENED, |heap| {
        let layout = heap.layout(1000, 1).unwrap();
        let class = layout.class;
        let room = CLASS[class].size as usize - 2 * GUARD_BYTES;
        let object = heap.allocate_hardened(1000, 1);
        for size in [room, room / 2, 1000, 600] {
            assert_eq!(heap.resize_hardened(class, object, size), Ok(()));
            assert_eq!(heap.size_hardened(class, object, ""), size);
            assert!(is_guarded(heap, layout, object, size), "{size} bytes");
        }
        for size in [room + 1, room / 2 - 1, 1] {
            assert_eq!(heap.resize_hardened(class, object, size), Err(600));
            assert_eq!(heap.size_hardened(class, object, ""), 600);
        }
        free(heap, class, object);
    });
}

#[test]
fn aligned_objects_have_guards_too() {
    alone(HARDENED, |heap| {
        for align in [16, 64, 4096] {
            for size in [1, align, 5000] {
                let object = heap.allocate_hardened(size, align);
                assert!(object.is_multiple_of(align));
                let layout = heap.layout(size, align).unwrap();
                assert!(is_guarded(heap, layout, object, size));
                free(heap, layout.class, object);
            }
        }
        // No class has this alignment: whole frames serve, with a guard of their own.
        let large = heap.allocate_hardened(100, 8192);
        assert!(large.is_multiple_of(8192));
        assert!(all_are(large + 100, FRAME_BYTES - 100, GUARD));
        assert!(heap.free_large(heap.region().frame(large)));
    });
}

/// The kernel closes the pages in front of the locked one, and then refuses.
#[test]
fn a_place_that_is_closed_in_part_is_opened_again() {
    alone(HARDENED, |heap| {
        let (size, layout) = (4 * FRAME_BYTES, heap.layout(4 * FRAME_BYTES, 1).unwrap());
        let object = heap.allocate_hardened(size, 1);
        let page = (object + 2 * FRAME_BYTES) as *const core::ffi::c_void;
        // SAFETY: a page of the object.
        assert_eq!(unsafe { libc::mlock(page, 1) }, 0);
        free(heap, layout.class, object);
        assert!(all_are(object, POISON_BYTES, POISON));
        heap.drain_quarantine();
    });
}

#[test]
fn bytes_are_filled_and_compared_to_the_last() {
    for count in 0..150 {
        let mut bytes = [1u8; 180];
        let start = bytes.as_mut_ptr() as usize + 7;
        // SAFETY: inside of the array.
        unsafe {
            fill::<9>(start, count);
            assert!(holds::<9>(start, count) && first_other(start, count + 1, 9) == Some(count));
            for wrong in 0..count {
                *((start + wrong) as *mut u8) = 8;
                assert!(!holds::<9>(start, count));
                assert_eq!(first_other(start, count, 9), Some(wrong));
                *((start + wrong) as *mut u8) = 9;
            }
        }
        assert_eq!(bytes.iter().filter(|&&byte| byte == 9).count(), count);
    }
}

#[test]
fn without_it_objects_have_no_words() {
    alone(crate::alone::CALM, |heap| {
        assert!(!heap.is_hardened() && !heap.has_guard_pages);
        assert_eq!(heap.region().states, 0);
    });
}
