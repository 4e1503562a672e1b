//! The exit family: a process that holds much memory ends. How long until its parent
//! knows, and how long until the memory is back.

mod dying;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::families::Family;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::process::{Starter, TIMEOUT, explained, piped, threshold_kib};
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{self, Case, Metric, Results, Run, metric};
use crate::measured::{Output, WorkerArgs};
use dying::{Death, Ending};

const DEFAULTS: Defaults = Defaults {
    size_bytes: (4 << 30, 512 << 20),
    wait: (Duration::from_secs(5), Duration::from_secs(2)),
};

/// Peers that stand for the kernel's own exit, unless others are asked for.
const REFERENCES: [&str; 3] = ["glibc", "jemalloc", "mimalloc3"];

const METRICS: &[Metric] = &[
    metric(
        "seen_ms",
        "ms from the call or signal until the parent's wait returns",
    ),
    metric(
        "gone_ms",
        "ms until nobody holds the memory any more, a helper neither",
    ),
    metric("back_ms", "ms until 99 % are in the system's free memory"),
];

const CASES: [(&str, &str, Death, bool); 6] = [
    (
        "exit_4k",
        "fill a block, then exit(0); no huge pages",
        Death::Exit,
        true,
    ),
    (
        "exit_thp",
        "fill a block, then exit(0); huge pages as the system and the allocator have it",
        Death::Exit,
        false,
    ),
    (
        "kill_4k",
        "fill a block, then SIGKILL; no huge pages",
        Death::Kill,
        true,
    ),
    (
        "kill_thp",
        "fill a block, then SIGKILL; huge pages as above",
        Death::Kill,
        false,
    ),
    (
        "segv_4k",
        "fill a block, then a segmentation fault without a core file; no huge pages",
        Death::Fault,
        true,
    ),
    (
        "segv_thp",
        "fill a block, then a segmentation fault without a core file; huge pages as above",
        Death::Fault,
        false,
    ),
];

/// A measured process that ends while it holds memory.
#[derive(Debug)]
struct Ends {
    /// How, and how much it fills.
    ending: Ending,
    /// Without huge pages.
    is_thp_off: bool,
}

impl Run for Ends {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let ending = self.ending;
        let threshold = threshold_kib(ending.size_bytes);
        let mut conf = format!("exit_threshold={threshold}K");
        if self.is_thp_off {
            conf.push_str(",thp=off");
        }
        let mut command = starter.worker(ending.death.case(), ending.size_bytes, entry, &conf);
        if self.is_thp_off {
            command.arg("--thp-off");
        }
        piped(&mut command);
        let mut child = command.spawn().context("cannot start")?;
        let end = Instant::now() + TIMEOUT;
        let followed = dying::follow(&mut child, ending, entry.is_detached(), end);
        explained(&mut child, followed, true)
    }

    fn filled_bytes(&self) -> u64 {
        self.ending.size_bytes
    }
}

fn cases(plan: Plan) -> Vec<Case> {
    let case = |(id, about, death, is_thp_off)| Case {
        id,
        about,
        run: Box::new(Ends {
            ending: Ending {
                death,
                size_bytes: plan.size_bytes,
                wait: plan.wait,
            },
            is_thp_off,
        }),
        metrics: METRICS,
    };
    CASES.into_iter().map(case).collect()
}

/// Ebbtide as it is by default, inline; with the helper; and some peers, inline as well.
fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, false)?;
    if args.bench.against.is_empty() {
        entries.retain(|e| e.is_own() || REFERENCES.contains(&e.name.as_str()));
    }
    let own = entries[0].clone();
    let mut variants = vec![own.variant("exit=detached", &[])];
    for workers in 1..=4 {
        let conf = format!("exit=detached,dev=teardown_workers:{workers}");
        variants.push(own.variant(&conf, &[]));
    }
    // Behind Ebbtide and Ebbtide again.
    entries.splice(2..2, variants);
    Ok(entries)
}

/// The family.
pub struct Exit;

impl Family for Exit {
    type Flags = SizedArgs;
    const NAME: &'static str = "exit";
    const ABOUT: &'static str = "The end of a process that holds much memory: how long until its parent knows, \
        and until the memory is back (see --quick, --size, --only)";
    const ROUNDS: (u32, u32) = (5, 2);
    const QUICK_ROUND_S: f64 = 16.0;

    fn measure(sized: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(sized, DEFAULTS, Self::ROUNDS)?;
        let mut cases = cases(plan);
        harness::select(&mut cases, &sized.bench.only)?;
        let results = plan.run(&cases, entries(sized)?)?;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        Death::named(&args.case).map(|death| dying::run(death, args.amount))
    }
}
