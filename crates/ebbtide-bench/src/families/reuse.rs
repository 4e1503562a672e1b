//! The reuse family: memory is freed, and needed again after a while. It measures the cost of having it again, and
//! the memory that the process holds meanwhile.

use std::time::Duration;

use anyhow::Result;
use ebbtide_tools::proc::kib_field;

use crate::families::family::{Family, entries};
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{ANY, Takes};
use crate::harness::runs::Worker;
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{Case, Results};
use crate::measured::block::touch;
use crate::measured::calls::now_ns;
use crate::measured::{MIB, Output, WorkerArgs, alloc, release};
use crate::stats::Spread;

const DEFAULTS: Defaults = Defaults {
    size_bytes: (1 << 30, 64 << 20),
    wait: (Duration::ZERO, Duration::ZERO),
};

/// Bytes of one allocation.
const PIECE_BYTES: usize = 1 << 20;
/// Number of cycles before the measurement, and number of measured cycles.
const LEARN: usize = 1;
const CYCLES: usize = 3;

/// The figures of a case, in the order of the measurement.
const FIGURES: [&str; 3] = ["again_ms", "held_mib", "held_without_lazy_mib"];

const VARIANTS: [(&str, Takes); 4] = [
    ("lazyfree=off", ANY),
    ("lazyfree=always", ANY),
    ("thp=off,lazyfree=off", ANY),
    ("thp=off,lazyfree=always", ANY),
];

/// The family.
pub struct Reuse;

impl Family for Reuse {
    type Flags = SizedArgs;
    const NAME: &'static str = "reuse";
    const TEXT: &'static str = include_str!("reuse.txt");
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 400.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(args, DEFAULTS, Self::ROUNDS)?;
        let cases = cases(&args.bench.only, plan.size_bytes)?;
        plan.run(&cases, entries(&args.bench, true, &VARIANTS)?)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        wait_of(&args.case).map(|wait| worker(wait, args.amount))
    }
}

fn cases(only: &[String], bytes: u64) -> Result<Vec<Case>> {
    Reuse::cases(only, |id| {
        let idle = wait_of(id)? * (LEARN + CYCLES) as u32;
        Some(Box::new(Worker::new(id, bytes).idle(idle)))
    })
}

/// Resident memory of this process, and the same without lazy pages.
fn held() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let value = |name| kib_field(&text, name).unwrap_or(0) as f64 / MIB;
    (value("Rss"), value("Rss") - value("LazyFree"))
}

/// The wait of a case like `reuse_3s` or `reuse_100ms`.
fn wait_of(case: &str) -> Option<Duration> {
    let text = case.strip_prefix("reuse_")?;
    match text.strip_suffix("ms") {
        Some(ms) => ms.parse().ok().map(Duration::from_millis),
        None => text
            .strip_suffix('s')?
            .parse()
            .ok()
            .map(Duration::from_secs),
    }
}

/// Runs the measured process.
fn worker(wait: Duration, bytes: u64) -> Result<Output> {
    let mut pieces = vec![std::ptr::null_mut::<u8>(); bytes as usize / PIECE_BYTES];
    let mut fill = || {
        for piece in &mut pieces {
            *piece = alloc(PIECE_BYTES);
            // SAFETY: the piece has these bytes.
            unsafe { touch(*piece, PIECE_BYTES) };
        }
        let filled = pieces.clone();
        move || {
            for piece in filled {
                // SAFETY: allocated above, freed once.
                unsafe { release(piece) };
            }
        }
    };
    let base = held();
    let mut figures: [Vec<f64>; 3] = Default::default();
    let mut drop_all = fill();
    for cycle in 0..LEARN + CYCLES {
        drop_all();
        std::thread::sleep(wait);
        let now = held();
        let began = now_ns();
        drop_all = fill();
        if cycle >= LEARN {
            let again_ms = (now_ns() - began) as f64 / 1e6;
            let values = [again_ms, now.0 - base.0, now.1 - base.1];
            for (list, value) in figures.iter_mut().zip(values) {
                list.push(value);
            }
        }
    }
    drop_all();
    let figures = FIGURES.iter().zip(&figures);
    let medians = figures.filter_map(|(name, values)| Some((*name, Spread::of(values)?.median)));
    Ok(Output::new(bytes, medians))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_had_again() {
        let output = worker(wait_of("reuse_1ms").unwrap(), 4 << 20).unwrap();
        assert!(output.metrics["again_ms"] > 0.0);
        assert_eq!(wait_of("reuse"), None);
    }

    #[test]
    fn what_a_process_waits_is_known_beforehand() {
        let cases = cases(&[], 1 << 20).unwrap();
        let idle = cases.iter().map(|case| case.run.idle().as_millis());
        assert_eq!(idle.collect::<Vec<_>>(), [400, 4_000, 12_000, 40_000]);
    }
}
