//! The percpu family: per-CPU data, what it holds after most of it was freed, and
//! how fast it counts and allocates.

mod counting;
mod groups;
mod percpu_api;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::runs::Worker;
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::{Output, WorkerArgs};

const GROUPS: &[Metric] = &[
    metric("before_mib", "MiB populated before"),
    metric("peak_mib", "MiB populated with all groups"),
    metric("rss_peak_mib", "MiB resident then, more than before"),
    metric("create_ms", "ms to create them"),
    metric("remove_ms", "ms to remove ten of eleven"),
    metric("after_mib", "MiB populated 1 s after that"),
    metric("after_live_mib", "MiB in pages with a live byte then"),
    metric("rss_after_mib", "MiB resident then, more than before"),
    metric("after_to_peak", "populated ÷ populated with all groups"),
    metric("after_to_live", "populated ÷ pages with a live byte"),
    metric(
        "topped_mib",
        "MiB populated after small areas came and half of them went",
    ),
    metric("topped_to_live", "populated ÷ pages with a live byte then"),
    metric("pinned_mib", "MiB populated 1 s after all groups went"),
    metric("pinned_to_live", "populated ÷ pages with a live byte then"),
];

const COUNT: &[Metric] = &[
    metric("percpu_ns", "ns an addition, ebb_percpu_add_u64"),
    metric("atomic_ns", "ns an addition, one shared atomic"),
    metric("sharded_ns", "ns an addition, an atomic for each thread"),
    metric("mutex_ns", "ns an addition, under a mutex"),
];

const PAIRS: &[Metric] = &[
    metric("pair8_ns", "ns a pair of alloc and free, 8 bytes"),
    metric("pair64_ns", "ns a pair, 64 bytes"),
    metric("pair1k_ns", "ns a pair, 1,024 bytes"),
    metric("batch_ns", "ns a pair, batches of 64, 8 to 512 bytes"),
];

/// Cases of counting, by number of threads.
const COUNT_CASES: [(&str, usize); 6] = [
    ("count_1", 1),
    ("count_2", 2),
    ("count_4", 4),
    ("count_8", 8),
    ("count_16", 16),
    ("count_32", 32),
];
/// Cases of allocating, by number of threads.
const PAIR_CASES: [(&str, usize); 6] = [
    ("pairs_1", 1),
    ("pairs_2", 2),
    ("pairs_4", 4),
    ("pairs_8", 8),
    ("pairs_16", 16),
    ("pairs_32", 32),
];

/// The number of threads in a case's name.
fn threads_of(case: &str) -> usize {
    let number = case.rsplit('_').next().and_then(|text| text.parse().ok());
    number.unwrap_or(1)
}

fn cases(quick: bool, cpus: usize) -> Vec<Case> {
    let groups = [
        (
            "groups_children",
            "groups of six areas, every eleventh with ten children behind it; all children removed in order",
        ),
        (
            "groups_any",
            "the groups of groups_children; any ten of eleven removed in random order",
        ),
    ];
    let mut cases: Vec<Case> = groups
        .into_iter()
        .map(|(id, about)| Case {
            id,
            about,
            run: Box::new(Worker::new(id, if quick { 1100 } else { 11_000 })),
            metrics: GROUPS,
        })
        .collect();
    let worker = |case, amount| Box::new(Worker::new(case, amount));
    for (id, threads) in COUNT_CASES {
        if threads <= cpus {
            cases.push(Case {
                id,
                about: "threads that add to one counter; the number of threads is in the name",
                run: worker(id, if quick { 1_000_000 } else { 10_000_000 }),
                metrics: COUNT,
            });
        }
    }
    for (id, threads) in PAIR_CASES {
        if threads <= cpus {
            cases.push(Case {
                id,
                about: "threads that allocate and free areas; the number of threads is in the name",
                run: worker(id, if quick { 100_000 } else { 1_000_000 }),
                metrics: PAIRS,
            });
        }
    }
    cases
}

/// Ebbtide, without depopulation, and with copies for 64 CPUs. Others have no such data.
fn entries(bench: &BenchArgs) -> Result<Vec<Entry>> {
    const ONLY: &[&str] = &["groups_children", "groups_any"];
    let mut entries = peers::rotation(bench, false)?;
    entries.retain(Entry::is_own);
    let own = entries[0].clone();
    for conf in [
        "dev=percpu_depopulate:off",
        "dev=percpu_units:64",
        "dev=percpu_units:64,dev=percpu_depopulate:off",
    ] {
        entries.push(own.variant(conf, ONLY));
    }
    Ok(entries)
}

/// The family.
pub struct Percpu;

impl Family for Percpu {
    type Flags = BenchArgs;
    const NAME: &'static str = "percpu";
    const ABOUT: &'static str = "Per-CPU data: what stays after most of it was freed, counting, allocating \
        (see --quick, --only)";
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 34.0;

    fn measure(bench: &BenchArgs) -> Result<Results> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut cases = cases(bench.quick, cpus);
        harness::select(&mut cases, &bench.only)?;
        let rounds = bench.rounds_or(Self::ROUNDS);
        let results = harness::run(&cases, entries(bench)?, rounds, 64 << 20)?;
        Ok(results)
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

    /// No peer has such data.
    fn more_help() -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_those_of_the_machine() {
        let ids = |cpus| -> Vec<&str> { cases(true, cpus).iter().map(|c| c.id).collect() };
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
