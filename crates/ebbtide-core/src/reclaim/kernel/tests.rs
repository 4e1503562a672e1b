//! Tests: which ranges the kernel gets with which call, and what follows from a refusal.

extern crate std;

use super::*;
use crate::alone::{CALM, alone, dirty_run, fill, holds, refuse, refuse_release, resident};
use crate::base::releaser::Releaser;
use crate::reclaim::Heap;
use crate::reclaim::lazy::{Take, add};

fn dirty(heap: &Heap) -> u64 {
    let zones = heap.live_zones().iter();
    zones.map(|zone| zone.counters().dirty).sum()
}

/// In a call for many, a range goes on as clean before the answer is there: so it must read zero. By itself it stays
/// dirty, and held.
#[test]
fn what_nothing_gives_back_reads_zero_or_stays_dirty() {
    alone(CALM, |heap| {
        let bytes = 300 * FRAME_BYTES;
        let address = heap.region().address(dirty_run(heap, 300));
        refuse_release();
        assert!(holds(address, bytes, 0xa5) && RELEASE_MANY.may_work());
        assert_eq!(heap.release_everything(Releaser::Explicit), 0);
        assert_eq!(dirty(heap), 0);
        assert!(holds(address, bytes, 0), "called clean");
        assert!(!RELEASE_MANY.may_work());

        let again = heap.region().address(dirty_run(heap, 300));
        assert_eq!(heap.release_everything(Releaser::Explicit), 0);
        assert_eq!((dirty(heap), heap.unsplit.frames()), (300, 300));
        assert!(holds(again, bytes, 0xa5));
        let large = heap.allocate_large(bytes, 1).unwrap();
        assert!(large.address == again && !large.clean);
    });
}

/// `process_madvise` alone is refused: range by range, then.
#[test]
fn where_no_call_takes_many_each_gets_its_own() {
    alone(CALM, |heap| {
        let address = heap.region().address(dirty_run(heap, 300));
        refuse(libc::SYS_process_madvise, 0, 0);
        let all = 300 * FRAME_BYTES;
        assert_eq!(heap.release_everything(Releaser::Explicit), all);
        assert_eq!((dirty(heap), resident(address, all)), (0, 0));
        assert!(!RELEASE_MANY.may_work());
        let address = heap.region().address(dirty_run(heap, 300));
        assert_eq!(heap.release_everything(Releaser::Explicit), all);
        assert_eq!((dirty(heap), resident(address, all)), (0, 0));
        assert_eq!(heap.unsplit.all(), 0);
    });
}

/// A gather of all dirty frames, each run to become lazy.
fn claim_to_lazy(heap: &Heap) -> Gather {
    let mut gather = Gather::NEW;
    for zone in heap.live_zones() {
        assert!(gather.reserve());
        let claim = Take::All.claim(heap.region(), &mut zone.lock.lock(), 1 << 20);
        add(&mut gather, claim, true);
    }
    gather
}

#[test]
fn lazy_ranges_stay_resident_unless_that_is_refused() {
    alone(CALM, |heap| {
        let bytes = 100 * FRAME_BYTES;
        let address = heap.region().address(dirty_run(heap, 100));
        let mut gather = claim_to_lazy(heap);
        assert_eq!(gather.frames(), 100);
        let made = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!((made, LAZY_FREE.known()), ((0, false), Some(true)));
        assert_eq!(resident(address, bytes), 100);
        heap.put_back(&mut gather, true);
        let lazied = crate::front::figures().lazied_bytes as usize;
        assert_eq!(lazied, bytes);

        fill(address, bytes, 1);
        refuse(libc::SYS_madvise, 2, libc::MADV_FREE as u32);
        refuse(libc::SYS_process_madvise, 3, libc::MADV_FREE as u32);
        let mut gather = claim_to_lazy(heap);
        assert_eq!(gather.frames(), 100);
        let made = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!((made, LAZY_FREE.may_work()), ((bytes, false), false));
        assert_eq!(resident(address, bytes), 0);
        heap.put_back(&mut gather, true);
        gather.free_batches();
        assert_eq!(crate::front::figures().lazied_bytes as usize, lazied);
    });
}

/// What is noted as done, or kept, is not given to the kernel once more: others may have it by then.
#[test]
fn what_is_done_is_not_released_again() {
    alone(CALM, |heap| {
        let address = heap.region().address(dirty_run(heap, 10));
        let mut gather = Gather::NEW;
        let first = heap.region().frame(address).0;
        for (at, note) in [(0, true), (4, false), (8, true)] {
            assert!(gather.add(Range::new(first + at, 2)));
            if note {
                gather.for_each(|range| {
                    if range.first == first + at {
                        Gather::done(range);
                    }
                });
            }
        }
        let (released, left) = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!((released, left), (2 * FRAME_BYTES, false));
        assert_eq!(resident(address, 10 * FRAME_BYTES), 8);
        while gather.pop().is_some() {}
    });
}

/// One call has one advice.
#[test]
fn lazy_ranges_and_others_go_in_calls_of_their_own() {
    alone(CALM, |heap| {
        let address = heap.region().address(dirty_run(heap, 40));
        let first = heap.region().frame(address).0;
        let mut gather = Gather::NEW;
        for n in 0..4 {
            let range = Range::new(first + n * 10, 10);
            assert!(gather.add(if n % 2 == 0 { range } else { range.to_lazy() }));
        }
        let made = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!(made, (20 * FRAME_BYTES, false));
        let part = 10 * FRAME_BYTES;
        for n in 0..4 {
            let left = resident(address + n * part, part);
            assert_eq!(left, if n % 2 == 0 { 0 } else { 10 }, "part {n}");
        }
        assert_eq!(crate::front::figures().lazied_bytes as usize, 2 * part);
        // Where that is known to be refused, nobody asks again.
        LAZY_FREE.refuse();
        fill(address, 4 * part, 1);
        gather.begin_again();
        let made = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!((made, resident(address, 4 * part)), ((4 * part, false), 0));
        while gather.pop().is_some() {}
    });
}

/// More ranges than go into one call of the program's.
#[test]
fn every_range_of_many_is_released() {
    alone(CALM, |heap| {
        let address = heap.region().address(dirty_run(heap, 400));
        let first = heap.region().frame(address).0;
        let mut gather = Gather::NEW;
        for n in 0..200 {
            assert!(gather.reserve() && gather.add(Range::new(first + 2 * n, 1)));
        }
        let made = release(heap, &mut gather, Releaser::Explicit, false);
        assert_eq!(made, (200 * FRAME_BYTES, false));
        assert_eq!(resident(address, 400 * FRAME_BYTES), 200);
        while gather.pop().is_some() {}
        gather.free_batches();
    });
}

fn call(lengths: &[usize]) -> Call<8> {
    let mut call = Call::<8> {
        ranges: [vm::NO_RANGE; 8],
        count: 0,
        bytes: 0,
        advice: MADV_DONTNEED,
        released: 0,
        lazied: 0,
    };
    for (index, &len) in lengths.iter().enumerate() {
        call.ranges[index] = vm::Range {
            iov_base: ((index + 1) << 20) as *mut _,
            iov_len: len,
        };
        call.count += 1;
    }
    call
}

#[test]
fn short_returns_are_resumed_behind_what_was_done() {
    let mut call = call(&[4096, 8192, 4096]);
    assert_eq!(call.resume(0, 4096), 1);
    assert_eq!(call.resume(1, 4096), 1);
    assert_eq!(call.ranges[1].iov_base as usize, (2 << 20) + 4096);
    assert_eq!(call.ranges[1].iov_len, 4096);
    assert_eq!(call.resume(1, 8192), 3);
    assert_eq!(call.released, 16384);
}

#[test]
fn of_each_block_that_is_cut_one_frame_is_looked_at() {
    for (first, frames, expected) in [
        (0, 512, &[][..]),
        (512, 3 * 512, &[]),
        (10, 5, &[10]),
        (500, 12, &[500]),
        (512, 10, &[512]),
        (500, 24, &[500, 512]),
        (512, 513, &[1024]),
        (100, 412 + 512, &[100]),
        (511, 1 + 512 + 1, &[511, 1024]),
    ] {
        let parts: std::vec::Vec<u32> = parts(Range::new(first, frames)).map(|at| at.0).collect();
        assert_eq!(parts, expected, "{frames} frames from {first} on");
    }
}
