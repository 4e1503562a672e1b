//! Runs the cases of a family, interleaved over the allocators.
//!
//! In each round of a case, all entries run, in a new order each time. The sequence of orders is the same in every
//! run. In a fixed order, each entry would always find the system's free memory as one other entry had left it.
//! Whether that memory is in huge pages changes a copy's time by a quarter.
//!
//! An entry whose process fails, or does not really use its library, is reported and not measured. If a signal comes,
//! the current measurement is discarded and the run ends ([`interrupt`]).
//!
//! | module | what it does |
//! |---|---|
//! | `flags` | flags that families share |
//! | `peers` | the allocators, and where their libraries are |
//! | `process` | starts measured processes and reads what they print |
//! | `runs` | kinds of runs that several families use |
//! | `progress` | shows the progress of a run |
//! | `sized` | the part that families which fill memory share |
//!
//! Invariants:
//! - `INV-BENCH-1`: within a case, every process reports the same checksum.
//! - `INV-BENCH-2`: a figure is kept only if `malloc` came from the entry's library.

pub mod flags;
pub mod peers;
pub mod process;
pub mod progress;
pub mod runs;
pub mod sized;

use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ebbtide_tools::out;
use serde::{Deserialize, Serialize};

use crate::harness::peers::Entry;
use crate::harness::process::{Starter, warm_host};
use crate::harness::progress::Progress;
use crate::measured::{Curve, Output};
use crate::outside::interrupt::{self, Listening};

/// One figure of a case; lower is better. An infinite value was not reached while the harness waited.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in the process's output.
    pub id: &'static str,
    /// Its unit, for people.
    pub unit: &'static str,
}

/// The work of a case. [`runs`] has the kinds that several families use. A family may add its own.
pub trait Run: Debug {
    /// Called once before the first measurement. `dir` exists until the last one has ended.
    fn prepare(&self, _case: &Case, _dir: &Path) {}

    /// Runs one process, or several that belong together, under the entry's allocator. Returns the figures.
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output>;

    /// Runs all entries at the same time, where that is the work. Returns a result for each.
    fn together(&self, _starter: &Starter, _entries: &[&Entry]) -> Option<Vec<Result<Output>>> {
        None
    }

    /// Minimum time for which one measurement waits.
    fn idle(&self) -> Duration {
        Duration::ZERO
    }

    /// Maximum number of bytes that one measurement fills.
    fn filled_bytes(&self) -> u64 {
        0
    }
}

/// One case of a family.
#[derive(Debug)]
pub struct Case {
    /// Stable name.
    pub id: &'static str,
    /// A description on one line.
    pub about: &'static str,
    /// The work.
    pub run: Box<dyn Run>,
    /// The figures.
    pub metrics: Vec<Metric>,
}

/// Every value of one metric, by entry.
#[derive(Debug)]
pub struct Series {
    /// The case.
    pub case: &'static str,
    /// A description of the case.
    pub about: &'static str,
    /// The metric.
    pub metric: Metric,
    /// One list of values per entry, in the order of the entries; none if the case does not apply to the entry.
    pub values: Vec<Option<Vec<f64>>>,
}

/// The return of memory in one process, over time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drawn {
    /// The case.
    pub case: String,
    /// The entry's name.
    pub allocator: String,
    /// The round, counted from 0.
    pub round: u32,
    /// The points.
    #[serde(flatten)]
    pub curve: Curve,
}

/// The number of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Maximum number of rounds.
    pub count: u32,
    /// No round is begun that would end later than this.
    pub limit: Option<Duration>,
}

impl Rounds {
    /// Whether another round fits, judged by the longest one.
    fn fits(self, round: u32, elapsed: Duration, longest: Duration) -> bool {
        let is_over = self.limit.is_some_and(|limit| elapsed + longest > limit);
        round < self.count && (round == 0 || !is_over)
    }
}

/// All results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// The entries that were measured.
    pub entries: Vec<Entry>,
    /// One series per case and metric.
    pub series: Vec<Series>,
    /// The curves of watched cases.
    pub curves: Vec<Drawn>,
    /// Failures, for people.
    pub failures: Vec<String>,
    /// Notes below the tables.
    pub notes: Vec<String>,
    /// Maximum time for which a process was watched.
    pub wait: Duration,
    /// Number of rounds that were begun.
    pub rounds: u32,
    /// The entry to which an overview of all cases relates the others; none without an overview.
    pub base: Option<&'static str>,
    /// The signal that interrupted the run, and when.
    pub broken_off: Option<(libc::c_int, String)>,
}

/// Keeps the cases whose name contains one of `only`; if `only` is empty, keeps all.
pub fn select(cases: &mut Vec<Case>, only: &[String]) -> Result<()> {
    if only.is_empty() {
        return Ok(());
    }
    let all: Vec<&str> = cases.iter().map(|c| c.id).collect();
    cases.retain(|c| only.iter().any(|o| c.id.contains(o.as_str())));
    if cases.is_empty() {
        bail!("--only matches no case; the cases are: {}", all.join(", "));
    }
    Ok(())
}

/// Removes the cases for which something is missing. Returns a note for each, with its remedy.
pub fn leave_out(
    cases: &mut Vec<Case>,
    missing: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    cases.retain(|case| match missing(case.id) {
        Some(missing) => {
            let note = format!("{} is left out: {missing}", case.id);
            out::warning(&note);
            notes.push(note);
            false
        }
        None => true,
    });
    ensure!(!cases.is_empty(), "no case is left: {}", notes.join("; "));
    Ok(notes)
}

/// Runs `cases` for `rounds` rounds, after touching `warm_bytes` of memory once.
pub fn run(
    cases: &[Case],
    entries: Vec<Entry>,
    rounds: Rounds,
    warm_bytes: u64,
) -> Result<Results> {
    let _listening = Listening::start()?;
    let starter = Starter::new(cases)?;
    let mut results = Results::default();
    for entry in entries {
        match starter.serves(&entry) {
            Ok(()) => results.entries.push(entry),
            // Without Ebbtide itself there is nothing to compare.
            Err(error) if entry.name == peers::OWN => return Err(error),
            Err(error) => results
                .failures
                .push(format!("{} is left out: {error:#}", entry.name)),
        }
    }
    match warm_host(warm_bytes) {
        Ok((bytes, seconds)) => results.notes.push(format!(
            "{} were touched once beforehand, so that the host backs them ({seconds:.1} s)",
            out::bytes(bytes)
        )),
        Err(error) => results.failures.push(format!("{error:#}")),
    }
    let kept = results.entries.clone();
    results.series = series(cases, &kept);

    let steps = cases.iter().map(|case| {
        let steps = kept.iter().filter(|e| (e.takes)(case.id)).count();
        (steps as u64, case.run.idle())
    });
    let mut progress = Progress::new(rounds, steps);
    let mut checksums: Vec<Option<u64>> = vec![None; cases.len()];
    let mut broken = vec![vec![false; kept.len()]; cases.len()];
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    'rounds: while rounds.fits(results.rounds, began.elapsed(), longest) {
        let round_began = Instant::now();
        let round = results.rounds;
        results.rounds += 1;
        for (c, case) in cases.iter().enumerate() {
            let mut order = order(kept.len(), round as usize * cases.len() + c);
            order.retain(|&e| (kept[e].takes)(case.id));
            progress.begin(case.id.to_owned());
            let turn: Vec<&Entry> = order.iter().map(|&e| &kept[e]).collect();
            let mut outputs = case.run.together(&starter, &turn).map(Vec::into_iter);
            for e in order {
                if interrupt::came().is_some() {
                    break 'rounds;
                }
                let entry = &kept[e];
                let output = outputs.as_mut().and_then(Iterator::next);
                progress.begin(format!("{} {}", case.id, entry.name));
                let is_broken = &mut broken[c][e];
                if !*is_broken {
                    let output = output.unwrap_or_else(|| case.run.measure(&starter, entry));
                    match output.and_then(|output| checked(output, &mut checksums[c])) {
                        Ok(output) => keep(&mut results, case, e, round, output),
                        // This program ended the process.
                        Err(_) if interrupt::came().is_some() => break 'rounds,
                        Err(error) => {
                            *is_broken = true;
                            let (name, round) = (&entry.name, round + 1);
                            let failure =
                                format!("{} in {name}, round {round}: {error:#}", case.id);
                            results.failures.push(failure);
                        }
                    }
                }
                progress.end(c, round, case.id);
            }
        }
        longest = longest.max(round_began.elapsed());
    }
    let (done, steps) = progress.done();
    progress.finish();
    if let Some(signal) = interrupt::came() {
        let name = interrupt::name(signal);
        ensure!(
            done > 0,
            "broken off by {name} before anything was measured"
        );
        let when = format!(
            "broken off by {name} in round {} of {}: {done} of {steps} processes were measured",
            results.rounds, rounds.count
        );
        results.broken_off = Some((signal, when));
    } else if results.rounds < rounds.count {
        results.notes.push(format!(
            "another round would have passed the time limit; {} were asked for",
            rounds.count
        ));
    }
    Ok(results)
}

/// The numbers below `len`, in the `turn`th random order.
fn order(len: usize, turn: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..len).collect();
    fastrand::Rng::with_seed(turn as u64).shuffle(&mut all);
    all
}

/// The output, if its checksum is that of the first one (INV-BENCH-1).
fn checked(output: Output, first: &mut Option<u64>) -> Result<Output> {
    let (found, expected) = (output.checksum, *first.get_or_insert(output.checksum));
    ensure!(
        found == expected,
        "wrong result: checksum {found:x}, others have {expected:x}"
    );
    Ok(output)
}

fn series(cases: &[Case], entries: &[Entry]) -> Vec<Series> {
    let values = |case: &Case| {
        entries
            .iter()
            .map(|e| (e.takes)(case.id).then(Vec::new))
            .collect()
    };
    cases
        .iter()
        .flat_map(|c| c.metrics.iter().map(move |m| (c, m)))
        .map(|(case, metric)| Series {
            case: case.id,
            about: case.about,
            metric: *metric,
            values: values(case),
        })
        .collect()
}

fn keep(results: &mut Results, case: &Case, entry: usize, round: u32, output: Output) {
    for one in results.series.iter_mut().filter(|s| s.case == case.id) {
        let value = output.metrics.get(one.metric.id);
        if let (Some(values), Some(value)) = (&mut one.values[entry], value) {
            values.push(*value);
        }
    }
    if let Some(curve) = output.curve {
        results.curves.push(Drawn {
            case: case.id.into(),
            allocator: results.entries[entry].name.clone(),
            round,
            curve,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_turn_has_all_entries_and_they_follow_different_others() {
        let mut before_first = BTreeSet::new();
        for turn in 0..40 {
            let order = order(8, turn);
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 8);
            let place = order.iter().position(|&e| e == 0).unwrap();
            before_first.insert(place.checked_sub(1).map(|before| order[before]));
        }
        assert_eq!(before_first.len(), 8, "{before_first:?}");
    }

    #[test]
    fn a_round_that_would_pass_the_limit_is_not_begun() {
        let seconds = Duration::from_secs;
        let limit = Some(seconds(60));
        let rounds = Rounds { count: 3, limit };
        assert!(rounds.fits(0, seconds(100), seconds(0)), "at least one");
        assert!(rounds.fits(1, seconds(30), seconds(30)));
        assert!(!rounds.fits(2, seconds(31), seconds(30)));
        assert!(!rounds.fits(3, seconds(1), seconds(0)));
        let rounds = Rounds {
            limit: None,
            ..rounds
        };
        assert!(rounds.fits(2, seconds(9000), seconds(9000)));
    }
}
