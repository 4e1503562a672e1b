//! The page: what each design is worth, the machine, and all families.

use anyhow::Result;

use super::designs::{self, DESIGNS};
use super::{Part, State, told};
use crate::figures::plot::escape;
use crate::figures::{Report, html};

/// What stands in it.
pub fn page(parts: &[Part]) -> Result<String> {
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    let mut body = String::from(
        "<h1>What Ebbtide is worth here</h1>\n\
         <p>Each family of benchmarks runs fresh processes, allocators in turn; a figure is the median of its rounds. \
         Less is better. Ebbtide is measured twice: what the two differ by is the noise, and ≈ is within it. \
         What a design is worth is told by the same measured without it; ÷ is without over with, so above 1 the design \
         helps, and below 1 it costs.</p>\n<h2>Families</h2>\n<ul>\n",
    );
    for part in parts {
        let (name, command) = (escape(&part.family), escape(&part.command()));
        let state = match &part.state {
            State::ToCome => "not yet".into(),
            State::Skipped(reason) => format!("skipped: {}", escape(reason)),
            State::Measured(report) => format!("<a href=\"#{name}\">{}</a>", told(report)),
        };
        body.push_str(&format!(
            "<li>{name}: {state}<br><code>{command}</code></li>\n"
        ));
    }
    body.push_str("</ul>\n<h2>The five designs, with and without</h2>\n");
    for design in &DESIGNS {
        body.push_str(&format!(
            "<h3>{}</h3>\n<p>{}</p>\n<pre>{}</pre>\n",
            escape(design.name),
            escape(design.about),
            escape(&designs::table(design, &reports))
        ));
        for (about, svg) in designs::pictures(design, &reports)? {
            body.push_str(&html::picture(&about, &svg));
        }
    }
    let mut machines: Vec<String> = Vec::new();
    for machine in reports.iter().map(|report| machine(report)) {
        if !machines.contains(&machine) {
            body.push_str(&format!(
                "<h2>The machine</h2>\n<pre>{}</pre>\n",
                escape(&machine)
            ));
            machines.push(machine);
        }
    }
    for report in reports {
        let family = escape(&report.family);
        body.push_str(&format!("<h1 id=\"{family}\">{family}</h1>\n"));
        body.push_str(&html::section(report)?);
    }
    Ok(html::document("Ebbtide: what it is worth here", &body))
}

/// Of the facts what stays the same from family to family; the rest stands with each.
fn machine(report: &Report) -> String {
    let lasting = |(name, value): &(String, String)| {
        let value = match name.as_str() {
            "memory" => value.split(", ").next().unwrap_or_default(),
            _ => value,
        };
        format!("{name}: {value}\n")
    };
    report.machine.iter().map(lasting).collect()
}
