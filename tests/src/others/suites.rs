//! `make suites`: test suites of other allocators, C libraries, languages and programs.
//!
//! A script of `tests/suites` runs in an empty directory (`$SRC` is the source, `$LIBRARY` the library, `$REPOSITORY` this
//! repository). It builds the tests and prints one line for each:
//!
//! ```text
//! test NAME: COMMAND               must pass
//! linked NAME: COMMAND             the same; the program links Ebbtide itself. {allocator} becomes ebbtide or glibc
//! stops NAME: COMMAND              must be ended by SIGABRT or SIGSEGV, whatever glibc does
//! misses NAME (REASON): COMMAND    must not be ended in this way: a known limit
//! differs NAME (REASON): COMMAND   must fail with Ebbtide. If it fails with glibc too, the reason is that of both
//! leave NAME (REASON)              is not run
//! ```
//!
//! A script that cannot build its tests here prints why and exits with 77. Any other status but 0 is an error.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::source::{self, Source};
use super::watch::{self, Seen};
use super::{Outcome, Unrun, cell, each, last_line, machine, repository, section, status, unrun};
use crate::matrix::apt;
use crate::results;

/// Inputs of a result: changes below these paths make it outdated.
const COVERS: &str = "crates tests/suites tests/src/others";
/// Preloaded for the control run: some suites link their own allocator, and this puts the C library's in front of it.
const CONTROL: &str = "libc.so.6";
/// Time limit of a build.
const BUILD: Duration = Duration::from_secs(3600);

/// What a line of a script says about a test.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Test,
    Linked,
    Stops,
    Misses(String),
    Differs(String),
    Leave(String),
}

#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    kind: Kind,
    command: String,
}

/// The result of a test.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    Passed,
    Failed(String),
    /// It fails, as the script says.
    Differs(String),
    /// It fails with glibc too.
    FailsAnyway(String),
    NotApplicable(String),
}

/// The results of a suite, or why it did not run.
#[derive(Serialize, Deserialize)]
struct Results {
    source: String,
    tests: Result<Vec<(String, Verdict)>, Unrun>,
}

/// `suites [NAME…]`.
#[must_use]
pub fn main(names: &[String]) -> ExitCode {
    let done = each("suites", names, run, |done, is_all| {
        for (entry, results) in done {
            for (name, verdict) in results.tests.iter().flatten() {
                if let Verdict::Failed(why) = verdict {
                    println!("FAILED {} {name}: {why}", entry.name);
                }
            }
        }
        if is_all {
            let date = results::today()?;
            println!(
                "written: {}",
                results::write("suites", &date, &report(done, &date))?
            );
        }
        let count = |kind| {
            done.iter()
                .map(|(_, results)| results.count(kind))
                .sum::<usize>()
        };
        let (not_run, broken) = unrun(
            done.iter()
                .filter_map(|(_, results)| results.tests.as_ref().err()),
        );
        println!(
            "suites: {} passed, {} failed, {} differ, {} fail with glibc too, {} not applicable; {not_run} suites not run, {broken} broken",
            count(0),
            count(1),
            count(2),
            count(3),
            count(4)
        );
        Ok(count(1) + broken == 0)
    });
    status("suites", done)
}

fn run(entry: &Entry, library: &Path) -> Results {
    let mut results = Results {
        source: entry.source().to_owned(),
        tests: Ok(Vec::new()),
    };
    results.tests = entry
        .ensure_needs()
        .and_then(|()| source::fetch(entry.source()))
        .map_err(Unrun::NotRun)
        .and_then(|source| {
            results.source.clone_from(&source.label);
            tests_of(entry, &source, library)
        });
    results
}

/// Builds a suite and runs its tests.
fn tests_of(
    entry: &Entry,
    source: &Source,
    library: &Path,
) -> Result<Vec<(String, Verdict)>, Unrun> {
    let dir = empty_directory(&entry.name).map_err(Unrun::NotRun)?;
    let lines = build(entry, source, library, &dir)?;
    let mut done = Vec::new();
    for line in lines.lines() {
        let broken = || Unrun::Broken(format!("the script prints: {line}"));
        let test = Test::parse(line).ok_or_else(broken)?;
        let verdict = test.verdict(entry, &dir, library).map_err(Unrun::Broken)?;
        if verdict != Verdict::Passed {
            eprintln!("        {}: {verdict:?}", test.name);
        }
        done.push((test.name, verdict));
    }
    match done.is_empty() {
        true => Err(Unrun::Broken("the script lists no test".into())),
        false => Ok(done),
    }
}

/// Runs a script, and returns the lines that it prints.
fn build(entry: &Entry, source: &Source, library: &Path, dir: &Path) -> Result<String, Unrun> {
    let mut script = Command::new("bash");
    script
        .args(["-euo", "pipefail"])
        .arg(&entry.script)
        .current_dir(dir)
        .env("SRC", &source.dir)
        .env("LIBRARY", library)
        .env("REPOSITORY", repository().map_err(Unrun::Broken)?)
        .env_remove("LD_PRELOAD")
        .env_remove("EBBTIDE_CONF");
    let seen = watch::run(&mut script, BUILD).map_err(Unrun::Broken)?;
    let log = dir.join("build.log");
    fs::write(&log, &seen.stderr).map_err(|e| Unrun::Broken(e.to_string()))?;
    if seen.is_skip() {
        return Err(Unrun::NotRun(last_line(&seen.stdout).to_owned()));
    }
    match seen.failure() {
        Some(why) => Err(Unrun::Broken(format!(
            "the build fails: {why} (log: {})",
            log.display()
        ))),
        None => Ok(seen.stdout),
    }
}

/// The directory in which a suite is built. What an earlier run left there is removed.
fn empty_directory(name: &str) -> Result<PathBuf, String> {
    let dir = apt::cache()?.join("suites/built").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir)
}

impl Test {
    fn parse(line: &str) -> Option<Test> {
        let (word, rest) = line.split_once(' ')?;
        let (mut name, reason, command) = match rest.split_once(" (") {
            Some((name, rest)) if ["differs", "misses", "leave"].contains(&word) => {
                let (reason, behind) = rest
                    .rsplit_once("): ")
                    .or(rest.strip_suffix(')').map(|r| (r, "")))?;
                (name, reason, behind)
            }
            _ => rest
                .split_once(": ")
                .map(|(name, command)| (name, "", command))?,
        };
        name = name.trim();
        let kind = match word {
            "test" => Kind::Test,
            "linked" => Kind::Linked,
            "stops" => Kind::Stops,
            "misses" => Kind::Misses(reason.to_owned()),
            "differs" => Kind::Differs(reason.to_owned()),
            "leave" => Kind::Leave(reason.to_owned()),
            _ => return None,
        };
        let is_whole = command.is_empty() == matches!(kind, Kind::Leave(_));
        is_whole.then(|| Test {
            name: name.to_owned(),
            kind,
            command: command.to_owned(),
        })
    }

    fn verdict(&self, entry: &Entry, dir: &Path, library: &Path) -> Result<Verdict, String> {
        if let Kind::Leave(reason) = &self.kind {
            return Ok(Verdict::NotApplicable(reason.clone()));
        }
        let pages = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut conf = format!("stats_dir={},dev=pages:all", pages.path().display());
        if !entry.conf().is_empty() {
            conf = format!("{},{conf}", entry.conf());
        }
        let with = self.run(entry, dir, "ebbtide", |command| {
            command.env("EBBTIDE_CONF", &conf);
            if self.kind != Kind::Linked {
                command.env("LD_PRELOAD", library);
            }
        })?;
        if with.is_skip() {
            return Ok(Verdict::NotApplicable(with.failure().unwrap_or_default()));
        }
        let why = self
            .failure(&with)
            .or_else(|| not_loaded(entry, &with, pages.path()));
        let passes = |reason: &str| Verdict::Failed(format!("passes, but the list says: {reason}"));
        let (why, reason) = match (why, &self.kind) {
            // The mistake was not stopped.
            (None, Kind::Misses(reason)) => return Ok(Verdict::Differs(reason.clone())),
            (Some(_), Kind::Misses(reason)) => return Ok(passes(reason)),
            (None, Kind::Differs(reason)) => return Ok(passes(reason)),
            (None, _) => return Ok(Verdict::Passed),
            (Some(why), Kind::Stops) => return Ok(Verdict::Failed(why)),
            (Some(why), Kind::Differs(reason)) => (why, Some(reason)),
            (Some(why), _) => (why, None),
        };
        let without = self.run(entry, dir, "glibc", |command| {
            if self.kind != Kind::Linked {
                command.env("LD_PRELOAD", CONTROL);
            }
        })?;
        Ok(match (self.failure(&without), reason) {
            (Some(why), None) => Verdict::FailsAnyway(why),
            (Some(_), Some(reason)) => Verdict::FailsAnyway(reason.clone()),
            (None, Some(reason)) => Verdict::Differs(reason.clone()),
            (None, None) => Verdict::Failed(why),
        })
    }

    /// Why a run does not do what the test asks for, if so.
    fn failure(&self, seen: &Seen) -> Option<String> {
        if self.kind != Kind::Stops {
            return seen.failure();
        }
        let Some(status) = seen.status else {
            return seen.failure();
        };
        match status.signal() {
            Some(libc::SIGABRT | libc::SIGSEGV) => None,
            _ => Some(format!("is not stopped: {status}")),
        }
    }

    /// Runs its command without a shell, which would load the library too.
    fn run(
        &self,
        entry: &Entry,
        dir: &Path,
        allocator: &str,
        set: impl FnOnce(&mut Command),
    ) -> Result<Seen, String> {
        let command = self.command.replace("{allocator}", allocator);
        let mut words = command.split_whitespace();
        let mut command = Command::new(words.next().ok_or("no command")?);
        command.args(words).current_dir(dir);
        command.env_remove("LD_PRELOAD").env_remove("EBBTIDE_CONF");
        set(&mut command);
        watch::run(&mut command, entry.limit())
    }
}

/// Why a run proves nothing: the library was not in the processes that matter.
fn not_loaded(entry: &Entry, seen: &Seen, pages: &Path) -> Option<String> {
    let names = entry.loaded();
    if names.is_empty() {
        // Each process leaves a page. The command runs without a shell, so all pages are those of the test.
        let mut pages = fs::read_dir(pages).into_iter().flatten();
        return pages
            .next()
            .is_none()
            .then(|| "Ebbtide was not loaded".into());
    }
    let missing = names.iter().find(|name| !seen.loaded.contains(**name))?;
    Some(format!("Ebbtide was not loaded in {missing}"))
}

impl Verdict {
    fn number(&self) -> usize {
        match self {
            Verdict::Passed => 0,
            Verdict::Failed(_) => 1,
            Verdict::Differs(_) => 2,
            Verdict::FailsAnyway(_) => 3,
            Verdict::NotApplicable(_) => 4,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Verdict::Passed => "",
            Verdict::Failed(why)
            | Verdict::Differs(why)
            | Verdict::FailsAnyway(why)
            | Verdict::NotApplicable(why) => why,
        }
    }
}

impl Results {
    fn count(&self, number: usize) -> usize {
        let tests = self.tests.iter().flatten();
        tests
            .filter(|(_, verdict)| verdict.number() == number)
            .count()
    }
}

impl Outcome for Results {
    fn unrun(why: Unrun) -> Self {
        Results {
            source: String::new(),
            tests: Err(why),
        }
    }

    fn line(&self) -> String {
        match &self.tests {
            Err(why) => why.line(),
            Ok(tests) => format!(
                "{} of {} passed, {} failed",
                self.count(0),
                tests.len(),
                self.count(1)
            ),
        }
    }

    fn has_run(&self) -> bool {
        self.tests.is_ok()
    }
}

/// The text of the result file.
fn report(done: &[(Entry, Results)], date: &str) -> String {
    let mut text = results::head("Other people's tests", date, COVERS, "make suites");
    let _ = write!(
        text,
        "{} Each test that does not pass with Ebbtide was run with glibc's malloc as well. A test passed only if the library was \
         seen in its process.\n\n\
         **Number of tests.** *Differ*: Ebbtide decides otherwise on purpose, or has a known limit.\n\n\
         | suite | source | passed | failed | differ | fail with glibc too | not applicable |\n|---|---|---|---|---|---|---|\n",
        machine()
    );
    for (entry, results) in done {
        let _ = write!(
            text,
            "| {}: {} | {} |",
            entry.name, entry.what, results.source
        );
        match &results.tests {
            Err(why) => {
                let _ = writeln!(text, " {} | | | | |", cell(&why.line()));
            }
            Ok(_) => {
                for number in 0..5 {
                    let _ = write!(text, " {} |", results.count(number));
                }
                text.push('\n');
            }
        }
    }
    let titles = [
        "",
        "Failed",
        "Differ",
        "Fail with glibc too",
        "Not applicable",
    ];
    for (number, title) in titles.iter().enumerate().skip(1) {
        section(&mut text, title, "| test | reason |", &rows(done, number));
    }
    text += "\n## Passed\n\n";
    for (entry, results) in done {
        let tests = results.tests.iter().flatten();
        let passed: BTreeSet<_> = tests
            .filter(|(_, verdict)| verdict.number() == 0)
            .map(|(name, _)| &**name)
            .collect();
        if !passed.is_empty() {
            let names: Vec<_> = passed.into_iter().collect();
            let _ = writeln!(text, "- {}: {}", entry.name, names.join(", "));
        }
    }
    text
}

fn rows(done: &[(Entry, Results)], number: usize) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for (entry, results) in done {
        for (name, verdict) in results.tests.iter().flatten() {
            if verdict.number() == number {
                rows.push((
                    format!("{} {name}", entry.name),
                    verdict.reason().to_owned(),
                ));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    #[test]
    fn the_lines_of_a_script() {
        let test = |line| Test::parse(line).map(|test| (test.name, test.kind, test.command));
        let is = |name: &str, kind, command: &str| Some((name.into(), kind, command.into()));
        assert_eq!(test("test a: ./a 1 2"), is("a", Kind::Test, "./a 1 2"));
        assert_eq!(test("test a (b): ./a"), is("a (b)", Kind::Test, "./a"));
        assert_eq!(test("linked a: ./a"), is("a", Kind::Linked, "./a"));
        assert_eq!(test("stops a: ./a"), is("a", Kind::Stops, "./a"));
        let why = || "other text (of all)".to_owned();
        assert_eq!(
            test("differs a (other text (of all)): ./a"),
            is("a", Kind::Differs(why()), "./a")
        );
        assert_eq!(
            test("misses a (other text (of all)): ./a"),
            is("a", Kind::Misses(why()), "./a")
        );
        assert_eq!(
            test("leave a (other text (of all))"),
            is("a", Kind::Leave(why()), "")
        );
        for bad in [
            "test a",
            "test a:",
            "differs a (b)",
            "leave a",
            "leave a (b): c",
            "make: done",
        ] {
            assert_eq!(test(bad), None, "{bad}");
        }
    }

    fn seen(status: i32) -> Seen {
        Seen {
            status: Some(ExitStatus::from_raw(status)),
            stdout: String::new(),
            stderr: String::new(),
            took: Duration::ZERO,
            peak_bytes: 0,
            loaded: BTreeSet::from(["sh".to_owned()]),
            left: Vec::new(),
        }
    }

    fn entry(name: &str) -> Entry {
        let mut all = super::super::entry::all("suites", &[name]).expect("it is there");
        all.pop().expect("it is there")
    }

    #[test]
    fn a_test_without_the_library_fails() {
        let pages = tempfile::tempdir().expect("a directory");
        let missing = |name| not_loaded(&entry(name), &seen(0), pages.path());
        assert!(missing("glibc").is_some());
        fs::write(pages.path().join("1"), "").expect("it is written");
        assert_eq!(missing("glibc"), None);
        let why = "Ebbtide was not loaded in redis-server".to_owned();
        assert_eq!(missing("redis"), Some(why));
    }

    #[test]
    fn only_a_signal_stops_a_mistake() {
        let test = Test::parse("stops a: ./a").expect("it is a line");
        assert_eq!(test.failure(&seen(libc::SIGABRT)), None);
        assert!(test.failure(&seen(libc::SIGKILL)).is_some());
        assert!(test.failure(&seen(0)).is_some());
        let hangs = Seen {
            status: None,
            ..seen(0)
        };
        assert!(test.failure(&hangs).is_some());
    }

    #[test]
    fn the_report_counts_each_verdict() {
        let tests = vec![
            ("one".to_owned(), Verdict::Passed),
            ("two".to_owned(), Verdict::Failed("a|b".into())),
            ("three".to_owned(), Verdict::Differs("c".into())),
        ];
        let results = Results {
            source: "s".into(),
            tests: Ok(tests),
        };
        let done = [(entry("glibc"), results)];
        let text = report(&done, "2026-01-01");
        assert!(text.contains("| s | 1 | 1 | 1 | 0 | 0 |\n"), "{text}");
        assert!(text.contains("| glibc two | a\\|b |"), "{text}");
        assert!(text.contains("- glibc: one\n"), "{text}");
    }
}
