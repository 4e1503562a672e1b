//! Which frames are claimed, and which of them may become lazy.

use super::*;
use crate::alone::{CALM, alone, dirty_blocks, dirty_run};
use crate::pages::frames::ZoneSlot;
use crate::reclaim::Heap;
use ebbtide_sys::features::HUGE_PAGES;
use ebbtide_zone::refault::WINDOW_MS;
use ebbtide_zone::{BLOCK_FRAMES, PutState};

const ONE_ZONE: &str = "workers=0,pressure=off,lazyfree=auto,thp=off,retain_ms=3600000,dev=zones:1";

/// Claims up to `frames`. Returns their number.
fn claim(heap: &Heap, take: Take, frames: u32) -> Option<Claim> {
    take.claim(heap.region(), &mut heap.zones[0].lock.lock(), frames)
}

fn put(heap: &Heap, claim: Claim, outcome: PutState) {
    let put = heap.zones[0].with(heap.region(), |zone| zone.put_claim(claim, outcome));
    assert!(put.is_ok());
}

#[test]
fn each_way_takes_its_frames() {
    alone(ONE_ZONE, |heap| {
        dirty_run(heap, 40);
        let due = Take::Due { lazy_first: false };
        assert!(claim(heap, Take::Lazy, 100).is_none());
        let claimed = claim(heap, due, 100).unwrap();
        assert_eq!(claimed.frames(), 40);
        put(heap, claimed, PutState::Lazy);
        assert!(claim(heap, due, 100).is_none());
        let claimed = claim(heap, Take::Lazy, 100).unwrap();
        assert_eq!(claimed.frames(), 40);
        put(heap, claimed, PutState::Lazy);
        put(heap, claim(heap, Take::Lazy, 30).unwrap(), PutState::Dirty);
        let claimed = claim(heap, Take::All, 15).unwrap();
        assert_eq!(claimed.frames(), 15);
        put(heap, claimed, PutState::Dirty);
        assert_eq!(claim(heap, Take::All, 100).unwrap().frames(), 40);
        // Only due frames count as given up: all of them are unused in the end.
        let mut data = heap.zones[0].lock.lock();
        data.refaults.observe(3 * WINDOW_MS, 0);
        assert_eq!(data.refaults.evidence(), (0, 40));
    });
}

/// Twice as many as were reused, less the frames that are lazy or claimed.
#[test]
fn there_is_room_for_as_many_lazy_frames_as_are_wanted_again() {
    alone(ONE_ZONE, |heap| {
        assert_eq!(heap.lazy_room(0), 0, "without experience");
        heap.zones[0].lock.lock().refaults.give_up(1000);
        heap.zones[0].lock.lock().refaults.observe(1, 900);
        assert_eq!(heap.lazy_room(0), 1800);
        dirty_run(heap, 50);
        let claimed = claim(heap, Take::All, 20).unwrap();
        assert_eq!(heap.lazy_room(0), 1780);
        put(heap, claimed, PutState::Lazy);
        assert_eq!(heap.lazy_room(0), 1780);
        claim(heap, Take::All, 50).unwrap();
        assert_eq!(heap.lazy_room(0), 1750);
    });
}

#[test]
fn always_there_is_room() {
    alone("workers=1,pressure=off,lazyfree=always", |heap| {
        assert_eq!(heap.lazy_room(0), u64::MAX);
        assert_eq!(heap.may_go_lazy(), LAZY_FREE.may_work());
        LAZY_FREE.refuse();
        assert!(!heap.may_go_lazy());
    });
}

#[test]
fn nothing_becomes_lazy_without_workers() {
    alone("workers=0,pressure=off,lazyfree=always", |heap| {
        assert!(!heap.may_go_lazy() && LAZY_FREE.may_work());
    });
}

#[test]
fn nothing_becomes_lazy_where_that_is_switched_off() {
    alone("workers=1,pressure=off,lazyfree=off", |heap| {
        assert!(!heap.may_go_lazy() && LAZY_FREE.may_work());
    });
}

#[test]
fn no_huge_page_is_split_for_lazy_frames() {
    alone("workers=0,pressure=off,lazyfree=off,dev=zones:1", |heap| {
        let start = heap.zones[0].lock.lock().state.first_block();
        // Behind the first blocks of the zone, Ebbtide asks for huge pages.
        heap.take_blocks(9, 1, 0).unwrap();
        let block = dirty_blocks(heap, 1);
        assert!(block.0 >= start.0 + 8);
        let frames = Claim::Frames {
            block,
            mask: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        let _ = HUGE_PAGES.latch(Ok::<_, ()>(()));
        if HUGE_PAGES.known() != Some(true) {
            return;
        }
        assert!(!heap.can_be_lazy(&frames));
        let first = block;
        assert!(heap.can_be_lazy(&Claim::Blocks { first, count: 1 }));
        let early = Claim::Frames {
            block: start,
            mask: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        assert!(heap.can_be_lazy(&early), "small pages there");
        // SAFETY: an opened block.
        unsafe { heap.region().flags(block) }.store(flag::SMALL, Ordering::Relaxed);
        assert!(heap.can_be_lazy(&frames), "split before");
    });
}

#[test]
fn lazy_frames_are_due_when_they_are_old_or_too_many() {
    alone(CALM, |_| {
        let slot = ZoneSlot::new();
        slot.begin(0, 512, 800);
        let mut data = slot.lock.lock();
        let counters = Counters {
            lazy: 100,
            ..Counters::default()
        };
        let due = |data: &mut ZoneData, now, cap| Heap::lazy_due(data, now, &counters, cap);
        assert_eq!(due(&mut data, 1000, u64::MAX), 100, "none is young");
        data.lazied.add(60);
        assert_eq!(due(&mut data, 1000, u64::MAX), 40);
        assert_eq!(due(&mut data, 1799, u64::MAX), 40);
        assert_eq!(due(&mut data, 1799, 25), 75, "no room for more");
        assert_eq!(due(&mut data, 1900, u64::MAX), 100);
        // More frames became lazy lately than are still lazy.
        data.lazied.add(300);
        assert_eq!(due(&mut data, 1900, u64::MAX), 0);
    });
}

#[test]
fn ranges_say_which_way_they_go() {
    let mut mask = [0; 8];
    (mask[0], mask[1]) = (0b1101 << 60, 0b11);
    let block = ebbtide_zone::Block(3);
    for to_lazy in [false, true] {
        let mut gather = Gather::NEW;
        add(&mut gather, Some(Claim::Frames { block, mask }), to_lazy);
        add(&mut gather, None, to_lazy);
        assert_eq!((gather.len(), gather.frames()), (2, 5));
        for (first, frames) in [(3 * 512 + 62, 4), (3 * 512 + 60, 1)] {
            let range = gather.pop().unwrap();
            assert_eq!((range.first, range.frames()), (first, frames));
            assert_eq!(range.is_lazy(), to_lazy);
        }
    }
}

#[test]
fn lazy_frames_that_are_needed_again_are_counted() {
    alone(ONE_ZONE, |heap| {
        dirty_run(heap, 40);
        let claimed = claim(heap, Take::Due { lazy_first: true }, 100).unwrap();
        put(heap, claimed, PutState::Lazy);
        // Frames that are released count as reused no more than those that stay.
        put(heap, claim(heap, Take::Lazy, 10).unwrap(), PutState::Clean);
        let lazy = || heap.zones[0].counters().lazy;
        let reused = || crate::front::figures().lazy_reused_bytes;
        assert_eq!((lazy(), reused()), (30, 0));
        for _ in 0..BLOCK_FRAMES {
            if lazy() == 0 {
                break;
            }
            heap.take_run(1, 1).expect("memory");
        }
        assert_eq!(
            (lazy(), reused()),
            (0, 30 * ebbtide_zone::FRAME_BYTES as u64)
        );
    });
}
