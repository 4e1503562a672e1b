//! Tables and JSON of a family's results.

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::bench::harness::{Results, Series};
use crate::bench::peers::{OWN, TWIN};
use crate::bench::stats::{self, Spread};
use crate::cli::BenchArgs;
use crate::doctor::{Check, machine_facts};
use crate::out;

/// Exit status when something was measured, but not everything.
const EXIT_PARTIAL: u8 = 1;

#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: u32,
    family: &'a str,
    rounds: u32,
    quick: bool,
    machine: Vec<(&'static str, String)>,
    measurements: Vec<Measurement<'a>>,
    failures: &'a [String],
}

#[derive(Debug, Serialize)]
struct Measurement<'a> {
    case: &'a str,
    about: &'a str,
    metric: &'a str,
    unit: &'a str,
    /// The A/A noise as a fraction of the value.
    noise: Option<f64>,
    results: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    allocator: &'a str,
    spread: Option<Spread>,
    /// This median over Ebbtide's; above 1, Ebbtide needs less.
    ratio_to_ebbtide: Option<f64>,
    values: &'a [f64],
}

/// Prints the results; the exit status says whether all of it was measured.
pub fn print(family: &str, args: &BenchArgs, rounds: u32, results: &Results) -> Result<u8> {
    let report = Report {
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
        failures: &results.failures,
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        render(&report)
    };
    out::stdout(text.as_bytes());
    for failure in &results.failures {
        out::warning(failure);
    }
    Ok(if results.failures.is_empty() {
        0
    } else {
        EXIT_PARTIAL
    })
}

fn measurement<'a>(series: &'a Series, results: &'a Results) -> Measurement<'a> {
    let values_of = |name: &str| {
        let at = results.entries.iter().position(|e| e.name == name);
        at.map_or(&[][..], |i| &series.values[i])
    };
    let own = Spread::of(values_of(OWN));
    let rows = results
        .entries
        .iter()
        .zip(&series.values)
        .map(|(entry, values)| {
            let spread = Spread::of(values);
            let ratio = match (spread, own) {
                (Some(s), Some(o)) if o.median > 0.0 => Some(s.median / o.median),
                _ => None,
            };
            Row {
                allocator: &entry.name,
                spread,
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

fn render(report: &Report) -> String {
    let mut text = String::new();
    for m in &report.measurements {
        let noise = m
            .noise
            .map_or("unknown".into(), |n| format!("±{:.1} %", n * 100.0));
        text.push_str(&format!(
            "{} — {}\n{}, less is better; A/A noise {noise}\n",
            m.case, m.about, m.unit
        ));
        let mut table = Table::new();
        table.load_preset(NOTHING);
        table.set_header(["", "median", "quartiles", "÷ ebbtide"]);
        for row in &m.results {
            let Some(s) = row.spread else {
                table.add_row([row.allocator, "failed", "", ""]);
                continue;
            };
            let ratio = row.ratio_to_ebbtide.map_or(String::new(), |r| {
                // Within the noise a ratio says nothing.
                let same = m.noise.is_some_and(|n| (r - 1.0).abs() <= n);
                format!("{}{r:.2}", if same { "≈ " } else { "" })
            });
            table.add_row([
                row.allocator.to_owned(),
                figure(s.median),
                format!("{} – {}", figure(s.quartile_low), figure(s.quartile_high)),
                ratio,
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in table.to_string().lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    text.push_str(&format!(
        "{} rounds, one process per figure, allocators in turn. Above 1, Ebbtide needs less; ≈ is within the noise.\n",
        report.rounds
    ));
    for (name, value) in &report.machine {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text
}

/// Three significant digits, or whole numbers where there are more.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::harness::Metric;
    use crate::bench::peers::Entry;

    #[test]
    fn figures() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(1.234), "1.23");
        assert_eq!(figure(0.1234), "0.123");
    }

    #[test]
    fn ratio_and_noise() {
        let entry = |name: &str| Entry {
            name: name.into(),
            library: None,
            env: Vec::new(),
        };
        let results = Results {
            entries: vec![entry(OWN), entry(TWIN), entry("x"), entry("y")],
            series: vec![Series {
                case: "c",
                about: "a",
                metric: Metric { id: "m", unit: "u" },
                values: vec![vec![10.0], vec![11.0], vec![20.0], vec![]],
            }],
            failures: Vec::new(),
        };
        let m = measurement(&results.series[0], &results);
        assert!((m.noise.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(m.results[2].ratio_to_ebbtide, Some(2.0));
        assert_eq!(m.results[3].spread, None);
        let report = Report {
            schema: 1,
            family: "f",
            rounds: 1,
            quick: true,
            machine: vec![("kernel", "1".into())],
            measurements: vec![m],
            failures: &[],
        };
        let text = render(&report);
        assert!(
            text.contains("2.00") && text.contains("failed") && text.contains("±10.0 %"),
            "{text}"
        );
        assert!(text.contains("≈ 1.10"), "{text}");
    }
}
