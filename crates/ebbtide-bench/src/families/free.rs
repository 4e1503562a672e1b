//! The free family: one large block is freed. It measures the cost of `free` for the caller, and the time until the
//! memory is back without any further call.

use std::time::Duration;

use anyhow::Result;

use crate::families::family::{self, Family};
use crate::harness::Results;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{ANY, Entry, Takes};
use crate::harness::runs::Watched;
use crate::harness::sized::{Defaults, Plan};
use crate::measured::{Output, WorkerArgs, block};
use crate::outside::observe::Watch;

const DEFAULTS: Defaults = Defaults {
    size_bytes: (4 << 30, 512 << 20),
    wait: (Duration::from_secs(10), Duration::from_secs(3)),
};

const POLL: Duration = Duration::from_millis(1);
/// Wait after a release on request: only to see how much is left.
const GLANCE: Duration = Duration::from_millis(50);

const ON_REQUEST: Takes = |case| case.starts_with("block_now");
const ALONE: Takes = |case| !ON_REQUEST(case);

/// Ebbtide without one of its parts.
const VARIANTS: [(&str, Takes); 9] = [
    ("workers=0", ANY),
    ("dev=gather:inline", ANY),
    ("thp=off", ALONE),
    ("workers=1", ON_REQUEST),
    ("workers=2", ON_REQUEST),
    ("workers=4", ON_REQUEST),
    ("workers=8", ON_REQUEST),
    ("workers=16", ON_REQUEST),
    ("workers=32", ON_REQUEST),
];

/// The entries besides the peers: variants of Ebbtide, and the kernel itself.
fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = family::entries(&args.bench, true, &VARIANTS)?;
    let after = 2 + VARIANTS.len();
    let references = ["munmap", "madvise"].map(|method| Entry::reference(method, ALONE));
    entries.splice(after..after, references);
    Ok(entries)
}

/// The family.
pub struct Free;

impl Family for Free {
    type Flags = SizedArgs;
    const NAME: &'static str = "free";
    const TEXT: &'static str = include_str!("free.txt");
    const ROUNDS: (u32, u32) = (5, 2);
    const QUICK_ROUND_S: f64 = 24.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(args, DEFAULTS, Self::ROUNDS)?;
        let cases = Self::cases(&args.bench.only, |id| {
            let (case, wait) = if ON_REQUEST(id) {
                ("block_now", plan.wait.min(GLANCE))
            } else {
                ("block", plan.wait)
            };
            Some(Box::new(Watched {
                case,
                watch: Watch {
                    poll: POLL,
                    wait,
                    until_back: true,
                    size_bytes: plan.size_bytes,
                },
                is_thp_off: id.ends_with("_4k"),
            }))
        })?;
        plan.run(&cases, entries(args)?)
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
    use crate::harness::runs::Worker;

    #[test]
    fn every_kind_has_cases() {
        let cases = Free::cases(&[], |id| Some(Box::new(Worker::new(id, 0)))).unwrap();
        for takes in [ON_REQUEST, ALONE] {
            assert_eq!(cases.iter().filter(|case| takes(case.id)).count(), 2);
        }
    }
}
