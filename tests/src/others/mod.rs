//! `make suites` and `make big`: other people's tests and large programs, run under the library and without it.
//!
//! ```text
//!   tests/suites/NAME.sh ──▶ source ──▶ builds, and lists tests ──▶ each test with Ebbtide, and with glibc ──┐
//!   tests/big/NAME.sh ─────────────────────────────────────────▶ the script with glibc, and with Ebbtide ───┤
//!                                  docs/results/suites-DATE.md, docs/results/big-DATE.md ◀──────────────────┘
//! ```
//!
//! A script is an entry. Its first lines describe it (`Entry`). Nothing of a suite or of a program is kept in this repository.
//!
//! Invariants:
//! - INV-TESTS-5: no result counts as passed unless the library was seen in the process that matters.
//! - INV-TESTS-6: processes that outlive a run are counted and ended; they are descendants of this program.

pub mod big;
mod entry;
mod source;
pub mod suites;
mod watch;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::{library, results};
use entry::Entry;

/// The last line of an output, which is in most cases the reason of a failure.
fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or("no output")
}

/// Runs the entries of a directory whose names are given, or all. `run` returns the failures of one entry; `report` writes a result
/// file if all have run.
fn each<R>(
    directory: &str,
    names: &[String],
    mut run: impl FnMut(&Entry, &Path) -> R,
    line: impl Fn(&R) -> String,
    report: impl FnOnce(&[(Entry, R)]) -> Result<bool, String>,
) -> Result<bool, String> {
    let library = library().ok_or("EBBTIDE_LIB=none: nothing to test")?;
    let names: Vec<&str> = names
        .iter()
        .flat_map(|name| name.split_whitespace())
        .collect();
    let entries = entry::all(directory, &names)?;
    watch::adopt_orphans();
    let (count, start) = (entries.len(), Instant::now());
    let mut done = Vec::new();
    for (number, entry) in entries.into_iter().enumerate() {
        eprintln!("[{:2}/{count}] {}: {}", number + 1, entry.name, entry.what);
        let result = run(&entry, &library);
        let spent = start.elapsed().as_secs();
        println!(
            "[{:2}/{count}] {}: {} ({spent} s so far)",
            number + 1,
            entry.name,
            line(&result)
        );
        done.push((entry, result));
    }
    report(&done)
}

/// The exit status for a result.
fn status(program: &str, done: Result<bool, String>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{program}: {why}");
            ExitCode::from(2)
        }
    }
}

/// The absolute path of this repository.
fn repository() -> Result<PathBuf, String> {
    results::repository()
        .canonicalize()
        .map_err(|e| e.to_string())
}

/// The machine, in a sentence.
fn machine() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let run = Command::new(program).args(arguments).output();
        let text = run.map(|run| String::from_utf8_lossy(&run.stdout).into_owned());
        text.unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let (kernel, libc) = (
        said("uname", &["-r"]),
        said("getconf", &["GNU_LIBC_VERSION"]),
    );
    format!("Machine: {cpus} CPUs, Linux {kernel}, {libc}.")
}

/// A reason as one cell of a table.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(300) {
        match character {
            '|' => out.push_str("\\|"),
            '\n' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// A section with one table row for each pair, if there are any.
fn section(text: &mut String, title: &str, head: &str, rows: &[(String, String)]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(text, "\n## {title}\n\n{head}\n|---|---|\n");
    for (name, why) in rows {
        let _ = writeln!(text, "| {name} | {} |", cell(why));
    }
}
