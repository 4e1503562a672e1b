//! The reuse family: memory is freed, and needed again after a while. It measures the cost of having it again, and
//! the memory that the process holds meanwhile.

use std::time::Duration;

use anyhow::Result;
use ebbtide_tools::proc::kib_field;

use crate::families::Family;
use crate::harness::flags::SizedArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::runs::Worker;
use crate::harness::sized::{Defaults, Plan};
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::block::touch;
use crate::measured::calls::now_ns;
use crate::measured::{Output, WorkerArgs, alloc, release};
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
const MIB: f64 = (1 << 20) as f64;

const METRICS: &[Metric] = &[
    metric(
        "again_ms",
        "ms to have all of it again and touch every page",
    ),
    metric(
        "held_mib",
        "MiB resident just before that, beyond what was there at the start",
    ),
    metric(
        "held_without_lazy_mib",
        "MiB of these that the kernel could not take at once",
    ),
];

const CASES: [(&str, &str); 4] = [
    ("reuse_100ms", "dropped, and wanted again after 0.1 s"),
    ("reuse_1s", "dropped, and wanted again after 1 s"),
    ("reuse_3s", "dropped, and wanted again after 3 s"),
    ("reuse_10s", "dropped, and wanted again after 10 s"),
];

const VARIANTS: [&str; 4] = [
    "lazyfree=off",
    "lazyfree=always",
    "thp=off,lazyfree=off",
    "thp=off,lazyfree=always",
];

fn entries(args: &SizedArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, true)?;
    let own = entries[0].clone();
    entries.splice(2..2, VARIANTS.map(|conf| own.variant(conf, &[])));
    Ok(entries)
}

/// The family.
pub struct Reuse;

impl Family for Reuse {
    type Flags = SizedArgs;
    const NAME: &'static str = "reuse";
    const ABOUT: &'static str = "Memory that is dropped and wanted again after 0.1, 1, 3 and 10 s: what that costs, \
        and what is held meanwhile (an hour with all peers; see --quick, --only, --against)";
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 400.0;

    fn measure(args: &SizedArgs) -> Result<Results> {
        let plan = Plan::new(args, DEFAULTS, Self::ROUNDS)?;
        let mut cases: Vec<Case> = CASES
            .iter()
            .map(|(id, about)| Case {
                id,
                about,
                run: Box::new(Worker::new(id, plan.size_bytes).idle(idle(id))),
                metrics: METRICS,
            })
            .collect();
        harness::select(&mut cases, &args.bench.only)?;
        let results = plan.run(&cases, entries(args)?)?;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        wait_of(&args.case).map(|wait| worker(wait, args.amount))
    }
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

/// Total wait of a process of this case.
fn idle(case: &str) -> Duration {
    wait_of(case).unwrap_or_default() * (LEARN + CYCLES) as u32
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
    let metrics = METRICS.iter().zip(&figures);
    Ok(Output {
        checksum: bytes,
        metrics: metrics
            .filter_map(|(metric, values)| Some((metric.id.to_owned(), Spread::of(values)?.median)))
            .collect(),
        ..Output::default()
    })
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
        let idle = CASES.map(|(id, _)| idle(id).as_millis());
        assert_eq!(idle, [400, 4_000, 12_000, 40_000]);
    }
}
