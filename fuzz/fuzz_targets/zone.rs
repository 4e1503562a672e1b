//! A zone against the model of its tests: one byte a frame.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/model/op.rs"]
mod op;
#[path = "../../crates/ebbtide-zone/tests/model/world.rs"]
mod world;

use ebbtide_fuzz::Bytes;
use ebbtide_zone::PutState;
use libfuzzer_sys::fuzz_target;
use op::Op;
use world::{BLOCKS, World};

fn op(bytes: &mut Bytes) -> Op {
    let any = |bytes: &mut Bytes| bytes.below(64);
    let frames = [1..=40, 64..=64, 1..=511, 256..=256];
    match bytes.below(15) {
        0 => Op::Open(bytes.number(1..=20) as u32),
        1 => Op::Take(
            bytes.of(&frames) as u32,
            1 << bytes.of(&[0..=0, 0..=9]),
            bytes.flag(),
        ),
        2 => Op::Put(any(bytes), bytes.flag(), bytes.flag()),
        3 => Op::PutTail(any(bytes), bytes.number(1..=200) as u32, bytes.flag()),
        4 => Op::TakeBlocks(
            bytes.number(1..=40) as u32,
            1 << bytes.below(4),
            bytes.below(9) as u32,
        ),
        5 => Op::PutBlocks(any(bytes), bytes.below(40) as u32),
        6 => Op::Shrink(any(bytes), bytes.number(1..=511) as u32),
        7 => Op::GrowRun(any(bytes), bytes.below(100) as u32),
        8 => Op::GrowBlocks(any(bytes), bytes.below(10) as u32),
        9 => Op::Claim(bytes.number(1..=9000) as u32, bytes.flag()),
        10 => Op::ClaimLazy(bytes.number(1..=9000) as u32),
        11 => Op::ClaimFree(bytes.below(BLOCKS as usize) as u32),
        12 => {
            let outcomes = [PutState::Clean, PutState::Dirty, PutState::Lazy];
            Op::PutClaim(any(bytes), outcomes[bytes.below(3)])
        }
        13 => {
            // Most frames in use are low.
            let all = u64::from(BLOCKS) * 512;
            let first = bytes.of(&[0..=1023, 0..=all - 1]);
            Op::Wrong(first as u32, bytes.of(&[1..=8, 1..=519]) as u32)
        }
        _ => Op::WrongBlocks(
            bytes.below(BLOCKS as usize) as u32,
            bytes.number(1..=19) as u32,
        ),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes::new(bytes);
    let mut world = World::new([1, 4, 16][bytes.below(3)]);
    for number in 0..200 {
        if bytes.is_over() {
            break;
        }
        world.step(op(&mut bytes));
        if number % 32 == 0 {
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
        world.step(Op::PutClaim(0, PutState::Lazy));
    }
    world.check();
    assert_eq!(world.zone().counters().free_blocks, world.open);
});
