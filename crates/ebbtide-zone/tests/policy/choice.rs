//! Which frames a take gets.

use crate::storage::*;
use ebbtide_zone::*;

#[test]
fn low_addresses_and_the_fullest_block_first() {
    let mut s = Storage::new(8, 8);
    let mut z = s.zone();
    let a = take(&mut z, 400);
    assert_eq!(a.first, Frame(BASE));
    // Does not fit behind `a`: the next block.
    let b = take(&mut z, 300);
    assert_eq!(b.first, Frame(BASE + 512));
    // Both have room; the fuller one is `a`'s, and its longest run is in the smaller bucket too.
    assert_eq!(take(&mut z, 20).first, Frame(BASE + 400));
    assert_eq!(take(&mut z, 100).first, Frame(BASE + 512 + 300));
}

#[test]
fn dirty_before_clean() {
    let mut s = Storage::new(200, 200);
    let mut z = s.zone();
    let all = take(&mut z, 500);
    put(&mut z, all.first.0 + 300, 100, true);
    put(&mut z, all.first.0, 100, false);
    let got = take(&mut z, 50);
    assert_eq!((got.first.0, got.clean), (BASE + 300, false));
    let got = take(&mut z, 100);
    assert_eq!((got.first.0, got.clean), (BASE, true));
    // Whole-free blocks: the dirty one, though it is not the lowest.
    let e = z.take_blocks(150, 1, 0).unwrap();
    assert!(e.clean);
    z.put_blocks(e.first, 50, 0).unwrap();
    z.put_blocks(Block(e.first.0 + 100), 1, 1).unwrap();
    z.check_invariants().unwrap();
    let got = take(&mut z, 511);
    assert_eq!(
        (got.first, got.clean),
        (Block(e.first.0 + 100).first_frame(), false)
    );
}

#[test]
fn a_cluster_is_taken_whole_where_there_is_one() {
    let mut s = Storage::new(4, 4);
    let mut z = s.zone();
    let a = take(&mut z, 10);
    let b = take(&mut z, 64);
    assert_eq!((a.first.0, b.first.0), (BASE, BASE + 64));
    // Alignment above the cluster.
    let c = z.take_run(64, 256, TakeMode::Cluster).unwrap();
    assert_eq!(c.first.0, BASE + 256);
    assert_eq!(take(&mut z, 64).first.0, BASE + 128);
}

#[test]
fn a_dirty_cluster_comes_before_a_clean_one() {
    let mut s = Storage::new(2, 1);
    let mut z = s.zone();
    let all = take(&mut z, 511);
    let cluster = |at: u32| all.first.0 + at * 64;
    put(&mut z, cluster(1), 64, false);
    put(&mut z, cluster(3), 64, false);
    put(&mut z, cluster(5), 64, true);
    put(&mut z, cluster(6), 64, true);
    for (at, clean) in [(5, false), (6, false), (1, true), (3, true)] {
        let run = take(&mut z, 64);
        assert_eq!((run.first.0, run.clean), (cluster(at), clean));
    }
    // As many dirty frames as a cluster has, but in two.
    put(&mut z, cluster(2), 64, false);
    put(&mut z, cluster(4) + 10, 40, true);
    put(&mut z, cluster(5) + 10, 40, true);
    assert_eq!(take(&mut z, 64).first.0, cluster(2));
}

#[test]
fn lazy_frames_come_before_clean_ones_and_after_dirty_ones() {
    let mut s = Storage::new(2, 1);
    let mut z = s.zone();
    let all = take(&mut z, 511);
    let at = |frame: u32| all.first.0 + frame;
    put(&mut z, at(230), 30, true);
    let claim = z.claim_dirty(512, false).unwrap();
    z.put_claim(claim, PutState::Lazy).unwrap();
    put(&mut z, at(0), 100, false);
    put(&mut z, at(200), 30, true);
    put(&mut z, at(400), 20, true);
    // Neither the dirty nor the lazy frames alone have room for it.
    let run = take(&mut z, 40);
    assert_eq!((run.first.0, run.clean), (at(200), false));
    assert_eq!(take(&mut z, 20).first.0, at(400), "the dirty ones");
    assert_eq!(take(&mut z, 20).first.0, at(240), "the lazy ones");
    assert_eq!(take(&mut z, 20).first.0, at(0), "clean ones");
    assert_eq!((z.counters().dirty, z.counters().lazy), (0, 0));
}

#[test]
fn a_free_block_may_be_half_dirty_and_half_lazy() {
    let mut s = Storage::new(4, 4);
    let mut z = s.zone();
    let [lazy, dirty] = [0, 1].map(|_| take(&mut z, 256).first.0);
    assert_eq!((lazy, dirty), (BASE, BASE + 256));
    put(&mut z, lazy, 256, true);
    let claim = z.claim_dirty(256, false).unwrap();
    z.put_claim(claim, PutState::Lazy).unwrap();
    let check = |z: &Zone<'_>| {
        z.check_invariants().unwrap();
        let c = z.counters();
        assert_eq!((c.dirty, c.lazy), (256, 256));
        assert_eq!((c.free_blocks, c.resident_free_blocks), (4, 1));
    };
    put(&mut z, dirty, 256, true);
    check(&z);
    let run = take(&mut z, 100);
    assert_eq!(run.first.0, BASE + 256, "a dirty place");
    assert_eq!(z.counters().resident_free_blocks, 0);
    put(&mut z, run.first.0, 100, true);
    check(&z);
    let extent = z.take_blocks(2, 1, 0).unwrap();
    assert_eq!((extent.dirty_blocks, extent.clean), (1, false));
    assert_eq!((z.counters().dirty, z.counters().lazy), (0, 0));
    z.check_invariants().unwrap();
}

#[test]
fn both_modes_do_the_same() {
    let mut s = [Storage::new(4, 4), Storage::new(4, 4)];
    let modes = [TakeMode::Cluster, TakeMode::FrameByFrame];
    for (n, align) in [(64, 1), (3, 1), (200, 8), (511, 1), (64, 64), (1, 512)] {
        let [a, b] = [0, 1].map(|i| s[i].zone().take_run(n, align, modes[i]));
        assert!(a.is_some() && a == b);
    }
    for (first, n) in [(0, 64), (64, 3), (70, 2)] {
        let [a, b] = [0, 1].map(|i| s[i].zone().put_run(Frame(BASE + first), n, true, modes[i]));
        assert_eq!(a, b);
    }
    assert_eq!(s[0].zone().counters(), s[1].zone().counters());
    s.iter_mut()
        .for_each(|s| s.zone().check_invariants().unwrap());
}

#[test]
fn extents_know_their_dirt_and_their_slack() {
    let mut s = Storage::new(16, 12);
    let mut z = s.zone();
    let a = z.take_blocks(4, 1, 2).unwrap();
    assert_eq!((a.first.0, a.blocks, a.clean), (FIRST, 6, true));
    z.put_blocks(a.first, 6, 2).unwrap();
    let b = z.take_blocks(10, 1, 10).unwrap();
    assert_eq!((b.blocks, b.dirty_blocks, b.clean), (10, 2, false));
    assert_eq!(z.grow_blocks(b.first, 10, 12), Some(true));
    assert_eq!(z.grow_blocks(b.first, 12, 13), None);
    assert_eq!(z.open(4), 4);
    assert_eq!(z.grow_blocks(b.first, 12, 13), Some(true));
    z.check_invariants().unwrap();
    assert_eq!(z.counters().in_use, 13 * 512);
}

#[test]
fn slack_is_clean() {
    let mut s = Storage::new(300, 300);
    let mut z = s.zone();
    let all = z.take_blocks(200, 1, 0).unwrap();
    z.put_blocks(all.first, 200, 150).unwrap();
    // Nothing behind them is clean.
    let a = z.take_blocks(40, 1, 40).unwrap();
    assert_eq!((a.blocks, a.dirty_blocks), (40, 40));
    // Some of it is.
    let b = z.take_blocks(20, 128, 20).unwrap();
    assert_eq!((b.first.0, b.blocks), (FIRST + 128, 20));
    let c = z.take_blocks(2, 1, 0).unwrap();
    z.put_blocks(c.first, 2, 1).unwrap();
    let d = z.take_blocks(100, 2, 40).unwrap();
    assert_eq!((d.first.0, d.blocks, d.clean), (FIRST + 148, 140, false));
    z.check_invariants().unwrap();
}

#[test]
fn blocks_align_by_address() {
    let mut s = Storage::new(700, 700);
    let mut z = s.zone();
    take(&mut z, 1);
    assert_eq!(z.take_blocks(2, 256, 0).unwrap().first.0, FIRST + 256);
    assert_eq!(z.take_blocks(100, 512, 0).unwrap().first.0, FIRST + 512);
    // FIRST is a multiple of 1024, but its block is taken in part.
    assert_eq!(z.take_blocks(1, 1024, 0), None);
}

#[test]
fn a_large_tail_goes_back_and_comes_again() {
    let mut s = Storage::new(4, 4);
    let mut z = s.zone();
    let e = z.take_blocks(2, 1, 0).unwrap();
    let last = Block(e.first.0 + 1).first_frame();
    put(&mut z, last.0 + 100, 412, false);
    assert_eq!(z.grow_run(last, 100, 513), None);
    assert_eq!(z.grow_run(last, 100, 512), Some(true));
    // The owner holds both blocks whole again.
    assert_eq!(z.put_blocks(e.first, 2, 2), Ok(Put::Done));
    z.check_invariants().unwrap();
    assert_eq!(z.counters().free_blocks, 4);
}

#[test]
fn scans_start_low_again_after_a_low_put() {
    let mut s = Storage::new(256, 256);
    let mut z = s.zone();
    // All of it taken: the hints stand at the end.
    let all = z.take_blocks(250, 1, 0).unwrap();
    (0..6).for_each(|_| assert_eq!(take(&mut z, 511).frames, 511));
    assert_eq!(z.take_blocks(1, 1, 0), None);
    assert_eq!(z.counters().free_blocks, 0);
    // Whole blocks put low, dirty and clean, are what comes next.
    z.put_blocks(Block(all.first.0 + 100), 2, 1).unwrap();
    z.check_invariants().unwrap();
    assert_eq!(take(&mut z, 300).first.0, BASE + 100 * 512);
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first.0, FIRST + 101);
    // The same by the last frame of a block, in a word below.
    let low = all.first.first_frame().0 + 5 * 512;
    put(&mut z, low, 100, true);
    put(&mut z, low + 100, 412, false);
    assert_eq!(z.counters().resident_free_blocks, 1);
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first.0, FIRST + 5);
}

#[test]
fn settled_blocks_lower_the_hints() {
    let mut s = Storage::new(256, 256);
    let mut z = s.zone();
    let low = take(&mut z, 500);
    let all = z.take_blocks(255, 1, 0).unwrap();
    z.put_blocks(Block(FIRST + 200), 56, 56).unwrap();
    // Moves both hints up to the word of block 200.
    let high = take(&mut z, 400);
    assert_eq!(high.first.0, BASE + 200 * 512);
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first.0, FIRST + 201);
    assert_eq!(all.blocks, 255);
    put(&mut z, low.first.0, 500, true);
    assert_eq!(take(&mut z, 450).first.0, BASE);
    put(&mut z, BASE, 450, true);
    assert_eq!(z.take_blocks(1, 1, 0).unwrap().first.0, FIRST);
}

#[test]
fn a_pageblock_is_as_large_as_a_huge_page() {
    assert_eq!(BLOCK_BYTES, 2 << 20);
    assert_eq!([0, 1, 64, 65].map(words_for), [0, 1, 1, 2]);
}
