//! Chunks of per-CPU data against the model of their tests: the contents of every granule.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/percpu/world.rs"]
mod world;

use ebbtide_fuzz::draw;
use libfuzzer_sys::fuzz_target;
use proptest::collection::vec;
use proptest::sample::select;
use world::World;

fuzz_target!(|bytes: &[u8]| {
    let strategy = (select(&[1u32, 4, 16][..]), vec(world::op(), 1..150));
    let Some((group, ops)) = draw(bytes, &strategy) else {
        return;
    };
    let mut world = World::new(group);
    for (number, op) in ops.into_iter().enumerate() {
        world.step(op);
        if number % 8 == 0 {
            world.check();
        }
    }
    world.check();
    world.check_contents();
});
