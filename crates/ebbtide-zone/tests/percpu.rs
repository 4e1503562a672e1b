//! Random sequences of chunk operations against a naive model: the contents of every granule on two CPUs.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

#[path = "percpu/world.rs"]
mod world;

use ebbtide_zone::percpu::*;
use proptest::prelude::*;
use world::{Area, Op, World, op};

/// The list of unused chunks stays whole when one of several is opened again.
#[test]
fn unused_chunks_are_opened_again() {
    let mut world = World::new(1);
    let take = |world: &mut World| world.take(UNIT_GRANULES, 1);
    (0..4).for_each(|_| take(&mut world));
    (0..4).for_each(|_| world.step(Op::Put(0)));
    world.step(Op::BeginRound(Scope::Everything));
    while let Some(claimed) = world.shard().claim(Scope::Everything, 1) {
        world.claims.push(claimed);
        world.finish(0, true);
    }
    assert_eq!(world.shard().counters().chunks, 1);
    for _ in 0..4 {
        take(&mut world);
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_follow_the_model(
        group in prop_oneof![Just(1u32), Just(4u32), Just(16u32)],
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut world = World::new(group);
        for (i, op) in ops.into_iter().enumerate() {
            world.step(op);
            if i % 8 == 0 {
                world.check();
                world.check_contents();
            }
        }
        world.check();
        world.check_contents();
        // All of it goes back, but for one chunk without pages.
        while !world.areas.is_empty() {
            world.step(Op::Put(0));
        }
        while !world.disowned.is_empty() {
            world.step(Op::PutDisowned(0));
        }
        while !world.claims.is_empty() {
            world.step(Op::Finish(0, true));
        }
        world.step(Op::BeginRound(Scope::Everything));
        while let Some(claimed) = world.shard().claim(Scope::Everything, 64) {
            world.claims.push(claimed);
            world.finish(0, true);
        }
        world.check();
        let counters = world.shard().counters();
        prop_assert_eq!((counters.populated, counters.empty, counters.granules), (0, 0, 0));
        prop_assert!(counters.chunks <= 1);
        prop_assert!(world.memory.iter().all(|memory| memory.resident == 0));
    }
}

/// Takes areas of `n` granules until `count`, or as many as there are chunks for.
fn fill(world: &mut World, n: u32, count: usize) {
    for _ in 0..count {
        world.take(n, 1);
    }
}

fn round(world: &mut World, scope: Scope) -> u32 {
    let mut pages = 0;
    world.shard().begin_round(scope);
    while let Some(claimed) = world.shard().claim(scope, 64) {
        pages += claimed.pages.count_ones();
        world.claims.push(claimed);
        world.finish(0, true);
        world.check();
    }
    pages
}

#[test]
fn a_chunk_with_many_empty_pages_is_sidelined_and_used_last() {
    let mut world = World::new(1);
    // Two chunks, full of areas of a page.
    fill(&mut world, PAGE_GRANULES, 2 * UNIT_PAGES);
    assert_eq!(world.shard().counters().chunks, 2);
    // Of the first, three quarters go; of the second one page more than a shard keeps.
    world
        .areas
        .sort_by_key(|area| (area.chunk, core::cmp::Reverse(area.at)));
    for _ in 0..UNIT_PAGES * 3 / 4 {
        let putting = world.disown(0).unwrap();
        world.shard().put(putting);
        world
            .areas
            .sort_by_key(|area| (area.chunk, core::cmp::Reverse(area.at)));
    }
    // The pages were not empty all the time since the round before.
    assert_eq!(round(&mut world, Scope::Due), 0);
    let given = round(&mut world, Scope::Due);
    assert!(given >= UNIT_PAGES as u32 * 3 / 4 - HIGH, "{given}");
    let counters = world.shard().counters();
    assert!(counters.empty <= u64::from(HIGH));
}

/// On kernels with larger pages, rounds leave one of them, and find nothing when no more are empty.
#[test]
fn rounds_leave_a_page_of_the_kernel() {
    for group in [4, 16] {
        let mut world = World::new(group);
        fill(&mut world, PAGE_GRANULES, 2 * UNIT_PAGES);
        // Two of its pages are empty, and a part of a third one.
        for _ in 0..2 * group + group / 2 {
            let first = |area: &Area| (area.chunk, area.at);
            let lowest = (0..world.areas.len()).min_by_key(|&at| first(&world.areas[at]));
            world.step(Op::Put(lowest.unwrap()));
        }
        let counters = world.shard().counters();
        let (empty, pinned) = (u64::from(2 * group), u64::from(group / 2));
        assert_eq!((counters.empty, counters.pinned), (empty, pinned));
        assert!(world.shard().due_pages(Scope::Due) > 0);
        assert_eq!(round(&mut world, Scope::Due), 0, "empty since this round");
        assert_eq!(round(&mut world, Scope::Due), group);
        assert_eq!(world.shard().due_pages(Scope::Due), 0);
        assert_eq!(round(&mut world, Scope::Everything), group);
        let counters = world.shard().counters();
        assert_eq!((counters.empty, counters.pinned), (0, pinned));
    }
}

#[test]
fn a_sidelined_chunk_serves_when_no_active_one_fits() {
    let mut world = World::new(1);
    fill(&mut world, PAGE_GRANULES, 2 * UNIT_PAGES);
    while world.areas.iter().filter(|area| area.chunk == 0).count() > 10 {
        let index = world.areas.iter().position(|area| area.chunk == 0).unwrap();
        world.step(Op::Put(index));
    }
    round(&mut world, Scope::Everything);
    assert_eq!(world.shard().counters().sidelined, 1);
    let index = world.areas.iter().position(|area| area.chunk == 1).unwrap();
    let at = world.areas[index].at;
    world.step(Op::Put(index));
    // The active one first, then the sidelined one.
    world.take(PAGE_GRANULES, 1);
    assert_eq!(
        world.areas.last().map(|area| (area.chunk, area.at)),
        Some((1, at))
    );
    world.take(PAGE_GRANULES, 1);
    assert_eq!(world.areas.last().map(|area| area.chunk), Some(0));
    assert_eq!(world.shard().counters().sidelined, 0);
}

#[test]
fn without_depopulation_only_whole_chunks_go() {
    let mut world = World::new(1);
    fill(&mut world, PAGE_GRANULES, 3 * UNIT_PAGES);
    while world.areas.iter().any(|area| area.chunk < 2) {
        let index = world.areas.iter().position(|area| area.chunk < 2).unwrap();
        world.step(Op::Put(index));
    }
    while world.areas.len() > 1 {
        world.step(Op::Put(0));
    }
    round(&mut world, Scope::FreeChunks);
    round(&mut world, Scope::FreeChunks);
    let counters = world.shard().counters();
    assert_eq!(counters.chunks, 2);
    assert!(counters.populated > UNIT_PAGES as u64);
}

#[test]
fn small_and_large_areas_have_chunks_of_their_own() {
    let mut world = World::new(1);
    world.take(SMALL_GRANULES, 1);
    world.take(SMALL_GRANULES + 1, 1);
    world.take(1, 1);
    let chunks: Vec<u32> = world.areas.iter().map(|area| area.chunk).collect();
    assert!(chunks[0] != chunks[1] && chunks[0] == chunks[2]);
}

/// A child that skipped the fork handlers saw the shard as of a moment before its parent's other thread opened a
/// chunk, and the chunk's record as of a moment after.
#[test]
fn a_record_that_was_begun_by_another_thread_begins_anew() {
    let (mut state, mut chunks) = (ShardState::NEW, vec![Chunk::ZERO; 2]);
    let mut others = Shard::new(&mut state, &mut chunks);
    assert!(others.open(0, false));
    assert!((0..100).all(|n| others.take(100 + n, 8).is_some()));
    let mut state = ShardState::NEW;
    let mut shard = Shard::new(&mut state, &mut chunks);
    shard.abandon();
    assert!(shard.wanted(2) == Some(0) && shard.open(0, false) && !shard.open(0, false));
    let taken = shard.take(UNIT_GRANULES, 1).expect("all of it");
    assert_eq!((taken.chunk, taken.at, taken.populate), (0, 0, u64::MAX));
    shard.check_invariants().expect("whole");
}

/// What is there from the start counts as populated, and goes back like the rest.
#[test]
fn a_resident_chunk_is_told_of() {
    let (mut state, mut chunks) = (ShardState::NEW, vec![Chunk::ZERO; 1]);
    let mut shard = Shard::new(&mut state, &mut chunks);
    assert!(shard.open(0, true));
    assert_eq!(
        (shard.counters().populated, shard.counters().empty),
        (64, 64)
    );
    shard.check_invariants().expect("whole");
    let taken = shard.take(10, 1).expect("room");
    assert_eq!(taken.populate, 0);
    shard.check_invariants().expect("whole");
    shard.begin_round(Scope::Everything);
    while let Some(claimed) = shard.claim(Scope::Everything, 8) {
        shard.finish(claimed, claimed.pages);
    }
    assert_eq!((shard.counters().populated, shard.counters().empty), (1, 0));
    shard.check_invariants().expect("whole");
}
