//! Watches a measured process from outside: its resident size and the system's free memory, while it frees memory and
//! then does nothing.
//!
//! The process reports its phases by marks (see `link`); all times are of the clock that processes share. The
//! observer is the process that runs the benchmark. So the measured process has no additional thread, and no
//! additional allocator calls.
//!
//! Invariants:
//! - `INV-OBSERVE-1`: samples are in order of time, and the last one lies at the end of the wait, or where all memory
//!   was back.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::measured::Curve;
use crate::outside::sample::{Probe, SYSTEM_NS, Sample};

/// Parameters of a watch.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Time between two samples.
    pub poll: Duration,
    /// Maximum wait after the memory was freed.
    pub wait: Duration,
    /// Whether to stop when all memory is back.
    pub until_back: bool,
    /// Bytes that the process fills.
    pub size_bytes: u64,
}

/// Time between two points of a curve.
pub const CURVE_STEP: Duration = Duration::from_millis(50);
/// The last part of the wait, from which the final values are taken.
const LAST: Duration = Duration::from_millis(100);
/// Lets the system's counters settle after the last process.
pub const SETTLE: Duration = Duration::from_millis(20);
const MIB: f64 = (1 << 20) as f64;

/// All observations.
#[derive(Debug, Default)]
pub struct Observation {
    /// The sample before the fill.
    pub base: Sample,
    /// The sample after the fill.
    pub filled: Sample,
    /// Pages with a live byte, which must stay.
    pub live_bytes: u64,
    /// Start and end of freeing.
    pub freed_ns: (u64, u64),
    /// The samples from `filled` on.
    pub samples: Vec<Sample>,
}

impl Observation {
    /// Resident memory beyond the memory before and the memory that must stay.
    fn rss_over(&self, s: &Sample) -> i64 {
        s.rss_bytes as i64 - (self.base.rss_bytes + self.live_bytes) as i64
    }

    /// Memory that the system lacks beyond the memory that must stay in use.
    fn system_over(&self, s: &Sample) -> i64 {
        self.base.free_bytes as i64 - s.free_bytes as i64 - self.live_bytes as i64
    }

    fn is_back(&self, s: &Sample, size_bytes: u64) -> bool {
        let allowed = (size_bytes / 20) as i64;
        self.rss_over(s) <= allowed && self.system_over(s) <= allowed
    }

    /// Milliseconds from `start_ns` to the first sample for which `is_there` holds; infinite if there is none.
    fn time_to(&self, start_ns: u64, is_there: impl Fn(&Sample) -> bool) -> f64 {
        self.samples
            .iter()
            .find(|s| s.at_ns >= start_ns && is_there(s))
            .map_or(f64::INFINITY, |s| (s.at_ns - start_ns) as f64 / 1e6)
    }

    /// The final values: the medians of the last samples after freeing, because other processes come and go.
    fn settled(&self) -> Option<Sample> {
        let last = *self.samples.last()?;
        let since_ns = last.at_ns.saturating_sub(LAST.as_nanos() as u64);
        // A sample's system values may be a little older than the sample.
        let freed_ns = self.freed_ns.1 + SYSTEM_NS;
        let of = |get: fn(&Sample) -> u64| {
            let samples = self.samples.iter();
            let samples = samples.filter(|s| s.at_ns >= since_ns.max(freed_ns));
            let mut values: Vec<u64> = samples.map(get).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(get(&last))
        };
        Some(Sample {
            at_ns: last.at_ns,
            rss_bytes: of(|s| s.rss_bytes),
            free_bytes: of(|s| s.free_bytes),
        })
    }

    /// All figures by name. A time that was not reached is infinite.
    pub fn figures(&self, size_bytes: u64) -> BTreeMap<String, f64> {
        let allowed = (size_bytes / 20) as i64;
        let (began, ended) = self.freed_ns;
        // Not a number if other processes took or freed too much memory meanwhile.
        let checked = |value| match self.filled.is_disturbed_since(&self.base) {
            true => f64::NAN,
            false => value,
        };
        let back_rss = self.time_to(began, |s| self.rss_over(s) <= allowed);
        let back_system = self.time_to(began, |s| self.system_over(s) <= allowed);
        let mut figures = vec![
            ("back_rss_ms", back_rss),
            ("back_system_ms", checked(back_system)),
        ];
        let can_go = self.rss_over(&self.filled);
        if can_go > 0 {
            for (name, part) in [("t50_ms", 0.5), ("t90_ms", 0.9), ("t99_ms", 0.99)] {
                let left = (can_go as f64 * (1.0 - part)).round() as i64;
                figures.push((name, self.time_to(ended, |s| self.rss_over(s) <= left)));
            }
        }
        if let Some(last) = self.settled() {
            let must = (self.base.rss_bytes + self.live_bytes).max(1);
            let system_kept = self.system_over(&last).max(0) as f64 / MIB;
            figures.extend([
                ("final_ratio", last.rss_bytes as f64 / must as f64),
                ("kept_mib", self.rss_over(&last).max(0) as f64 / MIB),
                ("system_kept_mib", checked(system_kept)),
            ]);
        }
        let figures = figures.into_iter();
        figures.map(|(name, value)| (name.into(), value)).collect()
    }

    /// Both curves from the end of freeing on, with one point every [`CURVE_STEP`].
    pub fn curve(&self) -> Curve {
        let mut curve = Curve {
            step_ms: CURVE_STEP.as_millis() as u64,
            base_mib: self.base.rss_bytes as f64 / MIB,
            live_mib: self.live_bytes as f64 / MIB,
            ..Curve::default()
        };
        let points = curve.points(self.freed_ns.1, self.filled, &self.samples, |s| s.at_ns);
        (curve.rss_mib, curve.system_mib) = points
            .map(|s| {
                let taken = self.base.free_bytes as f64 - s.free_bytes as f64;
                (round(s.rss_bytes as f64 / MIB), round(taken / MIB))
            })
            .unzip();
        curve
    }
}

/// Rounds to a hundredth of a MiB, which is enough for a plot.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Parses a line of the worker, if it is a mark: its name and its numbers.
pub fn parse_mark(line: &str) -> Option<(&str, Vec<u64>)> {
    let mut words = line.strip_prefix('@')?.split_whitespace();
    let name = words.next()?;
    let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    Some((name, numbers?))
}

/// Waits for a worker's next mark, which must have this name. Returns its numbers.
pub fn mark(worker: &mut Child, name: &str, limit: Instant) -> Result<Vec<u64>> {
    let said = worker.stdout.as_mut().context("no pipe from the worker")?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        while !is_readable(said, limit.saturating_duration_since(Instant::now()))? {
            ensure!(Instant::now() < limit, "no '{name}' in time");
        }
        let mut byte = [0u8];
        ensure!(said.read(&mut byte)? == 1, "ended before '{name}'");
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    match parse_mark(line.trim()) {
        Some((found, numbers)) if found == name => Ok(numbers),
        _ => bail!("not the mark '{name}': {line:?}"),
    }
}

/// Lets a worker go on after its mark.
pub fn answer(worker: &mut Child) -> Result<()> {
    let answer = worker.stdin.as_mut().context("no pipe to the worker")?;
    Ok(answer.write_all(b"g")?)
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows a worker to its end. Returns the observations, and the worker's last line.
pub fn follow(child: &mut Child, watch: Watch, limit: Instant) -> Result<(Observation, String)> {
    let mut probe = Probe::new(child.id())?;
    let mut said = child.stdout.take().context("no pipe from the worker")?;
    let mut answer = child.stdin.take().context("no pipe to the worker")?;
    let mut seen = Observation::default();
    // After a mark, the worker waits until it is answered.
    let (mut is_filled, mut waits) = (false, false);
    let (mut text, mut last) = (Vec::new(), String::new());
    loop {
        ensure!(Instant::now() < limit, "no end in time");
        if is_filled {
            let sample = probe.look(false)?;
            seen.samples.push(sample);
            if waits {
                let end_ns = seen.freed_ns.1 + watch.wait.as_nanos() as u64;
                let is_back = watch.until_back && seen.is_back(&sample, watch.size_bytes);
                if is_back || sample.at_ns >= end_ns {
                    (is_filled, waits) = (false, false);
                    answer.write_all(b"g")?;
                }
            }
        }
        // Before the fill there is nothing to sample, and the fill should not be disturbed.
        let patience = if is_filled { watch.poll } else { CURVE_STEP };
        if !is_readable(&said, patience)? {
            continue;
        }
        let mut part = [0u8; 4096];
        let len = said.read(&mut part)?;
        if len == 0 {
            return Ok((seen, last));
        }
        text.extend_from_slice(&part[..len]);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            match parse_mark(&line) {
                None => last = line,
                Some(("base", _)) => {
                    std::thread::sleep(SETTLE);
                    seen.base = probe.look(true)?;
                    answer.write_all(b"g")?;
                }
                Some(("filled", n)) if n.len() == 1 => {
                    seen.live_bytes = n[0];
                    seen.filled = probe.look(true)?;
                    is_filled = true;
                    answer.write_all(b"g")?;
                }
                Some(("freed", n)) if n.len() == 2 => {
                    seen.freed_ns = (n[0], n[1]);
                    waits = true;
                }
                Some(_) => bail!("not a mark: {line:?}"),
            }
        }
    }
}

/// Waits at most `patience` until there is data to read.
pub fn is_readable(from: &impl AsFd, patience: Duration) -> Result<bool> {
    let mut from = [PollFd::new(from, PollFlags::IN)];
    let patience = Timespec::try_from(patience.max(Duration::from_millis(1)))?;
    // A signal to this process means nothing here.
    Ok(poll(&mut from, Some(&patience)).is_ok_and(|ready| ready > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, rss_mib: u64, free_mib: u64) -> Sample {
        Sample {
            at_ns: at_ms * 1_000_000,
            rss_bytes: rss_mib << 20,
            free_bytes: free_mib << 20,
        }
    }

    /// 100 MiB are filled beside 10 MiB that existed; 20 MiB must stay, 80 MiB can return.
    fn seen() -> Observation {
        Observation {
            base: sample(0, 10, 1000),
            filled: sample(100, 110, 900),
            live_bytes: 20 << 20,
            freed_ns: (200_000_000, 210_000_000),
            samples: vec![
                sample(150, 110, 900),
                sample(205, 70, 900),
                sample(260, 38, 940),
                sample(400, 31, 980),
            ],
        }
    }

    #[test]
    fn times_count_from_where_they_should() {
        let f = seen().figures(100 << 20);
        // Within 5 MiB of the memory that must stay: at 400 ms; freeing began at 200 ms.
        assert_eq!(f["back_rss_ms"], 200.0);
        assert_eq!(f["back_system_ms"], 200.0);
        // Half of 80 MiB is gone at 260 ms; freeing ended at 210 ms.
        assert_eq!(f["t50_ms"], 50.0);
        assert_eq!(f["t90_ms"], 50.0);
        assert_eq!(f["t99_ms"], f64::INFINITY);
        assert_eq!(f["kept_mib"], 1.0);
        assert!((f["final_ratio"] - 31.0 / 30.0).abs() < 1e-9);
        assert_eq!(f["system_kept_mib"], 0.0);
    }

    #[test]
    fn a_disturbed_system_gives_no_figure() {
        let mut seen = seen();
        seen.filled.free_bytes = 850 << 20;
        let f = seen.figures(100 << 20);
        assert!(f["back_system_ms"].is_nan() && f["system_kept_mib"].is_nan());
        assert_eq!(f["back_rss_ms"], 200.0);
    }

    #[test]
    fn curve_holds_the_latest_sample() {
        let c = seen().curve();
        assert_eq!(c.rss_mib, [70.0, 38.0, 38.0, 38.0]);
        assert_eq!(c.system_mib, [100.0, 60.0, 60.0, 60.0]);
        assert_eq!((c.live_mib, c.base_mib), (20.0, 10.0));
    }

    #[test]
    fn the_end_is_the_median_of_the_last_samples() {
        let mut seen = seen();
        assert_eq!(seen.settled(), Some(sample(400, 31, 980)));
        seen.samples
            .extend([sample(410, 31, 900), sample(420, 31, 980)]);
        assert_eq!(seen.settled(), Some(sample(420, 31, 980)));
        // All memory is back at once: the one sample after freeing counts.
        seen.samples.truncate(2);
        seen.samples.push(sample(211, 30, 1000));
        assert_eq!(seen.settled(), Some(sample(211, 30, 1000)));
    }

    #[test]
    fn marks() {
        assert_eq!(parse_mark("@freed 1 2"), Some(("freed", vec![1, 2])));
        assert_eq!(parse_mark("@base"), Some(("base", vec![])));
        assert_eq!(parse_mark("@freed x"), None);
        assert_eq!(parse_mark("{}"), None);
    }
}
