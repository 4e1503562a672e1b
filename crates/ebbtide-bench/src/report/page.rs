//! The page: the verdict, the best peer, what ran, and then the details.

use askama::Template;

use super::designs::{COLUMNS, DESIGNS, Design, Finding, Verdict};
use super::{Part, State, peers};
use crate::families::FAMILIES;
use crate::figures::Report;
use crate::figures::html::{Section, Table};

const FIGURE: &str = "Figure (lower is better)";

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'static str,
    /// What each design is worth, in a sentence and in a table.
    sentence: String,
    verdict: Table,
    peers: Option<(String, Table)>,
    parts: &'a [Part],
    reports: Vec<&'a Report>,
    /// The facts of each machine.
    machines: Vec<Vec<(String, &'a str)>>,
}

/// What stands in it.
pub fn page(parts: &[Part]) -> String {
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    let headlines = DESIGNS.each_ref().map(|design| design.headline(parts));
    let designs = DESIGNS.iter().zip(&headlines);
    let rows = designs.map(|(design, (worth, finding))| {
        let mut cells = row(design.name, finding);
        cells.insert(2, worth.label.into());
        cells
    });
    let mut verdict = table("Each design against its own absence", "Design", rows);
    verdict.header.insert(2, FIGURE.into());
    let mut machines = Vec::new();
    for facts in reports.iter().map(|report| machine(report)) {
        if !machines.contains(&facts) {
            machines.push(facts);
        }
    }
    let page = Page {
        title: "Ebbtide: what it is worth here",
        sentence: sentence(&headlines.map(|(_, finding)| finding.verdict)),
        verdict,
        peers: peers::section(&reports),
        parts,
        reports,
        machines,
    };
    page.to_string()
}

impl Page<'_> {
    fn is_chosen(&self, family: &str) -> bool {
        self.parts.iter().any(|part| part.family == family)
    }

    fn details(&self, design: &Design) -> Table {
        let findings = design.findings(self.parts);
        let rows = findings.map(|(worth, finding)| row(worth.label, &finding));
        table("All figures", FIGURE, rows)
    }
}

/// The verdict on each design in words.
fn sentence(verdicts: &[Verdict]) -> String {
    let clauses = Verdict::ALL.iter().filter_map(|wanted| {
        let designs = DESIGNS.iter().zip(verdicts);
        let designs = designs.filter(|(_, verdict)| *verdict == wanted);
        let names: Vec<String> = designs
            .map(|(design, _)| design.name.to_lowercase())
            .collect();
        let [_, one, several] = wanted.words();
        let does = if names.len() == 1 { one } else { several };
        (!names.is_empty()).then(|| format!("{} {does}", and(&names)))
    });
    let clauses = clauses.collect::<Vec<_>>().join("; ");
    format!("On this machine: {clauses}.")
}

/// As in a sentence.
fn and(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// Findings; `first` is the header of their names.
fn table(caption: &'static str, first: &str, rows: impl Iterator<Item = Vec<String>>) -> Table {
    Table {
        caption,
        header: [first]
            .iter()
            .chain(&COLUMNS)
            .map(|name| (*name).into())
            .collect(),
        rows: rows.collect(),
        is_cards: true,
    }
}

fn row(name: &str, finding: &Finding) -> Vec<String> {
    let cells = finding.cells.iter().cloned();
    [name.into()].into_iter().chain(cells).collect()
}

/// Of the facts what stays the same from family to family; the rest stands with each.
fn machine(report: &Report) -> Vec<(String, &str)> {
    let lasting = report.machine.iter().map(|(name, value)| {
        let value = match name.as_str() {
            "memory" => value.split(", ").next().unwrap_or_default(),
            _ => value,
        };
        let name = name.replace('_', " ").replace("thp enabled", "huge pages");
        (name, value)
    });
    lasting.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_every_design() {
        use Verdict::{Costs, Helps, Same, Unclear, Unmeasured};
        assert_eq!(
            sentence(&[Helps, Costs, Unmeasured, Helps, Same]),
            "On this machine: parallel free and partial depopulation help; clustered refill costs more than it brings; \
             lazy free makes no difference beyond the noise; asynchronous release at exit was not measured."
        );
        let unclear = sentence(&[Unclear; 5]);
        assert!(
            unclear.contains("free, clustered refill,")
                && unclear.ends_with("lazy free are unclear.")
        );
    }

    #[test]
    fn the_verdict_comes_first() {
        let page = page(&[]);
        let at = |text: &str| {
            page.find(text)
                .unwrap_or_else(|| panic!("no {text}: {page}"))
        };
        assert!(at("id=\"verdict\"") < at("<table") && at("<table") < at("<h2>"));
        assert!(page.contains("lazy free were not measured."));
        assert!(page.contains("not measured: the family free was not run"));
    }
}
