//! How Ebbtide stands beside each other allocator, over all figures.

use std::collections::BTreeMap;

use crate::figures::html::Table;
use crate::figures::{Report, labels, tables};
use crate::stats::Spread;

/// What one allocator's figures say.
#[derive(Debug, Default)]
struct Standing {
    name: String,
    ratios: Vec<f64>,
    better: usize,
    worse: usize,
}

/// A sentence and a table, the best allocator first; none if there is no other.
pub fn section(reports: &[&Report]) -> Option<(String, Table)> {
    let standings = standings(reports);
    let best = standings.first()?;
    let sentence = format!(
        "The best is {}: its median figure is {} times Ebbtide's. It is better in {} of {} figures, Ebbtide in {}.",
        labels::allocator(&best.name),
        tables::factor(best.median()),
        best.better,
        best.ratios.len(),
        best.worse
    );
    let header = [
        "Allocator",
        "Median ratio to Ebbtide",
        "Figures",
        "Ebbtide better",
        "Within noise",
        "Ebbtide worse",
    ];
    let table = Table {
        caption: "Other allocators (a ratio above 1: Ebbtide needs less; those with few figures come last)",
        header: header.map(String::from).into(),
        rows: standings.iter().map(Standing::cells).collect(),
        is_cards: true,
    };
    Some((sentence, table))
}

fn standings(reports: &[&Report]) -> Vec<Standing> {
    let mut standings: BTreeMap<&str, Standing> = BTreeMap::new();
    for m in reports.iter().flat_map(|report| &report.measurements) {
        let peers = m.results.iter();
        for row in peers.filter(|row| labels::is_peer(&row.allocator)) {
            let Some(ratio) = row.ratio_to_ebbtide else {
                continue;
            };
            let standing = standings.entry(&row.allocator).or_default();
            standing.name.clone_from(&row.allocator);
            standing.ratios.push(ratio);
            let differs = !tables::is_same(m, ratio);
            standing.better += usize::from(differs && ratio < 1.0);
            standing.worse += usize::from(differs && ratio > 1.0);
        }
    }
    let mut standings: Vec<Standing> = standings.into_values().collect();
    // An allocator that ran in a few cases only is not compared with those that ran in all.
    let most = standings.iter().map(|s| s.ratios.len()).max().unwrap_or(0);
    let is_rare = |s: &Standing| 2 * s.ratios.len() < most;
    standings.sort_by(|a, b| {
        let by_count = is_rare(a).cmp(&is_rare(b));
        by_count.then(a.median().total_cmp(&b.median()))
    });
    standings
}

impl Standing {
    fn median(&self) -> f64 {
        Spread::of(&self.ratios).map_or(f64::INFINITY, |s| s.median)
    }

    fn cells(&self) -> Vec<String> {
        let same = self.ratios.len() - self.better - self.worse;
        let counts = [self.ratios.len(), self.worse, same, self.better];
        [labels::allocator(&self.name), tables::factor(self.median())]
            .into_iter()
            .chain(counts.map(|count| count.to_string()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(case: &str, rows: &[(&str, f64)]) -> Report {
        let row = |(name, ratio): &(&str, f64)| {
            serde_json::json!({
                "allocator": name, "values": [ratio], "not_reached": 0, "ratio_to_ebbtide": ratio,
                "spread": Spread::of(&[*ratio]),
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        serde_json::from_value(serde_json::json!({
            "schema": 1, "family": "f", "rounds": 1, "quick": true, "machine": [], "curves": [],
            "notes": [], "failures": [],
            "measurements": [{
                "case": case, "about": "", "metric": "m", "unit": "MiB", "noise": 0.1, "results": rows,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn the_best_is_first_unless_it_ran_in_few_cases() {
        let reports = [
            report(
                "a",
                &[
                    ("ebbtide", 1.0),
                    ("munmap", 0.1),
                    ("x", 2.0),
                    ("y", 1.05),
                    ("z", 0.5),
                ],
            ),
            report("b", &[("ebbtide, workers=0", 0.2), ("x", 3.0), ("y", 0.7)]),
            report("c", &[("x", 3.0), ("y", 1.2)]),
        ];
        let reports: Vec<&Report> = reports.iter().collect();
        let cells: Vec<_> = standings(&reports).iter().map(Standing::cells).collect();
        assert_eq!(cells[0], ["y", "1.05", "3", "1", "1", "1"]);
        assert_eq!(cells[1], ["x", "3.00", "3", "3", "0", "0"]);
        assert_eq!(cells[2], ["z", "0.50", "1", "0", "0", "1"]);
        assert_eq!(cells.len(), 3);
        assert!(section(&reports).unwrap().0.starts_with("The best is y:"));
    }
}
