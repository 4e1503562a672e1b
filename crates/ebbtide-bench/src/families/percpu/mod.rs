//! The percpu family: per-CPU data. It measures the memory held after most areas were freed, and the speed of
//! counting and allocating.

mod counting;
mod groups;
mod percpu_api;

use anyhow::Result;

use crate::families::family::{Family, entries};
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{Entry, Takes};
use crate::harness::runs::Worker;
use crate::harness::{self, Case, Results};
use crate::measured::{Output, WorkerArgs};

/// Numbers of groups, of additions and of pairs of each thread, and in a quick run.
const GROUPS: (u64, u64) = (11_000, 1100);
const ADDITIONS: (u64, u64) = (10_000_000, 1_000_000);
const PAIRS: (u64, u64) = (1_000_000, 100_000);

const IN_GROUPS: Takes = |case| case.starts_with("groups_");

/// Ebbtide without depopulation, and with copies for 64 CPUs.
const VARIANTS: [(&str, Takes); 3] = [
    ("dev=percpu_depopulate:off", IN_GROUPS),
    ("dev=percpu_units:64", IN_GROUPS),
    ("dev=percpu_units:64,dev=percpu_depopulate:off", IN_GROUPS),
];

/// The number of threads in a case's name.
fn threads_of(case: &str) -> usize {
    let number = case.rsplit('_').next().and_then(|text| text.parse().ok());
    number.unwrap_or(1)
}

/// The cases with at most as many threads as CPUs.
fn cases(bench: &BenchArgs, cpus: usize) -> Result<Vec<Case>> {
    Percpu::cases(&bench.only, |id| {
        let usual = match id.split('_').next()? {
            "groups" => GROUPS,
            "count" => ADDITIONS,
            _ => PAIRS,
        };
        if threads_of(id) > cpus {
            return None;
        }
        Some(Box::new(Worker::new(id, bench.pick(usual))))
    })
}

/// The family.
pub struct Percpu;

impl Family for Percpu {
    type Flags = BenchArgs;
    const NAME: &'static str = "percpu";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 34.0;

    fn measure(bench: &BenchArgs) -> Result<Results> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let cases = cases(bench, cpus)?;
        let rounds = bench.rounds_or(Self::ROUNDS);
        let mut entries = entries(bench, false, &VARIANTS)?;
        // Other allocators have no per-CPU data.
        entries.retain(Entry::is_own);
        harness::run(&cases, entries, rounds, 64 << 20)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        let (case, count) = (args.case.as_str(), args.amount);
        Some(match case.split('_').next()? {
            "groups" => groups::run(case, count),
            "count" => counting::count(threads_of(case), count),
            "pairs" => counting::pairs(threads_of(case), count),
            _ => return None,
        })
    }

    /// No peer has per-CPU data.
    fn more_help() -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn cases_are_those_of_the_machine() {
        let asked = families::parse(["percpu".to_owned()].into_iter()).unwrap();
        let cases = |cpus| cases(&asked.bench, cpus).unwrap();
        let ids = |cpus| -> Vec<&str> { cases(cpus).iter().map(|c| c.id).collect() };
        assert_eq!(
            ids(3),
            [
                "groups_children",
                "groups_any",
                "count_1",
                "count_2",
                "pairs_1",
                "pairs_2"
            ]
        );
        assert_eq!((threads_of("count_16"), threads_of("groups_any")), (16, 1));
    }
}
