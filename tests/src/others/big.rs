//! `make big`: large programs, with glibc's malloc and with Ebbtide.
//!
//! A script of `tests/big` runs in an empty directory, as root or as nobody. It starts its program, uses it, ends it, and prints its result. The
//! result must be the same with both allocators. `$SCRATCH` is a directory that both runs share, `$CACHE` one that is kept for
//! later runs, and `$REPOSITORY` this repository. A script that cannot run
//! here prints why and exits with 77.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use super::entry::Entry;
use super::watch::{self, Seen};
use super::{cell, each, last_line, machine, repository, status};
use crate::matrix::apt;
use crate::{is_root, results};

/// Inputs of a result: changes below these paths make it outdated.
const COVERS: &str = "crates tests/big tests/src/others";

/// The runs of a program, and the faults. The error says why it did not run.
type Compared = Result<(Seen, Seen, Vec<String>), String>;

/// `big [NAME…]`.
#[must_use]
pub fn main(names: &[String]) -> ExitCode {
    let is_all = names.iter().all(|name| name.trim().is_empty());
    let busy = load() > 1.0;
    let done = each("big", names, compare, line, |done| {
        if is_all {
            let date = results::today()?;
            println!(
                "written: {}",
                results::write("big", &date, &report(done, &date, busy))?
            );
        }
        let failed = done
            .iter()
            .filter(|(_, compared)| faults(compared) > 0)
            .count();
        let not_run = done
            .iter()
            .filter(|(_, compared)| compared.is_err())
            .count();
        println!(
            "big: {} passed, {failed} failed, {not_run} not run",
            done.len() - failed - not_run
        );
        Ok(failed == 0)
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

fn faults(compared: &Compared) -> usize {
    compared.as_ref().map_or(0, |(_, _, faults)| faults.len())
}

fn line(compared: &Compared) -> String {
    match compared {
        Err(why) => format!("not run: {why}"),
        Ok((_, _, faults)) if faults.is_empty() => "passed".into(),
        Ok((_, _, faults)) => format!("FAILED: {}", faults.join("; ")),
    }
}

/// Runs a script with glibc, then with Ebbtide.
fn compare(entry: &Entry, library: &Path) -> Compared {
    entry.ensure_needs()?;
    let scratch = Scratch::new(entry, library)?;
    let without = scratch.run("glibc", |_| ())?;
    if without.is_skip() {
        return Err(last_line(&without.stdout).to_owned());
    }
    if let Some(why) = without.failure() {
        return Err(format!("fails with glibc too: {why}"));
    }
    let shared_before = names_in(Path::new("/dev/shm"));
    let with = scratch.run("ebbtide", |command| {
        let pages = scratch.dir.path().join("pages");
        command
            .env("LD_PRELOAD", scratch.dir.path().join("libebbtide.so"))
            .env("EBBTIDE_CONF", format!("stats_dir={}", pages.display()));
    })?;
    let mut faults: Vec<String> = with.failure().into_iter().collect();
    if faults.is_empty() && with.stdout != without.stdout {
        faults.push(format!(
            "another result: {}",
            difference(&without.stdout, &with.stdout)
        ));
    }
    let complaint = with
        .stderr
        .lines()
        .find(|line| line.starts_with("ebbtide: "));
    faults.extend(complaint.map(str::to_owned));
    for name in entry.loaded() {
        if !with.loaded.contains(name) {
            faults.push(format!("Ebbtide was not loaded in {name}"));
        }
    }
    for process in &with.left {
        if without.left.is_empty() {
            faults.push(format!("left behind: {process}"));
        }
    }
    for name in names_in(&scratch.dir.path().join("pages")) {
        faults.push(format!("left in stats_dir: {name}"));
    }
    for name in names_in(Path::new("/dev/shm")) {
        if !shared_before.contains(&name) {
            faults.push(format!("left in /dev/shm: {name}"));
        }
    }
    Ok((without, with, faults))
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

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The directories of an entry, which its user may write to.
struct Scratch<'a> {
    entry: &'a Entry,
    dir: tempfile::TempDir,
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
            if is_root() && !entry.is_for_any_user() {
                std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).map_err(told)?;
            }
        }
        // Another user may not see the directory in which the library was built.
        fs::copy(library, dir.path().join("libebbtide.so")).map_err(told)?;
        fs::copy(&entry.script, dir.path().join("script")).map_err(told)?;
        Ok(Scratch { entry, dir })
    }

    fn run(&self, name: &str, set: impl FnOnce(&mut Command)) -> Result<Seen, String> {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail"])
            .arg(self.dir.path().join("script"))
            .current_dir(self.dir.path().join(name))
            .env("SCRATCH", self.dir.path().join("shared"))
            .env("CACHE", apt::cache()?.join("big"))
            .env("REPOSITORY", repository()?)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD")
            .env_remove("EBBTIDE_CONF");
        if is_root() && !self.entry.is_for_any_user() {
            use std::os::unix::process::CommandExt;
            command
                .uid(NOBODY)
                .gid(NOBODY)
                .env("HOME", self.dir.path().join(name));
        }
        set(&mut command);
        watch::run(&mut command, self.entry.limit())
    }
}

/// The user and the group without rights.
const NOBODY: u32 = 65534;

/// The text of the result file.
fn report(done: &[(Entry, Compared)], date: &str, busy: bool) -> String {
    let mut text = results::head("Large programs", date, COVERS, "make big");
    let note = match busy {
        true => "**The machine was busy: the times cannot be compared.** ",
        false => "",
    };
    let _ = write!(
        text,
        "{} {note}A program passed if it gave the same result as with glibc, Ebbtide was seen in its processes, printed nothing, and left \
         nothing behind.\n\n\
         **Time and memory** (lower is better). Memory: largest sum of the anonymous memory of all processes, sampled every 20 ms. One \
         run each, glibc first, so that Ebbtide's finds warm files.\n\n\
         | program | what it does | result | time, glibc (s) | time, Ebbtide (s) | memory, glibc (MiB) | memory, Ebbtide (MiB) |\n\
         |---|---|---|---|---|---|---|\n",
        machine()
    );
    for (entry, compared) in done {
        let _ = write!(
            text,
            "| {} | {} | {} |",
            entry.name,
            entry.what,
            cell(&line(compared))
        );
        let _ = match compared {
            Err(_) => writeln!(text, " | | | |"),
            Ok((without, with, _)) => writeln!(
                text,
                " {:.1} | {:.1} | {} | {} |",
                without.took.as_secs_f32(),
                with.took.as_secs_f32(),
                without.peak_bytes >> 20,
                with.peak_bytes >> 20
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
}
