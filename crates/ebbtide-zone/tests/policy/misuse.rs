//! What is refused, and that it changes nothing.

use crate::storage::*;
use ebbtide_zone::*;

#[test]
fn arguments_out_of_range_are_refused() {
    let mut s = Storage::new(4, 2);
    let mut z = s.zone();
    for (n, align) in [(0, 1), (512, 1), (u32::MAX, 1), (1, 0), (1, 3), (1, 1024)] {
        assert_eq!(z.take_run(n, align, TakeMode::Cluster), None);
    }
    assert_eq!(z.take_blocks(0, 1, 0), None);
    assert_eq!(z.take_blocks(1, 3, 0), None);
    assert_eq!(z.take_blocks(u32::MAX, 1, u32::MAX), None);
    assert_eq!(z.claim_dirty(0, true), None);
    let end = BASE + 2 * 512;
    for (first, n) in [
        (BASE, 0),
        (BASE + 1, 512),
        (BASE - 1, 1),
        (end, 1),
        (u32::MAX, 1),
        (0, 1),
        (5, u32::MAX),
    ] {
        assert_eq!(put_error(&mut z, first, n), PutErrorKind::OutOfRange);
    }
    for (first, n) in [
        (FIRST, 0),
        (FIRST, 3),
        (0, 1),
        (u32::MAX, u32::MAX),
        (FIRST, u32::MAX),
    ] {
        assert_eq!(
            z.put_blocks(Block(first), n, 0).unwrap_err().kind,
            PutErrorKind::OutOfRange
        );
    }
    assert_eq!(z.grow_run(Frame(u32::MAX), u32::MAX, u32::MAX), None);
    assert_eq!(z.grow_blocks(Block(FIRST), u32::MAX, 0), None);
    assert_eq!(z.grow_blocks(Block(FIRST), 1, u32::MAX), None);
    z.check_invariants().unwrap();
}

#[test]
fn double_puts_are_seen() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let a = take(&mut z, 64);
    take(&mut z, 10);
    put(&mut z, a.first.0, 64, true);
    assert_eq!(put_error(&mut z, a.first.0, 64), PutErrorKind::AlreadyFree);
    assert_eq!(
        put_error(&mut z, a.first.0 + 63, 2),
        PutErrorKind::AlreadyFree
    );
    let e = z.take_blocks(3, 1, 0).unwrap();
    z.put_blocks(e.first, 3, 3).unwrap();
    assert_eq!(
        z.put_blocks(e.first, 3, 3).unwrap_err().kind,
        PutErrorKind::AlreadyFree
    );
    assert_eq!(
        put_error(&mut z, e.first.first_frame().0, 512),
        PutErrorKind::AlreadyFree
    );
    assert_eq!(
        put_error(&mut z, e.first.first_frame().0, 1),
        PutErrorKind::AlreadyFree
    );
}

#[test]
fn claimed_frames_are_nobodys_to_put() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let e = z.take_blocks(2, 1, 0).unwrap();
    z.put_blocks(e.first, 2, 2).unwrap();
    let claim = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!(
        claim,
        Claim::Blocks {
            first: e.first,
            count: 2
        }
    );
    assert_eq!(
        put_error(&mut z, e.first.first_frame().0, 3),
        PutErrorKind::Claimed
    );
    assert_eq!(
        z.put_blocks(e.first, 2, 0).unwrap_err().kind,
        PutErrorKind::Claimed
    );
    z.put_claim(claim, PutState::Clean).unwrap();
    assert_eq!(
        z.put_claim(claim, PutState::Clean).unwrap_err().kind,
        PutErrorKind::NotClaimed
    );
    // Part of a block: more frames come back than owners hold.
    let a = take(&mut z, 100);
    put(&mut z, a.first.0, 50, true);
    let claim = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!(claim.frames(), 50);
    assert_eq!(put_error(&mut z, a.first.0, 60), PutErrorKind::Claimed);
    put(&mut z, a.first.0 + 50, 50, false);
    assert_eq!(z.put_claim(claim, PutState::Clean), Ok(Put::Done));
    assert_eq!(z.counters().dirty, 0);
    z.check_invariants().unwrap();
}

#[test]
fn a_run_grows_from_what_it_has_to_more() {
    let mut s = Storage::new(2, 1);
    let mut z = s.zone();
    let run = take(&mut z, 10);
    let before = z.counters();
    for (old, new) in [(0, 5), (0, 0), (10, 9), (10, 513), (10, u32::MAX)] {
        assert_eq!(z.grow_run(run.first, old, new), None, "{old} to {new}");
    }
    assert_eq!(z.grow_run(run.first, 10, 10), Some(true));
    assert_eq!(z.counters(), before);
    // All that is left.
    assert_eq!(z.grow_run(run.first, 10, 500), Some(true));
    assert_eq!(z.take_run(13, 1, TakeMode::Cluster), None);
    assert_eq!(take(&mut z, 12).frames, 12);
    assert_eq!(z.counters().free, 0);
}

/// Blocks that are taken whole have records of before, which say nothing.
#[test]
fn stale_records_are_not_read() {
    let mut s = Storage::new(4, 2);
    let mut z = s.zone();
    for _ in 0..2 {
        let run = take(&mut z, 300);
        take(&mut z, 212);
        put(&mut z, run.first.0, 300, true);
        put(&mut z, run.first.0 + 300, 212, true);
    }
    let extent = z.take_blocks(2, 1, 0).unwrap();
    let first = extent.first.first_frame();
    assert_eq!(z.grow_run(first, 300, 400), None, "all of it is taken");
    z.check_invariants().unwrap();
    // A part of the first goes back and is taken again; both are put back as blocks.
    put(&mut z, first.0, 100, true);
    assert_eq!(take(&mut z, 100).first, first);
    assert_eq!(z.put_blocks(extent.first, 2, 2), Ok(Put::Done));
    z.check_invariants().unwrap();
    assert_eq!(z.counters().dirty, 1024);
}

#[test]
fn only_what_was_claimed_can_be_put_as_a_claim() {
    let mut s = Storage::new(2, 2);
    let mut z = s.zone();
    let run = take(&mut z, 20);
    put(&mut z, run.first.0, 5, true);
    let claim = z.claim_dirty(5, false).unwrap();
    assert_eq!(claim.frames(), 5);
    let before = z.counters();
    let block = Block(FIRST);
    let of = |frames: u64| Claim::Frames {
        block,
        mask: [frames, 0, 0, 0, 0, 0, 0, 0],
    };
    let none = Claim::Blocks {
        first: block,
        count: 0,
    };
    for (wrong, kind) in [
        (of(0), PutErrorKind::NotClaimed),
        // Some of them are their owner's.
        (of(0x3ff), PutErrorKind::NotClaimed),
        (none, PutErrorKind::OutOfRange),
    ] {
        let error = z.put_claim(wrong, PutState::Clean).unwrap_err();
        assert_eq!(error.kind, kind, "{wrong:?}");
        assert_eq!(z.counters(), before);
    }
    assert_eq!(z.put_claim(claim, PutState::Clean), Ok(Put::Done));
    z.check_invariants().unwrap();
}

#[test]
fn a_claim_across_the_end_of_what_is_open_is_refused() {
    let mut s = Storage::new(4, 2);
    let mut z = s.zone();
    let e = z.take_blocks(2, 1, 0).unwrap();
    z.put_blocks(e.first, 2, 2).unwrap();
    let claim = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!(claim.frames(), 1024);
    let before = z.counters();
    for (first, count) in [(0, 3), (1, 2), (1, u32::MAX)] {
        let wrong = Claim::Blocks {
            first: Block(FIRST + first),
            count,
        };
        let error = z.put_claim(wrong, PutState::Clean).unwrap_err();
        assert_eq!(error.kind, PutErrorKind::OutOfRange, "{wrong:?}");
        assert_eq!(z.counters(), before);
    }
    assert_eq!(z.put_claim(claim, PutState::Clean), Ok(Put::Done));
}

#[test]
fn blocks_across_the_end_of_what_is_open_are_refused() {
    let mut s = Storage::new(100, 70);
    let mut z = s.zone();
    z.take_blocks(70, 1, 0).unwrap();
    let before = z.counters();
    for (first, blocks) in [(69, 2), (60, 11), (1, 70), (69, u32::MAX)] {
        let error = z
            .put_blocks(Block(FIRST + first), blocks, blocks)
            .unwrap_err();
        assert_eq!(
            error.kind,
            PutErrorKind::OutOfRange,
            "{blocks} from {first}"
        );
        assert_eq!(z.counters(), before);
    }
    assert_eq!(z.put_blocks(Block(FIRST + 60), 10, 0), Ok(Put::Done));
    z.check_invariants().unwrap();
}

/// Of several blocks one is partial, and some of its frames are not the owner's.
#[test]
fn blocks_with_frames_that_are_not_their_owners_are_refused() {
    let mut s = Storage::new(100, 100);
    let mut z = s.zone();
    let e = z.take_blocks(100, 1, 0).unwrap();
    put(&mut z, e.first.first_frame().0 + 64 * 512 + 7, 9, true);
    let all = |z: &mut Zone<'_>| {
        let before = z.counters();
        let error = z.put_blocks(e.first, 100, 100).unwrap_err();
        assert_eq!((error.first, z.counters()), (e.first.first_frame(), before));
        z.check_invariants().unwrap();
        error.kind
    };
    assert_eq!(all(&mut z), PutErrorKind::AlreadyFree);
    let claim = z.claim_dirty(9, false).unwrap();
    assert_eq!(claim.frames(), 9);
    assert_eq!(all(&mut z), PutErrorKind::Claimed);
    z.put_claim(claim, PutState::Dirty).unwrap();
    assert_eq!(
        take(&mut z, 9).first.0,
        e.first.first_frame().0 + 64 * 512 + 7
    );
    assert_eq!(z.put_blocks(e.first, 100, 100), Ok(Put::Done));
    z.check_invariants().unwrap();
}
