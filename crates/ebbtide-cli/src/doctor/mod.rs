//! `ebbtide doctor`: reports what this system offers to Ebbtide, what is missing, and the remedies.
//!
//! | module | what it checks |
//! |---|---|
//! | `probe` | versions and kernel features, each by a real call |
//! | `rseq` | which library registered restartable sequences, and whether the kernel checks them |
//! | `advice` | the kinds of `madvise`, each by a real call |
//! | `machine` | huge pages, overcommit, swap, processors |
//! | `limits` | resource limits and control groups |
//! | `ending` | whether `exit=detached` works |
//! | `admission` | the directory where helpers wait for admission |
//! | `sandbox` | filters, containers, emulators |
//! | `combinations` | which of the known-broken combinations apply here |
//! | `trial` | the library, by a run in a process of its own |

mod admission;
mod advice;
mod combinations;
mod ending;
mod limits;
mod machine;
mod probe;
mod rseq;
mod sandbox;
mod trial;

use std::io;

use anyhow::Result;
use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Color, ContentArrangement, Table};
use ebbtide_tools::machine::{kernel, page_bytes};
use ebbtide_tools::{conf, out};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::emulator::emulator;
use combinations::Facts;

/// Exit status when the library cannot work here.
const EXIT_BROKEN: u8 = 1;

/// On narrower terminals, each check is one line.
const TABLE_COLUMNS: u16 = 60;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The feature works.
    Ok,
    /// A fact, neither good nor bad.
    Info,
    /// It works, but with less effect than possible.
    Limited,
    /// It is missing.
    Missing,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Stable name.
    pub id: &'static str,
    /// The result.
    pub state: State,
    /// The value that was found.
    pub value: String,
    /// Ebbtide's use of it, or the effect of its lack.
    pub effect: String,
    /// The remedy; empty if nothing is wrong, except for known combinations.
    pub remedy: String,
}

impl Check {
    /// A fact.
    pub fn info(id: &'static str, value: impl Into<String>) -> Self {
        Check {
            id,
            state: State::Info,
            value: value.into(),
            effect: String::new(),
            remedy: String::new(),
        }
    }

    /// A feature that works, and its use.
    pub fn ok(id: &'static str, value: impl Into<String>, effect: &str) -> Self {
        Check {
            state: State::Ok,
            effect: effect.into(),
            ..Check::info(id, value)
        }
    }

    /// A missing feature.
    pub fn missing(id: &'static str, value: impl Into<String>, effect: &str, remedy: &str) -> Self {
        Check {
            state: State::Missing,
            effect: effect.into(),
            remedy: remedy.into(),
            ..Check::info(id, value)
        }
    }

    /// A condition that reduces the effect of Ebbtide.
    pub fn limited(id: &'static str, value: impl Into<String>, effect: &str, remedy: &str) -> Self {
        Check {
            state: State::Limited,
            ..Check::missing(id, value, effect, remedy)
        }
    }
}

#[derive(Debug, Serialize)]
struct Section {
    title: &'static str,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    works: bool,
    mode: Option<&'static str>,
    sections: Vec<Section>,
}

/// Prints the report. Returns 0 if the library works here, else 1.
pub fn main(args: &DoctorArgs) -> Result<u8> {
    let trial = trial::run(args.lib.lib.as_deref());
    let (release, version) = kernel();
    let facts = Facts {
        page_bytes: page_bytes(),
        kernel: probe::kernel_numbers(),
        other_kernel: sandbox::other_kernel(&release, &version),
        rseq: rseq::owner(),
        fences: probe::fences(),
        unaborted: unaborted(&release),
        emulator: emulator().filter(|_| !has_basic_syscalls()),
        refusal: trial.refusal,
        before: combinations::before_ebbtide(),
    };
    let combinations = combinations::all(&facts);
    let refused = combinations.iter().any(|c| c.state == State::Missing);
    let report = Report {
        schema: 1,
        works: trial.works && !refused,
        mode: trial.mode,
        sections: vec![
            Section {
                title: "library",
                checks: trial.checks,
            },
            Section {
                title: "kernel features",
                checks: probe::all(),
            },
            Section {
                title: "machine",
                checks: machine::all(),
            },
            Section {
                title: "limits",
                checks: [sandbox::all(), limits::all()].concat(),
            },
            Section {
                title: "exit beside the program (exit=detached)",
                checks: ending::all(trial.path.as_deref()),
            },
            Section {
                title: "combinations that are known not to work, or to work only in part",
                checks: combinations,
            },
        ],
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        render(&report, out::is_fancy(&io::stdout()) && is_wide())
    };
    out::stdout(text.as_bytes());
    Ok(if report.works { 0 } else { EXIT_BROKEN })
}

/// The release, if it is that of a kernel that does not abort the sections of this processor.
fn unaborted(release: &str) -> Option<String> {
    let is_faulty = cfg!(target_arch = "aarch64")
        && !ebbtide_interface::kernels::aborts_sections(release.as_bytes());
    is_faulty.then(|| release.to_owned())
}

/// Whether the environment sets `syscalls=basic` for programs.
fn has_basic_syscalls() -> bool {
    conf::merged(&[]).is_ok_and(|conf| conf.get("syscalls") == Some("basic"))
}

/// Whether the terminal is wide enough for tables. A serial console reports 0 columns.
fn is_wide() -> bool {
    ratatui::crossterm::terminal::size().is_ok_and(|(columns, _)| columns >= TABLE_COLUMNS)
}

fn render(report: &Report, fancy: bool) -> String {
    let mut text = String::new();
    for section in &report.sections {
        text.push_str(&format!("{}\n", section.title));
        let mut table = Table::new();
        table.load_preset(if fancy { UTF8_FULL_CONDENSED } else { NOTHING });
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !fancy {
            // Not a terminal: each check is one line, for grep and diff.
            table.set_content_arrangement(ContentArrangement::Disabled);
            table.force_no_tty();
        }
        for check in &section.checks {
            let mut row = vec![
                comfy_table::Cell::new(sign(check.state, fancy)),
                comfy_table::Cell::new(check.id),
                comfy_table::Cell::new(&check.value),
                comfy_table::Cell::new(&check.effect),
            ];
            if fancy && let Some(color) = color(check.state) {
                row[0] = comfy_table::Cell::new(sign(check.state, fancy)).fg(color);
            }
            table.add_row(row);
        }
        for line in table.to_string().lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    text.push_str(&remedies(report));
    text.push_str(match (report.works, report.mode) {
        (true, Some("rseq")) => "Ebbtide works here, with restartable sequences.\n",
        (true, _) => "Ebbtide works here, in portable mode (slower: locks in place of restartable sequences).\n",
        (false, _) => "Ebbtide cannot work here now; see the remedies above.\n",
    });
    text
}

fn remedies(report: &Report) -> String {
    let checks = report.sections.iter().flat_map(|s| &s.checks);
    let mut told = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for check in checks.filter(|c| matches!(c.state, State::Limited | State::Missing)) {
        // Several checks may have the same remedy.
        if !told.contains(&&check.remedy) {
            told.push(&check.remedy);
            lines.push(format!("  {}: {}\n", check.id, check.remedy));
        }
    }
    if lines.is_empty() {
        return "Nothing is missing.\n".into();
    }
    format!("For full effect:\n{}\n", lines.concat())
}

/// Describes an error so that the user sees whether a newer kernel or more rights would help.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
            format!("unknown to this kernel ({error})")
        }
        Some(libc::EPERM | libc::EACCES) => format!("not permitted ({error})"),
        _ => error.to_string(),
    }
}

fn sign(state: State, fancy: bool) -> &'static str {
    match (state, fancy) {
        (State::Ok, true) => "✓",
        (State::Info, true) => "·",
        (State::Limited, true) => "!",
        (State::Missing, true) => "✗",
        (State::Ok, false) => "ok",
        (State::Info, false) => "-",
        (State::Limited, false) => "limited",
        (State::Missing, false) => "missing",
    }
}

fn color(state: State) -> Option<Color> {
    match state {
        State::Ok => Some(Color::Green),
        State::Info => None,
        State::Limited => Some(Color::Yellow),
        State::Missing => Some(Color::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<Check>) -> Report {
        Report {
            schema: 1,
            works: true,
            mode: Some("rseq"),
            sections: vec![Section { title: "s", checks }],
        }
    }

    #[test]
    fn plain_form_is_one_line_a_check() {
        let r = report(vec![
            Check::ok("a", "yes", "good"),
            Check::missing("b", "no", "bad", "do c"),
        ]);
        let text = render(&r, false);
        assert!(text.lines().any(|l| l.contains("ok") && l.contains("good")));
        assert!(text.contains("b: do c"));
        assert!(text.is_ascii(), "{text}");
        assert!(render(&r, true).contains('✗'));
    }

    #[test]
    fn every_check_of_this_system_is_complete() {
        let all = [
            probe::all(),
            machine::all(),
            sandbox::all(),
            limits::all(),
            ending::all(None),
        ]
        .concat();
        assert!(all.len() > 20);
        for check in all {
            let bad = matches!(check.state, State::Missing | State::Limited);
            assert_eq!(bad, !check.remedy.is_empty(), "{check:?}");
            assert!(!check.value.is_empty(), "{check:?}");
        }
    }
}
