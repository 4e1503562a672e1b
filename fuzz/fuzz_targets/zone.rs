//! A zone against the model of its tests: one byte a frame.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/model/op.rs"]
mod op;
#[path = "../../crates/ebbtide-zone/tests/model/world.rs"]
mod world;

use ebbtide_fuzz::draw;
use libfuzzer_sys::fuzz_target;
use op::Op;
use proptest::collection::vec;
use world::World;

fuzz_target!(|bytes: &[u8]| {
    let Some((group, ops)) = draw(bytes, &(op::group(), vec(op::op(), 1..100))) else {
        return;
    };
    let mut world = World::new(group);
    for (number, op) in ops.into_iter().enumerate() {
        world.step(op);
        if number % 8 == 0 {
            world.check();
        }
    }
    world.check_frames();
    while !world.runs.is_empty() {
        world.step(Op::Put(0, true, false));
    }
    while !world.extents.is_empty() {
        world.step(Op::PutBlocks(0, 3));
    }
    while !world.claims.is_empty() {
        world.step(Op::PutClaim(0, ebbtide_zone::PutState::Lazy));
    }
    world.check();
    assert_eq!(world.zone().counters().free_blocks, world.open);
});
