//! Guards of large allocations, and how long their places are kept from use.

use super::*;
use crate::alone::{alone, fill, holds};
use crate::objects::harden::tests::HARDENED;

#[test]
fn what_was_not_asked_for_of_the_last_frame_is_a_guard() {
    alone(HARDENED, |heap| {
        let frames = 300;
        for tail in [0, 1, FRAME_BYTES - 1] {
            let size = frames * FRAME_BYTES - tail;
            let large = heap.allocate_large(size, 1).unwrap();
            let head = heap.region().frame(large.address);
            assert_eq!(heap.large_bytes(head), size);
            assert!(holds(large.address + size, tail, GUARD));
            fill(large.address, size, 7);
            // A resize in place reads the old guard and writes a new one.
            let less = size - 10 * FRAME_BYTES - 5;
            assert_eq!(heap.resize_large(head, less), Some(large.address));
            assert_eq!(heap.large_bytes(head), less);
            let rest = less.next_multiple_of(FRAME_BYTES) - less;
            assert!(holds(large.address + less, rest, GUARD));
            assert!(holds(large.address, less, 7));
            assert!(heap.free_large(head) && !heap.free_large(head));
        }
    });
}

#[test]
fn a_freed_place_is_kept_until_others_came() {
    alone(HARDENED, |heap| {
        let ring = || {
            let kept = heap.kept.lock();
            (kept.count, kept.frames)
        };
        let slack = || heap.slack.load(Ordering::Relaxed);
        let each = 100 + heap.guard_frames() as usize;
        let allocate = || {
            let large = heap.allocate_large(100 * FRAME_BYTES, 1).unwrap();
            fill(large.address, 100 * FRAME_BYTES, 9);
            heap.region().frame(large.address)
        };
        let first = allocate();
        assert!(heap.free_large(first));
        assert_eq!((ring(), slack()), ((1, each), each));
        for n in 2..=ENTRIES {
            let head = allocate();
            assert_ne!(head, first);
            heap.free_large(head);
            let kept = n.min(ENTRIES - 1);
            assert_eq!((ring().0, slack()), (kept, kept * each));
        }
        // The first place is free again, and its memory was released. In its zone it may be closed.
        let address = heap.region().address(first);
        assert!(heap.give_access(first, 100) && holds(address, 100 * FRAME_BYTES, 0));
        heap.drain_quarantine();
        assert_eq!((ring(), slack()), ((0, 0), 0));
        for zone in heap.live_zones() {
            let counters = zone.counters();
            assert_eq!((counters.in_use, counters.dirty), (0, 0));
        }
        let large = heap.allocate_large(100 * FRAME_BYTES, 1).unwrap();
        assert!(large.clean && holds(large.address, 100 * FRAME_BYTES, 0));
    });
}

#[test]
fn the_oldest_place_goes_first_and_large_ones_sooner() {
    let mut kept = Kept::NONE;
    let place = |n| Place {
        head: Frame(n),
        frames: 10,
        blocks: n % 2,
    };
    for n in 0..ENTRIES as u32 {
        kept.put(place(n));
    }
    assert_eq!(
        kept.frames,
        16 * 10 + 16 * BLOCK_FRAMES as usize,
        "slack counts"
    );
    assert_eq!(
        kept.take_excess(usize::MAX).map(|place| place.head),
        Some(Frame(0))
    );
    assert!(kept.take_excess(usize::MAX).is_none());
    let frames = kept.frames;
    assert!(kept.take_excess(frames).is_none());
    assert_eq!(
        kept.take_excess(frames - 1).map(|place| place.head),
        Some(Frame(1))
    );
    kept.put(place(100));
    for n in 2..ENTRIES as u32 {
        assert_eq!(kept.take().map(|place| place.head), Some(Frame(n)));
    }
    assert_eq!(kept.take().map(|place| place.head), Some(Frame(100)));
    assert!(kept.take().is_none() && kept.frames == 0);
}

#[test]
fn very_large_ones_are_put_back_at_once() {
    alone(HARDENED, |heap| {
        let bytes = (MOST_FRAMES as usize + 1) * FRAME_BYTES;
        let large = heap.allocate_large(bytes, 1).unwrap();
        heap.free_large(heap.region().frame(large.address));
        assert_eq!(heap.kept.lock().count, 0);
        assert_eq!(heap.slack.load(Ordering::Relaxed), 0);
    });
}
