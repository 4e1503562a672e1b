//! Random sequences of operations against a naive model: one byte per frame.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

mod op;
mod world;

use ebbtide_zone::*;
use op::{Op, group, op};
use proptest::prelude::*;
use world::{BLOCKS, F, World};

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
