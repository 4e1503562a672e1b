//! What claimed ranges are once they are back.

extern crate std;

use super::*;
use crate::alone::{CALM, alone, dirty_blocks, dirty_run};
use crate::base::size_class::{CLASS, MAX_BATCH, class_of};
use crate::pages::frames::ZoneSlot;
use crate::reclaim::Heap;
use crate::reclaim::lazy::{Take, add};
use ebbtide_zone::{Counters, FRAME_BYTES};
use std::vec::Vec;

/// One zone, in which the blocks of the tests lie.
const ONE_ZONE: &str = "workers=0,pressure=off,lazyfree=off,thp=off,retain_ms=3600000,dev=zones:1";

fn zone(heap: &Heap) -> &ZoneSlot {
    &heap.live_zones()[0]
}

/// Frames that are dirty, lazy, and in claims.
fn counts(heap: &Heap) -> (u64, u64, u64) {
    let Counters {
        dirty,
        lazy,
        claimed,
        ..
    } = zone(heap).counters();
    (dirty, lazy, claimed)
}

/// Claims all that is dirty into a gather.
fn claim_all(heap: &Heap, to_lazy: bool) -> Gather {
    let mut gather = Gather::NEW;
    loop {
        assert!(gather.reserve());
        let mut data = zone(heap).lock.lock();
        let claim = Take::All.claim(heap.region(), &mut data, 1 << 20);
        if claim.is_none() {
            return gather;
        }
        add(&mut gather, claim, to_lazy);
    }
}

/// Puts a gather back; it is empty then.
fn put(heap: &Heap, mut gather: Gather, released: bool) {
    heap.put_back(&mut gather, released);
    assert!(gather.is_empty());
    gather.free_batches();
}

#[test]
fn only_what_was_released_is_clean() {
    alone(ONE_ZONE, |heap| {
        dirty_run(heap, 100);
        dirty_blocks(heap, 3);
        let all = 3 * 512 + 100;
        assert_eq!(counts(heap), (all, 0, 0));
        // Nobody came to it.
        let gather = claim_all(heap, false);
        assert_eq!(counts(heap), (0, 0, all));
        put(heap, gather, true);
        assert_eq!(counts(heap), (all, 0, 0));
        // Noted as done, but a forked child cannot know.
        let mut gather = claim_all(heap, false);
        gather.for_each(Gather::done);
        put(heap, gather, false);
        assert_eq!(counts(heap), (all, 0, 0));
        let mut gather = claim_all(heap, true);
        gather.for_each(Gather::done);
        put(heap, gather, false);
        assert_eq!(counts(heap), (all, 0, 0));
        // Made lazy.
        let mut gather = claim_all(heap, true);
        gather.for_each(Gather::done);
        put(heap, gather, true);
        assert_eq!(counts(heap), (0, all, 0));
        assert_eq!(zone(heap).lock.lock().lazied.all(), all);
        // Not made lazy after all.
        put(heap, claim_all(heap, true), true);
        assert_eq!(counts(heap), (all, 0, 0));
        // Released.
        let mut gather = claim_all(heap, false);
        gather.for_each(Gather::done);
        put(heap, gather, true);
        assert_eq!(counts(heap), (0, 0, 0));
        assert_eq!(heap.unsplit.all(), 0);
    });
}

#[test]
fn what_was_kept_is_dirty_and_held() {
    alone(ONE_ZONE, |heap| {
        let (first, block) = (dirty_run(heap, 100), dirty_blocks(heap, 2));
        let mut gather = claim_all(heap, false);
        gather.for_each(|range| {
            if range.first == first.0 {
                Gather::keep(range);
            } else {
                Gather::done(range);
            }
        });
        put(heap, gather, true);
        assert_eq!(counts(heap), (100, 0, 0));
        assert_eq!((heap.unsplit.frames(), heap.unsplit.all()), (100, 100));
        assert!(claim_all(heap, false).is_empty(), "until the next look");
        heap.clear_unsplit();
        let gather = claim_all(heap, false);
        assert_eq!(gather.frames(), 100);
        put(heap, gather, true);
        // A kept one that was to become lazy is neither lazy nor done.
        let mut gather = claim_all(heap, true);
        gather.for_each(Gather::done);
        gather.for_each(Gather::keep);
        put(heap, gather, true);
        assert_eq!(counts(heap), (100, 0, 0));
        assert_ne!(first.block(), block);
    });
}

/// A gather merges neighbours; each part goes back to the claim that it is from.
#[test]
fn merged_ranges_go_back_claim_by_claim() {
    alone(CALM, |heap| {
        // All in one word of the zone's, so that one claim can take all that is behind the middle.
        let extent = heap.take_blocks(60, 64, 0).unwrap();
        let (first, middle) = (extent.first, Block(extent.first.0 + 30));
        let zone = heap.zone_of(first);
        let mut gather = Gather::NEW;
        assert!(gather.reserve());
        let mut take = |claim: &dyn Fn(&mut ebbtide_zone::Zone) -> Option<Claim>| {
            let claim = zone.with(heap.region(), |zone| claim(zone));
            assert!(claim.is_some());
            add(&mut gather, claim, false);
        };
        heap.put_blocks(first, 30, 30);
        take(&|zone| zone.claim_dirty(30 * 512, false));
        // All frames of a block, in two claims.
        for half in [0, 256] {
            heap.put_run(Frame(middle.first_frame().0 + half), 256, 256);
            take(&|zone| zone.claim_free(middle));
        }
        heap.put_blocks(Block(middle.0 + 1), 29, 29);
        take(&|zone| zone.claim_dirty(29 * 512, false));
        assert_eq!((gather.frames(), gather.len()), (60 * 512, 2));
        gather.for_each(Gather::done);
        put(heap, gather, true);
        let counters = zone.counters();
        assert_eq!(
            (counters.dirty, counters.claimed, counters.in_use),
            (0, 0, 0)
        );
        let checked = zone.with(heap.region(), |zone| zone.check_invariants());
        assert!(checked.is_ok(), "{checked:?}");
    });
}

/// Claims all empty frames of a class's spans into a gather, ascending: neighbours of two spans become one range.
fn claim_spans(heap: &Heap, class: usize, round: u32) -> Gather {
    let mut gather = Gather::NEW;
    let mut runs = Vec::new();
    // SAFETY: lists of this class, under their lock.
    let more = unsafe {
        let mut lists = heap.central[class].spans.lock();
        lists.depopulate(heap, class, round, 1000, |first, count| {
            runs.push((first.0, count));
        })
    };
    assert!(!more);
    runs.sort_unstable();
    let ranges = runs.len();
    for (first, count) in runs {
        assert!(gather.reserve() && gather.add(Range::new(first, count)));
    }
    assert!(gather.len() < ranges, "none is of two spans");
    gather
}

#[test]
fn frames_of_spans_are_released_waiting_or_held() {
    alone(ONE_ZONE, |heap| {
        let class = class_of(FRAME_BYTES);
        let objects = 4 * CLASS[class].objects as usize;
        let mut freed: Vec<usize> = (0..objects).map(|_| heap.take_object(class)).collect();
        // One object of each span lives, not at its border.
        freed.sort_unstable();
        let span = CLASS[class].objects as usize;
        let mut live = Vec::new();
        (0..4).for_each(|n| live.push(freed.remove(n * (span - 1) + 5)));
        freed
            .chunks(MAX_BATCH)
            .for_each(|objects| heap.put_in_spans(class, objects));
        let spans = || {
            let bytes = heap.central[class].bytes(class);
            (bytes.in_spans / FRAME_BYTES, bytes.claimed / FRAME_BYTES)
        };
        let waiting = || heap.central[class].spans.lock().waiting(class) / FRAME_BYTES;
        let all = freed.len();
        assert_eq!((spans(), waiting()), ((all, 0), all));
        // Nobody came to it.
        let gather = claim_spans(heap, class, 1);
        assert_eq!((spans(), gather.frames()), ((0, all), all as u64));
        put(heap, gather, true);
        assert_eq!((spans(), waiting()), ((all, 0), all));
        // UnsplitBlocks until the next look.
        let mut gather = claim_spans(heap, class, 2);
        gather.for_each(Gather::keep);
        heap.central[class].spans.lock().looked_at_all(heap, class);
        put(heap, gather, true);
        assert_eq!((spans(), heap.unsplit.all(), waiting()), ((all, 0), all, 0));
        heap.clear_unsplit();
        assert_eq!((heap.unsplit.all(), waiting()), (0, all));
        // Released.
        let mut gather = claim_spans(heap, class, 3);
        gather.for_each(Gather::done);
        put(heap, gather, true);
        assert_eq!((spans(), waiting()), ((all, 0), 0));
        heap.put_in_spans(class, &live);
        assert_eq!(spans(), (0, 0));
    });
}

#[test]
fn a_huge_page_that_was_split_is_dirty_as_a_whole() {
    alone(ONE_ZONE, |heap| {
        let first = dirty_run(heap, 100);
        let free = u64::from(BLOCK_FRAMES);
        assert_eq!(counts(heap), (100, 0, 0));
        // Not of a whole-free block: its frames say what they are.
        heap.count_resident(Block(first.block().0 + 1));
        assert_eq!(counts(heap), (100, 0, 0));
        let run = heap.take_run(10, 1).unwrap();
        assert_eq!(run.first.block(), first.block());
        heap.count_resident(first.block());
        // All but those ten, and the one that keeps the block in parts.
        assert_eq!(counts(heap), (free - 11, 0, 0));
    });
}

/// Blocks that were released whole are ordinary again.
#[test]
fn special_mappings_are_healed_when_they_are_released_whole() {
    alone(ONE_ZONE, |heap| {
        let block = dirty_blocks(heap, 2);
        let flags = |n: u32| {
            // SAFETY: opened blocks.
            unsafe { heap.region().flags(Block(block.0 + n)) }
        };
        for n in 0..2 {
            flags(n).store(flag::SMALL, Ordering::Relaxed);
        }
        heap.small_blocks.store(2, Ordering::Relaxed);
        put(heap, claim_all(heap, false), true);
        assert_eq!(heap.small_blocks.load(Ordering::Relaxed), 2, "not released");
        let mut gather = claim_all(heap, false);
        gather.for_each(Gather::done);
        put(heap, gather, true);
        assert_eq!(heap.small_blocks.load(Ordering::Relaxed), 0);
        assert_eq!(
            (0..2).map(|n| flags(n).load(Ordering::Relaxed)).max(),
            Some(0)
        );
        // A part of a block leaves it as it is.
        let first = dirty_run(heap, 20);
        flags(first.block().0 - block.0).store(flag::SMALL, Ordering::Relaxed);
        heap.take_run(10, 1).unwrap();
        let mut gather = claim_all(heap, false);
        assert_eq!(gather.frames(), 10);
        gather.for_each(Gather::done);
        put(heap, gather, true);
        assert_eq!(
            flags(first.block().0 - block.0).load(Ordering::Relaxed),
            flag::SMALL
        );
    });
}

#[test]
fn masks() {
    assert_eq!(mask_of(0, 512), [u64::MAX; 8]);
    assert_eq!(mask_of(63, 2), [1 << 63, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(mask_of(511, 1)[7], 1 << 63);
}
