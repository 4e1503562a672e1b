//! The return family: it measures how much memory returns to the system while the program does nothing, and the cost
//! of that for the program.

pub mod churn;
mod victim;

use std::time::Duration;

use anyhow::Result;

use crate::families::family::{Family, entries};
use crate::harness::Results;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{ANY, Takes};
use crate::harness::runs::{Watched, Worker};
use crate::harness::sized::{Defaults, Plan};
use crate::measured::{Output, WorkerArgs, block, objects};
use crate::outside::observe::Watch;
use churn::churn;

const DEFAULTS: Defaults = Defaults {
    size_bytes: (1 << 30, 128 << 20),
    wait: (Duration::from_secs(9), Duration::from_secs(3)),
};

const POLL: Duration = Duration::from_millis(10);
/// The victim's neighbour frees a block this many times as large as what the other cases fill, within the same limit.
const VICTIM_TIMES: u64 = 4;
/// The churn case makes one call for this many bytes that the other cases fill.
const CHURN_PART: u64 = 16;
/// The loop's blocks are this many times smaller than what the other cases fill, and in a quick run.
const LOOP_PART: (u64, u64) = (1, 2);

/// Ebbtide without one of its parts.
const VARIANTS: [(&str, Takes); 5] = [
    ("workers=0", ANY),
    ("dev=gather:inline", ANY),
    ("dev=depopulate:off", ANY),
    ("thp=off", ANY),
    ("workers=0,dev=depopulate:off", |case| case == "churn"),
];

/// The family.
pub struct Return;

impl Family for Return {
    type Flags = SizedArgs;
    const NAME: &'static str = "return";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 170.0;

    fn measure(sized: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(sized, DEFAULTS, Self::ROUNDS)?;
        let loop_bytes = plan.size_bytes / sized.bench.pick(LOOP_PART);
        let victim_bytes = plan.at_most(VICTIM_TIMES * plan.size_bytes);
        let watched = |case, size_bytes, until_back| Watched {
            case,
            watch: Watch {
                poll: POLL,
                wait: plan.wait,
                until_back,
                size_bytes,
            },
            is_thp_off: false,
        };
        let cases = Self::cases(&sized.bench.only, |id| {
            Some(match id {
                "temporaries" => Box::new(watched(id, loop_bytes, true)),
                "churn" => Box::new(Worker::new(id, plan.size_bytes / CHURN_PART)),
                "victim_now" | "victim_later" => Box::new(Worker::new(id, victim_bytes)),
                _ => Box::new(watched(id, plan.size_bytes, false)),
            })
        })?;
        plan.run(&cases, entries(&sized.bench, true, &VARIANTS)?)
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
