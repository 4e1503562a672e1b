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
    z.put_claim(claim, Outcome::Clean).unwrap();
    assert_eq!(
        z.put_claim(claim, Outcome::Clean).unwrap_err().kind,
        PutErrorKind::NotClaimed
    );
    // Part of a block: more frames come back than owners hold.
    let a = take(&mut z, 100);
    put(&mut z, a.first.0, 50, true);
    let claim = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!(claim.frames(), 50);
    assert_eq!(put_error(&mut z, a.first.0, 60), PutErrorKind::Claimed);
    put(&mut z, a.first.0 + 50, 50, false);
    assert_eq!(z.put_claim(claim, Outcome::Clean), Ok(Put::Done));
    assert_eq!(z.counters().dirty, 0);
    z.check_invariants().unwrap();
}
