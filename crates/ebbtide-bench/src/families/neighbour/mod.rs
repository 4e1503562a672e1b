//! The neighbour family: one process has had much memory and keeps a tenth of it; another one in
//! the same memory cgroup needs as much. What does the first, which does nothing, cost it?

mod beside;
mod warm;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use ebbtide_tools::{machine, out, values};

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::{self, Case, Metric, Results, metric, peers};
use crate::measured::{Output, WorkerArgs, objects};
use crate::outside::swap::Keeper;
use beside::{Pair, WAIT};

/// What each of the two processes has at most.
const SIZE_BYTES: (u64, u64) = (3 << 30, 768 << 20);
const PAUSE: Duration = Duration::from_millis(2500);

/// Ebbtide that gives nothing back by itself.
const ABSENCE: &str = "pressure=off,workers=0";

const METRICS: &[Metric] = &[
    metric(
        "second_s",
        "s until the second process has filled and read its memory",
    ),
    metric("alone_s", "s for the same without the first process"),
    metric("ratio", "the first of these times over the second"),
    metric("swapped_mib", "MiB written to swap meanwhile"),
    metric("kills", "of the two processes, killed for want of memory"),
    metric(
        "held_mib",
        "MiB in the cgroup when the second process starts",
    ),
    metric(
        "pause_s",
        "s from the first's last free to the second's start: the benchmark's own",
    ),
];
/// Without a pause there is none to speak of.
const AT_ONCE_METRICS: &[Metric] = METRICS.split_at(METRICS.len() - 1).0;

/// Cases: name, what it does, whether there is a pause, whether there is swap.
const CASES: [(&str, &str, bool, bool); 4] = [
    (
        "pause",
        "the second starts after a pause; no swap",
        true,
        false,
    ),
    (
        "pause_swap",
        "the second starts after a pause; with swap",
        true,
        true,
    ),
    (
        "at_once",
        "the second starts when the first has freed; no swap",
        false,
        false,
    ),
    (
        "at_once_swap",
        "the second starts when the first has freed; with swap",
        false,
        true,
    ),
];

/// `ebbtide bench neighbour`.
#[derive(Debug, Args)]
pub struct NeighbourArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// What each of the two fills, such as 768M; their limit is a third more
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// Least time between the first's last free and the second's start, such as 500ms
    /// (default: 2.5s; the cases 'at_once' have none)
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub pause: Option<Duration>,
}

impl AsRef<BenchArgs> for NeighbourArgs {
    fn as_ref(&self) -> &BenchArgs {
        &self.bench
    }
}

/// The family.
pub struct Neighbour;

impl Family for Neighbour {
    type Flags = NeighbourArgs;
    const NAME: &'static str = "neighbour";
    const ABOUT: &'static str = "A process that had much memory and does nothing, and one that needs as much, within one \
        limit: what the first costs the second, with swap and without; as root (see --quick, --pause, \
        --only, --against)";
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 160.0;

    fn measure(args: &NeighbourArgs) -> Result<Results> {
        let quick = args.bench.quick;
        let pick = |(full, short)| if quick { short } else { full };
        let pause = args.pause.unwrap_or(PAUSE);
        let rounds = args.bench.rounds_or(Self::ROUNDS);
        let sized = Pair {
            size_bytes: args.size.unwrap_or(pick(SIZE_BYTES)),
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
        let case = |(id, about, is_later, has_swap): (_, _, bool, bool)| Case {
            id,
            about,
            run: Box::new(Pair {
                pause: if is_later { pause } else { Duration::ZERO },
                has_swap,
                ..sized.clone()
            }),
            metrics: if is_later { METRICS } else { AT_ONCE_METRICS },
        };
        let mut cases: Vec<Case> = CASES
            .into_iter()
            .filter(|(.., has_swap)| swap.is_some() || !has_swap)
            .map(case)
            .collect();
        harness::select(&mut cases, &args.bench.only)?;
        let mut entries = peers::rotation(&args.bench, true)?;
        let absence = entries[0].variant(ABSENCE, &[]);
        entries.insert(2, absence);
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

/// Whether the runs can be made here; what the swap is, or that there is none.
fn possible(sized: &Pair) -> Result<Option<String>> {
    let has_group = |keeper: &Keeper| {
        ensure!(
            keeper.kept.group.is_some(),
            "no memory cgroup can be made here (version 1, or 2 with the memory controller)"
        );
        Ok(())
    };
    has_group(&Keeper::start(0)?)?;
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
            // What is live, and as much again for pages that hold little of it.
            let live = size_bytes / ONE_IN_TEN as u64;
            assert!(size_bytes + 2 * live < one.limit_bytes());
            // Had the first given nothing back, both would not.
            assert!(2 * size_bytes > one.limit_bytes());
        }
    }
}
