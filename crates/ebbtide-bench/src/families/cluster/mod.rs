//! The cluster family: the cost of a refill under a zone's lock. It measures single threads, many threads, threads
//! beside releases, and real programs; each by clusters and frame by frame.

mod pages;
mod script;

use anyhow::Result;

use crate::families::family::{self, Family};
use crate::harness::flags::{BenchArgs, SizedArgs};
use crate::harness::peers::{Entry, Takes};
use crate::harness::runs::{Fill, Worker};
use crate::harness::{self, Case, Results};
use crate::measured::{Output, WorkerArgs};
use script::Script;

const FILL: &str = "fill";
/// Cases of Ebbtide with figures of its locks, and with holds by CPU time.
const COUNTED: Takes = |case| case.contains("locks");
const CLOCKED: Takes = |case| case.starts_with("hold_");
/// Cases of Ebbtide without figures, and those of them that work with any allocator.
const OWN: Takes = |case| !COUNTED(case) && !CLOCKED(case);
const OPEN: Takes = |case| OWN(case) && !case.starts_with("stall_");

const VARIANTS: [(&str, Takes); 6] = [
    ("dev=cluster:off", OWN),
    ("dev=lockstat:on", COUNTED),
    ("dev=lockstat:on,dev=cluster:off", COUNTED),
    ("dev=lockstat:cpu", CLOCKED),
    ("dev=lockstat:cpu,dev=cluster:off", CLOCKED),
    ("thp=off", |case| case == FILL),
];

/// Bytes that each thread holds at once, and in a quick run.
const BLOCK_BYTES: (u64, u64) = (128 << 20, 16 << 20);
/// The largest number of threads.
const THREADS: (u64, u64) = (16, 4);
/// Bytes that the fill case fills.
const FILL_BYTES: (u64, u64) = (1 << 30, 128 << 20);
/// Bytes that the hold cases allocate.
const HOLD_BYTES: u64 = 64 << 20;
/// Calls that the stall cases time.
const CALLS: (u64, u64) = (1_000_000, 200_000);

fn cases(bench: &BenchArgs, bytes: u64) -> Result<Vec<Case>> {
    Cluster::cases(&bench.only, |id| {
        let mut words = id.split('_');
        let kind = words.next()?;
        let threads = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
        Some(match kind {
            "take" | "locks" if threads > bench.pick(THREADS) => return None,
            "take" | "locks" => Box::new(Worker::new(id, bytes)),
            "hold" => Box::new(Worker::new(id, HOLD_BYTES)),
            "stall" => Box::new(Worker::new(id, bench.pick(CALLS))),
            FILL => Box::new(Fill {
                bytes: bench.pick(FILL_BYTES),
            }),
            name => Box::new(Script {
                name,
                is_quick: bench.quick,
            }),
        })
    })
}

fn entries(bench: &BenchArgs) -> Result<Vec<Entry>> {
    let mut entries = family::entries(bench, false, &VARIANTS)?;
    for entry in entries.iter_mut().filter(|entry| entry.conf.is_empty()) {
        entry.takes = if entry.is_own() { OWN } else { OPEN };
    }
    Ok(entries)
}

/// The family.
pub struct Cluster;

impl Family for Cluster {
    type Flags = SizedArgs;
    const NAME: &'static str = "cluster";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 27.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let bench = &args.bench;
        let bytes = args.size.unwrap_or(bench.pick(BLOCK_BYTES));
        let cases = cases(bench, bytes)?;
        let rounds = bench.rounds_or(Self::ROUNDS);
        let mut results = harness::run(&cases, entries(bench)?, rounds, bytes * THREADS.0)?;
        results.notes.push(
            "holds are those of all turns of a zone's lock, takes and puts, less one reading of the clock each".into(),
        );
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        let kinds = ["take_", "locks_", "hold_", "stall_"];
        let is_ours = kinds.iter().any(|kind| args.case.starts_with(kind));
        is_ours.then(|| pages::run(&args.case, args.amount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn every_case_is_somebodys_and_every_kind_has_cases() {
        let asked = families::parse(["cluster".to_owned()].into_iter()).unwrap();
        let cases = cases(&asked.bench, 1 << 20).unwrap();
        assert_eq!(cases.len(), 24);
        let count = |takes: Takes| cases.iter().filter(|case| takes(case.id)).count();
        assert_eq!([OPEN, OWN, COUNTED, CLOCKED].map(count), [14, 16, 6, 2]);
        assert!(VARIANTS.iter().all(|(_, takes)| count(*takes) > 0));
    }
}
