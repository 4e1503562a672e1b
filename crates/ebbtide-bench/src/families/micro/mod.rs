//! The micro family: what single operations cost, and what a small process weighs.

pub mod operations;
mod programs;

use anyhow::Result;

use crate::figures::Measured;
use crate::harness::flags::BenchArgs;
use crate::harness::peers;
use crate::harness::runs::{Fill, Worker};
use crate::harness::{self, Case, Metric};
use programs::{Compiled, Starts};

const NS_PER_PAIR: &[Metric] = &[Metric {
    id: "ns_per_pair",
    unit: "ns per malloc + free",
}];

const FILL: &[Metric] = &[
    Metric {
        id: "fill_s",
        unit: "s to fill",
    },
    Metric {
        id: "free_s",
        unit: "s to free",
    },
    Metric {
        id: "rss_per_live",
        unit: "resident bytes per live byte",
    },
];

const START: &[Metric] = &[Metric {
    id: "ms_per_start",
    unit: "ms per start",
}];

const HELLO: &[Metric] = &[
    Metric {
        id: "rss_kib",
        unit: "KiB resident",
    },
    Metric {
        id: "rss_peak_kib",
        unit: "KiB resident at the peak",
    },
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

/// Measures.
pub fn measure(args: &BenchArgs) -> Result<Measured> {
    let mut cases = cases(args.quick);
    harness::select(&mut cases, &args.only)?;
    let rounds = args.rounds_or((9, 3));
    let entries = peers::rotation(args, false)?;
    let filled = if args.quick {
        FILL_BYTES
    } else {
        4 * FILL_BYTES
    };
    let results = harness::run(&cases, entries, rounds, filled + filled / 2)?;
    Ok(Measured::new("micro", results))
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
