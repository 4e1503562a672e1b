//! The free family: one large block, what `free` costs the caller, and how long
//! until the memory is back without any further call.

use std::time::Duration;

use anyhow::Result;

use crate::families::Family;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::runs::Watched;
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::{Output, WorkerArgs, block};
use crate::outside::observe::Watch;

const DEFAULTS: Defaults = Defaults {
    size_bytes: (4 << 30, 512 << 20),
    wait: (Duration::from_secs(10), Duration::from_secs(3)),
};

const POLL: Duration = Duration::from_millis(1);
/// After a release on request: only to see what is left.
const GLANCE: Duration = Duration::from_millis(50);

const FREE: Metric = metric("free_ms", "ms in free()");

const UNTIL_BACK: &[Metric] = &[
    FREE,
    metric(
        "back_rss_ms",
        "ms from free() until 95 % are off the resident size",
    ),
    metric(
        "back_system_ms",
        "ms from free() until 95 % are in the system's free memory",
    ),
];

const ON_REQUEST: &[Metric] = &[
    FREE,
    metric("both_ms", "ms in free() and the release"),
    metric(
        "system_kept_mib",
        "MiB that the system still lacks after it",
    ),
];

const ALONE: &[&str] = &["block_thp", "block_4k"];
const REQUESTED: &[&str] = &["block_now", "block_now_4k"];

fn cases(plan: Plan) -> Vec<Case> {
    let watch = |wait| Watch {
        poll: POLL,
        wait,
        until_back: true,
        size_bytes: plan.size_bytes,
    };
    let alone = |id, about, is_thp_off| Case {
        id,
        about,
        run: Box::new(Watched {
            case: "block",
            watch: watch(plan.wait),
            is_thp_off,
        }),
        metrics: UNTIL_BACK,
    };
    let requested = |id, about, is_thp_off| Case {
        id,
        about,
        run: Box::new(Watched {
            case: "block_now",
            watch: watch(plan.wait.min(GLANCE)),
            is_thp_off,
        }),
        metrics: ON_REQUEST,
    };
    vec![
        alone(
            "block_thp",
            "fill a block, free it, do nothing; huge pages as the system and the allocator have it",
            false,
        ),
        alone(
            "block_4k",
            "fill a block, free it, do nothing; no huge pages",
            true,
        ),
        requested(
            "block_now",
            "fill a block, free it, ask for the release (ebb_release, the peer's own call, or malloc_trim)",
            false,
        ),
        requested("block_now_4k", "the same without huge pages", true),
    ]
}

/// Beside the peers: Ebbtide without one of its parts, and the kernel itself.
fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, true)?;
    let own = entries[0].clone();
    let mut variants = vec![
        own.variant("workers=0", &[]),
        own.variant("dev=gather:inline", &[]),
        own.variant("thp=off", ALONE),
    ];
    for workers in [1, 2, 4, 8, 16, 32] {
        variants.push(own.variant(&format!("workers={workers}"), REQUESTED));
    }
    variants.push(Entry::reference("munmap", ALONE));
    variants.push(Entry::reference("madvise", ALONE));
    // Behind Ebbtide and Ebbtide again.
    entries.splice(2..2, variants);
    Ok(entries)
}

/// The family.
pub struct Free;

impl Family for Free {
    type Flags = SizedArgs;
    const NAME: &'static str = "free";
    const ABOUT: &'static str = "One large block: what free() costs, and how long until its memory is back \
        (half an hour with all peers; see --quick, --only, --against)";
    const ROUNDS: (u32, u32) = (5, 2);
    const QUICK_ROUND_S: f64 = 24.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(args, DEFAULTS, Self::ROUNDS)?;
        let mut cases = cases(plan);
        harness::select(&mut cases, &args.bench.only)?;
        let results = plan.run(&cases, entries(args)?)?;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        match args.case.as_str() {
            "block" => Some(block::freed(args.amount, args.method, false)),
            "block_now" => Some(block::freed(args.amount, args.method, true)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_cases_that_exist() {
        let cases = cases(Plan {
            size_bytes: 1 << 20,
            wait: Duration::from_secs(1),
            rounds: harness::Rounds {
                count: 1,
                limit: None,
            },
            most_bytes: 1 << 20,
        });
        for name in ALONE.iter().chain(REQUESTED) {
            assert!(cases.iter().any(|c| c.id == *name), "{name}");
        }
    }
}
