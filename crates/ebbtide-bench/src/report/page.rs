//! The page: the verdict, the best peer, what ran, and then the details.

use super::designs::{COLUMNS, DESIGNS, Finding, Verdict};
use super::{Part, State, peers, told};
use crate::families::FAMILIES;
use crate::figures::plot::escape;
use crate::figures::{Report, html};

/// What stands in it.
pub fn page(parts: &[Part]) -> String {
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    let mut body = String::from("<h1>What Ebbtide is worth here</h1>\n");
    body.push_str(&verdict(parts));
    body.push_str("<h2>Best other allocator</h2>\n");
    body.push_str(&peers::section(&reports));
    body.push_str("<h2>What ran, and what was left out</h2>\n");
    body.push_str(&families(parts));
    body.push_str("<h2>The five designs in detail</h2>\n");
    for design in &*DESIGNS {
        let rows: Vec<Vec<String>> = design
            .findings(parts)
            .map(|(worth, finding)| row(worth.label, &finding))
            .collect();
        body.push_str(&format!(
            "<h3>{}</h3>\n<p>{}</p>\n",
            escape(design.name),
            escape(design.about)
        ));
        let header = header(&["Figure (lower is better)"]);
        body.push_str(&html::table("All figures", &header, &rows, true));
    }
    let mut machines: Vec<String> = Vec::new();
    for machine in reports.iter().map(|report| machine(report)) {
        if !machines.contains(&machine) {
            body.push_str(&format!("<h2>The machine</h2>\n<ul>{machine}</ul>\n"));
            machines.push(machine);
        }
    }
    body.push_str("<h2>All benchmarks</h2>\n");
    body.push_str(html::LEGEND);
    for report in reports {
        let family = escape(&report.family);
        body.push_str(&format!("<h2 id=\"{family}\">The family {family}</h2>\n"));
        body.push_str(&html::section(report));
    }
    html::document("Ebbtide: what it is worth here", &body)
}

/// What became of each family.
fn families(parts: &[Part]) -> String {
    let mut list = String::from("<ul>\n");
    for part in parts {
        let (name, command) = (escape(&part.family), escape(&part.command()));
        let state = match &part.state {
            State::ToCome => "not yet".into(),
            State::Skipped(reason) => format!("left out: {}", escape(reason)),
            State::Measured(report) => format!("<a href=\"#{name}\">{}</a>", told(report)),
        };
        list.push_str(&format!(
            "<li>{name}: {state}<br><code>{command}</code></li>\n"
        ));
    }
    for family in &FAMILIES {
        if parts.iter().all(|part| part.family != family.name) {
            list.push_str(&format!("<li>{}: left out: not chosen</li>\n", family.name));
        }
    }
    list + "</ul>\n"
}

/// One sentence and one table: what each design is worth.
fn verdict(parts: &[Part]) -> String {
    let headlines = DESIGNS.each_ref().map(|design| design.headline(parts));
    let rows: Vec<Vec<String>> = DESIGNS
        .iter()
        .zip(&headlines)
        .map(|(design, (worth, finding))| {
            let mut cells = row(design.name, finding);
            cells.insert(2, worth.label.into());
            cells
        })
        .collect();
    let mut header = header(&["Design"]);
    header.insert(2, "Figure (lower is better)".into());
    let verdicts = headlines.map(|(_, finding)| finding.verdict);
    format!(
        "<p class=\"verdict\" id=\"verdict\">{}</p>\n{}<p class=\"dropped\">Each figure is a median. Noise is the difference \
         between two runs of the same Ebbtide; ≈ marks a difference within it.</p>\n",
        escape(&sentence(&verdicts)),
        html::table("Each design against its own absence", &header, &rows, true)
    )
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

fn header(first: &[&str]) -> Vec<String> {
    first
        .iter()
        .chain(&COLUMNS)
        .map(|name| (*name).into())
        .collect()
}

fn row(name: &str, finding: &Finding) -> Vec<String> {
    let cells = finding.cells.iter().cloned();
    [name.into()].into_iter().chain(cells).collect()
}

/// Of the facts what stays the same from family to family; the rest stands with each.
fn machine(report: &Report) -> String {
    let lasting = |(name, value): &(String, String)| {
        let value = match name.as_str() {
            "memory" => value.split(", ").next().unwrap_or_default(),
            _ => value,
        };
        let name = name.replace('_', " ").replace("thp enabled", "huge pages");
        format!("<li>{}: {}</li>\n", escape(&name), escape(value))
    };
    report.machine.iter().map(lasting).collect()
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
