//! How Ebbtide stands beside each other allocator, over all figures.

use crate::figures::plot::escape;
use crate::figures::{Report, html, labels, tables};
use crate::stats::Spread;

/// What one allocator's figures say.
#[derive(Debug, Default)]
struct Standing {
    name: String,
    ratios: Vec<f64>,
    better: usize,
    worse: usize,
}

/// A sentence and a table, the best allocator first.
pub fn section(reports: &[&Report]) -> String {
    let standings = standings(reports);
    let Some(best) = standings.first() else {
        return "<p>Not measured: no other allocator ran.</p>\n".into();
    };
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
    let rows: Vec<Vec<String>> = standings.iter().map(Standing::cells).collect();
    let table = html::table(
        "Other allocators (a ratio above 1: Ebbtide needs less)",
        &header.map(String::from),
        &rows,
        true,
    );
    format!("<p>{}</p>\n{table}", escape(&sentence))
}

fn standings(reports: &[&Report]) -> Vec<Standing> {
    let mut standings: Vec<Standing> = Vec::new();
    for m in reports.iter().flat_map(|report| &report.measurements) {
        for row in m
            .results
            .iter()
            .filter(|row| labels::is_peer(&row.allocator))
        {
            let Some(ratio) = row.ratio_to_ebbtide else {
                continue;
            };
            let at = standings.iter().position(|s| s.name == row.allocator);
            let at = at.unwrap_or_else(|| {
                let name = row.allocator.clone();
                standings.push(Standing {
                    name,
                    ..Standing::default()
                });
                standings.len() - 1
            });
            let standing = &mut standings[at];
            standing.ratios.push(ratio);
            let differs = !tables::is_same(m, ratio);
            standing.better += usize::from(differs && ratio < 1.0);
            standing.worse += usize::from(differs && ratio > 1.0);
        }
    }
    standings.sort_by(|a, b| a.median().total_cmp(&b.median()));
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
