//! Chunks of per-CPU data against the model of their tests: the contents of every granule.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/percpu/world.rs"]
mod world;

use ebbtide_fuzz::Bytes;
use ebbtide_zone::percpu::{Scope, UNIT_GRANULES};
use libfuzzer_sys::fuzz_target;
use world::{Op, World};

fn op(bytes: &mut Bytes) -> Op {
    let most = u64::from(UNIT_GRANULES);
    let scope =
        |bytes: &mut Bytes| [Scope::Due, Scope::Everything, Scope::FreeChunks][bytes.below(3)];
    match bytes.below(13) {
        kind @ (0..=2 | 12) => {
            let granules = bytes.of(&[1..=20, 20..=300, 300..=3000, 1..=most]) as u32;
            let align = 1 << bytes.of(&[0..=0, 0..=9]);
            match kind {
                12 => Op::TakePopulated(granules, align),
                _ => Op::Take(granules, align),
            }
        }
        3..=4 => Op::Put(bytes.below(64)),
        5 => Op::Disown(bytes.below(64)),
        6 => Op::PutDisowned(bytes.below(64)),
        7 => Op::BeginRound(scope(bytes)),
        8 => Op::Claim(scope(bytes), bytes.number(1..=70) as u32),
        9 => Op::Finish(bytes.below(64), bytes.number(0..=9) > 0),
        10 => Op::Forget,
        _ => Op::Wrong(bytes.below(7) as u32, bytes.number(0..=most + 8) as u32),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes::new(bytes);
    let mut world = World::new([1, 4, 16][bytes.below(3)]);
    for number in 0..300 {
        if bytes.is_over() {
            break;
        }
        world.step(op(&mut bytes));
        if number % 32 == 0 {
            world.check();
        }
    }
    world.check();
    world.check_contents();
});
