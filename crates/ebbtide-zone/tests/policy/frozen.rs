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
    assert_eq!(z.put_claim(claim, PutState::Clean), Ok(Put::Frozen));
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
        old.zone().mark_unsplit(Block(FIRST + 5));
        old.zone().mark_unsplit(Block(FIRST + 70));
        s.words[..2].copy_from_slice(&old.words[..2]);
        let (below, after) = (border as usize / 64, format!("{:?}", &old.words[..2]));
        s.zone().clear_unsplit();
        assert_eq!(format!("{:?}", &s.words[..2]), after);
        // Only the word of the border is written.
        assert_eq!(s.zone().open(10), 10);
        assert_eq!(
            format!("{:?}", &s.words[..below]),
            format!("{:?}", &old.words[..below])
        );
    }
}

#[test]
fn frozen_blocks_up_to_the_border_are_ignored() {
    let mut s = Storage::new(200, 100);
    let mut z = s.zone();
    z.take_blocks(100, 1, 0).unwrap();
    z.reset_above(Block(FIRST + 100));
    assert_eq!(z.open(10), 10);
    let before = z.counters();
    for (first, blocks) in [(98, 2), (99, 1), (0, 100)] {
        let put = z.put_blocks(Block(FIRST + first), blocks, blocks);
        assert_eq!(put, Ok(Put::Frozen), "{blocks} blocks from {first} on");
    }
    let last = Block(FIRST + 99).first_frame().0;
    for (first, frames) in [(last, 512), (last + 511, 1)] {
        let put = z.put_run(Frame(first), frames, true, TakeMode::Cluster);
        assert_eq!(put, Ok(Put::Frozen));
    }
    assert_eq!(z.counters(), before);
    z.check_invariants().unwrap();
}

#[test]
fn a_zone_knows_its_borders() {
    let mut s = Storage::new(200, 3);
    let borders =
        |s: &ZoneState| [s.first_block(), s.open_end(), s.limit_block()].map(|b| b.0 - FIRST);
    assert_eq!(borders(&s.state), [0, 3, 200]);
    assert_eq!((s.state.opened(), s.state.unopened()), (3, 197));
    assert_eq!((s.zone().opened(), s.zone().unopened()), (3, 197));
    s.zone().reset_above(Block(FIRST + 150));
    assert_eq!(borders(&s.state), [0, 150, 200]);
    assert_eq!(s.zone().open(7), 7);
    assert_eq!(borders(s.zone().state()), [0, 157, 200]);
    assert_eq!((s.zone().opened(), s.zone().unopened()), (7, 43));
    // The largest one.
    assert_eq!(ZoneState::new(0, 1 << 23).unopened(), 1 << 23);
    assert_eq!(ZoneState::new(512, 512).unopened(), 0);
}

#[test]
#[should_panic(expected = "is_multiple_of")]
fn a_zone_begins_at_an_aligned_block() {
    ZoneState::new(FIRST + 256, FIRST + 600);
}

#[test]
#[should_panic(expected = "first_block <= limit_block")]
fn a_zone_does_not_end_before_it_begins() {
    ZoneState::new(FIRST, FIRST - 1);
}

#[test]
#[should_panic(expected = "frame numbers have 32 bits")]
fn frames_behind_the_last_number_are_refused() {
    ZoneState::new(0, (1 << 23) + 1);
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

#[test]
fn a_reset_leaves_no_block_above_the_border() {
    let claimed = |z: &mut Zone<'_>| {
        let e = z.take_blocks(200, 1, 0).unwrap();
        z.put_blocks(e.first, 200, 200).unwrap();
        while z.claim_dirty(u32::MAX, false).is_some() {}
    };
    let partial = |z: &mut Zone<'_>| (0..200).for_each(|_| assert_eq!(take(z, 511).frames, 511));
    for leave in [claimed, partial] {
        let (mut s, mut torn) = (Storage::new(200, 64), Storage::new(200, 200));
        leave(&mut torn.zone());
        s.words.copy_from_slice(&torn.words);
        s.zone().reset_above(Block(FIRST + 64));
        s.zone().check_invariants().unwrap();
    }
}

#[test]
fn free_frames_of_frozen_blocks_are_not_found() {
    let mut s = Storage::new(300, 200);
    let mut z = s.zone();
    let e = z.take_blocks(200, 1, 0).unwrap();
    z.put_blocks(e.first, 200, 200).unwrap();
    z.reset_above(Block(FIRST + 200));
    assert_eq!(z.open(50), 50);
    let e = z.take_blocks(5, 1, 0).unwrap();
    assert_eq!(e.first, Block(FIRST + 200));
    z.put_blocks(Block(FIRST + 202), 1, 1).unwrap();
    // Dirty before clean, but not the dirty ones below.
    assert_eq!(take(&mut z, 10).first, Block(FIRST + 202).first_frame());
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first, Block(FIRST + 205));
    assert_eq!(z.claim_dirty(u32::MAX, true).unwrap().frames(), 502);
    assert_eq!(z.claim_dirty(u32::MAX, true), None);
    z.check_invariants().unwrap();
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
