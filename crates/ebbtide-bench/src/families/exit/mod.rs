//! The exit family: a process that holds much memory ends. It measures the time until its parent knows, and the time
//! until the memory is back.

mod dying;

use std::time::Duration;

use anyhow::Result;

use crate::families::family::{Family, entries};
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{ANY, Entry, Takes};
use crate::harness::process::{Starter, followed, threshold_kib};
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{Results, Run};
use crate::measured::{Output, WorkerArgs};
use dying::{Death, Ending};

const DEFAULTS: Defaults = Defaults {
    size_bytes: (4 << 30, 512 << 20),
    wait: (Duration::from_secs(5), Duration::from_secs(2)),
};

/// The peers that stand for the kernel's own exit, unless the user names others.
const REFERENCES: [&str; 3] = ["glibc", "jemalloc", "mimalloc3"];

/// Ebbtide with the helper; by default it ends inline.
const VARIANTS: [(&str, Takes); 5] = [
    ("exit=detached", ANY),
    ("exit=detached,dev=teardown_workers:1", ANY),
    ("exit=detached,dev=teardown_workers:2", ANY),
    ("exit=detached,dev=teardown_workers:3", ANY),
    ("exit=detached,dev=teardown_workers:4", ANY),
];

impl Run for Ending {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let threshold = threshold_kib(self.size_bytes);
        let thp = if self.case.ends_with("_4k") {
            ",thp=off"
        } else {
            ""
        };
        let conf = format!("exit_threshold={threshold}K{thp}");
        let command = starter.worker(self.case, self.size_bytes, entry, &conf);
        followed(command, true, |child, limit| {
            dying::follow(child, *self, entry.is_detached(), limit)
        })
    }

    fn filled_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// The family.
pub struct Exit;

impl Family for Exit {
    type Flags = SizedArgs;
    const NAME: &'static str = "exit";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (5, 2);
    const QUICK_ROUND_S: f64 = 16.0;

    fn measure(sized: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(sized, DEFAULTS, Self::ROUNDS)?;
        let cases = Self::cases(&sized.bench.only, |case| {
            Some(Box::new(Ending {
                case,
                death: Death::of(case)?,
                size_bytes: plan.size_bytes,
                wait: plan.wait,
            }))
        })?;
        let mut entries = entries(&sized.bench, false, &VARIANTS)?;
        if sized.bench.against.is_empty() {
            entries.retain(|e| e.is_own() || REFERENCES.contains(&e.name.as_str()));
        }
        plan.run(&cases, entries)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        Death::of(&args.case).map(|death| dying::run(death, args.amount))
    }
}
