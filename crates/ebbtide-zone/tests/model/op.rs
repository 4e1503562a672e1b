//! The steps of the model test, drawn at random. The fuzz target `zone` draws them too.

use crate::world::BLOCKS;
use ebbtide_zone::PutState;
use proptest::prelude::*;

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

pub(crate) fn op() -> impl Strategy<Value = Op> {
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
pub(crate) fn group() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), Just(4u32), Just(16u32)]
}
