//! Which frames a claim takes.

use crate::storage::*;
use ebbtide_zone::*;

#[test]
fn claims_start_at_the_high_end_and_prefer_whole_blocks() {
    let mut s = Storage::new(200, 200);
    let mut z = s.zone();
    let e = z.take_blocks(200, 1, 0).unwrap();
    z.put_blocks(e.first, 200, 200).unwrap();
    let small = take(&mut z, 10);
    assert_eq!(small.first.0, BASE);
    // 200 blocks: words of 64, 64, 64 and 8.
    let blocks = |first, count| {
        Some(Claim::Blocks {
            first: Block(FIRST + first),
            count,
        })
    };
    assert_eq!(z.claim_dirty(5 * 512 + 100, false), blocks(195, 5));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(192, 3));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(128, 64));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(64, 64));
    assert_eq!(z.claim_dirty(u32::MAX, false), blocks(1, 63));
    let last = z.claim_dirty(u32::MAX, false).unwrap();
    assert_eq!((last.block(), last.frames()), (Block(FIRST), 502));
    assert_eq!(z.claim_dirty(u32::MAX, true), None);
    z.check_invariants().unwrap();
    let c = z.counters();
    assert_eq!((c.free, c.in_use, c.claimed), (0, 10, 200 * 512 - 10));
}

#[test]
fn lazy_is_claimed_only_when_asked_for() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let e = z.take_blocks(1, 1, 0).unwrap();
    z.put_blocks(e.first, 1, 1).unwrap();
    let claim = z.claim_dirty(512, false).unwrap();
    z.put_claim(claim, PutState::Lazy).unwrap();
    assert_eq!(z.claim_dirty(512, false), None);
    // A small budget takes frames out of the whole-free block, the highest.
    let part = z.claim_dirty(70, true).unwrap();
    assert_eq!(part.frames(), 70);
    assert!(
        matches!(part, Claim::Frames { mask, .. } if mask[7] == u64::MAX && mask[6] == 0x3f << 58)
    );
    z.put_claim(part, PutState::Clean).unwrap();
    z.check_invariants().unwrap();
    assert_eq!(z.counters().lazy, 512 - 70);
    // Taken lazy frames are not clean.
    assert!(!take(&mut z, 64).clean);
}

#[test]
fn lazy_alone_leaves_what_is_dirty() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let e = z.take_blocks(3, 1, 0).unwrap();
    z.put_blocks(e.first, 3, 3).unwrap();
    // Of three dirty blocks the highest becomes lazy, and a part of the next.
    let whole = z.claim_dirty(512, false).unwrap();
    z.put_claim(whole, PutState::Lazy).unwrap();
    let part = z.claim_dirty(100, false).unwrap();
    z.put_claim(part, PutState::Lazy).unwrap();
    let first = z.claim_lazy(u32::MAX).unwrap();
    assert_eq!(first, whole);
    assert_eq!(z.claim_lazy(u32::MAX), Some(part));
    assert_eq!(z.claim_lazy(u32::MAX), None);
    assert_eq!(z.counters().dirty, 1024 - 100);
    z.check_invariants().unwrap();
}

#[test]
fn a_claim_of_nothing_takes_nothing() {
    let mut s = Storage::new(2, 2);
    let mut z = s.zone();
    let run = take(&mut z, 10);
    put(&mut z, run.first.0, 10, true);
    let before = z.counters();
    assert_eq!((before.dirty, z.claim_dirty(0, true)), (10, None));
    assert_eq!((z.claim_dirty(0, false), z.claim_lazy(0)), (None, None));
    assert_eq!(z.counters(), before);
}

/// A zone of full blocks, in each of which the first frames are free and dirty again.
fn partial_blocks(s: &mut Storage, free: &[u32]) {
    let mut z = s.zone();
    let e = z.take_blocks(free.len() as u32, 1, 0).unwrap();
    for (n, &frames) in free.iter().enumerate().filter(|(_, n)| **n > 0) {
        put(
            &mut z,
            e.first.first_frame().0 + n as u32 * 512,
            frames,
            true,
        );
    }
}

#[test]
fn the_emptiest_of_the_highest_blocks_is_claimed_from() {
    let mut s = Storage::new(16, 16);
    // Eight are compared, so the lowest two come in as others are used up.
    let free = [400, 401, 5, 9, 30, 7, 30, 8, 9, 10];
    partial_blocks(&mut s, &free);
    let mut z = s.zone();
    for expected in [6, 1, 0] {
        let claim = z.claim_dirty(500, false).unwrap();
        assert_eq!(claim.block(), Block(FIRST + expected));
        assert_eq!(claim.frames(), free[expected as usize]);
        z.check_invariants().unwrap();
    }
}

#[test]
fn the_emptiest_block_is_found_in_a_high_word() {
    let mut s = Storage::new(200, 200);
    let mut free = [0; 140];
    (free[3], free[128], free[129]) = (9, 30, 20);
    partial_blocks(&mut s, &free);
    let mut z = s.zone();
    for expected in [128, 129, 3] {
        let claim = z.claim_dirty(500, false).unwrap();
        assert_eq!(claim.block(), Block(FIRST + expected));
        assert_eq!(claim.frames(), free[expected as usize]);
        z.check_invariants().unwrap();
    }
}

#[test]
fn a_held_block_is_left_alone_until_the_hold_ends() {
    let mut s = Storage::new(4, 4);
    partial_blocks(&mut s, &[10, 20]);
    let mut z = s.zone();
    let held = Block(FIRST + 1);
    for _ in 0..2 {
        z.mark_unsplit(held);
        let claim = z.claim_dirty(500, false).unwrap();
        assert_eq!(claim.block(), Block(FIRST), "the other one");
        assert_eq!(z.claim_dirty(500, true), None);
        z.put_claim(claim, PutState::Dirty).unwrap();
    }
    z.mark_unsplit(Block(0));
    z.clear_unsplit();
    assert_eq!(z.claim_dirty(500, false).unwrap().block(), held);
    z.check_invariants().unwrap();
}

/// For a huge page that is split: clean frames as well.
#[test]
fn all_free_frames_of_a_partial_block_can_be_claimed() {
    let mut s = Storage::new(4, 4);
    let mut z = s.zone();
    assert_eq!(z.claim_free(Block(FIRST)), None, "whole-free");
    let run = take(&mut z, 100);
    put(&mut z, run.first.0, 10, true);
    let claim = z.claim_free(Block(FIRST)).unwrap();
    z.check_invariants().unwrap();
    assert_eq!(claim.frames(), 512 - 90);
    assert_eq!((z.counters().dirty, z.counters().claimed), (0, 512 - 90));
    assert_eq!(z.claim_free(Block(FIRST)), None, "no free frame");
    // It comes to nobody meanwhile.
    assert_eq!(take(&mut z, 5).first.block(), Block(FIRST + 1));
    z.put_claim(claim, PutState::Dirty).unwrap();
    z.check_invariants().unwrap();
    assert_eq!(z.counters().dirty, 512 - 90);
    z.take_blocks(1, 1, 0).unwrap();
    assert_eq!(z.claim_free(Block(FIRST + 2)), None, "taken whole");
    assert_eq!(z.claim_free(Block(0)), None, "not of this zone");
}

#[test]
fn a_small_claim_comes_from_the_highest_dirty_block() {
    let mut s = Storage::new(200, 200);
    let mut z = s.zone();
    let e = z.take_blocks(200, 1, 0).unwrap();
    z.put_blocks(e.first, 200, 150).unwrap();
    let claim = z.claim_dirty(100, false).unwrap();
    assert_eq!(
        (claim.block(), claim.frames()),
        (Block(e.first.0 + 149), 100)
    );
    z.check_invariants().unwrap();
}

/// The record of a block that is whole-free, or taken whole, may still name the free frames of before.
#[test]
fn the_record_of_before_gives_no_claim() {
    let mut s = Storage::new(4, 4);
    let mut z = s.zone();
    let run = take(&mut z, 100);
    put(&mut z, run.first.0, 100, true);
    let before = z.counters();
    assert_eq!(before.free_blocks, 4);
    assert_eq!(z.claim_free(Block(FIRST)), None, "whole-free again");
    assert_eq!(z.counters(), before);
    z.take_blocks(4, 1, 0).unwrap();
    assert_eq!(z.claim_free(Block(FIRST)), None, "taken whole");
    z.check_invariants().unwrap();
}

#[test]
fn a_block_is_claimed_whole_until_the_claim_comes_back() {
    let mut s = Storage::new(70, 70);
    let mut z = s.zone();
    let e = z.take_blocks(70, 1, 0).unwrap();
    z.put_blocks(Block(FIRST + 65), 2, 2).unwrap();
    let claim = z.claim_dirty(512, false).unwrap();
    assert_eq!(claim.block(), Block(FIRST + 66));
    let whole = |z: &Zone<'_>| {
        let blocks = 0..72;
        let is_whole = |&at: &u32| z.is_claimed_whole(Block(FIRST + at));
        blocks.filter(is_whole).collect::<Vec<u32>>()
    };
    assert_eq!(whole(&z), [66]);
    // Frames of a block are no whole block.
    put(&mut z, e.first.first_frame().0, 10, true);
    let frames = z.claim_dirty(100, false).unwrap();
    assert_eq!(frames.frames(), 10);
    assert_eq!(whole(&z), [66]);
    assert!(!z.is_claimed_whole(Block(0)), "not of this zone");
    z.put_claim(claim, PutState::Clean).unwrap();
    assert_eq!(whole(&z), []);
}

/// The border between frozen and open blocks may lie in a word.
#[test]
fn holds_end_above_a_border_too() {
    let mut s = Storage::new(300, 100);
    let mut z = s.zone();
    z.reset_above(Block(FIRST + 100));
    assert_eq!(z.open_resident(150), 150);
    let held = [100, 130, 249].map(|at| Block(FIRST + at));
    held.iter().for_each(|&block| z.mark_unsplit(block));
    let claimable = |z: &mut Zone<'_>| {
        let claims = core::iter::from_fn(|| z.claim_dirty(u32::MAX, false));
        let claims: Vec<Claim> = claims.collect();
        let frames = claims.iter().map(Claim::frames).sum::<u32>();
        for claim in claims {
            z.put_claim(claim, PutState::Dirty).unwrap();
        }
        frames
    };
    assert_eq!(claimable(&mut z), 147 * 512);
    z.clear_unsplit();
    assert_eq!(claimable(&mut z), 150 * 512);
    z.check_invariants().unwrap();
}
