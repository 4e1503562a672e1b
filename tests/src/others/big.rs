//! `make big`: large programs, with glibc's malloc and with Ebbtide.
//!
//! A script of `tests/big` runs in an empty directory, as root or as nobody. It starts its program, uses it, ends it, and prints its result. The
//! result must be the same with both allocators. `$SCRATCH` is a directory that both runs share, `$CACHE` one that is kept for
//! later runs, and `$REPOSITORY` this repository. With `prepare: yes` it is first called with the argument `prepare`, to make in `$SCRATCH`
//! or `$CACHE` what both runs use. A script that cannot run here prints why and exits with 77. Any other failure with glibc is an error.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::watch::{self, Seen};
use super::{Outcome, Unrun, cell, each, last_line, machine, repository, status, unrun};
use crate::matrix::apt;
use crate::results;

/// Inputs of a result: changes below these paths make it outdated.
const COVERS: &str = "crates tests/big tests/src/others";

/// Largest file that is searched for lines of Ebbtide.
const LOG_BYTES: u64 = 8 << 20;

/// The runs of a program, or why there are none.
#[derive(Serialize, Deserialize)]
struct Compared(Result<Runs, Unrun>);

#[derive(Serialize, Deserialize)]
struct Runs {
    /// Processes that waited for a CPU before, on average over a minute.
    load: f64,
    glibc: Cost,
    ebbtide: Cost,
    faults: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Cost {
    took: Duration,
    peak_bytes: u64,
}

impl From<&Seen> for Cost {
    fn from(seen: &Seen) -> Cost {
        Cost {
            took: seen.took,
            peak_bytes: seen.peak_bytes,
        }
    }
}

/// `big [NAME…]`.
#[must_use]
pub fn main(names: &[String]) -> ExitCode {
    let run = |entry: &Entry, library: &Path| Compared(compare(entry, library));
    let done = each("big", names, run, |done, is_all| {
        if is_all {
            let date = results::today()?;
            println!(
                "written: {}",
                results::write("big", &date, &report(done, &date))?
            );
        }
        let failed = done.iter().filter(|(_, compared)| compared.has_failed());
        let failed = failed.count();
        let (not_run, broken) = unrun(done.iter().filter_map(|(_, it)| it.0.as_ref().err()));
        println!(
            "big: {} passed, {failed} failed, {not_run} not run, {broken} broken",
            done.len() - failed - not_run - broken
        );
        Ok(failed + broken == 0)
    });
    status("big", done)
}

/// Processes that wait for a CPU, on average over a minute.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0)
}

impl Compared {
    fn has_failed(&self) -> bool {
        self.0.as_ref().is_ok_and(|runs| !runs.faults.is_empty())
    }
}

impl Outcome for Compared {
    fn unrun(why: Unrun) -> Self {
        Compared(Err(why))
    }

    fn line(&self) -> String {
        match &self.0 {
            Err(why) => why.line(),
            Ok(runs) if runs.faults.is_empty() => "passed".into(),
            Ok(runs) => format!("FAILED: {}", runs.faults.join("; ")),
        }
    }

    fn has_run(&self) -> bool {
        self.0.is_ok()
    }
}

/// Runs a script with glibc, then with Ebbtide.
fn compare(entry: &Entry, library: &Path) -> Result<Runs, Unrun> {
    let load = load();
    entry.ensure_needs().map_err(Unrun::NotRun)?;
    let scratch = Scratch::new(entry, library).map_err(Unrun::Broken)?;
    let without = scratch.without()?;
    let shared_before = scratch.shared_memory();
    let with = scratch.with_ebbtide().map_err(Unrun::Broken)?;
    let mut faults: Vec<String> = with.failure().into_iter().collect();
    if faults.is_empty() && with.stdout != without.stdout {
        faults.push(format!(
            "another result: {}",
            difference(&without.stdout, &with.stdout)
        ));
    }
    faults.extend(complaint(&with.stdout).or(complaint(&with.stderr)));
    faults.extend(complaint_below(&scratch.dir.path().join("ebbtide")));
    for name in entry.loaded() {
        if !with.loaded.contains(name) {
            faults.push(format!("Ebbtide was not loaded in {name}"));
        }
    }
    if without.left.is_empty() {
        let left = with.left.iter();
        faults.extend(left.map(|process| format!("left behind: {process}")));
    }
    if with.status.is_some() && with.left.is_empty() {
        let pages = scratch.pages_left().map_err(Unrun::Broken)?;
        faults.extend(
            pages
                .iter()
                .map(|name| format!("left in stats_dir: {name}")),
        );
    }
    let shared = scratch.shared_memory();
    let left = shared.difference(&shared_before);
    faults.extend(left.map(|name| format!("left in /dev/shm: {name}")));
    Ok(Runs {
        load,
        glibc: Cost::from(&without),
        ebbtide: Cost::from(&with),
        faults,
    })
}

/// The first line of Ebbtide in a text.
fn complaint(text: &str) -> Option<String> {
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("ebbtide: "));
    line.map(str::to_owned)
}

/// The same in the files below a directory: a script may write its program's stderr to a file.
fn complaint_below(dir: &Path) -> Option<String> {
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else {
                continue;
            };
            if about.is_dir() {
                left.push(entry.path());
            } else if about.is_file() && about.len() <= LOG_BYTES {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                if let Some(line) = complaint(&String::from_utf8_lossy(&bytes)) {
                    return Some(line);
                }
            }
        }
    }
    None
}

/// The first lines that differ.
fn difference(one: &str, other: &str) -> String {
    let (mut ones, mut others) = (one.lines(), other.lines());
    loop {
        match (ones.next(), others.next()) {
            (Some(a), Some(b)) if a == b => (),
            (a, b) => return format!("{a:?} with glibc, {b:?} with Ebbtide"),
        }
    }
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The directories of an entry, which its user may write to.
struct Scratch<'a> {
    entry: &'a Entry,
    dir: tempfile::TempDir,
    cache: PathBuf,
    repository: PathBuf,
}

impl<'a> Scratch<'a> {
    fn new(entry: &'a Entry, library: &Path) -> Result<Self, String> {
        let told = |e: std::io::Error| e.to_string();
        let dir = tempfile::Builder::new()
            .prefix("big-")
            .tempdir()
            .map_err(told)?;
        for name in ["", "pages", "shared", "glibc", "ebbtide"] {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).map_err(told)?;
            if entry.is_for_nobody() {
                std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).map_err(told)?;
            }
        }
        // Another user may not see the directory in which the library was built.
        fs::copy(library, dir.path().join("libebbtide.so")).map_err(told)?;
        fs::copy(&entry.script, dir.path().join("script")).map_err(told)?;
        Ok(Scratch {
            entry,
            dir,
            cache: apt::cache()?.join("big"),
            repository: repository()?,
        })
    }

    /// Shared memory of the user that the scripts run as.
    fn shared_memory(&self) -> BTreeSet<String> {
        let user = match self.entry.is_for_nobody() {
            true => NOBODY,
            // SAFETY: geteuid has no preconditions.
            false => unsafe { libc::geteuid() },
        };
        let dir = Path::new("/dev/shm");
        let mut names = names_in(dir);
        names.retain(|name| fs::metadata(dir.join(name)).is_ok_and(|about| about.uid() == user));
        names
    }

    /// The run with glibc.
    fn without(&self) -> Result<Seen, Unrun> {
        if self.entry.is_prepared() {
            self.with_glibc("prepare")?;
        }
        self.with_glibc("run")
    }

    fn with_glibc(&self, argument: &str) -> Result<Seen, Unrun> {
        let seen = watch::run(&mut self.script("glibc", argument), self.entry.limit());
        let seen = seen.map_err(Unrun::Broken)?;
        if seen.is_skip() {
            return Err(Unrun::NotRun(last_line(&seen.stdout).to_owned()));
        }
        match seen.failure() {
            Some(why) => Err(Unrun::Broken(format!("fails without Ebbtide: {why}"))),
            None => Ok(seen),
        }
    }

    fn with_ebbtide(&self) -> Result<Seen, String> {
        let mut command = self.script("ebbtide", "run");
        self.preload(&mut command);
        watch::run(&mut command, self.entry.limit())
    }

    /// The pages of figures that are left. Those of processes that were killed, or ended by `_exit`, are removed by the next process
    /// that makes a page.
    fn pages_left(&self) -> Result<BTreeSet<String>, String> {
        let mut next = self.command("dd", "ebbtide");
        next.args(["if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"]);
        self.preload(&mut next);
        let seen = watch::run(&mut next, Duration::from_secs(60))?;
        match seen.failure() {
            Some(why) => Err(format!("dd: {why}")),
            None => Ok(names_in(&self.dir.path().join("pages"))),
        }
    }

    fn preload(&self, command: &mut Command) {
        let pages = self.dir.path().join("pages");
        command
            .env("LD_PRELOAD", self.dir.path().join("libebbtide.so"))
            .env("EBBTIDE_CONF", format!("stats_dir={}", pages.display()));
    }

    fn script(&self, name: &str, argument: &str) -> Command {
        let mut command = self.command("bash", name);
        command
            .args(["-euo", "pipefail"])
            .arg(self.dir.path().join("script"))
            .arg(argument);
        command
    }

    /// A program that runs as the entry's user in one of the directories.
    fn command(&self, program: &str, name: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path().join(name))
            .env("SCRATCH", self.dir.path().join("shared"))
            .env("CACHE", &self.cache)
            .env("REPOSITORY", &self.repository)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD")
            .env_remove("EBBTIDE_CONF");
        if self.entry.is_for_nobody() {
            command
                .uid(NOBODY)
                .gid(NOBODY)
                .env("HOME", self.dir.path().join(name));
        }
        command
    }
}

/// The user and the group without rights.
const NOBODY: u32 = 65534;

/// The text of the result file.
fn report(done: &[(Entry, Compared)], date: &str) -> String {
    let mut text = results::head("Large programs", date, COVERS, "make big");
    let _ = write!(
        text,
        "{} A program passed if it gave the same result as with glibc, Ebbtide was seen in its processes, printed nothing, and left nothing \
         behind.\n\n\
         **Time and memory** (lower is better). Memory: largest sum of the anonymous memory of all processes, sampled ten times a second. One run \
         each, glibc first, so that Ebbtide's finds warm files. *Load*: processes that waited for a CPU before, on average over a minute. \
         Above 1 the times cannot be compared.\n\n\
         | program | what it does | result | time, glibc (s) | time, Ebbtide (s) | memory, glibc (MiB) | memory, Ebbtide (MiB) | load |\n\
         |---|---|---|---|---|---|---|---|\n",
        machine()
    );
    for (entry, compared) in done {
        let result = cell(&compared.line());
        let _ = write!(text, "| {} | {} | {result} |", entry.name, entry.what);
        let _ = match &compared.0 {
            Err(_) => writeln!(text, " | | | | |"),
            Ok(runs) => writeln!(
                text,
                " {:.1} | {:.1} | {} | {} | {:.1} |",
                runs.glibc.took.as_secs_f32(),
                runs.ebbtide.took.as_secs_f32(),
                runs.glibc.peak_bytes >> 20,
                runs.ebbtide.peak_bytes >> 20,
                runs.load
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(
            difference("a\nb\n", "a\nc\n"),
            "Some(\"b\") with glibc, Some(\"c\") with Ebbtide"
        );
        assert_eq!(
            difference("a\n", "a\nc\n"),
            "None with glibc, Some(\"c\") with Ebbtide"
        );
    }

    #[test]
    fn lines_of_the_library_are_found_in_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("data/log");
        fs::create_dir(dir.path().join("data")).expect("a directory");
        fs::write(&log, "start\nof ebbtide: no\n").expect("it is written");
        assert_eq!(complaint_below(dir.path()), None);
        fs::write(&log, "start\nebbtide: yes\n").expect("it is written");
        assert_eq!(complaint_below(dir.path()).as_deref(), Some("ebbtide: yes"));
    }
}
