//! The time of one workload: all copies live, and one at a time is busy.
//!
//! ```text
//!  slot     0   1   2   3   4   5   6   7   8   9  10     three copies, three busy phases each
//!  copy 0   ##          ##          ##                    its window: slots 0 to 8
//!  copy 1       ##          ##          ##                slots 1 to 9
//!  copy 2           ##          ##          ##            slots 2 to 10
//! ```
//! A copy's window begins with its first busy phase and ends with its last quiet one. So all windows are equally long,
//! and have the same busy and quiet phases. The order of the copies is random, and the same in each run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};

use super::copy::Running;
use super::load::{Served, live_bytes, serve, wait_until};
use super::parameters::{CYCLES, LIVE, SAMPLE, Workload};
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::Starter;
use crate::measured::{Curve, MIB, Output};
use crate::outside::tree;

/// A workload for a time.
#[derive(Debug)]
pub struct Fleet {
    /// What it is.
    pub workload: &'static Workload,
    /// Time for all copies together.
    pub length: Duration,
    /// Their number, as far as it is known.
    pub copies: usize,
}

impl Run for Fleet {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let outputs = measure(self, starter, &[entry]).into_iter();
        outputs.last().context("nothing was measured")?
    }

    fn together(&self, starter: &Starter, entries: &[&Entry]) -> Option<Vec<Result<Output>>> {
        Some(measure(self, starter, entries))
    }

    fn idle(&self) -> Duration {
        self.length / self.copies.max(1) as u32
    }
}

/// Who is busy when.
#[derive(Clone, Copy, Debug)]
struct Plan {
    copies: usize,
    slot: Duration,
}

impl Plan {
    fn new(copies: usize, length: Duration) -> Self {
        let plan = Plan {
            copies,
            slot: length,
        };
        Plan {
            slot: length / plan.slots() as u32,
            ..plan
        }
    }

    fn slots(&self) -> usize {
        self.window(self.copies - 1).1
    }

    /// The copy that is busy, and for which time.
    fn busy(&self, slot: usize) -> Option<(usize, usize)> {
        let (cycle, copy) = (slot / self.copies, slot % self.copies);
        (cycle < CYCLES).then_some((copy, cycle))
    }

    /// The slot with which a copy's window begins, and that before which it ends.
    fn window(&self, copy: usize) -> (usize, usize) {
        (copy, copy + CYCLES * self.copies)
    }

    /// Time between two samples.
    fn step(&self) -> Duration {
        SAMPLE.min(self.slot / 4).max(Duration::from_millis(1))
    }
}

/// Values with their times in seconds.
type Points = Vec<(f64, f64)>;

/// What is seen of a copy from outside: bytes of memory, and live bytes.
#[derive(Debug, Default)]
struct Seen {
    memory: Points,
    live: Points,
}

/// What happens at the borders of slots.
#[derive(Debug, Default)]
struct Happened {
    /// When each slot began, and when the last one ended.
    began_s: Vec<f64>,
    /// For each copy, CPU time in its window so far, and that in the kernel.
    cpu_s: Vec<(f64, f64)>,
    served: Vec<Served>,
    failed: Vec<Option<Error>>,
}

fn measure(fleet: &Fleet, starter: &Starter, entries: &[&Entry]) -> Vec<Result<Output>> {
    match live(fleet, starter, entries) {
        Ok(outputs) => outputs,
        Err(error) => {
            let told = format!("{error:#}");
            entries.iter().map(|_| Err(anyhow!(told.clone()))).collect()
        }
    }
}

fn live(fleet: &Fleet, starter: &Starter, entries: &[&Entry]) -> Result<Vec<Result<Output>>> {
    let dir = tempfile::tempdir().context("cannot make a temporary directory; set TMPDIR")?;
    let started = entries.iter().enumerate().map(|(n, entry)| {
        Running::start(
            fleet.workload,
            starter,
            entry,
            dir.path().join(n.to_string()),
        )
    });
    let copies: Vec<Result<Running>> = started.collect();
    let plan = Plan::new(copies.len(), fleet.length);
    let began = Instant::now();
    let seen: Vec<Mutex<Seen>> = copies.iter().map(|_| Mutex::default()).collect();
    let is_over = AtomicBool::new(false);
    let happened = thread::scope(|scope| {
        scope.spawn(|| watch(fleet.workload, &copies, plan, began, &seen, &is_over));
        let happened = go_through(fleet.workload, &copies, plan, began);
        is_over.store(true, Ordering::Release);
        happened
    })?;
    let Happened {
        began_s,
        cpu_s,
        served,
        failed,
    } = happened;
    let results = copies.into_iter().zip(failed).zip(seen).enumerate();
    let results = results.map(|(n, ((copy, failed), seen))| {
        let copy = copy?;
        if let Some(error) = failed {
            return Err(error.context(copy.last_line()));
        }
        let (from, to) = plan.window(n);
        let seen = seen.into_inner().unwrap_or_default();
        let window = (began_s[from], began_s[to]);
        Ok(Measured::new(plan, window, &seen, cpu_s[n], &served[n]))
    });
    let results: Vec<Result<Measured>> = results.collect();
    // The smallest: an allocator's rounding counts as live in some programs.
    let live = results.iter().flatten().filter_map(|m| m.live_mib);
    let live_mib = live.reduce(f64::min);
    let outputs = results
        .into_iter()
        .map(|measured| Ok(measured?.output(live_mib)));
    Ok(outputs.collect())
}

/// Samples all copies, each at a time of its own within a step, until it is over.
fn watch(
    workload: &Workload,
    copies: &[Result<Running>],
    plan: Plan,
    began: Instant,
    seen: &[Mutex<Seen>],
    is_over: &AtomicBool,
) {
    let step = plan.step();
    let live_every = (LIVE.min(plan.slot).as_nanos() / step.as_nanos()).max(1) as u32;
    for round in 0u32.. {
        for (n, (copy, seen)) in copies.iter().zip(seen).enumerate() {
            let due = began + step * round + step * n as u32 / copies.len() as u32;
            if is_over.load(Ordering::Acquire) || wait_until(due).is_err() {
                return;
            }
            let (Ok(copy), Ok(mut seen)) = (copy, seen.lock()) else {
                continue;
            };
            let at_s = began.elapsed().as_secs_f64();
            seen.memory
                .push((at_s, tree::memory_bytes(copy.pid()) as f64));
            if round % live_every == 0
                && let Some(bytes) = live_bytes(&workload.load, &copy.dir)
            {
                seen.live.push((at_s, bytes as f64));
            }
        }
    }
}

/// Lets one copy after the other be busy. An error only if a signal came.
fn go_through(
    workload: &Workload,
    copies: &[Result<Running>],
    plan: Plan,
    began: Instant,
) -> Result<Happened> {
    let mut happened = Happened {
        cpu_s: vec![(0.0, 0.0); copies.len()],
        ..Happened::default()
    };
    happened.served.resize_with(copies.len(), Served::default);
    happened.failed.resize_with(copies.len(), || None);
    let mut late = Duration::ZERO;
    for slot in 0..=plan.slots() {
        let due = began + late + plan.slot * slot as u32;
        wait_until(due)?;
        // Requests of the slot before may have taken longer: the rest of the time moves.
        late += due.elapsed();
        happened.began_s.push(began.elapsed().as_secs_f64());
        for (n, copy) in copies.iter().enumerate() {
            let (from, to) = plan.window(n);
            let sign = match slot {
                slot if slot == from => -1.0,
                slot if slot == to => 1.0,
                _ => continue,
            };
            if let Ok(copy) = copy {
                let (all, kernel) = tree::cpu_s(copy.pid());
                happened.cpu_s[n].0 += sign * all;
                happened.cpu_s[n].1 += sign * kernel;
            }
        }
        let Some((n, cycle)) = plan.busy(slot).filter(|_| slot < plan.slots()) else {
            continue;
        };
        if let (Ok(copy), None) = (&copies[n], &happened.failed[n]) {
            match serve(&workload.load, &copy.dir, cycle, plan.slot) {
                Ok(served) => happened.served[n].add(served),
                Err(error) => happened.failed[n] = Some(error),
            }
        }
    }
    Ok(happened)
}

/// The figures of a copy.
struct Measured {
    hours: f64,
    mean_mib: f64,
    live_mib: Option<f64>,
    peak_mib: f64,
    curve: Curve,
    cpu_s: (f64, f64),
    ms: (f64, f64),
    checksum: u64,
}

impl Measured {
    fn new(
        plan: Plan,
        (from_s, to_s): (f64, f64),
        seen: &Seen,
        cpu_s: (f64, f64),
        served: &Served,
    ) -> Self {
        let step = plan.step();
        let count = ((to_s - from_s) / step.as_secs_f64()) as usize;
        let points = (0..=count).map(|n| {
            let mib = at(&seen.memory, from_s + n as f64 * step.as_secs_f64()) / MIB;
            (mib * 10.0).round() / 10.0
        });
        let is_inside = |point: &&(f64, f64)| (from_s..to_s).contains(&point.0);
        let inside = seen.memory.iter().filter(is_inside);
        let live = mean(&seen.live, from_s, to_s).map(|bytes| bytes / MIB);
        Measured {
            // As planned: a late end makes a window longer for all.
            hours: (plan.slot * (CYCLES * plan.copies) as u32).as_secs_f64() / 3600.0,
            mean_mib: mean(&seen.memory, from_s, to_s).unwrap_or(f64::NAN) / MIB,
            live_mib: live,
            peak_mib: inside.map(|point| point.1).fold(0.0, f64::max) / MIB,
            curve: Curve {
                step_ms: step.as_millis() as u64,
                rss_mib: points.collect(),
                ..Curve::default()
            },
            cpu_s,
            ms: (served.quantile_ms(0.5), served.quantile_ms(0.99)),
            checksum: served.checksum,
        }
    }

    fn output(self, live_mib: Option<f64>) -> Output {
        let mut output = Output::new(
            self.checksum,
            [
                ("mib_h", self.mean_mib * self.hours),
                ("peak_mib", self.peak_mib),
                ("p50_ms", self.ms.0),
                ("p99_ms", self.ms.1),
                ("cpu_s", self.cpu_s.0),
                ("kernel_s", self.cpu_s.1),
            ],
        );
        output.add(live_mib.map(|live_mib| ("over_live", self.mean_mib / live_mib)));
        output.curve = Some(self.curve);
        output
    }
}

/// The latest value at a time, or the first one before there is any.
fn at(points: &Points, time_s: f64) -> f64 {
    let taken = points.partition_point(|point| point.0 <= time_s);
    let point = points[..taken].last().or(points.first());
    point.map_or(f64::NAN, |point| point.1)
}

/// The mean over a time; a value holds until the next one.
fn mean(points: &Points, from_s: f64, to_s: f64) -> Option<f64> {
    points.first()?;
    let inside = points.iter().filter(|p| from_s < p.0 && p.0 < to_s);
    let begins = [(from_s, at(points, from_s))];
    let begins: Points = begins.into_iter().chain(inside.copied()).collect();
    let ends = begins.iter().skip(1).map(|point| point.0).chain([to_s]);
    let parts = begins.iter().zip(ends).map(|(p, end)| p.1 * (end - p.0));
    Some(parts.sum::<f64>() / (to_s - from_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_equal_and_one_copy_is_busy() {
        for copies in [1, 3, 7] {
            let plan = Plan::new(copies, Duration::from_secs(600));
            assert!(plan.slot * plan.slots() as u32 <= Duration::from_secs(600));
            for copy in 0..copies {
                let (from, to) = plan.window(copy);
                assert!(to <= plan.slots() && to - from == CYCLES * copies);
                let busy = (from..to).filter_map(|slot| plan.busy(slot));
                let own: Vec<usize> = busy.filter(|b| b.0 == copy).map(|b| b.1).collect();
                assert_eq!(own, [0, 1, 2]);
                assert_eq!(plan.busy(from), Some((copy, 0)));
            }
            // In the end nobody is busy: the last quiet phases.
            assert_eq!(plan.busy(CYCLES * copies), None);
        }
    }

    #[test]
    fn a_mean_is_over_time() {
        let points = vec![(0.0, 10.0), (1.0, 20.0), (3.0, 40.0)];
        assert_eq!(mean(&points, 0.0, 4.0), Some((10.0 + 40.0 + 40.0) / 4.0));
        assert_eq!(mean(&points, 0.5, 1.5), Some(15.0));
        assert_eq!(mean(&points, 5.0, 6.0), Some(40.0));
        assert_eq!(mean(&Vec::new(), 0.0, 1.0), None);
        assert_eq!(at(&points, 2.9), 20.0);
        assert_eq!(at(&points, -1.0), 10.0);
    }
}
