//! A family's results, set beside Ebbtide's: printed as tables or JSON.

use anyhow::Result;
use serde::Serialize;

use crate::bench::harness::{Results, Series};
use crate::bench::html;
use crate::bench::peers::{OWN, TWIN};
use crate::bench::stats::{self, Spread};
use crate::bench::tables::render;
use crate::bench::worker::Curve;
use crate::cli::BenchArgs;
use crate::doctor::{Check, machine_facts};
use crate::out;

/// Exit status when something was measured, but not everything.
const EXIT_PARTIAL: u8 = 1;

/// What is printed.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    schema: u32,
    /// What was run.
    pub family: &'a str,
    /// Rounds that were run.
    pub rounds: u32,
    quick: bool,
    /// What kind of machine it was.
    pub machine: Vec<(&'static str, String)>,
    /// One per case and metric, those of a case together.
    pub measurements: Vec<Measurement<'a>>,
    curves: Vec<CurveRow<'a>>,
    /// Lines below the tables.
    pub notes: &'a [String],
    failures: &'a [String],
    /// In place of a figure that was not reached.
    #[serde(skip)]
    pub not_back: String,
}

#[derive(Debug, Serialize)]
struct CurveRow<'a> {
    case: &'a str,
    allocator: &'a str,
    round: u32,
    #[serde(flatten)]
    curve: &'a Curve,
}

/// One metric of one case.
#[derive(Debug, Serialize)]
pub struct Measurement<'a> {
    /// The case.
    pub case: &'a str,
    /// What it does.
    pub about: &'a str,
    /// The metric.
    pub metric: &'a str,
    /// Its unit.
    pub unit: &'a str,
    /// The A/A noise as a fraction of the value.
    pub noise: Option<f64>,
    /// One per allocator to which the case applies.
    pub results: Vec<Row<'a>>,
}

/// One allocator's values.
#[derive(Debug, Serialize)]
pub struct Row<'a> {
    /// Its name.
    pub allocator: &'a str,
    /// Of the values that were reached.
    pub spread: Option<Spread>,
    /// So many values were not reached while the harness waited; no figure if
    /// they are half or more.
    pub not_reached: usize,
    /// This median over Ebbtide's; above 1, Ebbtide needs less.
    pub ratio_to_ebbtide: Option<f64>,
    /// All of them; not a number where the system was disturbed.
    pub values: &'a [f64],
}

impl Report<'_> {
    /// The measurements of each case.
    pub fn cases(&self) -> impl Iterator<Item = &[Measurement<'_>]> {
        self.measurements.chunk_by(|a, b| a.case == b.case)
    }
}

/// Prints the results, and writes what pictures are wanted; the exit status says whether all of it was measured.
pub fn print(family: &str, args: &BenchArgs, rounds: u32, results: &Results) -> Result<u8> {
    let report = new(family, args, rounds, results);
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        render(&report)
    };
    out::stdout(text.as_bytes());
    if let Some(file) = &args.html {
        html::write(file, &report, results)?;
    }
    if let Some(dir) = &args.plots {
        html::write_plots(dir, &report, results)?;
    }
    for failure in &results.failures {
        out::warning(failure);
    }
    Ok(if results.failures.is_empty() {
        0
    } else {
        EXIT_PARTIAL
    })
}

/// Sets them side by side.
pub fn new<'a>(family: &'a str, args: &BenchArgs, rounds: u32, results: &'a Results) -> Report<'a> {
    Report {
        schema: 1,
        family,
        rounds,
        quick: args.quick,
        machine: machine_facts()
            .into_iter()
            .map(|Check { id, value, .. }| (id, value))
            .collect(),
        measurements: results
            .series
            .iter()
            .map(|s| measurement(s, results))
            .collect(),
        curves: results
            .curves
            .iter()
            .map(|d| CurveRow {
                case: d.case,
                allocator: &results.entries[d.entry].name,
                round: d.round,
                curve: &d.curve,
            })
            .collect(),
        notes: &results.notes,
        failures: &results.failures,
        not_back: format!("not in {} s", results.wait.as_secs_f64()),
    }
}

/// The spread of what was reached, unless half or more was not; how many were not.
fn reached(values: &[f64]) -> (Option<Spread>, usize) {
    let not = values.iter().filter(|v| v.is_infinite()).count();
    let spread = Spread::of(values).filter(|_| 2 * not < values.len());
    (spread, not)
}

fn measurement<'a>(series: &'a Series, results: &'a Results) -> Measurement<'a> {
    let values_of = |name: &str| {
        let at = results.entries.iter().position(|e| e.name == name);
        let values = at.and_then(|i| series.values[i].as_deref());
        values.unwrap_or_default()
    };
    let (own, _) = reached(values_of(OWN));
    let rows = results
        .entries
        .iter()
        .zip(&series.values)
        .filter_map(|(entry, values)| Some((entry, values.as_deref()?)))
        .map(|(entry, values)| {
            let (spread, not_reached) = reached(values);
            let ratio = match (spread, own) {
                (Some(s), Some(o)) if o.median > 0.0 => Some(s.median / o.median),
                _ => None,
            };
            Row {
                allocator: &entry.name,
                spread,
                not_reached,
                ratio_to_ebbtide: ratio,
                values,
            }
        });
    Measurement {
        case: series.case,
        about: series.about,
        metric: series.metric.id,
        unit: series.metric.unit,
        noise: stats::noise(values_of(OWN), values_of(TWIN)),
        results: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::harness::Metric;
    use crate::bench::peers::Entry;

    #[test]
    fn ratio_and_noise() {
        let entries = [OWN, TWIN, "x", "y", "z", "w"].map(Entry::plain);
        let results = Results {
            entries: entries.to_vec(),
            series: vec![Series {
                case: "c",
                about: "a",
                metric: Metric { id: "m", unit: "u" },
                values: vec![
                    Some(vec![10.0]),
                    Some(vec![11.0]),
                    Some(vec![20.0]),
                    Some(vec![]),
                    Some(vec![5.0, f64::INFINITY]),
                    None,
                ],
            }],
            ..Results::default()
        };
        let m = measurement(&results.series[0], &results);
        assert!((m.noise.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(m.results[2].ratio_to_ebbtide, Some(2.0));
        assert_eq!(m.results[3].spread, None);
        assert_eq!((m.results[4].spread, m.results[4].not_reached), (None, 1));
        assert_eq!(m.results.len(), 5, "a case that does not apply has no row");
        let report = Report {
            schema: 1,
            family: "f",
            rounds: 1,
            quick: true,
            machine: vec![("kernel", "1".into())],
            measurements: vec![m],
            curves: Vec::new(),
            notes: &["a note".into()],
            failures: &[],
            not_back: "not in 9 s".into(),
        };
        let text = render(&report);
        assert!(
            text.contains("2.00") && text.contains("failed") && text.contains("±10.0 %"),
            "{text}"
        );
        assert!(text.contains("≈ 1.10"), "{text}");
        assert!(
            text.contains("not in 9 s") && text.contains("a note"),
            "{text}"
        );
        // A second metric makes columns.
        let m = |metric| Measurement {
            metric,
            ..measurement(&results.series[0], &results)
        };
        let report = Report {
            measurements: vec![m("m"), m("n")],
            ..report
        };
        let text = render(&report);
        assert!(
            text.contains("20.0 (2.00)") && text.contains("11.0 (≈ 1.10)"),
            "{text}"
        );
        assert_eq!(text.matches("not in 9 s").count(), 2, "{text}");
    }
}
