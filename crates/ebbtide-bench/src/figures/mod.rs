//! A family's results, set beside Ebbtide's: printed as tables or JSON, and read again.

pub mod failures;
pub mod html;
pub mod labels;
pub mod place;
pub mod plot;
pub mod tables;

use std::borrow::Cow;
use std::env;

use anyhow::Result;
use ebbtide_tools::{machine, out};
use serde::{Deserialize, Deserializer, Serialize};

use crate::figures::tables::render;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{AGAIN, OWN};
use crate::harness::{Drawn, Results, Series};
use crate::stats::{self, Spread};

/// Exit status when something was measured, but not everything.
const EXIT_PARTIAL: u8 = 1;
/// The same after a signal, whose number is added.
const EXIT_SIGNAL: u8 = 128;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// What a family gives.
#[derive(Debug)]
pub struct Measured {
    /// Its name.
    family: &'static str,
    results: Results,
}

impl Measured {
    /// Of a run.
    pub fn new(family: &'static str, results: Results) -> Self {
        Measured { family, results }
    }
}

/// What is printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Of the form in which it was saved.
    pub schema: u32,
    /// What was run.
    pub family: String,
    /// What was typed for it.
    #[serde(default)]
    pub command: String,
    /// Rounds that were begun.
    pub rounds: u32,
    /// Whether something was not measured.
    #[serde(default)]
    pub partial: bool,
    /// What broke off the run, and when.
    #[serde(default)]
    pub broken_off: Option<String>,
    quick: bool,
    /// What kind of machine it was.
    pub machine: Vec<(String, String)>,
    /// One per case and metric, those of a case together.
    pub measurements: Vec<Measurement>,
    /// The allocator to which an overview of all cases relates the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// How memory went back.
    pub curves: Vec<Drawn>,
    /// Lines below the tables.
    pub notes: Vec<String>,
    /// What went wrong.
    pub failures: Vec<String>,
    /// How long a figure was waited for.
    #[serde(default)]
    pub wait_s: f64,
}

/// One metric of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The case.
    pub case: String,
    /// What it does.
    pub about: String,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The A/A noise as a fraction of the value.
    pub noise: Option<f64>,
    /// One per allocator to which the case applies.
    pub results: Vec<Row>,
}

/// One allocator's values.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub allocator: String,
    /// Of the values that were reached.
    pub spread: Option<Spread>,
    /// So many values were not reached while the harness waited; no figure if
    /// they are half or more.
    pub not_reached: usize,
    /// This median over Ebbtide's; above 1, Ebbtide needs less.
    pub ratio_to_ebbtide: Option<f64>,
    /// All of them; not a number where the system was disturbed.
    #[serde(deserialize_with = "values")]
    pub values: Vec<f64>,
}

impl Row {
    /// Whether it was measured, or was waited for in vain.
    pub fn has_figure(&self) -> bool {
        self.spread.is_some() || self.not_reached > 0
    }
}

/// What is no number is null in JSON.
fn values<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let values = Vec::<Option<f64>>::deserialize(from)?;
    Ok(values.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect())
}

impl Report {
    /// The measurements of each case.
    pub fn cases(&self) -> impl Iterator<Item = &[Measurement]> {
        self.measurements.chunk_by(|a, b| a.case == b.case)
    }

    /// As it is saved.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Prints the results, as far as there are any, and writes what pictures are wanted; gives the exit status.
pub fn print(measured: Measured, args: &BenchArgs) -> Result<u8> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let words = words.iter().map(|word| word.to_string_lossy());
    let command = ["ebbtide", "bench"].map(Cow::from).into_iter().chain(words);
    let command = command.collect::<Vec<_>>().join(" ");
    let broken_off = &measured.results.broken_off;
    let signal = broken_off.as_ref().map(|(signal, _)| *signal);
    let report = new(measured, &command, args.quick);
    let text = match args.json {
        true => report.json()?,
        false => render(&report),
    };
    if !out::stdout(text.as_bytes()) {
        // Rather at the wrong place than lost.
        out::stderr(&text);
    }
    if let Some(file) = &args.html {
        place::write(file, &html::page(&report))?;
    }
    if let Some(dir) = &args.plots {
        html::write_plots(dir, &report)?;
    }
    for why in report.failures.iter().chain(&report.broken_off) {
        out::warning(why);
    }
    Ok(status(signal, report.partial))
}

/// The exit status after a signal, as a shell tells it, or whether all was measured.
pub fn status(signal: Option<i32>, is_partial: bool) -> u8 {
    match signal {
        Some(signal) => EXIT_SIGNAL + signal as u8,
        None if is_partial => EXIT_PARTIAL,
        None => 0,
    }
}

/// Sets them side by side.
pub fn new(measured: Measured, command: &str, quick: bool) -> Report {
    let Measured { family, results } = measured;
    let version = ("ebbtide".into(), env!("CARGO_PKG_VERSION").into());
    let is_whole = results.broken_off.is_none();
    let has_values = |s: &&Series| s.values.iter().flatten().any(|v| !v.is_empty());
    let series = results.series.iter().filter(|s| is_whole || has_values(s));
    Report {
        schema: SCHEMA,
        family: family.into(),
        command: command.into(),
        rounds: results.rounds,
        partial: !is_whole || !results.failures.is_empty(),
        quick,
        machine: [version].into_iter().chain(machine::facts()).collect(),
        measurements: series.map(|s| measurement(s, &results)).collect(),
        broken_off: results.broken_off.map(|(_, why)| why),
        base: results.base.map(String::from),
        curves: results.curves,
        notes: results.notes,
        failures: results.failures,
        wait_s: results.wait.as_secs_f64(),
    }
}

/// The spread of what was reached, unless half or more was not; how many were not.
fn reached(values: &[f64]) -> (Option<Spread>, usize) {
    let not = values.iter().filter(|v| v.is_infinite()).count();
    let spread = Spread::of(values).filter(|_| 2 * not < values.len());
    (spread, not)
}

fn measurement(series: &Series, results: &Results) -> Measurement {
    let values_of = |name: &str| {
        let at = results.entries.iter().position(|e| e.name == name);
        let values = at.and_then(|i| series.values[i].as_deref());
        values.unwrap_or_default()
    };
    // The noise is the difference between an allocator and the same again.
    let mut names = results.entries.iter().map(|entry| entry.name.as_str());
    let again = names.find(|name| name.ends_with(AGAIN)).unwrap_or_default();
    let once = again.trim_end_matches(AGAIN);
    let (own, _) = reached(values_of(OWN));
    let own = own.filter(|own| own.median > 0.0);
    let entries = results.entries.iter().zip(&series.values);
    let rows = entries.filter_map(|(entry, values)| {
        let values = values.as_deref()?;
        let (spread, not_reached) = reached(values);
        Some(Row {
            allocator: entry.name.clone(),
            spread,
            not_reached,
            ratio_to_ebbtide: spread.zip(own).map(|(s, own)| s.median / own.median),
            values: values.to_vec(),
        })
    });
    Measurement {
        case: series.case.into(),
        about: series.about.into(),
        metric: series.metric.id.into(),
        unit: series.metric.unit.into(),
        noise: stats::noise(values_of(once), values_of(again)),
        results: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Metric;
    use crate::harness::peers::{Entry, TWIN};

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
            family: "f".into(),
            command: "ebbtide bench f".into(),
            rounds: 1,
            partial: false,
            broken_off: None,
            quick: true,
            machine: vec![("kernel".into(), "1".into())],
            measurements: vec![m],
            base: None,
            curves: Vec::new(),
            notes: vec!["a note".into()],
            failures: Vec::new(),
            wait_s: 9.0,
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
        // What is written as JSON reads as the same.
        let json = report.json().unwrap();
        let again: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(render(&again), text);
        assert_eq!(again.measurements[0].results[4].values.len(), 2);
        // A second metric makes columns.
        let m = |metric: &str| Measurement {
            metric: metric.into(),
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

    #[test]
    fn an_overview_relates_all_to_the_base() {
        let series = |case, values: [f64; 4]| Series {
            case,
            about: "a",
            metric: Metric {
                id: "m",
                unit: "unit",
            },
            values: values.map(|v| Some(vec![v])).to_vec(),
        };
        let results = Results {
            entries: [OWN, "x", "base (again)", "base"]
                .map(Entry::plain)
                .to_vec(),
            series: vec![
                series("one", [50.0, 104.0, 105.0, 100.0]),
                series("two", [1.0, 1.0, 1.0, 0.0]),
            ],
            rounds: 1,
            base: Some("base"),
            ..Results::default()
        };
        let report = new(Measured::new("f", results), "ebbtide bench f", false);
        assert!((report.measurements[0].noise.unwrap() - 0.05).abs() < 1e-9);
        let overview = tables::overview(&report).unwrap();
        assert_eq!(overview.names, ["base", "base (again)", OWN, "x"]);
        let row = ["one", "m", "100", "1.05", "0.50", "≈ 1.04"];
        assert_eq!(overview.rows[0], row);
        // Nothing is a multiple of zero.
        assert_eq!(overview.rows[1][2..], ["0.000", "1.00", "1.00", "1.00"]);
        let text = render(&report);
        assert!(
            text.contains(" m: unit\n") && !text.contains("— a"),
            "{text}"
        );
        let again: Report = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(render(&again), text);
    }

    #[test]
    fn what_was_not_come_to_is_left_out() {
        let series = |case, values: [&[f64]; 2]| Series {
            case,
            about: "a",
            metric: Metric { id: "m", unit: "u" },
            values: values.map(|v| Some(v.to_vec())).to_vec(),
        };
        let results = Results {
            entries: [OWN, "x"].map(Entry::plain).to_vec(),
            series: vec![series("c", [&[1.0], &[]]), series("later", [&[], &[]])],
            rounds: 1,
            broken_off: Some((libc::SIGINT, "broken off".into())),
            ..Results::default()
        };
        let report = new(Measured::new("f", results), "ebbtide bench f", true);
        assert!(report.partial && report.measurements.len() == 1);
        let text = render(&report);
        assert!(text.starts_with("PARTIAL") && text.contains("- broken off\n"));
        assert!(text.contains("not measured") && !text.contains("later"));
    }
}
