//! Random sequences of operations against a naive model: one byte per frame.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

mod world;

use ebbtide_zone::*;
use proptest::prelude::*;
use world::{BLOCKS, F, World};

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open(u32),
    Take(u32, u32, bool),
    Put(usize, bool, bool),
    PutTail(usize, u32, bool),
    TakeBlocks(u32, u32, u32),
    PutBlocks(usize, u32),
    Shrink(usize, u32),
    GrowRun(usize, u32),
    GrowBlocks(usize, u32),
    Claim(u32, bool),
    ClaimLazy(u32),
    ClaimFree(u32),
    PutClaim(usize, PutState),
    Wrong(u32, u32),
    WrongBlocks(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let frames = prop_oneof![3 => 1u32..40, 3 => Just(64u32), 1 => 1u32..512, 1 => Just(256u32)];
    let outcome = prop_oneof![
        Just(PutState::Clean),
        Just(PutState::Dirty),
        Just(PutState::Lazy)
    ];
    let align = prop_oneof![4 => Just(0u32), 1 => 0u32..10];
    prop_oneof![
        2 => (1u32..20).prop_map(Op::Open),
        12 => (frames, align, any::<bool>()).prop_map(|(n, a, m)| Op::Take(n, 1 << a, m)),
        8 => (any::<usize>(), any::<bool>(), any::<bool>()).prop_map(|(i, d, m)| Op::Put(i, d, m)),
        3 => (any::<usize>(), 1u32..200, any::<bool>()).prop_map(|(i, n, d)| Op::PutTail(i, n, d)),
        3 => (1u32..40, 0u32..4, 0u32..9).prop_map(|(n, a, s)| Op::TakeBlocks(n, 1 << a, s)),
        3 => (any::<usize>(), 0u32..40).prop_map(|(i, d)| Op::PutBlocks(i, d)),
        2 => (any::<usize>(), 1u32..512).prop_map(|(i, n)| Op::Shrink(i, n)),
        2 => (any::<usize>(), 0u32..100).prop_map(|(i, n)| Op::GrowRun(i, n)),
        2 => (any::<usize>(), 0u32..10).prop_map(|(i, n)| Op::GrowBlocks(i, n)),
        4 => (1u32..9000, any::<bool>()).prop_map(|(n, l)| Op::Claim(n, l)),
        2 => (1u32..9000).prop_map(Op::ClaimLazy),
        1 => (0..BLOCKS).prop_map(Op::ClaimFree),
        4 => (any::<usize>(), outcome).prop_map(|(i, o)| Op::PutClaim(i, o)),
        2 => (0..BLOCKS * 512, 1u32..520).prop_map(|(f, n)| Op::Wrong(f, n)),
        1 => (0..BLOCKS, 1u32..20).prop_map(|(b, n)| Op::WrongBlocks(b, n)),
    ]
}

/// Frames of a page of the kernel: pages of 4, 16 and 64 KiB.
fn group() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), Just(4u32), Just(16u32)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn zone_follows_the_model(group in group(), ops in prop::collection::vec(op(), 1..250)) {
        let mut world = World::new(group);
        for (i, op) in ops.into_iter().enumerate() {
            world.step(op);
            world.check();
            if i % 16 == 0 {
                world.check_frames();
            }
        }
        world.check_frames();
    }

    /// Everything put back makes every opened block whole-free again.
    #[test]
    fn all_comes_back(group in group(), ops in prop::collection::vec(op(), 1..150)) {
        let mut world = World::new(group);
        ops.into_iter().for_each(|op| world.step(op));
        while !world.runs.is_empty() {
            world.step(Op::Put(0, true, false));
        }
        while !world.extents.is_empty() {
            world.step(Op::PutBlocks(0, 3));
        }
        while !world.claims.is_empty() {
            world.step(Op::PutClaim(0, PutState::Lazy));
        }
        world.check();
        world.check_frames();
        prop_assert_eq!(world.zone().counters().free_blocks, world.open);
        // And all of it can be released.
        let mut open = BLOCKS * 2;
        while let Some(claim) = world.zone().claim_dirty(u32::MAX, true) {
            prop_assert_eq!(world.zone().put_claim(claim, PutState::Clean), Ok(Put::Done));
            open -= 1;
            prop_assert!(open > 0);
        }
        let c = world.zone().counters();
        prop_assert_eq!((c.dirty, c.lazy, c.resident_free_blocks), (0, 0, 0));
    }

    /// What is not pinned is claimed in the end, in pieces of any size, and the pinned frames stay.
    #[test]
    fn all_but_pinned_frames_is_claimed(
        group in group(),
        piece in 1u32..2000,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut world = World::new(group);
        ops.into_iter().for_each(|op| world.step(op));
        let before = world.zone().counters();
        let mut steps = 0;
        while world.has_loose(&[F::Dirty, F::Lazy]) {
            world.step(Op::Claim(piece, true));
            steps += 1;
            prop_assert!(steps <= BLOCKS * 512, "a claim took nothing");
        }
        world.check();
        let after = world.zone().counters();
        prop_assert_eq!((after.loose_dirty(), after.loose_lazy()), (0, 0));
        prop_assert_eq!(
            (after.dirty, after.lazy),
            (before.pinned_dirty, before.pinned_lazy)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Long enough for every list, hint and word to be used over and over.
    #[test]
    fn a_long_run_follows_the_model(group in group(), ops in prop::collection::vec(op(), 20_000)) {
        let mut world = World::new(group);
        for (i, op) in ops.into_iter().enumerate() {
            world.step(op);
            if i % 16 == 0 {
                world.check();
            }
            if i % 512 == 0 {
                world.check_frames();
            }
        }
        world.check_frames();
    }
}
