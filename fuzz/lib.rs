//! What the fuzz targets share: a value of a strategy, drawn from the fuzzer's bytes.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::sync::LazyLock;

/// More than any strategy of the targets takes.
const FILLER_BYTES: usize = 256 << 10;

/// Bytes behind those of the fuzzer. Without them a choice would get zeroes, which some ranges refuse for ever.
static FILLER: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..FILLER_BYTES / 8)
        .flat_map(|_| next().to_le_bytes())
        .collect()
});

/// Draws a value. Each choice takes the next bytes of the fuzzer; behind the last one they are always the same.
pub fn draw<S: Strategy>(bytes: &[u8], strategy: &S) -> Option<S::Value> {
    let seed = [bytes, &FILLER].concat();
    let random = TestRng::from_seed(RngAlgorithm::PassThrough, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    strategy
        .new_tree(&mut runner)
        .ok()
        .map(|tree| tree.current())
}
