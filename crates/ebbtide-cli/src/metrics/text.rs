//! OpenMetrics text: a family for each figure, a sample for each process.

use std::fmt::Write;

use ebbtide_interface::figures::{FIGURES, Figure, Kind};
use ebbtide_interface::page::FIRST;
use ebbtide_interface::{FEATURES, Figures, word};

/// Facts that can change while a process runs.
const CHANGING: [&str; 5] = [
    "pressure_state",
    "pressure_sources",
    "limit_left_bytes",
    "limit_bytes",
    "rseq_mode",
];

/// A process and its figures.
pub struct Process {
    /// Its labels.
    pub labels: String,
    /// As the kernel counts it.
    pub resident_bytes: Option<u64>,
    /// From its statistics page.
    pub figures: Figures,
}

/// How a counter's family is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Without the suffix of its samples.
    OpenMetrics,
    /// As its samples: Prometheus' older text, which node_exporter reads.
    Classic,
}

/// The whole text.
pub fn of(processes: &[Process], form: Form) -> String {
    let mut text = String::new();
    for (at, figure) in FIGURES.iter().enumerate() {
        let values = || processes.iter().map(|one| one.figures.values()[at]);
        let is_lock = (word!(lock_acquisitions)..word!(pid)).contains(&(FIRST + at));
        // Locks are counted only where `lockstat` is on.
        if is_told(figure) && (!is_lock || values().any(|value| value > 0)) {
            let samples = processes.iter().zip(values());
            family(
                &mut text,
                form,
                figure,
                samples.map(|(one, value)| (&*one.labels, value)),
            );
        }
    }
    let helpers = Figure {
        name: "exit_helper",
        kind: Kind::Now,
        meaning: "1: the end of the process is detached (exit=detached), because it has a helper",
    };
    let has_helper = |one| (labels(one), u64::from(one.figures.helper != 0));
    family(&mut text, form, &helpers, processes.iter().map(has_helper));
    refused(&mut text, processes);
    let resident = Figure {
        name: "resident_bytes",
        kind: Kind::Now,
        meaning: "resident, as the kernel counts it",
    };
    let known = processes
        .iter()
        .filter_map(|one| Some((&*one.labels, one.resident_bytes?)));
    family(&mut text, form, &resident, known);
    text.push_str("# EOF\n");
    text
}

fn labels(process: &Process) -> &str {
    &process.labels
}

/// Optional kernel features that were refused: what needs them falls back, such as exits to inline ones.
fn refused(text: &mut String, processes: &[Process]) {
    let name = "ebbtide_refused_feature";
    text.push_str(&format!(
        "# TYPE {name} gauge\n# HELP {name} an optional kernel feature that was tried and refused\n"
    ));
    for one in processes {
        for (bit, feature) in FEATURES.iter().enumerate() {
            if one.figures.refused >> bit & 1 == 1 {
                text.push_str(&format!(
                    "{name}{{{},feature=\"{feature}\"}} 1\n",
                    one.labels
                ));
            }
        }
    }
}

/// Whether a figure is one for other programs. The kernel's own are read beside the page.
fn is_told(figure: &Figure) -> bool {
    let is_changing = figure.kind != Kind::Fact || CHANGING.contains(&figure.name);
    is_changing && !figure.name.starts_with("rss")
}

fn family<'a>(
    text: &mut String,
    form: Form,
    figure: &Figure,
    samples: impl Iterator<Item = (&'a str, u64)>,
) {
    let (base, unit, scale) = match figure.name.rsplit_once('_') {
        Some((base, "ns")) => (base, "seconds", 1e-9),
        Some((base, "bytes")) => (base, "bytes", 1.0),
        _ => (figure.name, "", 1.0),
    };
    let name = match unit {
        "" => format!("ebbtide_{base}"),
        unit => format!("ebbtide_{base}_{unit}"),
    };
    let (kind, suffix) = match figure.kind {
        Kind::Total => ("counter", "_total"),
        _ => ("gauge", ""),
    };
    let mut line = |line: std::fmt::Arguments| {
        let _ = text.write_fmt(line);
    };
    let classic = format!("{name}{suffix}");
    let named = if form == Form::Classic {
        &classic
    } else {
        &name
    };
    line(format_args!("# TYPE {named} {kind}\n"));
    if !unit.is_empty() {
        line(format_args!("# UNIT {named} {unit}\n"));
    }
    line(format_args!("# HELP {named} {}\n", figure.meaning));
    for (labels, value) in samples {
        match unit {
            "seconds" => line(format_args!(
                "{name}{suffix}{{{labels}}} {}\n",
                value as f64 * scale
            )),
            _ => line(format_args!("{name}{suffix}{{{labels}}} {value}\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(labels: &str, figures: Figures) -> Process {
        Process {
            labels: labels.into(),
            resident_bytes: Some(7),
            figures,
        }
    }

    #[test]
    fn families_have_units_and_samples() {
        let figures = Figures {
            live_bytes: 5,
            released_bytes: u64::MAX,
            worker_ns: 1_500_000_000,
            limit_bytes: 3,
            pid: 9,
            ..Figures::default()
        };
        let processes = [
            process("pid=\"1\"", figures),
            process("pid=\"2\"", Figures::default()),
        ];
        let text = of(&processes, Form::OpenMetrics);
        for line in [
            "# TYPE ebbtide_live_bytes gauge\n# UNIT ebbtide_live_bytes bytes\n# HELP ebbtide_live_bytes ",
            "\nebbtide_live_bytes{pid=\"1\"} 5\nebbtide_live_bytes{pid=\"2\"} 0\n#",
            "# TYPE ebbtide_released_bytes counter\n",
            "\nebbtide_released_bytes_total{pid=\"1\"} 18446744073709551615\n",
            "\nebbtide_worker_seconds_total{pid=\"1\"} 1.5\n",
            "\nebbtide_limit_bytes{pid=\"1\"} 3\n",
            "\nebbtide_resident_bytes{pid=\"2\"} 7\n# EOF\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        for absent in [
            "ebbtide_pid",
            "ebbtide_version",
            "ebbtide_rss",
            "ebbtide_lock",
        ] {
            assert!(!text.contains(absent), "{absent}\n{text}");
        }
        let classic = of(&processes, Form::Classic);
        assert!(classic.contains("# TYPE ebbtide_released_bytes_total counter\n"));
    }

    #[test]
    fn lock_figures_come_with_lockstat() {
        let figures = Figures {
            lock_wait_ns: 1,
            ..Figures::default()
        };
        assert!(
            of(&[process("", figures)], Form::OpenMetrics)
                .contains("\nebbtide_lock_wait_seconds_total{} 0.000000001\n")
        );
    }

    /// Prometheus refuses a text in which a family comes twice.
    #[test]
    fn families_are_different() {
        let text = of(&[], Form::OpenMetrics);
        let mut names: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == all && all > 15);
    }
}
