//! The micro family: the cost of single operations, and the memory of a small process.

mod operations;
mod programs;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::runs::{Fill, Worker};
use crate::harness::{self, Case, Results, peers};
use crate::measured::{Output, WorkerArgs};
use operations::{BATCH, batch, fill, pair, rss, working_set};
use programs::{Hello, Starts};

/// Bytes that `fill` fills in a quick run.
const FILL_BYTES: u64 = 256 << 20;

fn cases(args: &BenchArgs) -> Result<Vec<Case>> {
    let scale = args.pick((4, 1));
    Micro::cases(&args.only, |id| {
        Some(match id {
            "pair16" | "pair64" | "pair256" => Box::new(Worker::new(id, 2_000_000 * scale)),
            "lifo" | "fifo" => Box::new(Worker::new(id, 2_000 * scale)),
            "working_set" => Box::new(Worker::new(id, 1_000_000 * scale)),
            "fill" => Box::new(Fill {
                bytes: FILL_BYTES * scale,
            }),
            "start" => Box::new(Starts(args.pick((50, 20)))),
            _ => Box::new(Hello::default()),
        })
    })
}

/// The family.
pub struct Micro;

impl Family for Micro {
    type Flags = BenchArgs;
    const NAME: &'static str = "micro";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (9, 3);
    const QUICK_ROUND_S: f64 = 2.0;

    fn measure(args: &BenchArgs) -> Result<Results> {
        let cases = cases(args)?;
        let rounds = args.rounds_or(Self::ROUNDS);
        let entries = peers::rotation(args, false)?;
        let filled = args.pick((4, 1)) * FILL_BYTES;
        harness::run(&cases, entries, rounds, filled + filled / 2)
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
