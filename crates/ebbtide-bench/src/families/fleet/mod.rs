//! The fleet family: services with short busy phases and long quiet ones, as on a machine that runs many of them.
//!
//! For one workload, a copy under each allocator is live at the same time, and one copy at a time is busy
//! ([`timeline`]). [`parameters`] has all that could be tuned, and was committed before the first measurement.
//!
//! | module | what it does |
//! |---|---|
//! | `parameters` | the workloads and the times |
//! | `copy` | one copy of a workload |
//! | `load` | the clients of a busy phase |
//! | `timeline` | who is busy when, and the figures |

mod copy;
mod load;
mod parameters;
mod timeline;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::{self, Results, peers};
use crate::measured::{Output, WorkerArgs};
use parameters::{CYCLES, MINUTES, PEERS, WORKLOADS, Workload};
use timeline::Fleet;

/// What nearly every program has now: it is there twice, and the others are related to it.
const BASE: &str = "glibc";
/// Memory that is touched beforehand, and in a quick run.
const WARM_BYTES: (u64, u64) = (3 << 30, 256 << 20);

/// Flags of the family.
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Minutes for each workload, with all allocators (default: 10)
    #[arg(long, value_name = "N", value_parser = minutes)]
    pub minutes: Option<f64>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.01..=1440.0).contains(n));
    number.ok_or_else(|| "it takes minutes from 0.01 to 1440, such as 10 or 0.5".into())
}

fn workload(id: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.case == id)
}

/// The family.
pub struct Days;

impl Family for Days {
    type Flags = FleetArgs;
    const NAME: &'static str = "fleet";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (1, 1);
    const QUICK_ROUND_S: f64 = 110.0;

    fn measure(args: &FleetArgs) -> Result<Results> {
        let minutes = args.minutes.unwrap_or(args.bench.pick(MINUTES));
        let length = Duration::from_secs_f64(minutes * 60.0);
        let entries = peers::one_of_each(&args.bench, BASE, &PEERS)?;
        let mut cases = Self::cases(&args.bench.only, |id| {
            Some(Box::new(Fleet {
                workload: workload(id)?,
                length,
                copies: entries.len(),
            }))
        })?;
        let missing = |id: &str| copy::missing(workload(id)?);
        let notes = harness::leave_out(&mut cases, missing)?;
        let rounds = args.bench.rounds_or(Self::ROUNDS);
        let mut results = harness::run(&cases, entries, rounds, args.bench.pick(WARM_BYTES))?;
        results.base = Some(BASE);
        results.notes.extend(notes);
        results.notes.push(format!(
            "{minutes} min for each workload: all copies are live, each is busy {CYCLES} times, and one at a time; memory is \
             that of all processes of a copy without pages of files, with swap",
        ));
        Ok(results)
    }

    fn process(_: &WorkerArgs) -> Option<Result<Output>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_a_workload() {
        let cases = Days::cases(&[], |id| {
            let workload = workload(id).unwrap();
            assert!(workload.remedy.contains("apt-get"));
            Some(Box::new(Fleet {
                workload,
                length: Duration::ZERO,
                copies: 1,
            }))
        });
        assert_eq!(cases.unwrap().len(), WORKLOADS.len());
    }

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        let workload = workload("jobs").unwrap();
        let nonesuch = Workload {
            module: "nonesuch",
            files: &[],
            ..*workload
        };
        let told = copy::missing(&nonesuch).unwrap();
        assert!(
            told.contains("nonesuch") && told.contains("apt-get"),
            "{told}"
        );
        let nonesuch = Workload {
            needs: &["no-such-program"],
            ..nonesuch
        };
        assert!(
            copy::missing(&nonesuch)
                .unwrap()
                .contains("no-such-program")
        );
    }

    #[test]
    fn minutes_are_bounded() {
        assert_eq!(minutes("0.5"), Ok(0.5));
        assert!(
            ["0", "-1", "x", "inf", "NaN"]
                .iter()
                .all(|text| minutes(text).is_err())
        );
    }
}
