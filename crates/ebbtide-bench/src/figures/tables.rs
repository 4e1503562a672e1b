//! Results as text: one table per case.
//!
//! A case with one metric has a table with quartiles; one with more has a column
//! per metric, each figure with its ratio to Ebbtide's.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::figures::{Measurement, Report, Row, Without};

/// Wider tables are cut into parts of so many metrics.
const COLUMNS: usize = 4;

/// All of a report.
pub fn render(report: &Report) -> String {
    let without = report.without();
    let mut text = partial(report);
    for case in report.cases() {
        text.push_str(&format!("{} — {}\n", case[0].case, case[0].about));
        match case {
            [one] => text.push_str(&single(one, &without)),
            several => {
                for part in several.chunks(COLUMNS) {
                    text.push_str(&matrix(part, &without));
                }
            }
        }
    }
    text.push_str(&format!(
        "{} rounds, one process per figure, allocators in turn. Less is better; above 1, Ebbtide needs less; ≈ is within the noise.\n",
        report.rounds
    ));
    for note in &report.notes {
        text.push_str(note);
        text.push('\n');
    }
    for (name, value) in &report.machine {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text
}

/// What is missing from the figures; nothing if they are complete.
pub fn partial(report: &Report) -> String {
    let mut text = String::new();
    if report.partial {
        text.push_str("PARTIAL: not everything was measured\n");
    }
    for why in report.broken_off.iter().chain(&report.failures) {
        text.push_str(&format!("- {why}\n"));
    }
    if report.partial {
        text.push('\n');
    }
    text
}

fn single(m: &Measurement, without: &Without) -> String {
    let mut table = Table::new();
    table.set_header(["", "median", "quartiles", "÷ ebbtide"]);
    for row in &m.results {
        let (median, ratio) = cell(m, row, without);
        let quartiles = row.spread.map_or(String::new(), |s| {
            format!("{} – {}", figure(s.quartile_low), figure(s.quartile_high))
        });
        table.add_row([row.allocator.to_owned(), median, quartiles, ratio]);
    }
    format!("{}; A/A noise {}\n{}\n", m.unit, noise(m), lines(table))
}

fn matrix(metrics: &[Measurement], without: &Without) -> String {
    let mut table = Table::new();
    table.set_header(
        [""].into_iter()
            .chain(metrics.iter().map(|m| m.metric.as_str())),
    );
    for (place, first) in metrics[0].results.iter().enumerate() {
        let cells = (metrics.iter()).map(|m| with_ratio(m, &m.results[place], without));
        table.add_row([first.allocator.to_owned()].into_iter().chain(cells));
    }
    let noises = metrics.iter().map(noise);
    table.add_row(["A/A noise".to_owned()].into_iter().chain(noises));
    let mut text = lines(table);
    for m in metrics {
        text.push_str(&format!(" {}: {}\n", m.metric, m.unit));
    }
    text.push('\n');
    text
}

/// Without frame, numbers to the right.
fn lines(mut table: Table) -> String {
    table.load_preset(NOTHING);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The median, or why there is none, with its ratio to Ebbtide's behind it.
pub fn with_ratio(m: &Measurement, row: &Row, without: &Without) -> String {
    match cell(m, row, without) {
        (figure, ratio) if ratio.is_empty() => figure,
        (figure, ratio) => format!("{figure} ({ratio})"),
    }
}

/// A table of these, numbers to the right.
pub fn plain(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.set_header(header);
    table.add_rows(rows);
    lines(table)
}

/// The median, or why there is none.
pub fn median(row: &Row, without: &Without) -> String {
    let figure = row.spread.map(|s| figure(s.median));
    figure.unwrap_or_else(|| missing(row, without).to_owned())
}

fn cell(m: &Measurement, row: &Row, without: &Without) -> (String, String) {
    let ratio = row.ratio_to_ebbtide.filter(|_| row.spread.is_some());
    let ratio = ratio.map_or(String::new(), |r| self::ratio(m, r));
    (median(row, without), ratio)
}

fn missing<'a>(row: &Row, without: &'a Without) -> &'a str {
    if row.not_reached > 0 {
        &without.late
    } else if row.values.iter().any(|v| v.is_nan()) {
        "disturbed"
    } else {
        // Why stands at the top.
        without.none
    }
}

/// The noise as a percentage.
pub fn noise(m: &Measurement) -> String {
    m.noise
        .map_or("unknown".into(), |n| format!("±{:.1} %", n * 100.0))
}

/// A ratio, and whether it says anything.
pub fn ratio(m: &Measurement, ratio: f64) -> String {
    // Within the noise it does not.
    let is_same = m.noise.is_some_and(|n| (ratio - 1.0).abs() <= n);
    format!("{}{}", if is_same { "≈ " } else { "" }, factor(ratio))
}

fn factor(ratio: f64) -> String {
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
