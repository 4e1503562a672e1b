//! What each of Ebbtide's designs is worth: the same measured with it and without it.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{Part, State};
use crate::figures::failures::Failure;
use crate::figures::{Measurement, Row, labels, tables};

/// One figure that a design is for.
#[derive(Debug, Deserialize)]
pub struct Worth {
    /// What is measured, with its unit.
    pub label: &'static str,
    family: &'static str,
    case: &'static str,
    metric: &'static str,
    /// The entry with the design, and the one without it.
    with: &'static str,
    without: &'static str,
}

/// One of the designs.
#[derive(Debug, Deserialize)]
pub struct Design {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// The most important figure first.
    worth: Vec<Worth>,
}

/// All five.
pub static DESIGNS: LazyLock<[Design; 5]> = LazyLock::new(|| {
    let designs = serde_json::from_str(include_str!("designs.json"));
    designs.expect("designs.json lists five designs")
});

/// What a figure says of a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The figure is better with the design.
    Helps,
    /// The figure is worse with the design.
    Costs,
    /// The difference is within the noise.
    Same,
    /// The noise is not known.
    Unclear,
    /// There is no figure.
    Unmeasured,
}

impl Verdict {
    /// In the order of a sentence on all designs.
    pub const ALL: [Verdict; 5] = [
        Verdict::Helps,
        Verdict::Costs,
        Verdict::Same,
        Verdict::Unclear,
        Verdict::Unmeasured,
    ];

    /// In a table, in a sentence on one design, and in one on several.
    pub fn words(self) -> [&'static str; 3] {
        match self {
            Verdict::Helps => ["helps", "helps", "help"],
            Verdict::Costs => [
                "costs",
                "costs more than it brings",
                "cost more than they bring",
            ],
            Verdict::Same => [
                "no difference beyond the noise",
                "makes no difference beyond the noise",
                "make no difference beyond the noise",
            ],
            Verdict::Unclear => ["unclear: the noise is unknown", "is unclear", "are unclear"],
            Verdict::Unmeasured => ["not measured", "was not measured", "were not measured"],
        }
    }
}

/// A figure with the design and without it.
#[derive(Debug)]
pub struct Finding {
    /// What it says.
    pub verdict: Verdict,
    /// One for each of [`COLUMNS`].
    pub cells: [String; COLUMNS.len()],
}

/// The columns of a table of findings.
pub const COLUMNS: [&str; 6] = [
    "Verdict",
    "With it",
    "Without it",
    "Without ÷ with",
    "Noise",
    "Best other allocator",
];

impl Design {
    /// Its figures in the order of their importance.
    pub fn findings(&self, parts: &[Part]) -> impl Iterator<Item = (&Worth, Finding)> {
        self.worth.iter().map(move |worth| {
            let finding = finding(worth, parts).unwrap_or_else(|reason| {
                let mut cells: [String; COLUMNS.len()] = Default::default();
                let verdict = Verdict::Unmeasured;
                cells[0] = format!("{}: {reason}", verdict.words()[0]);
                Finding { verdict, cells }
            });
            (worth, finding)
        })
    }

    /// The most important figure that was measured, or else the most important one.
    pub fn headline(&self, parts: &[Part]) -> (&Worth, Finding) {
        let mut findings: Vec<_> = self.findings(parts).collect();
        let is_measured = |(_, f): &(&Worth, Finding)| f.verdict != Verdict::Unmeasured;
        let at = findings.iter().position(is_measured);
        findings.swap_remove(at.unwrap_or(0))
    }
}

/// Why there is no figure, if there is none.
fn finding(worth: &Worth, parts: &[Part]) -> Result<Finding, String> {
    let part = parts.iter().find(|part| part.family == worth.family);
    let part = part.ok_or_else(|| format!("the family {} was not run", worth.family))?;
    let report = match &part.state {
        State::ToCome => return Err(format!("the family {} has not run yet", worth.family)),
        State::Skipped(reason) => return Err(reason.clone()),
        State::Measured(report) => report,
    };
    let missing = |names: &[&str]| {
        let failures = report.failures.iter();
        let failure = failures
            .filter_map(|text| Failure::read(text))
            .find(|f| f.case == worth.case && names.contains(&f.allocator));
        let reason = failure.map(|f| f.why).or(report.broken_off.as_deref());
        reason.unwrap_or("this case was not run").to_owned()
    };
    let is_wanted = |m: &&Measurement| m.case == worth.case && m.metric == worth.metric;
    let m = report.measurements.iter().find(is_wanted);
    let m = m.ok_or_else(|| missing(&[worth.with, worth.without]))?;
    let row = |name: &str| {
        let row = m.results.iter().find(|row| row.allocator == name);
        row.filter(|row| row.has_figure())
            .ok_or_else(|| missing(&[name]))
    };
    let (with, without) = (row(worth.with)?, row(worth.without)?);
    let median = |row: &Row| row.spread.map(|s| s.median);
    let mut factor = String::new();
    let verdict = match (median(with), median(without)) {
        (None, None) | (Some(0.0), Some(0.0)) => Verdict::Same,
        (None, Some(_)) => Verdict::Costs,
        (Some(_), None) | (Some(0.0), Some(_)) => Verdict::Helps,
        (Some(with), Some(without)) => {
            factor = tables::ratio(m, without / with);
            judged(m, without / with)
        }
    };
    let median = |row| tables::median(report, row);
    let best_peer = best_peer(m).map_or("none measured".into(), |row| {
        format!("{}: {}", labels::allocator(&row.allocator), median(row))
    });
    let cells = [
        verdict.words()[0].into(),
        median(with),
        median(without),
        factor,
        tables::noise(m),
        best_peer,
    ];
    Ok(Finding { verdict, cells })
}

fn judged(m: &Measurement, ratio: f64) -> Verdict {
    match m.noise {
        None => Verdict::Unclear,
        Some(_) if tables::is_same(m, ratio) => Verdict::Same,
        Some(_) if ratio > 1.0 => Verdict::Helps,
        Some(_) => Verdict::Costs,
    }
}

fn best_peer(m: &Measurement) -> Option<&Row> {
    let peers = m
        .results
        .iter()
        .filter(|row| labels::is_peer(&row.allocator));
    let measured = peers.filter_map(|row| Some((row, row.spread?.median)));
    measured
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(row, _)| row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::FAMILIES;
    use crate::figures::Report;
    use crate::harness::peers::OWN;
    use crate::stats::Spread;

    fn report(family: &str, case: &str, metric: &str, rows: &[(&str, f64)]) -> Report {
        let row = |(name, value): &(&str, f64)| {
            serde_json::json!({
                "allocator": name, "values": [value], "not_reached": 0, "ratio_to_ebbtide": null,
                "spread": Spread::of(&[*value]),
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        serde_json::from_value(serde_json::json!({
            "schema": 1, "family": family, "rounds": 1, "quick": true, "machine": [], "curves": [],
            "notes": [], "failures": [],
            "measurements": [{
                "case": case, "about": "", "metric": metric, "unit": "MiB", "noise": 0.1, "results": rows,
            }],
        }))
        .unwrap()
    }

    fn part(family: &str, report: Report) -> Part {
        Part {
            family: family.into(),
            words: Vec::new(),
            usual_s: None,
            least_s: None,
            rounds: 1,
            state: State::Measured(Box::new(report)),
        }
    }

    /// Of all files in the folder.
    fn texts(folder: &str) -> String {
        let entries = std::fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.is_dir() {
            true => texts(&path.to_string_lossy()),
            false => std::fs::read_to_string(path).unwrap(),
        };
        paths.map(text).collect()
    }

    /// A case, a metric or a variant that was renamed would be "not measured" for good.
    #[test]
    fn what_is_named_is_in_the_benchmarks() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let all = texts(&format!("{source}/families")) + &texts(&format!("{source}/harness"));
        for worth in DESIGNS.iter().flat_map(|design| &design.worth) {
            let confs = [worth.with, worth.without].map(|name| {
                let conf = name.strip_prefix("ebbtide, ");
                conf.unwrap_or(name)
            });
            let family = FAMILIES.iter().find(|family| family.name == worth.family);
            let lines = family.unwrap().text.lines();
            let named: Vec<&str> = lines
                .filter_map(|line| Some(line.split_once(": ")?.0))
                .flat_map(str::split_whitespace)
                .collect();
            for name in [worth.case, worth.metric] {
                assert!(named.contains(&name), "{name}");
            }
            for conf in confs {
                assert!(all.contains(&format!("\"{conf}\"")), "{conf}");
            }
        }
    }

    #[test]
    fn every_design_has_a_figure_in_the_families_that_run_first() {
        let mut families = FAMILIES.iter();
        let core: Vec<&str> = families
            .by_ref()
            .take_while(|f| f.is_core)
            .map(|f| f.name)
            .collect();
        assert!(families.all(|family| !family.is_core));
        for design in &*DESIGNS {
            let is_shown = design
                .worth
                .iter()
                .any(|worth| core.contains(&worth.family));
            assert!(is_shown, "{}", design.name);
        }
    }

    #[test]
    fn worth_is_what_it_takes_without() {
        let off = "ebbtide, dev=percpu_depopulate:off";
        let found = |rows: &[(&str, f64)]| {
            let parts = [part(
                "percpu",
                report("percpu", "groups_any", "after_mib", rows),
            )];
            DESIGNS[3].headline(&parts).1
        };
        let helps = found(&[
            (OWN, 10.0),
            (off, 45.0),
            ("glibc", 50.0),
            ("jemalloc", 20.0),
        ]);
        let cells = ["helps", "10.0", "45.0", "4.50", "±10.0 %", "jemalloc: 20.0"];
        assert_eq!(helps.cells, cells);
        let verdict = |without| found(&[(OWN, 10.0), (off, without)]).verdict;
        assert_eq!(verdict(10.5), Verdict::Same);
        assert_eq!(verdict(5.0), Verdict::Costs);
        let none = found(&[(OWN, 0.0), (off, 5.0)]);
        assert_eq!(
            none.verdict,
            Verdict::Helps,
            "none at all where there was some"
        );
    }

    #[test]
    fn a_reason_stands_where_there_is_no_figure() {
        let mut skipped = part(
            "percpu",
            report("percpu", "groups_any", "after_mib", &[(OWN, 1.0)]),
        );
        let reason = |part: &Part| {
            let (_, finding) = DESIGNS[3].headline(std::slice::from_ref(part));
            assert_eq!(finding.verdict, Verdict::Unmeasured);
            finding.cells.concat()
        };
        let told = reason(&skipped);
        assert_eq!(told, "not measured: the family return was not run");
        let mut report = report("return", "mix_random", "final_ratio", &[(OWN, 1.0)]);
        report.failures = vec![
            "mix_random in glibc, round 1: killed".into(),
            "mix_random in ebbtide, dev=depopulate:off, round 1: ends with status: 1".into(),
        ];
        let told = reason(&part("return", report));
        assert_eq!(told, "not measured: ends with status: 1");
        skipped.family = "return".into();
        skipped.state = State::Skipped("no room".into());
        assert_eq!(reason(&skipped), "not measured: no room");
    }
}
