//! Results as text: one table per case.
//!
//! A case with one metric has a table with quartiles; one with more has a column
//! per metric, each figure with its ratio to Ebbtide's.

use std::iter::repeat;

use askama::Template;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::figures::{Measurement, Report, Row};
use crate::harness::peers::{AGAIN, OWN};

/// Wider tables are cut into parts of so many metrics.
const COLUMNS: usize = 4;

#[derive(Template)]
#[template(path = "results.txt")]
struct Results<'a> {
    report: &'a Report,
}

/// All of a report.
pub fn render(report: &Report) -> String {
    Results { report }.to_string()
}

impl Results<'_> {
    fn single(&self, m: &Measurement) -> String {
        let mut table = Table::new();
        table.set_header(["", "median", "quartiles", "÷ ebbtide"]);
        for row in &m.results {
            let quartiles = row.spread.map_or(String::new(), |s| {
                format!("{} – {}", figure(s.quartile_low), figure(s.quartile_high))
            });
            let median = median(self.report, row);
            table.add_row([row.allocator.clone(), median, quartiles, row_ratio(m, row)]);
        }
        lines(table)
    }

    /// All figures in one table, if the report relates them to one allocator; below it the meaning of the rows.
    fn overview(&self) -> Option<String> {
        let overview = overview(self.report)?;
        let names = overview.names.iter().map(|name| (*name).to_owned());
        let mut table = Table::new();
        table.set_header(["", ""].map(String::from).into_iter().chain(names));
        table.add_rows(overview.rows);
        let mut text = lines(table) + "\n";
        let mut told: Vec<&str> = Vec::new();
        for m in &self.report.measurements {
            if !told.contains(&m.metric.as_str()) {
                told.push(&m.metric);
                text += &format!(" {}: {}\n", m.metric, m.unit);
            }
        }
        Some(text)
    }

    fn matrix(&self, metrics: &[Measurement]) -> String {
        let mut table = Table::new();
        let names = metrics.iter().map(|m| m.metric.as_str());
        table.set_header([""].into_iter().chain(names));
        for (place, first) in metrics[0].results.iter().enumerate() {
            let cells = (metrics.iter()).map(|m| with_ratio(self.report, m, &m.results[place]));
            table.add_row([first.allocator.clone()].into_iter().chain(cells));
        }
        let noises = metrics.iter().map(noise);
        table.add_row(["A/A noise".to_owned()].into_iter().chain(noises));
        lines(table)
    }
}

/// All cases in one table.
pub struct Overview<'a> {
    /// The allocators: the base, the base again, Ebbtide, the others.
    pub names: Vec<&'a str>,
    /// Case, metric, the base's figure, and the others' as multiples of it.
    pub rows: Vec<Vec<String>>,
}

/// None if the report relates nothing to a base.
pub fn overview(report: &Report) -> Option<Overview<'_>> {
    let base = report.base.as_deref()?;
    let mut names: Vec<&str> = Vec::new();
    for row in report.measurements.iter().flat_map(|m| &m.results) {
        if !names.contains(&row.allocator.as_str()) {
            names.push(&row.allocator);
        }
    }
    names.sort_by_key(|name| (*name != base, !name.ends_with(AGAIN), *name != OWN));
    let rows = report.cases().flat_map(|case| {
        let firsts = [case[0].case.as_str()].into_iter().chain(repeat(""));
        case.iter().zip(firsts).map(|(m, first)| {
            let row = |name: &str| m.results.iter().find(|row| row.allocator == name);
            let base_is = row(base).and_then(|row| row.spread).map(|s| s.median);
            let cells = names.iter().map(|name| {
                let Some(row) = row(name) else {
                    return String::new();
                };
                let of_base = row.spread.zip(base_is).map(|(s, base)| s.median / base);
                match of_base {
                    Some(_) if *name == base => median(report, row),
                    // The pair itself is the noise.
                    Some(r) if r.is_finite() && name.ends_with(AGAIN) => factor(r),
                    Some(r) if r.is_finite() => ratio(m, r),
                    _ => median(report, row),
                }
            });
            [first.to_owned(), m.metric.clone()]
                .into_iter()
                .chain(cells)
                .collect()
        })
    });
    let rows = rows.collect();
    Some(Overview { names, rows })
}

/// Without frame, numbers to the right.
fn lines(mut table: Table) -> String {
    table.load_preset(NOTHING);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// The median, or why there is none, with its ratio to Ebbtide's behind it.
pub fn with_ratio(report: &Report, m: &Measurement, row: &Row) -> String {
    let median = median(report, row);
    match row_ratio(m, row) {
        ratio if ratio.is_empty() => median,
        ratio => format!("{median} ({ratio})"),
    }
}

/// The median, or why there is none.
pub fn median(report: &Report, row: &Row) -> String {
    match row.spread {
        Some(spread) => figure(spread.median),
        None if row.not_reached > 0 => format!("not in {} s", report.wait_s),
        None if row.values.iter().any(|v| v.is_nan()) => "disturbed".into(),
        // Why stands at the top.
        None if report.broken_off.is_some() => "not measured".into(),
        None => "failed".into(),
    }
}

fn row_ratio(m: &Measurement, row: &Row) -> String {
    let ratio = row.ratio_to_ebbtide;
    ratio.map_or(String::new(), |r| self::ratio(m, r))
}

/// The noise as a percentage.
pub fn noise(m: &Measurement) -> String {
    m.noise
        .map_or("unknown".into(), |n| format!("±{:.1} %", n * 100.0))
}

/// A ratio, and whether it says anything.
pub fn ratio(m: &Measurement, ratio: f64) -> String {
    let mark = if is_same(m, ratio) { "≈ " } else { "" };
    format!("{mark}{}", factor(ratio))
}

/// Whether a ratio is within the noise, and says nothing.
pub fn is_same(m: &Measurement, ratio: f64) -> bool {
    m.noise.is_some_and(|n| (ratio - 1.0).abs() <= n)
}

/// A ratio as text.
pub fn factor(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{r:.0}"),
        r => format!("{r:.2}"),
    }
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

    #[test]
    fn figures() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(1.234), "1.23");
        assert_eq!(figure(0.1234), "0.123");
        assert_eq!((factor(1.5), factor(150.4)), ("1.50".into(), "150".into()));
    }
}
