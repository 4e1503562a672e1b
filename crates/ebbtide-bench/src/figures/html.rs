//! A page of its own with the pictures of a run and its tables; nothing is loaded
//! from elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::plot::{Bar, Line, bars, curves, escape};
use crate::figures::{CurveRow, Measurement, Report, Row, tables};
use crate::harness::flags::BenchArgs;
use crate::harness::peers::TWIN;
use crate::measured::Curve;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #111; background: #fff; }
h2 { margin: 2.2rem 0 .2rem; } p { margin: .2rem 0 .8rem; }
svg { width: 100%; height: auto; }
pre { overflow-x: auto; font-size: 13px; line-height: 1.35; }
";

/// In a file of its own, not in a page.
const NAMESPACE: &str = " xmlns=\"http://www.w3.org/2000/svg\"";

/// One picture.
struct Picture {
    /// Of the file, if it gets one.
    name: String,
    about: String,
    svg: String,
}

/// Whether what is wanted can be written: better known before an hour of measuring.
pub fn check(args: &BenchArgs) -> Result<()> {
    if let Some(file) = &args.html {
        fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(dir) = &args.plots {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        tempfile::tempfile_in(dir)
            .with_context(|| format!("cannot write into {}", dir.display()))?;
    }
    Ok(())
}

/// Writes the page.
pub fn write(file: &Path, report: &Report) -> Result<()> {
    fs::write(file, page(report)?).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes each picture into a file, `FAMILY-CASE-WHAT.svg`.
pub fn write_plots(dir: &Path, report: &Report) -> Result<()> {
    for case in report.cases() {
        for picture in pictures(report, case)? {
            let file = dir.join(format!("{}-{}.svg", report.family, picture.name));
            fs::write(&file, picture.svg)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

fn page(report: &Report) -> Result<String> {
    let title = format!("ebbtide bench {}", report.family);
    let head = format!("<h1>{}</h1>\n", escape(&title));
    Ok(document(&title, &(head + &section(report)?)))
}

/// A page with this title.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n",
        escape(title)
    )
}

/// What a page tells of a family: what is missing, pictures of each case, and all figures.
pub fn section(report: &Report) -> Result<String> {
    let mut body = String::new();
    if report.partial {
        body.push_str(&format!(
            "<pre>{}</pre>\n",
            escape(&tables::partial(report))
        ));
    }
    body.push_str(
        "<p>Bars: the median of all rounds, with a line from quartile to quartile; less is better. Curves: memory over \
         time, from the end of freeing, or from the call that ends the process, on. Dashed: what has to stay. Below: all \
         figures.</p>\n",
    );
    for case in report.cases() {
        body.push_str(&format!(
            "<h2>{}</h2>\n<p>{}</p>\n",
            escape(&case[0].case),
            escape(&case[0].about)
        ));
        for picture in pictures(report, case)? {
            body.push_str(&self::picture(&picture.about, &picture.svg));
        }
    }
    for failure in &report.failures {
        body.push_str(&format!("<p>Not measured: {}</p>\n", escape(failure)));
    }
    body.push_str(&format!(
        "<h2>Figures</h2>\n<pre>{}</pre>",
        escape(&tables::render(report))
    ));
    Ok(body)
}

/// A drawing in a page, with what it shows above it.
pub fn picture(about: &str, svg: &str) -> String {
    let svg = svg.replacen(NAMESPACE, "", 1);
    format!("<p>{}</p>\n{svg}", escape(about))
}

/// Curves first, then the figures of each metric.
fn pictures(report: &Report, case: &[Measurement]) -> Result<Vec<Picture>> {
    let id = case[0].case.as_str();
    let over_time = [
        (
            "rss",
            "Resident size of the process",
            lines(report, id, |c| &c.rss_mib, |c| c.base_mib + c.live_mib),
        ),
        (
            "system",
            "What the system has less than before the fill",
            lines(report, id, |c| &c.system_mib, |c| c.live_mib),
        ),
        (
            "swap",
            "Swap in use",
            lines(report, id, |c| &c.swap_mib, |_| 0.0),
        ),
    ];
    let mut pictures = Vec::new();
    for (name, about, lines) in over_time.iter().filter(|(.., lines)| !lines.is_empty()) {
        pictures.push(Picture {
            name: format!("{id}-{name}"),
            about: (*about).into(),
            svg: curves("MiB", lines)?,
        });
    }
    let without = report.without();
    for m in case.iter().filter(|m| !m.results.is_empty()) {
        let bar = |row: &Row| Bar {
            name: row.allocator.clone(),
            label: tables::with_ratio(m, row, &without),
            value: (row.spread).map(|s| (s.median, s.quartile_low..s.quartile_high)),
        };
        let rows: Vec<Bar> = m.results.iter().map(bar).collect();
        pictures.push(Picture {
            name: format!("{id}-{}", m.metric),
            about: format!("{}; A/A noise {}", m.unit, tables::noise(m)),
            svg: bars(&rows)?,
        });
    }
    Ok(pictures)
}

/// One line per entry, from the round in the middle by the size at the end, and the reference.
fn lines(
    report: &Report,
    case: &str,
    of: fn(&Curve) -> &Vec<f64>,
    must_stay: fn(&Curve) -> f64,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut reference: Option<Line> = None;
    let drawn = |c: &&CurveRow| c.case == case && c.allocator != TWIN && !of(&c.curve).is_empty();
    let curves: Vec<&CurveRow> = report.curves.iter().filter(drawn).collect();
    let measured = report.measurements.iter().find(|m| m.case == case);
    for Row {
        allocator: name, ..
    } in measured.iter().flat_map(|m| &m.results)
    {
        let mut rounds = curves.clone();
        rounds.retain(|c| c.allocator == *name);
        let end = |c: &&CurveRow| of(&c.curve).last().copied().unwrap_or(0.0);
        rounds.sort_by(|a, b| end(a).total_cmp(&end(b)).then(a.round.cmp(&b.round)));
        let Some(middle) = rounds.get(rounds.len() / 2) else {
            continue;
        };
        let step_s = middle.curve.step_ms as f64 / 1e3;
        let values = of(&middle.curve);
        let points = values.iter().enumerate();
        lines.push(Line {
            name: name.clone(),
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
    use crate::figures::{self, Measured};
    use crate::harness::peers::Entry;
    use crate::harness::{Drawn, Metric, Results, Series};

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
                values: vec![Some(vec![1.0]), Some(vec![2.0])],
            }],
            curves: vec![
                drawn(0, 0, 30.0),
                drawn(0, 1, 10.0),
                drawn(0, 2, 20.0),
                drawn(1, 0, 5.0),
            ],
            ..Results::default()
        };
        let report = figures::new(&Measured::new("f", results), "ebbtide bench f", true);
        let rss = lines(&report, "c", |c| &c.rss_mib, |c| c.base_mib + c.live_mib);
        assert_eq!(rss.len(), 3);
        assert_eq!(rss[0].points, [(0.0, 100.0), (0.05, 20.0)]);
        assert_eq!(rss[2].points[0].1, 12.0);
        let page = page(&report).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("&lt;x&gt;") && !page.contains("http"));
        assert!(page.contains("a &amp; b"));
    }
}
