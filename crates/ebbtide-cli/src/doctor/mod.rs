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
//! | `sampling` | whether profiles and guarded allocations work, and whether they are on |
//! | `sandbox` | filters, containers, emulators |
//! | `combinations` | which of the known-broken combinations apply here |
//! | `running` | the processes that run under Ebbtide now |
//! | `trial` | the library, by a run in a process of its own |

mod admission;
mod advice;
mod combinations;
mod ending;
mod limits;
mod machine;
mod probe;
mod rseq;
mod running;
mod sampling;
mod sandbox;
mod trial;

use std::io;

use anyhow::Result;
use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, Color, ContentArrangement, Table};
use ebbtide_interface::known::Known;
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

impl State {
    /// Its word in the plain form, and its sign and colour on a terminal.
    fn shown(self) -> (&'static str, &'static str, Option<Color>) {
        match self {
            State::Ok => ("ok", "✓", Some(Color::Green)),
            State::Info => ("-", "·", None),
            State::Limited => ("limited", "!", Some(Color::Yellow)),
            State::Missing => ("missing", "✗", Some(Color::Red)),
        }
    }
}

/// The texts of the results: lines `id word: effect | remedy`, with the word of [`State::shown`]. A feature that works
/// needs no remedy. Texts that depend on more than the result are in the code of the check.
const TEXTS: &str = include_str!("checks.txt");

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
    /// A result with the texts that [`TEXTS`] has for it.
    fn new(state: State, id: &'static str, value: impl Into<String>) -> Self {
        let start = format!("{id} {}: ", state.shown().0);
        let texts = TEXTS.lines().find_map(|line| line.strip_prefix(&start));
        let texts = texts.unwrap_or_default();
        let (effect, remedy) = texts.split_once(" | ").unwrap_or((texts, ""));
        Check {
            id,
            state,
            value: value.into(),
            effect: effect.into(),
            remedy: remedy.into(),
        }
    }

    /// A fact.
    pub fn info(id: &'static str, value: impl Into<String>) -> Self {
        Check::new(State::Info, id, value)
    }

    /// A feature that works.
    pub fn ok(id: &'static str, value: impl Into<String>) -> Self {
        Check::new(State::Ok, id, value)
    }

    /// A missing feature.
    pub fn missing(id: &'static str, value: impl Into<String>) -> Self {
        Check::new(State::Missing, id, value)
    }

    /// A condition that reduces the effect of Ebbtide.
    pub fn limited(id: &'static str, value: impl Into<String>) -> Self {
        Check::new(State::Limited, id, value)
    }

    /// A feature that was tried: the value that shows how it works, or the error.
    pub fn tried(id: &'static str, result: io::Result<&str>) -> Self {
        match result {
            Ok(value) => Check::ok(id, value),
            Err(error) => Check::limited(id, reason(&error)),
        }
    }

    /// The same result with a remedy for this case.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Check {
            remedy: remedy.into(),
            ..self
        }
    }

    /// The same result with an effect for this case.
    pub fn with_effect(self, effect: impl Into<String>) -> Self {
        Check {
            effect: effect.into(),
            ..self
        }
    }

    /// The same result with the texts of a known combination.
    pub fn known(self, known: &Known) -> Self {
        self.with_effect(known.happens).with_remedy(known.remedy)
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
    let sections = [
        ("library", trial.checks),
        ("kernel features", probe::all()),
        ("machine", machine::all()),
        ("limits", [sandbox::all(), limits::all()].concat()),
        (
            "exit beside the program (exit=detached)",
            ending::all(trial.path.as_deref()),
        ),
        (
            "profiles and guarded allocations (profile, guard)",
            sampling::all(trial.path.as_deref(), trial.mode),
        ),
        (
            "combinations that are known not to work, or to work only in part",
            combinations,
        ),
        ("processes under Ebbtide now", running::all()),
    ];
    let report = Report {
        schema: 1,
        works: trial.mode.is_some() && !refused,
        mode: trial.mode,
        sections: sections
            .map(|(title, checks)| Section { title, checks })
            .into(),
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
            let state = match check.state.shown() {
                (_, sign, Some(color)) if fancy => Cell::new(sign).fg(color),
                (word, sign, _) => Cell::new(if fancy { sign } else { word }),
            };
            let texts = [check.id, &check.value, &check.effect].map(Cell::new);
            table.add_row([state].into_iter().chain(texts));
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
            Check::ok("a", "yes").with_effect("good"),
            Check::missing("b", "no").with_remedy("do c"),
        ]);
        let text = render(&r, false);
        assert!(text.lines().any(|l| l.contains("ok") && l.contains("good")));
        assert!(text.contains("b: do c"));
        assert!(text.is_ascii(), "{text}");
        assert!(render(&r, true).contains('✗'));
    }

    /// In the sources, so that results are covered that no machine has at the same time.
    #[test]
    fn every_text_is_of_a_result_and_has_its_parts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/doctor");
        let files = std::fs::read_dir(folder).unwrap();
        let sources = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let source: String = sources.collect();
        let mut all = Vec::new();
        for line in TEXTS.lines() {
            let (start, texts) = line.split_once(": ").unwrap();
            let (id, word) = start.split_once(' ').unwrap();
            assert!(source.contains(&format!("\"{id}\"")), "{line}");
            let parts = texts.split(" | ").count();
            let with_remedy = match word {
                "ok" => 1,
                "limited" => 2,
                // Some remedies depend on the case.
                "missing" => parts.min(2),
                _ => panic!("{line}"),
            };
            assert_eq!(parts, with_remedy, "{line}");
            assert!(!all.contains(&start), "twice: {line}");
            all.push(start);
        }
        let simple = source
            .lines()
            .filter_map(|line| line.split_once("Check::tried(\""));
        for (_, call) in simple {
            let (id, _) = call.split_once('"').unwrap();
            for word in ["ok", "limited"] {
                let start = format!("{id} {word}");
                assert!(all.contains(&start.as_str()), "no text: {start}");
            }
        }
    }

    #[test]
    fn every_check_of_this_system_is_complete() {
        let all = [
            probe::all(),
            machine::all(),
            sandbox::all(),
            limits::all(),
            ending::all(None),
            sampling::all(None, None),
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
