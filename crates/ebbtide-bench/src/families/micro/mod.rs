//! The micro family: what single operations cost, and what a small process weighs.

mod operations;
mod programs;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::runs::{Fill, Worker};
use crate::harness::{self, Case, Metric, Results, metric, peers};
use crate::measured::{Output, WorkerArgs};
use operations::{BATCH, batch, fill, pair, rss, working_set};
use programs::{Compiled, Starts};

const NS_PER_PAIR: &[Metric] = &[metric("ns_per_pair", "ns per malloc + free")];

const FILL: &[Metric] = &[
    metric("fill_s", "s to fill"),
    metric("free_s", "s to free"),
    metric("rss_per_live", "resident bytes per live byte"),
];

const START: &[Metric] = &[metric("ms_per_start", "ms per start")];

const HELLO: &[Metric] = &[
    metric("rss_kib", "KiB resident"),
    metric("rss_peak_kib", "KiB resident at the peak"),
];

/// What `fill` fills in a quick run.
const FILL_BYTES: u64 = 256 << 20;

fn worker(id: &'static str, amount: u64, about: &'static str) -> Case {
    Case {
        id,
        about,
        run: Box::new(Worker::new(id, amount)),
        metrics: NS_PER_PAIR,
    }
}

fn cases(quick: bool) -> Vec<Case> {
    let scale = if quick { 1 } else { 4 };
    vec![
        worker("pair16", 2_000_000 * scale, "malloc(16), free"),
        worker("pair64", 2_000_000 * scale, "malloc(64), free"),
        worker("pair256", 2_000_000 * scale, "malloc(256), free"),
        worker(
            "lifo",
            2_000 * scale,
            "1,024 × malloc(64), then free, newest first",
        ),
        worker(
            "fifo",
            2_000 * scale,
            "1,024 × malloc(64), then free, oldest first",
        ),
        worker(
            "working_set",
            1_000_000 * scale,
            "replace one of 4,096 objects of 64 to 512 bytes at random",
        ),
        Case {
            id: "fill",
            about: "objects of 64 to 512 bytes, every cache line touched, then all freed",
            run: Box::new(Fill {
                bytes: FILL_BYTES * scale,
            }),
            metrics: FILL,
        },
        Case {
            id: "start",
            about: "start /bin/true and wait for it",
            run: Box::new(Starts {
                program: "/bin/true",
                times: if quick { 20 } else { 50 },
            }),
            metrics: START,
        },
        Case {
            id: "hello",
            about: "a C program that prints one line",
            run: Box::new(Compiled::new(include_str!("hello.c"), "rss")),
            metrics: HELLO,
        },
    ]
}

/// The family.
pub struct Micro;

impl Family for Micro {
    type Flags = BenchArgs;
    const NAME: &'static str = "micro";
    const ABOUT: &'static str =
        "Single operations: pairs, batches, a working set, filling, start-up, small processes";
    const ROUNDS: (u32, u32) = (9, 3);
    const QUICK_ROUND_S: f64 = 2.0;

    fn measure(args: &BenchArgs) -> Result<Results> {
        let mut cases = cases(args.quick);
        harness::select(&mut cases, &args.only)?;
        let rounds = args.rounds_or(Self::ROUNDS);
        let entries = peers::rotation(args, false)?;
        let filled = if args.quick {
            FILL_BYTES
        } else {
            4 * FILL_BYTES
        };
        let results = harness::run(&cases, entries, rounds, filled + filled / 2)?;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        let count = args.amount;
        Some(Ok(match args.case.as_str() {
            "pair16" => pair(16, count),
            "pair64" => pair(64, count),
            "pair256" => pair(256, count),
            "lifo" => batch(count, |i| BATCH - 1 - i),
            "fifo" => batch(count, |i| i),
            "working_set" => working_set(count),
            "fill" => return Some(fill(count)),
            "rss" => rss(),
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_unique() {
        let cases = cases(true);
        for (i, case) in cases.iter().enumerate() {
            assert!(cases[i + 1..].iter().all(|c| c.id != case.id));
            assert!(!case.metrics.is_empty());
        }
    }
}
