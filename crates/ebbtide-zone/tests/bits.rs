//! The word searches against searches that take a bit at a time.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::bits::*;
use proptest::prelude::*;

fn get(map: &[u64], i: usize) -> bool {
    map[i / 64] >> (i % 64) & 1 == 1
}

fn naive_find(map: &[u64], n: usize, align: usize, base: usize) -> Option<u64> {
    (0..(map.len() * 64 + 1).saturating_sub(n))
        .filter(|at| (at + base * 64).is_multiple_of(align))
        .find(|at| (*at..at + n).all(|i| get(map, i)))
        .map(|at| at as u64)
}

fn naive_longest(map: &Map) -> u32 {
    let (mut best, mut run) = (0, 0);
    for i in 0..512 {
        run = if get(map, i) { run + 1 } else { 0 };
        best = best.max(run);
    }
    best
}

/// Maps with long runs: random ones would have none longer than a few bits.
fn map() -> impl Strategy<Value = Map> {
    let runs = prop::collection::vec((0u32..512, 1u32..300), 0..12);
    (runs, any::<bool>()).prop_map(|(runs, flip)| {
        let mut map = [0; 8];
        for (i, (from, n)) in runs.into_iter().enumerate() {
            let n = if i % 2 == 0 { n } else { n % 20 + 1 };
            for_words(from, n.min(512 - from), |w, m| map[w] ^= m);
        }
        if flip { map.map(|w: u64| !w) } else { map }
    })
}

#[test]
fn groups_are_whole_or_touched() {
    let words = [0, u64::MAX, 0xf0, 0x10, 0xffff_0000, 0x0fff_f000_0001_ffff];
    for (word, group) in words
        .iter()
        .flat_map(|&word| [1, 4, 16, 64].map(|group| (word, group)))
    {
        let (mut whole, mut touched) = (0, 0);
        for first in (0..64).step_by(group as usize) {
            let group = mask(first, group);
            whole |= if word & group == group { group } else { 0 };
            touched |= if word & group != 0 { group } else { 0 };
        }
        assert_eq!(whole_groups(word, group), whole, "{word:x} {group}");
        assert_eq!(touched_groups(word, group), touched, "{word:x} {group}");
    }
    assert_eq!(without_first_group(0xff_0ff0, 4), 0xff_0f00);
    assert_eq!(without_first_group(u64::MAX, 64), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn find_run_is_the_lowest(m in map(), n in 1u32..=512, small in 1u32..70, align in 0u32..10, base in 0u64..20) {
        for n in [n, small] {
            let want = naive_find(&m, n as usize, 1 << align, 0);
            prop_assert_eq!(find_run(&m, n, 1 << align, None).map(u64::from), want);
            let want = naive_find(&m, n as usize, 1 << align, base as usize);
            let got = find_run_by(|i| m[i], 0, 8, u64::from(n), 1 << align, base);
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn longest_run_is_longest(m in map(), bound in 0u32..512) {
        let want = naive_longest(&m);
        prop_assert_eq!(longest_run(&m, 512), want);
        prop_assert!(longest_run(&m, want.max(1)) == want);
        prop_assert!(longest_run(&m, bound) >= want.min(bound));
    }

    #[test]
    fn run_around_reaches_both_ends(m in map(), at in 0u32..512, n in 1u32..100) {
        let n = n.min(512 - at);
        let mut m = m;
        for_words(at, n, |w, mask| m[w] |= mask);
        let begin = (0..at).rev().take_while(|&i| get(&m, i as usize)).count() as u32;
        let end = (at..512).take_while(|&i| get(&m, i as usize)).count() as u32;
        prop_assert_eq!(run_around(&m, at, n), begin + end);
    }
}

proptest! {
    #[test]
    fn runs_are_found_in_order(m in map()) {
        let (mut at, mut seen) = (0, [0; 8]);
        while let Some((begin, n)) = next_run(&m, at) {
            prop_assert!(begin >= at && (at == 0 || begin > at));
            at = begin + n;
            for_words(begin, n, |w, mask| seen[w] |= mask);
        }
        prop_assert_eq!(seen, m);
    }
}

#[test]
fn prefer_comes_first() {
    let mut prefer = [0; 8];
    prefer[5] = mask(8, 16);
    assert_eq!(
        find_run(&[u64::MAX; 8], 16, 1, Some(&prefer)),
        Some(5 * 64 + 8)
    );
    assert_eq!(find_run(&[u64::MAX; 8], 17, 1, Some(&prefer)), Some(0));
}

#[test]
fn edges() {
    assert_eq!(mask(0, 64), u64::MAX);
    assert_eq!(mask(63, 1), 1 << 63);
    assert_eq!(longest_run(&[0; 8], 512), 0);
    assert_eq!(longest_run(&[u64::MAX; 8], 512), 512);
    assert_eq!(find_run(&[u64::MAX; 8], 512, 512, None), Some(0));
    assert_eq!(find_run(&[0; 8], 1, 1, None), None);
    let mut steps = vec![];
    for_words(60, 72, |w, m| steps.push((w, m.count_ones())));
    assert_eq!(steps, [(0, 4), (1, 64), (2, 4)]);
}
