//! When unsplit blocks are tried again.

use super::*;
use crate::alone::{CALM, alone, dirty_run};

#[test]
fn looks_come_at_growing_intervals_while_something_is_held() {
    alone(CALM, |heap| {
        let held = &heap.unsplit;
        heap.retry_unsplit(5000);
        assert_eq!((held.all(), held.next_retry_ms()), (0, Some(FIRST_MS)));
        let (mut now, mut wait) = (5000, FIRST_MS);
        for _ in 0..10 {
            held.add(3);
            held.add_in_span(2);
            assert_eq!((held.all(), held.frames()), (5, 3));
            let look = held.generation();
            heap.retry_unsplit(now + wait - 1);
            assert_eq!((held.all(), held.generation()), (5, look), "too early");
            now += wait;
            heap.retry_unsplit(now);
            assert_eq!((held.all(), held.frames()), (0, 0));
            assert_ne!(held.generation(), look);
            wait = (wait * 2).min(MOST_MS);
            assert_eq!(held.next_retry_ms(), (wait < MOST_MS).then_some(wait));
        }
        assert_eq!(wait, MOST_MS);
        // Nothing is unsplit at this retry: the next one begins anew.
        now += 1;
        heap.retry_unsplit(now);
        held.add(1);
        heap.retry_unsplit(now + FIRST_MS - 1);
        assert_eq!(held.all(), 1);
        heap.retry_unsplit(now + FIRST_MS);
        assert_eq!(held.all(), 0);
    });
}

/// 0 is the number of spans that were never counted.
#[test]
fn the_number_of_a_look_is_never_0() {
    let held = UnsplitBlocks::new();
    held.generation.store(u32::MAX, Ordering::Relaxed);
    held.clear();
    assert_eq!(held.generation(), 1);
    held.clear();
    assert_eq!(held.generation(), 2);
}

#[test]
fn what_is_held_is_not_claimed_until_the_next_look() {
    alone(CALM, |heap| {
        let first = dirty_run(heap, 100);
        let block = first.block();
        let claims = || {
            heap.zone_of(block).with(heap.region(), |zone| {
                let claim = zone.claim_dirty(100, false);
                claim.map(|claim| zone.put_claim(claim, ebbtide_zone::PutState::Dirty))
            })
        };
        assert!(claims().is_some());
        // SAFETY: an opened block.
        let flags = unsafe { heap.region().flags(block) };
        flags.fetch_or(flag::UNSPLIT | flag::SMALL, Ordering::Relaxed);
        heap.zone_of(block)
            .with(heap.region(), |zone| zone.mark_unsplit(block));
        heap.unsplit.add(100);
        assert!(claims().is_none() && heap.is_held(block));
        heap.clear_unsplit();
        assert!(claims().is_some() && !heap.is_held(block));
        assert_eq!(flags.load(Ordering::Relaxed), flag::SMALL, "nothing else");
        assert_eq!(heap.unsplit.all(), 0);
    });
}
