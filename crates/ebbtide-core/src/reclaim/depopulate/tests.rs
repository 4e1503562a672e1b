//! Empty frames of half-used spans.

extern crate std;

use super::*;
use crate::alone::{CALM, PORTABLE, alone, fill, holds, resident, stay_here};
use crate::base::size_class::{CLASS, class_of};
use crate::reclaim::Heap;
use ebbtide_sys::clock;
use std::vec::Vec;

/// The window of [`CALM`]: no call of the test's finds anything due by the clock.
const WINDOW_MS: u64 = 3_600_000;

/// Objects of a class, by whole batches and spans, all but each `nth` freed into their spans. Those that live, and those that do not.
fn half_used(heap: &Heap, class: usize, count: usize, nth: usize) -> (Vec<usize>, Vec<usize>) {
    stay_here();
    let size = CLASS[class].size as usize;
    let (mut live, mut freed) = (Vec::new(), Vec::new());
    for n in 0..count {
        let object = heap.take_object(class);
        fill(object, size, 0x5c);
        // Not the first of a span: the frames at the border of two spans are empty.
        if n % nth == nth / 2 {
            &mut live
        } else {
            &mut freed
        }
        .push(object);
    }
    freed
        .iter()
        .for_each(|&object| heap.put_object(class, object));
    heap.drain_all(Releaser::Explicit);
    (live, freed)
}

fn live_stays(live: &[usize], class: usize) {
    let size = CLASS[class].size as usize;
    assert!(live.iter().all(|&object| holds(object, size, 0x5c)));
}

fn empty_frames_go(heap: &Heap) {
    let class = class_of(FRAME_BYTES);
    let (live, freed) = half_used(heap, class, 1024, 8);
    let pages = |objects: &[usize]| -> usize {
        let pages = objects.iter().map(|&object| resident(object, FRAME_BYTES));
        pages.sum()
    };
    assert_eq!(pages(&freed), freed.len());
    let waiting = heap.waiting_in_spans();
    assert!(waiting >= freed.len() * FRAME_BYTES, "{waiting} bytes");
    heap.depopulate_everything(Releaser::Explicit);
    assert_eq!((pages(&freed), pages(&live)), (0, live.len()));
    live_stays(&live, class);
    assert_eq!(heap.waiting_in_spans(), 0);
    assert_eq!(heap.central[class].bytes(class).claimed, 0);
    // The same objects come again, the populated ones before others, and read as they may.
    let again: Vec<usize> = (0..freed.len()).map(|_| heap.take_object(class)).collect();
    assert!(again.iter().all(|object| !live.contains(object)));
    live_stays(&live, class);
    for object in again.into_iter().chain(live) {
        heap.put_object(class, object);
    }
    heap.drain_all(Releaser::Explicit);
    assert_eq!(heap.central[class].bytes(class).all, 0);
}

#[test]
fn empty_frames_of_spans_go_and_come_again() {
    alone(CALM, |heap| {
        empty_frames_go(heap);
    });
}

#[test]
fn empty_frames_of_spans_go_and_come_again_without_sections() {
    alone(PORTABLE, |heap| {
        empty_frames_go(heap);
    });
}

#[test]
fn frames_with_a_byte_in_use_stay() {
    alone(CALM, |heap| {
        // Frames hold parts of several objects, and objects lie in two frames.
        for size in [48, 640, 3072, 5120, 20480] {
            let class = class_of(size);
            let (live, _) = half_used(heap, class, (1 << 20) / size, 7);
            heap.depopulate_everything(Releaser::Explicit);
            live_stays(&live, class);
            assert_eq!(heap.waiting_in_spans(), 0, "all was looked at");
            live.iter()
                .for_each(|&object| heap.put_object(class, object));
        }
        heap.drain_all(Releaser::Explicit);
    });
}

#[test]
fn a_depopulation_claims_what_is_due_or_all() {
    alone(CALM, |heap| {
        let class = class_of(FRAME_BYTES);
        let (live, freed) = half_used(heap, class, 2048, 16);
        let claimed = heap.depopulate(class, 1, Releaser::Explicit);
        assert!(claimed > 0 && claimed < freed.len() as u64 / 2, "{claimed}");
        // As many spans at once are looked at as may be.
        let rest = heap.depopulate(class, usize::MAX, Releaser::Explicit);
        assert_eq!(claimed + rest, freed.len() as u64);
        assert_eq!(heap.depopulate(class, usize::MAX, Releaser::Explicit), 0);
        live_stays(&live, class);
    });
}

#[test]
fn nothing_goes_where_it_is_switched_off() {
    alone(
        "workers=0,pressure=off,thp=off,dev=depopulate:off",
        |heap| {
            let class = class_of(FRAME_BYTES);
            let (_, freed) = half_used(heap, class, 1024, 8);
            assert_eq!(heap.waiting_in_spans(), 0);
            heap.depopulate_everything(Releaser::Explicit);
            heap.depopulate_some(1 << 40);
            for now in [1 << 40, 1 << 41] {
                assert_eq!(heap.depopulate_due(now, Releaser::Explicit), 0);
            }
            assert!(
                freed
                    .iter()
                    .all(|&object| resident(object, FRAME_BYTES) == 1)
            );
        },
    );
}

/// What the recent peak explains is not due; a window later all of it is.
#[test]
fn empty_frames_are_due_a_window_after_the_peak() {
    alone(CALM, |heap| {
        let class = class_of(FRAME_BYTES);
        let (_, freed) = half_used(heap, class, 1024, 8);
        let (now, window) = (clock::now_ms() + 10, WINDOW_MS);
        assert_eq!(heap.depopulate_due(now, Releaser::Explicit), 0);
        assert_eq!(heap.depopulate_due(now + window / 2, Releaser::Explicit), 0);
        let due = heap.depopulate_due(now + 5 * window, Releaser::Explicit);
        assert_eq!(due, freed.len() as u64);
        assert_eq!(heap.depopulate_due(now + 9 * window, Releaser::Explicit), 0);
        assert_eq!(heap.excess_in_spans(now), (0, 0), "pressure is not watched");
    });
}

#[test]
fn a_tick_takes_a_few() {
    alone(CALM, |heap| {
        let class = class_of(FRAME_BYTES);
        let (_, freed) = half_used(heap, class, 6144, 8);
        let now = clock::now_ms() + 10;
        let left = || freed.iter().filter(|&&at| resident(at, FRAME_BYTES) == 1);
        heap.depopulate_some(now);
        assert_eq!(left().count(), freed.len());
        heap.depopulate_some(now + 5 * WINDOW_MS);
        let (some, most) = (freed.len() - left().count(), HELP_FRAMES as usize);
        assert!((most..most + 512).contains(&some), "{some} of {most}");
    });
}

/// A tick is short: one class at a time.
#[test]
fn a_tick_takes_of_one_class() {
    alone(CALM, |heap| {
        let classes = [class_of(FRAME_BYTES), class_of(2 * FRAME_BYTES)];
        let freed = classes.map(|class| half_used(heap, class, 1024, 8).1);
        let now = clock::now_ms() + 10;
        heap.depopulate_some(now);
        let left = || {
            let resident = |at: &&usize| resident(**at, FRAME_BYTES) == 1;
            core::array::from_fn(|n: usize| freed[n].iter().filter(resident).count())
        };
        let all = [freed[0].len(), freed[1].len()];
        assert_eq!(left(), all);
        heap.depopulate_some(now + 5 * WINDOW_MS);
        assert_eq!(left(), [0, all[1]]);
        heap.depopulate_some(now + 5 * WINDOW_MS);
        assert_eq!(left(), [0, 0]);
    });
}
