//! A page of its own with the pictures of a run and its tables; nothing is loaded
//! from elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use askama::Template;
use askama::filters::HtmlSafe;
use ebbtide_tools::out;

use crate::figures::plot::{self, Bar, Line, Panel};
use crate::figures::{Measurement, Report, Row, failures, labels, place, tables};
use crate::harness::Drawn;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{AGAIN, OWN};
use crate::measured::Curve;

/// One picture.
struct Picture {
    /// Of the file, if it gets one.
    name: String,
    /// The caption, which says what is drawn.
    about: String,
    /// The drawing, or why there is none.
    drawn: Result<String, String>,
}

/// Whether what is wanted can be written: better known before an hour of measuring.
pub fn check(args: &BenchArgs) -> Result<()> {
    if let Some(file) = &args.html {
        place::check(file, "--html")?;
    }
    if let Some(dir) = &args.plots {
        check_plots(dir)?;
    }
    Ok(())
}

/// Makes the directory for pictures; whether they can be written there.
pub fn check_plots(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    tempfile::tempfile_in(dir).with_context(|| format!("cannot write into {}", dir.display()))?;
    Ok(())
}

/// Writes each picture into a file, `FAMILY-CASE-WHAT.svg`.
pub fn write_plots(dir: &Path, report: &Report) -> Result<()> {
    if let Some(svg) = overview(report) {
        let file = dir.join(format!("{}.svg", report.family));
        fs::write(&file, plot::file(&svg))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    for case in report.cases() {
        for picture in pictures(report, case) {
            let file = dir.join(format!("{}-{}.svg", report.family, picture.name));
            match picture.drawn {
                Ok(svg) => fs::write(&file, plot::file(&svg))
                    .with_context(|| format!("cannot write {}", file.display()))?,
                Err(reason) => out::warning(&format!("{} is not drawn: {reason}", file.display())),
            }
        }
    }
    Ok(())
}

#[derive(Template)]
#[template(path = "family.html")]
struct Page<'a> {
    title: String,
    section: Section<'a>,
}

/// The page of a run.
pub fn page(report: &Report) -> String {
    let page = Page {
        title: format!("ebbtide bench {}", report.family),
        section: Section { report },
    };
    page.to_string()
}

/// What a page says of a family: what is missing, pictures and figures of each case.
#[derive(Template)]
#[template(path = "section.html")]
pub struct Section<'a> {
    /// Its results.
    pub report: &'a Report,
}

impl HtmlSafe for Section<'_> {}

impl Section<'_> {
    fn missing(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.report.broken_off.iter().cloned().collect();
        reasons.extend(failures::summary(&self.report.failures));
        reasons
    }

    fn overview(&self) -> Option<Table> {
        let overview = tables::overview(self.report)?;
        let names = overview.names.iter().map(|name| labels::allocator(name));
        let header = ["", ""].map(String::from).into_iter().chain(names);
        Some(Table {
            caption: "All cases: figures of the first allocator, and multiples of them, lower is better",
            header: header.collect(),
            rows: overview.rows,
            is_cards: false,
        })
    }

    /// All figures of a case: a row for each allocator, a column for each metric.
    fn figures(&self, case: &[Measurement]) -> Table {
        let mut names: Vec<&str> = Vec::new();
        for row in case.iter().flat_map(|m| &m.results) {
            if !names.contains(&row.allocator.as_str()) {
                names.push(&row.allocator);
            }
        }
        let row = |name: &&str| {
            let cells = case.iter().map(|m| {
                let row = m.results.iter().find(|row| row.allocator == *name);
                row.map_or(String::new(), |row| cell(self.report, m, row))
            });
            [labels::allocator(name)].into_iter().chain(cells).collect()
        };
        let mut rows: Vec<Vec<String>> = names.iter().map(row).collect();
        let noises = case.iter().map(tables::noise);
        rows.push(["Noise".into()].into_iter().chain(noises).collect());
        let units = case.iter().map(|m| m.unit.clone());
        Table {
            caption: "Figures: median (ratio to Ebbtide), lower is better",
            header: ["Allocator".into()].into_iter().chain(units).collect(),
            rows,
            is_cards: false,
        }
    }
}

/// A table with a caption.
#[derive(Template)]
#[template(path = "table.html")]
pub struct Table {
    /// The caption.
    pub caption: &'static str,
    /// The names of the columns.
    pub header: Vec<String>,
    /// The cells of each row; the first names it.
    pub rows: Vec<Vec<String>>,
    /// On a narrow screen, each row becomes a card, or else the table scrolls.
    pub is_cards: bool,
}

impl HtmlSafe for Table {}

/// A figure, with its ratio to Ebbtide's unless it is Ebbtide's.
fn cell(report: &Report, m: &Measurement, row: &Row) -> String {
    match row.allocator == OWN {
        true => tables::median(report, row),
        false => tables::with_ratio(report, m, row),
    }
}

/// Curves first, then the figures of each metric.
fn pictures(report: &Report, case: &[Measurement]) -> Vec<Picture> {
    let id = case[0].case.as_str();
    let over_time = [
        (
            "rss",
            "Resident memory of the process",
            lines(report, id, |c| &c.rss_mib, must_stay),
        ),
        (
            "system",
            "Memory that the system lacks compared with before",
            lines(report, id, |c| &c.system_mib, |c| Some(c.live_mib)),
        ),
        (
            "swap",
            "Swap in use",
            lines(report, id, |c| &c.swap_mib, |_| Some(0.0)),
        ),
    ];
    let over_time = over_time.iter().filter(|(.., lines)| !lines.is_empty());
    let over_time = over_time.map(|(name, about, lines)| {
        let caption = format!("{about} over time, MiB (lower is better)");
        let title = format!("{about}: {}", case[0].about);
        let is_empty = lines.iter().flat_map(|l| &l.points).all(|p| p.1 == 0.0);
        Picture {
            name: format!("{id}-{name}"),
            drawn: match is_empty {
                true => Err("all values are 0".into()),
                false => Ok(plot::curves(&title, &caption, "MiB", lines)),
            },
            about: caption,
        }
    });
    let measured = case.iter().filter(|m| !m.results.is_empty());
    let figures = measured.map(|m| {
        let bar = |row: &Row| Bar {
            name: labels::allocator(&row.allocator),
            label: cell(report, m, row),
            value: (row.spread).map(|s| (s.median, s.quartile_low..s.quartile_high)),
        };
        let rows = m.results.iter().filter(|row| row.has_figure());
        let rows: Vec<Bar> = rows.map(bar).collect();
        let title = format!("{}: {}", m.unit, m.about);
        let noise = tables::noise(m);
        let caption = format!("{} (lower is better); noise {noise}", m.unit);
        Picture {
            name: format!("{id}-{}", m.metric),
            drawn: match not_drawn(m) {
                Some(reason) => Err(reason),
                None => Ok(plot::bars(&title, &caption, &rows)),
            },
            about: caption,
        }
    });
    over_time.chain(figures).collect()
}

/// Why a picture of these figures would show nothing, or what is not so.
fn not_drawn(m: &Measurement) -> Option<String> {
    let own = m.results.iter().find(|row| row.allocator == OWN);
    if !own.is_some_and(Row::has_figure) {
        return Some("samples of Ebbtide are missing".into());
    }
    let others = m
        .results
        .iter()
        .filter(|row| row.allocator != OWN && !row.allocator.ends_with(AGAIN));
    let (measured, missing): (Vec<&Row>, Vec<&Row>) = others.partition(|row| row.has_figure());
    if missing.len() > measured.len() {
        let (missing, all) = (missing.len(), missing.len() + measured.len());
        return Some(format!("samples of {missing} of {all} others are missing"));
    }
    let is_zero = |row: &Row| row.spread.is_some_and(|s| s.median == 0.0);
    if m.results.iter().all(is_zero) {
        return Some("all values are 0".into());
    }
    let is_same = |row: &&Row| {
        row.ratio_to_ebbtide
            .is_some_and(|ratio| tables::is_same(m, ratio))
    };
    let shows_nothing = !measured.is_empty() && measured.iter().all(is_same);
    shows_nothing.then(|| "every difference is within the noise".into())
}

/// Resident memory that a process cannot return, where that is known.
fn must_stay(curve: &Curve) -> Option<f64> {
    Some(curve.base_mib + curve.live_mib).filter(|mib| *mib > 0.0)
}

/// Memory over time in all cases, if the report has an overview.
fn overview(report: &Report) -> Option<String> {
    report.base.as_ref()?;
    let panels = report.cases().map(|case| {
        let mut lines = lines(report, &case[0].case, |c| &c.rss_mib, |_| None);
        for point in lines.iter_mut().flat_map(|line| &mut line.points) {
            point.0 /= 60.0;
        }
        Panel {
            name: case[0].case.clone(),
            lines,
        }
    });
    let panels: Vec<Panel> = panels.filter(|panel| !panel.lines.is_empty()).collect();
    let title = format!("ebbtide bench {}: memory over time", report.family);
    let caption = "Memory over time: MiB over minutes (lower is better)";
    (!panels.is_empty()).then(|| plot::panels(&title, caption, &panels))
}

/// One line per entry, from the round in the middle by the size at the end, and the reference.
fn lines(
    report: &Report,
    case: &str,
    of: fn(&Curve) -> &Vec<f64>,
    must_stay: fn(&Curve) -> Option<f64>,
) -> Vec<Line> {
    let is_drawn =
        |c: &&Drawn| c.case == case && !c.allocator.ends_with(AGAIN) && !of(&c.curve).is_empty();
    let drawn: Vec<&Drawn> = report.curves.iter().filter(is_drawn).collect();
    let points = |curve: &Curve| -> Vec<(f64, f64)> {
        let step_s = curve.step_ms as f64 / 1e3;
        let values = of(curve).iter().enumerate();
        values
            .map(|(i, value)| (i as f64 * step_s, *value))
            .collect()
    };
    let ends = drawn
        .iter()
        .filter_map(|c| Some(points(&c.curve).last()?.0));
    let window_s = ends.fold(0.0, f64::max);
    let measured = report.measurements.iter().find(|m| m.case == case);
    let names = measured
        .iter()
        .flat_map(|m| &m.results)
        .map(|row| &row.allocator);
    let middles = names.filter_map(|name| {
        let rounds = drawn.iter().filter(|c| c.allocator == *name);
        let mut rounds: Vec<&&Drawn> = rounds.collect();
        let end = |c: &Drawn| of(&c.curve).last().copied().unwrap_or(0.0);
        rounds.sort_by(|a, b| end(a).total_cmp(&end(b)).then(a.round.cmp(&b.round)));
        rounds.get(rounds.len() / 2).map(|c| (name, &c.curve))
    });
    let middles: Vec<(&String, &Curve)> = middles.collect();
    let line = |(name, curve): &(&String, &Curve)| Line {
        name: labels::allocator(name),
        points: points(curve),
        is_reference: false,
    };
    // The pages with a live byte are nearly the same in all; Ebbtide's stand for them.
    let reference = middles.first().and_then(|(_, curve)| must_stay(curve));
    let reference = reference.map(|mib| Line {
        name: "must stay".into(),
        points: [0.0, window_s].map(|at| (at, mib)).into(),
        is_reference: true,
    });
    middles.iter().map(line).chain(reference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Spread;

    #[test]
    fn pictures_that_show_nothing_are_not_drawn() {
        let drawn = |noise: f64, rows: &[(&str, Option<f64>)]| {
            let own = rows[0].1;
            let row = |(name, value): &(&str, Option<f64>)| Row {
                allocator: (*name).into(),
                spread: value.and_then(|v| Spread::of(&[v])),
                not_reached: 0,
                ratio_to_ebbtide: value.zip(own).map(|(v, own)| v / own),
                values: value.iter().copied().collect(),
            };
            not_drawn(&Measurement {
                case: "c".into(),
                about: "a".into(),
                metric: "m".into(),
                unit: "u".into(),
                noise: Some(noise),
                results: rows.iter().map(row).collect(),
            })
        };
        let (a, b) = ((OWN, Some(10.0)), ("a", Some(12.0)));
        assert_eq!(drawn(0.1, &[a, b]), None);
        assert_eq!(drawn(0.1, &[a, b, ("c", None)]), None);
        assert_eq!(drawn(0.1, &[a]), None);
        let why = |noise, rows: &[_]| drawn(noise, rows).unwrap();
        assert!(why(0.3, &[a, b]).contains("within the noise"));
        assert!(why(0.1, &[a, b, ("c", None), ("d", None)]).contains("2 of 3 others"));
        assert!(why(0.1, &[(OWN, None), b]).contains("Ebbtide are missing"));
        assert!(why(0.1, &[(OWN, Some(0.0)), ("a", Some(0.0))]).contains("all values are 0"));
    }
    use crate::figures::{self, Measured};
    use crate::harness::peers::Entry;
    use crate::harness::{Metric, Results, Series};

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
        let drawn = |allocator: &str, round, end| Drawn {
            case: "c".into(),
            allocator: allocator.into(),
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
                drawn("ebbtide", 0, 30.0),
                drawn("ebbtide", 1, 10.0),
                drawn("ebbtide", 2, 20.0),
                drawn("<x>", 0, 5.0),
            ],
            ..Results::default()
        };
        let report = figures::new(Measured::new("f", results), "ebbtide bench f", true);
        let rss = lines(&report, "c", |c| &c.rss_mib, must_stay);
        assert_eq!(rss.len(), 3);
        assert_eq!(rss[0].points, [(0.0, 100.0), (0.05, 20.0)]);
        assert_eq!(rss[2].points[0].1, 12.0);
        let page = page(&report);
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("&#60;x&#62;") && !page.contains("http"));
        assert!(page.contains("a &#38; b"));
    }
}
