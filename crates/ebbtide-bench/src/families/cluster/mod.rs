//! The cluster family: what a refill costs under a zone's lock, alone, among threads, beside releases, and in real
//! programs; by clusters and frame by frame.

mod pages;
mod script;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::runs::{Fill, Worker};
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::{Output, WorkerArgs};
use script::Script;

const TAKE: &[Metric] = &[
    metric("cpu_ns", "ns of CPU time per block of 4 KiB, all threads"),
    metric("wall_ns", "ns per block, by the wall"),
];

const LOCKS: &[Metric] = &[
    metric("hold_ns", "ns under a zone's lock per frame"),
    metric("wait_ns", "ns waited for it per frame"),
    metric("contended_pct", "% of its acquisitions that waited"),
];

const HOLD: &[Metric] = &[metric(
    "turn_ns",
    "ns under a zone's lock per refill, by CPU time",
)];

const STALL: &[Metric] = &[
    metric("p9999_us", "µs of CPU time that 1 in 10,000 calls exceeds"),
    metric("longest_us", "µs of CPU time of the longest call"),
];

const REAL: &[Metric] = &[
    metric("cpu_s", "s of CPU time"),
    metric("wall_s", "s by the wall"),
    metric("faults", "minor faults"),
];

const REAL_LOCKS: &[Metric] = &[
    metric("contended_pct", "% of the zones' acquisitions that waited"),
    metric("waited_ms", "ms waited for zones, all threads"),
    metric("held_ms", "ms under a zone's lock"),
];

/// Blocks of 4 KiB by threads: case, threads, touched.
const TAKES: [(&str, u64, bool); 10] = [
    ("take_1_untouched", 1, false),
    ("take_1_touched", 1, true),
    ("take_2_untouched", 2, false),
    ("take_2_touched", 2, true),
    ("take_4_untouched", 4, false),
    ("take_4_touched", 4, true),
    ("take_8_untouched", 8, false),
    ("take_8_touched", 8, true),
    ("take_16_untouched", 16, false),
    ("take_16_touched", 16, true),
];
const LOCKED: [(&str, u64); 3] = [("locks_1", 1), ("locks_4", 4), ("locks_16", 16)];
const HOLDS: [(&str, &str); 2] = [
    (
        "hold_2",
        "objects of 16 bytes: each refill of the class takes 2 frames",
    ),
    (
        "hold_64",
        "objects of 4 KiB: each refill of the class takes 64 frames",
    ),
];
const STALLS: [(&str, &str); 2] = [
    (
        "stall_alone",
        "blocks of 4 KiB, each call timed by the thread's CPU clock",
    ),
    (
        "stall_beside",
        "the same beside a thread that frees, and releases everything, all the time",
    ),
];
const FILL: &str = "fill";
const FILLED: &[Metric] = &[metric("fill_s", "s to fill")];
const REALS: [&str; 3] = ["redis", "gcc", "python"];
const REALS_LOCKED: [&str; 3] = ["redis_locks", "gcc_locks", "python_locks"];

/// Cases that say something of any allocator, and of Ebbtide's variants.
const OPEN: [&str; 14] = {
    let mut all = [""; 14];
    let mut at = 0;
    while at < 10 {
        all[at] = TAKES[at].0;
        at += 1;
    }
    (all[10], all[11], all[12]) = (REALS[0], REALS[1], REALS[2]);
    all[13] = FILL;
    all
};
const OWN_ONLY: [&str; 16] = {
    let mut all = [""; 16];
    let mut at = 0;
    while at < OPEN.len() {
        all[at] = OPEN[at];
        at += 1;
    }
    (all[14], all[15]) = (STALLS[0].0, STALLS[1].0);
    all
};
const COUNTED: [&str; 6] = [
    LOCKED[0].0,
    LOCKED[1].0,
    LOCKED[2].0,
    REALS_LOCKED[0],
    REALS_LOCKED[1],
    REALS_LOCKED[2],
];
const CLOCKED: [&str; 2] = [HOLDS[0].0, HOLDS[1].0];

/// What each thread holds at once.
const BLOCK_BYTES: u64 = 128 << 20;
const QUICK_BYTES: u64 = 16 << 20;
/// What the fill case fills.
const FILL_BYTES: (u64, u64) = (1 << 30, 128 << 20);
/// What the hold cases allocate.
const HOLD_BYTES: u64 = 64 << 20;

fn cases(bytes: u64, quick: bool) -> Vec<Case> {
    let worker = |id, about, amount, metrics| Case {
        id,
        about,
        run: Box::new(Worker::new(id, amount)),
        metrics,
    };
    let most = if quick { 4 } else { 16 };
    let mut cases = Vec::new();
    for (id, threads, touched) in TAKES.into_iter().filter(|take| take.1 <= most) {
        let about = match (threads, touched) {
            (1, false) => "one thread takes 4 KiB blocks, gives them back, several times",
            (1, true) => "the same, each block touched",
            (_, false) => "threads do so at once",
            (_, true) => "threads do so at once, each block touched",
        };
        cases.push(worker(id, about, bytes, TAKE));
    }
    for (id, _) in LOCKED.into_iter().filter(|lock| lock.1 <= most) {
        let about = "threads take 4 KiB blocks untouched, with figures of locks";
        cases.push(worker(id, about, bytes, LOCKS));
    }
    for (id, about) in HOLDS {
        cases.push(worker(id, about, HOLD_BYTES, HOLD));
    }
    for (id, about) in STALLS {
        cases.push(worker(
            id,
            about,
            if quick { 200_000 } else { 1_000_000 },
            STALL,
        ));
    }
    cases.push(Case {
        id: FILL,
        about: "objects of 64 to 512 bytes in a fresh heap, every cache line touched",
        run: Box::new(Fill {
            bytes: if quick { FILL_BYTES.1 } else { FILL_BYTES.0 },
        }),
        metrics: FILLED,
    });
    let scripts = REALS.into_iter().map(|id| (id, REAL));
    let locked = REALS_LOCKED.into_iter().map(|id| (id, REAL_LOCKS));
    for (id, metrics) in scripts.chain(locked) {
        let name = id.split('_').next().unwrap_or(id);
        cases.push(Case {
            id,
            about: script::about(name),
            run: Box::new(Script {
                name,
                is_quick: quick,
            }),
            metrics,
        });
    }
    cases
}

fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, false)?;
    let own = entries[0].clone();
    for entry in &mut entries {
        entry.only = if entry.is_own() { &OWN_ONLY } else { &OPEN };
    }
    let variants = [
        own.variant("dev=cluster:off", &OWN_ONLY),
        own.variant("dev=lockstat:on", &COUNTED),
        own.variant("dev=lockstat:on,dev=cluster:off", &COUNTED),
        own.variant("dev=lockstat:cpu", &CLOCKED),
        own.variant("dev=lockstat:cpu,dev=cluster:off", &CLOCKED),
        own.variant("thp=off", &[FILL]),
    ];
    // Behind Ebbtide and Ebbtide again.
    entries.splice(2..2, variants);
    Ok(entries)
}

/// The family.
pub struct Cluster;

impl Family for Cluster {
    type Flags = SizedArgs;
    const NAME: &'static str = "cluster";
    const ABOUT: &'static str = "Refills from the zones: alone, among threads, beside releases, and in real programs; \
        by clusters and frame by frame (half an hour with all peers; see --quick, --only, --against)";
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 27.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let bench = &args.bench;
        let usual = if bench.quick {
            QUICK_BYTES
        } else {
            BLOCK_BYTES
        };
        let bytes = args.size.unwrap_or(usual);
        let mut cases = cases(bytes, bench.quick);
        harness::select(&mut cases, &bench.only)?;
        let rounds = bench.rounds_or(Self::ROUNDS);
        let threads = TAKES.iter().map(|take| take.1).max().unwrap_or(1);
        let mut results = harness::run(&cases, entries(args)?, rounds, bytes * threads)?;
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

    #[test]
    fn every_case_is_somebodys_and_every_list_names_cases() {
        let cases = cases(1 << 20, false);
        let lists = [&OWN_ONLY[..], &COUNTED, &CLOCKED];
        for case in &cases {
            assert!(lists.iter().any(|list| list.contains(&case.id)));
        }
        for name in lists.into_iter().flatten() {
            assert!(cases.iter().any(|case| case.id == *name), "{name}");
        }
    }
}
