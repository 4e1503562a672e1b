//! `make suites` and `make big`: other people's tests and large programs, run under the library and without it.
//!
//! ```text
//!   tests/suites/NAME.sh ──▶ source ──▶ builds, and lists tests ──▶ each test with Ebbtide, and with glibc ──┐
//!   tests/big/NAME.sh ─────────────────────────────────────────▶ the script with glibc, and with Ebbtide ───┤
//!                                  docs/results/suites-DATE.md, docs/results/big-DATE.md ◀──────────────────┘
//! ```
//!
//! A result is kept (`Kept`) until a run of all has reported it. A script is an entry. Its first lines describe it (`Entry`). Nothing of a suite or of a program is kept in this repository.
//!
//! Invariants:
//! - INV-TESTS-5: no result counts as passed unless the library was seen in the process that matters.
//! - INV-TESTS-6: processes that outlive a run are counted and ended; they are descendants of this program.

pub mod big;
mod entry;
mod kept;
mod source;
pub mod suites;
mod watch;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{library, results};
use entry::Entry;
use kept::Kept;

/// Why an entry has no results.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Unrun {
    /// Its source, a program or a right cannot be had here.
    NotRun(String),
    /// It can be had, and its script fails. That is an error.
    Broken(String),
}

impl Unrun {
    fn line(&self) -> String {
        match self {
            Unrun::NotRun(why) => format!("not run: {why}"),
            Unrun::Broken(why) => format!("BROKEN: {why}"),
        }
    }
}

/// How many of the entries did not run, and how many are broken.
fn unrun<'a>(all: impl Iterator<Item = &'a Unrun>) -> (usize, usize) {
    let (broken, not_run): (Vec<_>, Vec<_>) = all.partition(|why| matches!(why, Unrun::Broken(_)));
    (not_run.len(), broken.len())
}

/// The last line of an output, which is in most cases the reason of a failure.
fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or("no output")
}

/// The result of an entry.
trait Outcome: Serialize + DeserializeOwned {
    fn unrun(why: Unrun) -> Self;
    /// In one line.
    fn line(&self) -> String;
    fn has_run(&self) -> bool;
}

/// Runs the entries of a directory whose names are given, or all. `report` gets the results, and whether they are those of all: then it
/// writes a result file. It returns whether all is well.
fn each<R: Outcome>(
    directory: &str,
    names: &[String],
    mut run: impl FnMut(&Entry, &Path) -> R,
    report: impl FnOnce(&[(Entry, R)], bool) -> Result<bool, String>,
) -> Result<bool, String> {
    let library = library().ok_or("EBBTIDE_LIB=none: nothing to test")?;
    let names: Vec<&str> = names
        .iter()
        .flat_map(|name| name.split_whitespace())
        .collect();
    let entries = entry::all(directory, &names)?;
    let kept = Kept::open(directory, &library)?;
    watch::adopt_orphans();
    let (count, start) = (entries.len(), Instant::now());
    let (limit, mut is_whole) = (limit()?, true);
    let mut done = Vec::new();
    for (number, entry) in entries.into_iter().enumerate() {
        let at = format!("[{:2}/{count}] {}", number + 1, entry.name);
        eprintln!("{at}: {}", entry.what);
        let earlier = kept.load(&entry).filter(|_| names.is_empty());
        let result: R = match earlier {
            Some(result) => result,
            None if limit.is_some_and(|limit| start.elapsed() >= limit) => {
                is_whole = false;
                R::unrun(Unrun::NotRun("no time was left".into()))
            }
            None => run(&entry, &library),
        };
        if result.has_run() {
            kept.store(&entry, &result)?;
        }
        let spent = start.elapsed().as_secs();
        println!("{at}: {} ({spent} s so far)", result.line());
        done.push((entry, result));
    }
    let well = report(&done, names.is_empty())?;
    if names.is_empty() && is_whole {
        kept.clear();
    }
    Ok(well)
}

/// The time after which no other entry begins: `EBBTIDE_MINUTES`.
fn limit() -> Result<Option<Duration>, String> {
    let Some(minutes) = std::env::var_os("EBBTIDE_MINUTES") else {
        return Ok(None);
    };
    let number = minutes.to_str().and_then(|text| text.parse::<u64>().ok());
    let number = number.ok_or("EBBTIDE_MINUTES must be a number of minutes")?;
    Ok(Some(Duration::from_secs(number * 60)))
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
