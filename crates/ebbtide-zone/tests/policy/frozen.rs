//! Opening, and what a reset freezes.

use crate::storage::*;
use ebbtide_zone::*;

#[test]
fn nothing_opened_gives_nothing() {
    let mut s = Storage::new(100, 0);
    let mut z = s.zone();
    assert_eq!(z.take_run(1, 1, TakeMode::Cluster), None);
    assert_eq!(z.take_blocks(1, 1, 0), None);
    assert_eq!(z.claim_dirty(u32::MAX, true), None);
    assert_eq!(z.open(1000), 100);
    assert_eq!((z.opened(), z.unopened(), z.open(1)), (100, 0, 0));
    z.check_invariants().unwrap();
}

#[test]
fn populated_blocks_can_be_claimed() {
    let mut s = Storage::new(200, 3);
    let mut z = s.zone();
    assert_eq!(z.open_resident(150), 150);
    z.check_invariants().unwrap();
    assert_eq!(
        (z.counters().dirty, z.counters().free),
        (150 * 512, 153 * 512)
    );
    let e = z.take_blocks(4, 1, 0).unwrap();
    assert_eq!((e.first.0, e.dirty_blocks), (FIRST, 1));
    let mut claimed = 0;
    while let Some(claim) = z.claim_dirty(u32::MAX, false) {
        claimed += claim.frames();
    }
    assert_eq!(claimed, 149 * 512);
    z.check_invariants().unwrap();
}

#[test]
fn a_reset_freezes_what_was() {
    let mut s = Storage::new(200, 100);
    let mut z = s.zone();
    let a = take(&mut z, 64);
    let e = z.take_blocks(3, 1, 0).unwrap();
    z.put_blocks(e.first, 3, 3).unwrap();
    let claim = z.claim_dirty(u32::MAX, true).unwrap();
    let b = z.take_blocks(2, 1, 0).unwrap();
    // A number inside the opened part is raised to its end.
    z.reset_above(Block(FIRST + 10));
    z.check_invariants().unwrap();
    assert_eq!(z.counters(), Counters::default());
    assert!(z.is_frozen(a.first) && z.is_frozen(Frame(BASE + 100 * 512 - 1)));
    assert!(!z.is_frozen(Frame(BASE + 100 * 512)) && !z.is_frozen(Frame(BASE - 1)));
    assert_eq!(z.frame_state(a.first), FrameState::Frozen);
    assert_eq!(
        z.put_run(a.first, 64, true, TakeMode::Cluster),
        Ok(Put::Frozen)
    );
    assert_eq!(z.put_blocks(b.first, 2, 2), Ok(Put::Frozen));
    assert_eq!(z.put_claim(claim, Outcome::Clean), Ok(Put::Frozen));
    assert_eq!(z.grow_run(a.first, 64, 65), None);
    assert_eq!(z.grow_blocks(b.first, 2, 3), None);
    assert_eq!(z.take_run(1, 1, TakeMode::Cluster), None);
    // It goes on above.
    assert_eq!(z.open(200), 100);
    assert_eq!(take(&mut z, 64).first.0, BASE + 100 * 512);
    let e = z.take_blocks(2, 1, 0).unwrap();
    z.put_blocks(e.first, 2, 2).unwrap();
    assert_eq!(
        z.claim_dirty(u32::MAX, false),
        Some(Claim::Blocks {
            first: e.first,
            count: 2
        })
    );
    // A range across the border is nobody's.
    let across = z.put_blocks(Block(FIRST + 99), 2, 0).unwrap_err();
    assert_eq!(across.kind, PutErrorKind::OutOfRange);
    z.check_invariants().unwrap();
}

/// Where a zone had never been opened, no memory stands behind the words of its frozen blocks, wherever the border is.
#[test]
fn words_of_frozen_blocks_are_left_alone() {
    for border in [128, 100] {
        let mut s = Storage::new(200, 0);
        s.zone().reset_above(Block(FIRST + border));
        let mut old = Storage::new(200, 128);
        old.zone().hold(Block(FIRST + 5));
        old.zone().hold(Block(FIRST + 70));
        s.words[..2].copy_from_slice(&old.words[..2]);
        s.zone().end_holds();
        assert_eq!(
            format!("{:?}", &s.words[..2]),
            format!("{:?}", &old.words[..2])
        );
    }
}

#[test]
fn a_reset_trusts_no_torn_state() {
    let mut s = Storage::new(200, 100);
    take(&mut s.zone(), 64);
    // An `open` that was cut off left bits above the end; lists and counters are nonsense.
    let torn = Storage::new(200, 200);
    s.words.copy_from_slice(&torn.words);
    s.zone().reset_above(Block(FIRST + 128));
    s.zone().check_invariants().unwrap();
    assert_eq!((s.zone().opened(), s.zone().unopened()), (0, 72));
    assert_eq!(s.zone().open(1), 1);
    assert_eq!(take(&mut s.zone(), 1).first.0, BASE + 128 * 512);
}

/// The words of what another thread was opening lie behind the view of the reset, and the border may lie in one.
#[test]
fn an_open_that_was_cut_off_leaves_no_frozen_block_to_take() {
    let mut s = Storage::new(200, 64);
    let torn = Storage::new(200, 96);
    s.words.copy_from_slice(&torn.words);
    Zone::new(&mut s.state, &mut s.blocks[..64], &mut s.words[..1]).reset_above(Block(FIRST + 96));
    let mut z = s.zone();
    assert_eq!(z.open(40), 40);
    z.check_invariants().unwrap();
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first, Block(FIRST + 96));
}

#[test]
fn open_is_bounded_by_the_slices() {
    let mut s = Storage::new(200, 0);
    let mut z = Zone::new(&mut s.state, &mut s.blocks[..10], &mut s.words[..1]);
    assert_eq!(z.open(50), 10);
    z.check_invariants().unwrap();
}
