//! What each of Ebbtide's designs is worth: the same measured with it and without it.

use anyhow::Result;

use crate::figures::plot::{self, Bar};
use crate::figures::{Measurement, Report, Row, tables};

/// One figure that a design is for.
#[derive(Debug)]
pub struct Worth {
    family: &'static str,
    case: &'static str,
    metric: &'static str,
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
    with: &'static str,
    without: &'static str,
) -> Worth {
    let (family, case, metric) = place;
    Worth {
        family,
        case,
        metric,
        with,
        without,
    }
}

/// All five.
pub const DESIGNS: [Design; 5] = [
    Design {
        name: "Free in parallel",
        about: "Freed ranges are gathered and given back by workers beside the program, many in one system call.",
        worth: &[
            worth(
                ("free", "block_4k", "back_rss_ms"),
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("free", "block_now_4k", "both_ms"),
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("return", "mix_random", "final_ratio"),
                OWN,
                "ebbtide, workers=0",
            ),
            worth(
                ("return", "small_random", "t90_ms"),
                OWN,
                "ebbtide, dev=gather:inline",
            ),
            worth(
                ("neighbour", "pause", "kills"),
                OWN,
                "ebbtide, pressure=off,workers=0",
            ),
            worth(
                ("neighbour", "pause_swap", "swapped_mib"),
                OWN,
                "ebbtide, pressure=off,workers=0",
            ),
        ],
    },
    Design {
        name: "Clusters taken whole",
        about: "A refill takes a cluster of frames in one step under the lock, without touching them.",
        worth: &[
            worth(
                ("cluster", "hold_64", "turn_ns"),
                "ebbtide, dev=lockstat:cpu",
                "ebbtide, dev=lockstat:cpu,dev=cluster:off",
            ),
            worth(
                ("cluster", "take_1_untouched", "cpu_ns"),
                OWN,
                "ebbtide, dev=cluster:off",
            ),
            worth(
                ("cluster", "take_2_untouched", "wall_ns"),
                OWN,
                "ebbtide, dev=cluster:off",
            ),
            worth(
                ("cluster", "python", "cpu_s"),
                OWN,
                "ebbtide, dev=cluster:off",
            ),
        ],
    },
    Design {
        name: "Exit beside the program",
        about: "A helper that shares the memory lets a process end at once, and gives memory and swap back after it.",
        worth: &[
            worth(
                ("exit", "exit_4k", "seen_ms"),
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("exit", "kill_4k", "seen_ms"),
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("exit", "exit_4k", "back_ms"),
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("swap-exit", "calm", "start_ms"),
                "ebbtide, exit=detached",
                OWN,
            ),
            worth(
                ("swap-exit", "calm", "frame_ms"),
                "ebbtide, exit=detached",
                OWN,
            ),
        ],
    },
    Design {
        name: "Depopulation",
        about: "Empty pages of what is still in use go back: of spans of objects, and of chunks of per-CPU data.",
        worth: &[
            worth(
                ("return", "mix_random", "final_ratio"),
                OWN,
                "ebbtide, dev=depopulate:off",
            ),
            worth(
                ("return", "small_random", "final_ratio"),
                OWN,
                "ebbtide, dev=depopulate:off",
            ),
            worth(
                ("percpu", "groups_any", "after_mib"),
                OWN,
                "ebbtide, dev=percpu_depopulate:off",
            ),
            worth(
                ("percpu", "groups_children", "after_to_live"),
                OWN,
                "ebbtide, dev=percpu_depopulate:off",
            ),
        ],
    },
    Design {
        name: "Lazy freeing",
        about: "What is freed and soon wanted again stays usable until the kernel needs it.",
        worth: &[
            worth(
                ("lazyfree", "search_1x4", "us_per_search"),
                "ebbtide, retain_ms=0,lazyfree=auto",
                "ebbtide, retain_ms=0,lazyfree=off",
            ),
            worth(
                ("lazyfree", "search_4x4", "us_per_search"),
                "ebbtide, retain_ms=0,lazyfree=auto",
                "ebbtide, retain_ms=0,lazyfree=off",
            ),
            worth(
                ("reuse", "reuse_3s", "again_ms"),
                OWN,
                "ebbtide, lazyfree=off",
            ),
        ],
    },
];

/// A design's rows as text: what was measured, with it, without it, and the second over the first.
pub fn table(design: &Design, reports: &[&Report]) -> String {
    let rows = design.worth.iter().map(|worth| row(worth, reports));
    let header = ["", "with it", "without", "÷", "A/A noise"];
    let mut text = tables::plain(&header, rows);
    for worth in design.worth {
        if let Some((m, _)) = found(worth, reports) {
            let (case, metric) = (&m.case, &m.metric);
            text.push_str(&format!(
                " {case} {metric}: {}; with: {}; without: {}\n",
                m.unit, worth.with, worth.without
            ));
        }
    }
    text
}

/// A picture of each row that was measured, with what is above it.
pub fn pictures(design: &Design, reports: &[&Report]) -> Result<Vec<(String, String)>> {
    let mut pictures = Vec::new();
    for worth in design.worth {
        let Some((m, report)) = found(worth, reports) else {
            continue;
        };
        let of = |name: &str| m.results.iter().find(|row| row.allocator == name);
        let bar = |(told, row): (&str, &Row)| Bar {
            name: format!("{told}: {}", row.allocator),
            label: tables::median(row, &report.without()),
            value: (row.spread).map(|s| (s.median, s.quartile_low..s.quartile_high)),
        };
        let rows = [("with", of(worth.with)), ("without", of(worth.without))];
        let rows = rows
            .into_iter()
            .filter_map(|(told, row)| Some((told, row?)));
        let bars: Vec<Bar> = rows.map(bar).collect();
        if !bars.is_empty() {
            let about = format!("{}, {}: {}", m.case, m.about, m.unit);
            pictures.push((about, plot::bars(&bars)?));
        }
    }
    Ok(pictures)
}

fn found<'a>(worth: &Worth, reports: &[&'a Report]) -> Option<(&'a Measurement, &'a Report)> {
    let reports = reports.iter().filter(|r| r.family == worth.family);
    reports
        .flat_map(|report| report.measurements.iter().map(move |m| (m, *report)))
        .find(|(m, _)| m.case == worth.case && m.metric == worth.metric)
}

fn row(worth: &Worth, reports: &[&Report]) -> Vec<String> {
    let name = format!("{}: {} {}", worth.family, worth.case, worth.metric);
    let Some((m, report)) = found(worth, reports) else {
        return vec![name, "not measured".into()];
    };
    let of = |name: &str| m.results.iter().find(|row| row.allocator == name);
    let shown = |row: Option<&Row>| {
        row.map_or("not measured".into(), |row| {
            tables::median(row, &report.without())
        })
    };
    let (with, without) = (of(worth.with), of(worth.without));
    let median = |row: Option<&Row>| row?.spread.map(|s| s.median);
    let ratio = match (median(with), median(without)) {
        (Some(with), Some(without)) if with > 0.0 => tables::ratio(m, without / with),
        _ => String::new(),
    };
    vec![name, shown(with), shown(without), ratio, tables::noise(m)]
}

#[cfg(test)]
mod tests {
    use super::*;
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
            for name in [worth.family, worth.case, worth.metric]
                .into_iter()
                .chain(confs)
            {
                assert!(all.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }

    #[test]
    fn worth_is_what_it_takes_without() {
        let rows = [(OWN, 10.0), ("ebbtide, dev=percpu_depopulate:off", 45.0)];
        let one = report("percpu", "groups_any", "after_mib", &rows);
        let text = table(&DESIGNS[3], &[&one]);
        let line = |name: &str| {
            text.lines()
                .find(|line| line.contains(name))
                .unwrap()
                .to_owned()
        };
        let measured = line("percpu: groups_any");
        assert!(
            measured.contains("10.0") && measured.contains("4.50"),
            "{text}"
        );
        assert!(measured.contains("±10.0 %"), "{text}");
        assert!(
            line("return: mix_random").contains("not measured"),
            "{text}"
        );
        let rows = [(OWN, 10.0), ("ebbtide, dev=percpu_depopulate:off", 10.5)];
        let same = report("percpu", "groups_any", "after_mib", &rows);
        assert!(table(&DESIGNS[3], &[&same]).contains("≈ 1.05"));
    }
}
