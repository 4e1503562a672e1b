//! A page of its own with the curves of a run and its tables; nothing is loaded
//! from elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bench::harness::{Drawn, Results};
use crate::bench::peers::TWIN;
use crate::bench::plot::{Line, escape, svg};
use crate::bench::report;
use crate::bench::worker::Curve;
use crate::cli::BenchArgs;

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.2rem 0 .2rem; } p { margin: .2rem 0 .8rem; }
svg { width: 100%; height: auto; font-size: 12px; fill: currentColor; }
.grid { stroke: currentColor; opacity: .15; }
.line path { fill: none; stroke-width: 1.4; }
.line text { stroke: none; }
.line.own path { stroke-width: 3; }
.line.reference path { stroke-dasharray: 5 4; opacity: .7; }
.line:hover path { stroke-width: 4; }
pre { overflow-x: auto; font-size: 13px; line-height: 1.35; }
";

/// Whether the file can be written: better known before an hour of measuring.
pub fn check(file: &Path) -> Result<()> {
    fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .map(drop)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Writes the page.
pub fn write(
    file: &Path,
    family: &str,
    args: &BenchArgs,
    rounds: u32,
    results: &Results,
) -> Result<()> {
    let tables = report::text(family, args, rounds, results);
    fs::write(file, page(family, results, &tables))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn page(family: &str, results: &Results, tables: &str) -> String {
    let title = format!("ebbtide bench {family}");
    let mut body = format!("<h1>{}</h1>\n", escape(&title));
    body.push_str(
        "<p>Memory over time, from the end of freeing, or from the call that ends the process, on. Dashed: what has to stay. \
         Below: all figures.</p>\n",
    );
    let mut cases: Vec<&str> = results.curves.iter().map(|d| d.case).collect();
    cases.dedup();
    cases.sort_unstable();
    cases.dedup();
    // In the order of the run.
    for series in &results.series {
        let Some(at) = cases.iter().position(|c| *c == series.case) else {
            continue;
        };
        let case = cases.remove(at);
        body.push_str(&format!(
            "<h2>{}</h2>\n<p>{}</p>\n",
            escape(case),
            escape(series.about)
        ));
        let drawings = [
            (
                "Resident size of the process",
                lines(results, case, |c| &c.rss_mib, |c| c.base_mib + c.live_mib),
            ),
            (
                "What the system has less than before the fill",
                lines(results, case, |c| &c.system_mib, |c| c.live_mib),
            ),
            (
                "Swap in use",
                lines(results, case, |c| &c.swap_mib, |_| 0.0),
            ),
        ];
        for (what, lines) in drawings.iter().filter(|(_, lines)| !lines.is_empty()) {
            body.push_str(&format!("<p>{what}</p>\n"));
            body.push_str(&svg("s", "MiB", lines));
        }
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body>\n{body}\
         <h2>Figures</h2>\n<pre>{}</pre>\n</body></html>\n",
        escape(&title),
        escape(tables)
    )
}

/// One line per entry, from the round in the middle by the size at the end, and the reference.
fn lines(
    results: &Results,
    case: &str,
    of: fn(&Curve) -> &Vec<f64>,
    must_stay: fn(&Curve) -> f64,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut reference: Option<Line> = None;
    for (place, entry) in results.entries.iter().enumerate() {
        if entry.name == TWIN {
            continue;
        }
        let mut rounds: Vec<&Drawn> = results
            .curves
            .iter()
            .filter(|d| d.case == case && d.entry == place && !of(&d.curve).is_empty())
            .collect();
        let end = |d: &&Drawn| of(&d.curve).last().copied().unwrap_or(0.0);
        rounds.sort_by(|a, b| end(a).total_cmp(&end(b)).then(a.round.cmp(&b.round)));
        let Some(middle) = rounds.get(rounds.len() / 2) else {
            continue;
        };
        let step_s = middle.curve.step_ms as f64 / 1e3;
        let values = of(&middle.curve);
        let points = values.iter().enumerate();
        lines.push(Line {
            name: entry.name.clone(),
            points: points.map(|(i, v)| (i as f64 * step_s, *v)).collect(),
            is_reference: false,
        });
        // The pages with a live byte are nearly the same in all; Ebbtide's stand for them.
        reference.get_or_insert_with(|| Line {
            name: "must stay".into(),
            points: vec![
                (0.0, must_stay(&middle.curve)),
                (
                    values.len().saturating_sub(1) as f64 * step_s,
                    must_stay(&middle.curve),
                ),
            ],
            is_reference: true,
        });
    }
    lines.extend(reference);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::harness::{Metric, Series};
    use crate::bench::peers::Entry;

    #[test]
    fn page_has_a_line_per_entry_and_the_reference() {
        let curve = |end: f64| Curve {
            step_ms: 50,
            rss_mib: vec![100.0, end],
            system_mib: vec![90.0, end],
            swap_mib: Vec::new(),
            base_mib: 3.0,
            live_mib: 9.0,
        };
        let drawn = |entry, round, end| Drawn {
            case: "c",
            entry,
            round,
            curve: curve(end),
        };
        let results = Results {
            entries: vec![Entry::plain("ebbtide"), Entry::plain("<x>")],
            series: vec![Series {
                case: "c",
                about: "a & b",
                metric: Metric { id: "m", unit: "u" },
                values: vec![None, None],
            }],
            curves: vec![
                drawn(0, 0, 30.0),
                drawn(0, 1, 10.0),
                drawn(0, 2, 20.0),
                drawn(1, 0, 5.0),
            ],
            ..Results::default()
        };
        let rss = lines(&results, "c", |c| &c.rss_mib, |c| c.base_mib + c.live_mib);
        assert_eq!(rss.len(), 3);
        assert_eq!(rss[0].points, [(0.0, 100.0), (0.05, 20.0)]);
        assert_eq!(rss[2].points[0].1, 12.0);
        let page = page("f", &results, "1 < 2");
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("&lt;x&gt;") && page.contains("1 &lt; 2"));
        assert!(page.contains("a &amp; b"));
    }
}
