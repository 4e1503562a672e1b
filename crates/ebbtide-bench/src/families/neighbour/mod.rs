//! The neighbour family: one process had much memory and keeps a tenth of it. Another process in the same memory
//! cgroup needs as much. It measures the cost of the first process, which does nothing, for the second.

mod beside;
mod warm;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use ebbtide_tools::{machine, out, values};

use crate::families::family::{Family, entries};
use crate::harness::flags::BenchArgs;
use crate::harness::peers::ANY;
use crate::harness::{self, Results};
use crate::measured::{Output, WorkerArgs, objects};
use crate::outside::swap::Keeper;
use beside::{Pair, WAIT};

/// Peak memory of each of the two processes, and in a quick run.
const SIZE_BYTES: (u64, u64) = (3 << 30, 768 << 20);
const PAUSE: Duration = Duration::from_millis(2500);

/// Ebbtide that releases nothing by itself.
const ABSENCE: &str = "pressure=off,workers=0";

/// `ebbtide bench neighbour`.
#[derive(Debug, Args)]
pub struct NeighbourArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Memory that each of the two fills, such as 768M; their limit is a third more
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// Least time between the first's last free and the second's start, such as 500ms
    /// (default: 2.5s; the cases 'at_once' have none)
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub pause: Option<Duration>,
}

/// The family.
pub struct Neighbour;

impl Family for Neighbour {
    type Flags = NeighbourArgs;
    const NAME: &'static str = "neighbour";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 160.0;

    fn measure(args: &NeighbourArgs) -> Result<Results> {
        let pause = args.pause.unwrap_or(PAUSE);
        let rounds = args.bench.rounds_or(Self::ROUNDS);
        let sized = Pair {
            size_bytes: args.size.unwrap_or(args.bench.pick(SIZE_BYTES)),
            pause,
            has_swap: false,
        };
        let available = machine::available_bytes().unwrap_or(u64::MAX);
        ensure!(
            sized.touched_bytes() <= available / 10 * 6,
            "two processes of {} are more than 60 % of the available memory; see --size and --quick",
            out::bytes(sized.size_bytes)
        );
        let swap = possible(&sized)?;
        let is_at_once = |case: &str| case.starts_with("at_once");
        let mut cases = Self::cases(&args.bench.only, |id| {
            let has_swap = id.ends_with("_swap");
            if has_swap && swap.is_none() {
                return None;
            }
            let least = if is_at_once(id) {
                Duration::ZERO
            } else {
                pause
            };
            Some(Box::new(Pair {
                pause: least,
                has_swap,
                ..sized.clone()
            }))
        })?;
        // The cases without a pause do not report it.
        for case in cases.iter_mut().filter(|case| is_at_once(case.id)) {
            case.metrics.retain(|metric| metric.id != "pause_s");
        }
        let entries = entries(&args.bench, true, &[(ABSENCE, ANY)])?;
        let mut results = harness::run(&cases, entries, rounds, sized.touched_bytes())?;
        results.wait = WAIT;
        results.notes.extend(notes(&sized, swap.as_deref()));
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        match args.case.as_str() {
            "neighbour_first" => Some(objects::scattered(args.amount)),
            "neighbour_second" => Some(beside::second(args.amount)),
            _ => None,
        }
    }
}

fn notes(sized: &Pair, swap: Option<&str>) -> Vec<String> {
    let (size, limit) = (out::bytes(sized.size_bytes), sized.limit_bytes());
    let mut notes = vec![
        format!(
            "the first process fills {size} with objects of 64 bytes to 64 KiB, frees nine of ten and does nothing; the second then fills {size}; both in a memory cgroup of {}",
            out::bytes(limit)
        ),
        "what the second process needs is touched in another process, after the pause, or before the first frees where there is none, so that the host backs it; and held, from 1 GiB on, until the kernel has just told the host of other free memory, if it does and counts that".to_owned(),
        format!(
            "the pause is {:.1} s and as long as that takes (pause_s)",
            sized.pause.as_secs_f64()
        ),
        "not reached: the second process was killed, or did not end".to_owned(),
    ];
    if let Some(swap) = swap {
        notes.push(format!("swap: {swap}"));
    }
    notes
}

/// Whether the runs are possible here. Returns a description of the swap, or none without swap.
fn possible(sized: &Pair) -> Result<Option<String>> {
    Keeper::start(0)?.group()?;
    match Keeper::start(sized.size_bytes) {
        Ok(keeper) => Ok(Some(keeper.kept.swap.clone())),
        Err(error) => {
            out::warning(&format!("without swap only: {error:#}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::objects::ONE_IN_TEN;

    #[test]
    fn both_fit_into_the_limit() {
        for size_bytes in [SIZE_BYTES.0, SIZE_BYTES.1] {
            let one = Pair {
                size_bytes,
                pause: Duration::ZERO,
                has_swap: false,
            };
            // The live memory, and as much again for pages that hold little of it.
            let live = size_bytes / ONE_IN_TEN as u64;
            assert!(size_bytes + 2 * live < one.limit_bytes());
            // If the first process had released nothing, both would not fit.
            assert!(2 * size_bytes > one.limit_bytes());
        }
    }
}
