//! The return family: what goes back to the system while the program does nothing,
//! and what the giving back costs the program.

pub mod churn;
mod victim;

use std::time::Duration;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::runs::{Watched, Worker};
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::{Output, WorkerArgs, block, objects};
use crate::outside::observe::Watch;
use churn::churn;

const DEFAULTS: Defaults = Defaults {
    size_bytes: (1 << 30, 128 << 20),
    wait: (Duration::from_secs(9), Duration::from_secs(3)),
};

const POLL: Duration = Duration::from_millis(10);
/// The victim's neighbour frees a larger block than the others fill, within the same limit.
const VICTIM_TIMES: u64 = 4;
/// Calls of the churn for so many bytes that the others fill.
const CHURN_PART: u64 = 16;
/// The loop's blocks in a quick run are smaller than what the others fill.
const QUICK_LOOP_PART: u64 = 2;

const THINNED: &[Metric] = &[
    metric("free_ms", "ms to free ten of eleven objects"),
    metric("t50_ms", "ms after that until half of what can go is gone"),
    metric("t90_ms", "ms until 90 % of it are gone"),
    metric("t99_ms", "ms until 99 % of it are gone"),
    metric(
        "final_ratio",
        "resident at the end ÷ (pages with a live byte + resident before)",
    ),
    metric(
        "system_kept_mib",
        "MiB that the system lacks at the end beyond the live pages",
    ),
];

const TEMPORARIES: &[Metric] = &[
    metric("faults_first", "minor faults in the first round"),
    metric("faults_later", "minor faults a round after the first, mean"),
    metric("faults_last", "minor faults in the last round"),
    metric("round_later_ms", "ms a round after the first"),
    metric(
        "back_rss_ms",
        "ms after the last round until 95 % are off the resident size",
    ),
    metric(
        "back_system_ms",
        "ms after the last round until 95 % are in the system's free memory",
    ),
];

const CHURN: &[Metric] = &[metric("ns_per_pair", "ns a call of malloc or free")];

const VICTIM: &[Metric] = &[
    metric("quiet_p50_ns", "ns an operation, median, quiet"),
    metric("during_p50_ns", "ns an operation, median, during"),
    metric("quiet_p99_ns", "ns an operation, 99 %, quiet"),
    metric("during_p99_ns", "ns an operation, 99 %, during"),
    metric("quiet_p999_ns", "ns an operation, 99.9 %, quiet"),
    metric("during_p999_ns", "ns an operation, 99.9 %, during"),
    metric("quiet_max_ns", "ns an operation, the longest, quiet"),
    metric("during_max_ns", "ns an operation, the longest, during"),
];

const THINNED_CASES: [(&str, &str); 6] = [
    (
        "small_random",
        "objects of 64 to 512 bytes; ten of eleven freed at random, then nothing",
    ),
    (
        "small_oldest",
        "objects of 64 to 512 bytes; the oldest ten of eleven freed in order, then nothing",
    ),
    (
        "medium_random",
        "objects of 4 to 64 KiB; ten of eleven freed at random, then nothing",
    ),
    (
        "medium_oldest",
        "objects of 4 to 64 KiB; the oldest ten of eleven freed in order, then nothing",
    ),
    (
        "mix_random",
        "objects of 64 bytes to 64 KiB; ten of eleven freed at random, then nothing",
    ),
    (
        "mix_oldest",
        "objects of 64 bytes to 64 KiB; the oldest ten of eleven freed in order, then nothing",
    ),
];

const VICTIM_CASES: [(&str, &str); 2] = [
    (
        "victim_now",
        "one thread replaces small objects while another frees a large block and asks for the release",
    ),
    (
        "victim_later",
        "one thread replaces small objects while another frees a large block and then sleeps for 2 s",
    ),
];

fn cases(plan: Plan, loop_bytes: u64, victim_bytes: u64) -> Vec<Case> {
    let watched = |case, size_bytes, until_back| {
        Box::new(Watched {
            case,
            watch: Watch {
                poll: POLL,
                wait: plan.wait,
                until_back,
                size_bytes,
            },
            is_thp_off: false,
        })
    };
    let mut cases: Vec<Case> = THINNED_CASES
        .iter()
        .map(|(id, about)| Case {
            id,
            about,
            run: watched(id, plan.size_bytes, false),
            metrics: THINNED,
        })
        .collect();
    cases.push(Case {
        id: "temporaries",
        about: "a block made, touched and dropped ten times, then nothing",
        run: watched("temporaries", loop_bytes, true),
        metrics: TEMPORARIES,
    });
    cases.push(Case {
        id: "churn",
        about: "objects of 64 bytes to 16 KiB made and freed at random, in sizes that change: the engine's price",
        run: Box::new(Worker::new("churn", plan.size_bytes / CHURN_PART)),
        metrics: CHURN,
    });
    for (id, about) in VICTIM_CASES {
        cases.push(Case {
            id,
            about,
            run: Box::new(Worker::new(id, victim_bytes)),
            metrics: VICTIM,
        });
    }
    cases
}

/// Beside the peers: Ebbtide without one of its parts.
fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, true)?;
    let own = entries[0].clone();
    let variants = [
        "workers=0",
        "dev=gather:inline",
        "dev=depopulate:off",
        "thp=off",
    ];
    let idle = own.variant("workers=0,dev=depopulate:off", &["churn"]);
    let variants = variants.map(|conf| own.variant(conf, &[]));
    entries.splice(2..2, variants.into_iter().chain([idle]));
    Ok(entries)
}

/// The family.
pub struct Return;

impl Family for Return {
    type Flags = SizedArgs;
    const NAME: &'static str = "return";
    const ABOUT: &'static str = "Freed objects: how much goes back while the program does nothing, and what \
        that costs the others (an hour with all peers; see --quick, --only, --against)";
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 170.0;

    fn measure(sized: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(sized, DEFAULTS, Self::ROUNDS)?;
        let quick_part = if sized.bench.quick {
            QUICK_LOOP_PART
        } else {
            1
        };
        let victim_bytes = plan.at_most(VICTIM_TIMES * plan.size_bytes);
        let mut cases = cases(plan, plan.size_bytes / quick_part, victim_bytes);
        harness::select(&mut cases, &sized.bench.only)?;
        let results = plan.run(&cases, entries(sized)?)?;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        let (case, amount) = (args.case.as_str(), args.amount);
        Some(match case {
            "churn" => Ok(churn(amount)),
            "temporaries" => block::temporaries(amount),
            "victim_now" => victim::run(amount, true),
            "victim_later" => victim::run(amount, false),
            _ if case.ends_with("_random") || case.ends_with("_oldest") => {
                objects::thinned(case, amount)
            }
            _ => return None,
        })
    }
}
