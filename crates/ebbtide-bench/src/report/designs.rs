//! What each of Ebbtide's designs is worth: the same measured with it and without it.

use super::{Part, State};
use crate::figures::failures::Failure;
use crate::figures::{Measurement, Row, labels, tables};

/// One figure that a design is for.
#[derive(Debug)]
pub struct Worth {
    family: &'static str,
    case: &'static str,
    metric: &'static str,
    label: &'static str,
    with: &'static str,
    without: &'static str,
}

/// One of the designs.
#[derive(Debug)]
pub struct Design {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    worth: &'static [Worth],
}

const OWN: &str = "ebbtide";

const fn worth(
    place: (&'static str, &'static str, &'static str),
    label: &'static str,
    with: &'static str,
    without: &'static str,
) -> Worth {
    let (family, case, metric) = place;
    Worth {
        family,
        case,
        metric,
        label,
        with,
        without,
    }
}

/// All five.
pub const DESIGNS: [Design; 5] = [
    Design {
        name: "Parallel free",
        about: "Workers collect freed ranges and return many of them to the system in one call, beside the program.",
        worth: &[
            worth(
                ("free", "block_4k", "back_rss_ms"),
                "time until a freed block has left the process, ms",
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("free", "block_now_4k", "both_ms"),
                "time to free a block and release it at once, ms",
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("return", "mix_random", "final_ratio"),
                "memory kept after freeing most of a mixed heap, relative to the least possible",
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("return", "small_random", "t90_ms"),
                "time until 90 % of freed small objects' memory is back, ms",
                OWN,
                "ebbtide, dev=gather:inline",
            ),
            worth(
                ("neighbour", "pause", "kills"),
                "processes killed when a second process needs the memory",
                OWN,
                "ebbtide, pressure=off,workers=0",
            ),
            worth(
                ("neighbour", "pause_swap", "swapped_mib"),
                "memory swapped out when a second process needs it, MiB",
                OWN,
                "ebbtide, pressure=off,workers=0",
            ),
        ],
    },
    Design {
        name: "Clustered refill",
        about: "A refill takes a cluster of frames in one step under the lock, without touching them.",
        worth: &[
            worth(
                ("cluster", "hold_64", "turn_ns"),
                "time under the lock for one refill, ns",
                "ebbtide, dev=lockstat:cpu",
                "ebbtide, dev=lockstat:cpu,dev=cluster:off",
            ),
            worth(
                ("cluster", "take_1_untouched", "cpu_ns"),
                "CPU time to take a page, one thread, ns",
                OWN,
                "ebbtide, dev=cluster:off",
            ),
            worth(
                ("cluster", "take_2_untouched", "wall_ns"),
                "time to take a page, two threads, ns",
                OWN,
                "ebbtide, dev=cluster:off",
            ),
            worth(
                ("cluster", "python", "cpu_s"),
                "CPU time of a Python program, s",
                OWN,
                "ebbtide, dev=cluster:off",
            ),
        ],
    },
    Design {
        name: "Asynchronous release at exit",
        about: "A process ends at once; a helper then releases its memory and its swap entries.",
        worth: &[
            worth(
                ("exit", "exit_4k", "seen_ms"),
                "time until the parent sees a large process exit, ms",
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("exit", "kill_4k", "seen_ms"),
                "time until the parent sees a killed process end, ms",
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("exit", "exit_4k", "back_ms"),
                "time until the memory of a process that exits is free, ms",
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("swap-exit", "calm", "start_ms"),
                "start of a program while swapped processes end, ms",
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("swap-exit", "calm", "frame_ms"),
                "frame time of a program while swapped processes end, ms",
                "ebbtide, exit=detached",
                OWN,
            ),
        ],
    },
    Design {
        name: "Partial depopulation",
        about: "Ebbtide returns the empty pages of spans and per-CPU chunks that are still in use.",
        worth: &[
            worth(
                ("return", "mix_random", "final_ratio"),
                "memory kept after freeing most of a mixed heap, relative to the least possible",
                OWN,
                "ebbtide, dev=depopulate:off",
            ),
            worth(
                ("return", "small_random", "final_ratio"),
                "memory kept after freeing most small objects, relative to the least possible",
                OWN,
                "ebbtide, dev=depopulate:off",
            ),
            worth(
                ("percpu", "groups_any", "after_mib"),
                "per-CPU memory kept after most groups are removed, MiB",
                OWN,
                "ebbtide, dev=percpu_depopulate:off",
            ),
            worth(
                ("percpu", "groups_children", "after_to_live"),
                "per-CPU memory kept, relative to pages in use",
                OWN,
                "ebbtide, dev=percpu_depopulate:off",
            ),
        ],
    },
    Design {
        name: "Lazy free",
        about: "Freed memory stays usable for the program until the kernel needs it.",
        worth: &[
            worth(
                ("lazyfree", "search_1x4", "us_per_search"),
                "time of a search, one thread, µs",
                "ebbtide, retain_ms=0,lazyfree=auto",
                "ebbtide, retain_ms=0,lazyfree=off",
            ),
            worth(
                ("lazyfree", "search_4x4", "us_per_search"),
                "time of a search, four threads, µs",
                "ebbtide, retain_ms=0,lazyfree=auto",
                "ebbtide, retain_ms=0,lazyfree=off",
            ),
            worth(
                ("reuse", "reuse_3s", "again_ms"),
                "time to use memory again after 3 s, ms",
                OWN,
                "ebbtide, lazyfree=off",
            ),
        ],
    },
];

/// What a figure says of a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The figure is better with the design.
    Helps,
    /// The difference is within the noise.
    Same,
    /// The figure is worse with the design.
    Costs,
    /// The noise is not known.
    Unclear,
}

impl Verdict {
    /// For a table.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Helps => "helps",
            Verdict::Same => "no difference beyond the noise",
            Verdict::Costs => "costs",
            Verdict::Unclear => "unclear: the noise is unknown",
        }
    }
}

/// A figure with the design and without it.
#[derive(Debug)]
pub struct Finding {
    with: String,
    without: String,
    factor: String,
    noise: String,
    best_peer: String,
    /// What it says.
    pub verdict: Verdict,
}

/// The columns of [`Finding::cells`].
pub const COLUMNS: [&str; 6] = [
    "Verdict",
    "With it",
    "Without it",
    "Without ÷ with",
    "Noise",
    "Best other allocator",
];

impl Finding {
    /// For a table.
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let Finding {
            with,
            without,
            factor,
            noise,
            best_peer,
            ..
        } = self;
        [self.verdict.text(), with, without, factor, noise, best_peer]
            .map(|cell: &str| cell.to_owned())
    }
}

impl Design {
    /// Its figures in the order of their importance, or why there is none.
    pub fn findings(
        &self,
        parts: &[Part],
    ) -> impl Iterator<Item = (&Worth, Result<Finding, String>)> {
        self.worth
            .iter()
            .map(move |worth| (worth, finding(worth, parts)))
    }

    /// The most important figure that was measured, or the most important one and why it was not.
    pub fn headline(&self, parts: &[Part]) -> (&Worth, Result<Finding, String>) {
        let measured = self.findings(parts).find(|(_, finding)| finding.is_ok());
        measured.unwrap_or_else(|| (&self.worth[0], finding(&self.worth[0], parts)))
    }
}

impl Worth {
    /// What is measured, with its unit.
    pub fn label(&self) -> &'static str {
        self.label
    }
}

fn finding(worth: &Worth, parts: &[Part]) -> Result<Finding, String> {
    let part = parts.iter().find(|part| part.family == worth.family);
    let part = part.ok_or_else(|| format!("the family {} was not run", worth.family))?;
    let report = match &part.state {
        State::ToCome => return Err(format!("the family {} has not run yet", worth.family)),
        State::Skipped(reason) => return Err(reason.clone()),
        State::Measured(report) => report,
    };
    let missing = |names: &[&str]| {
        let failures = report
            .failures
            .iter()
            .filter_map(|text| Failure::read(text));
        let failure = failures
            .filter(|f| f.case == worth.case)
            .find(|f| names.contains(&f.allocator));
        let reason = failure.map(|f| f.why).or(report.broken_off.as_deref());
        reason.unwrap_or("this case was not run").to_owned()
    };
    let is_wanted = |m: &&Measurement| m.case == worth.case && m.metric == worth.metric;
    let m = report.measurements.iter().find(is_wanted);
    let m = m.ok_or_else(|| missing(&[worth.with, worth.without]))?;
    let row = |name: &str| {
        let row = m.results.iter().find(|row| row.allocator == name);
        row.filter(|row| row.spread.is_some() || row.not_reached > 0)
            .ok_or_else(|| missing(&[name]))
    };
    let (with, without) = (row(worth.with)?, row(worth.without)?);
    let median = |row: &Row| row.spread.map(|s| s.median);
    let (factor, verdict) = match (median(with), median(without)) {
        (None, None) => (String::new(), Verdict::Same),
        (None, Some(_)) => (String::new(), Verdict::Costs),
        (Some(_), None) => (String::new(), Verdict::Helps),
        (Some(0.0), Some(0.0)) => (String::new(), Verdict::Same),
        (Some(0.0), Some(_)) => (String::new(), Verdict::Helps),
        (Some(with), Some(without)) => {
            (tables::ratio(m, without / with), judged(m, without / with))
        }
    };
    let in_place = report.without();
    Ok(Finding {
        with: tables::median(with, &in_place),
        without: tables::median(without, &in_place),
        factor,
        noise: tables::noise(m),
        best_peer: best_peer(m).map_or("none measured".into(), |row| {
            format!(
                "{}: {}",
                labels::allocator(&row.allocator),
                tables::median(row, &in_place)
            )
        }),
        verdict,
    })
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
        for worth in DESIGNS.iter().flat_map(|design| design.worth) {
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
        for design in &DESIGNS {
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
        ])
        .unwrap();
        let cells = ["helps", "10.0", "45.0", "4.50", "±10.0 %", "jemalloc: 20.0"];
        assert_eq!(helps.cells(), cells);
        let verdict = |without| found(&[(OWN, 10.0), (off, without)]).unwrap().verdict;
        assert_eq!(verdict(10.5), Verdict::Same);
        assert_eq!(verdict(5.0), Verdict::Costs);
        let none = found(&[(OWN, 0.0), (off, 5.0)]).unwrap();
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
        let reason = DESIGNS[3]
            .headline(std::slice::from_ref(&skipped))
            .1
            .unwrap_err();
        assert_eq!(reason, "the family return was not run");
        let mut report = report("return", "mix_random", "final_ratio", &[(OWN, 1.0)]);
        report.failures = vec![
            "mix_random in glibc, round 1: killed".into(),
            "mix_random in ebbtide, dev=depopulate:off, round 1: ends with status: 1".into(),
        ];
        let reason = DESIGNS[3]
            .headline(&[part("return", report)])
            .1
            .unwrap_err();
        assert_eq!(reason, "ends with status: 1");
        skipped.family = "return".into();
        skipped.state = State::Skipped("no room".into());
        let reason = DESIGNS[3].headline(&[skipped]).1.unwrap_err();
        assert_eq!(reason, "no room");
    }
}
