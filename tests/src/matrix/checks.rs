//! The checks that run in a cell: the lines of `tests/matrix/list`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::builds::{Built, Programs};
use super::cells::{Cell, Libc};
use crate::build::{self, Toolchain};
use crate::guest::{Answer, Running};

/// A line of the list.
#[derive(Clone)]
pub(super) struct Check {
    pub name: String,
    pub seconds: u64,
    kind: Kind,
    /// Whether it is one of the few that run in a short cell.
    pub short: bool,
    pub command: String,
    /// Names of the `tests/c` programs in the command.
    programs: Vec<String>,
}

/// With what a check runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It must pass without the library too.
    Any,
    /// Only Ebbtide promises this, so there is nothing to compare with.
    Own,
    /// Unit tests of the crates, on another processor than that of this machine.
    Units,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
    /// It also fails without the library.
    FailsAnyway(String),
}

/// The directory `tests/matrix`.
pub(super) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("matrix")
}

/// Reads the list.
pub(super) fn list() -> Result<Vec<Check>, String> {
    let path = directory().join("list");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Check>, String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let wrong = || format!("tests/matrix/list: not NAME SECONDS KIND COMMAND: {line}");
            let (name, rest) = word(line).ok_or_else(wrong)?;
            let (seconds, rest) = word(rest).ok_or_else(wrong)?;
            let (kind, command) = word(rest).ok_or_else(wrong)?;
            let (kind, short) = match kind.strip_suffix('+') {
                Some(kind) => (kind, true),
                None => (kind, false),
            };
            let kind = match kind {
                "any" => Kind::Any,
                "own" => Kind::Own,
                "units" => Kind::Units,
                _ => return Err(wrong()),
            };
            let words = command
                .split(' ')
                .map(|word| word.strip_prefix("c/").unwrap_or(word));
            let programs = command
                .split(' ')
                .filter_map(|word| word.strip_prefix("c/"));
            Ok(Check {
                name: name.to_owned(),
                seconds: seconds.parse().map_err(|_| wrong())?,
                kind,
                short,
                command: words.collect::<Vec<_>>().join(" "),
                programs: programs.map(str::to_owned).collect(),
            })
        })
        .collect()
}

fn word(text: &str) -> Option<(&str, &str)> {
    let (word, rest) = text.split_once(char::is_whitespace)?;
    Some((word, rest.trim_start()))
}

/// Sources of the programs that the checks use.
pub(super) fn sources(checks: &[Check]) -> BTreeSet<PathBuf> {
    let named = checks
        .iter()
        .flat_map(|check| &check.programs)
        .map(|name| source(name));
    let filter = directory().join("filter.c");
    named.filter(|path| path.exists()).chain([filter]).collect()
}

/// Compiles all programs.
pub(super) fn compile(checks: &[Check], toolchain: &Toolchain) -> Programs {
    let compile = |source: PathBuf| {
        let name = source.file_stem().expect("a source file");
        let program = build::c_program_for(&source, toolchain).map_err(|why| {
            let error = why.lines().find(|line| line.contains("error:"));
            let error = error.or(why.lines().last()).unwrap_or_default();
            format!("does not compile: {error}")
        });
        (name.to_string_lossy().into_owned(), program)
    };
    sources(checks).into_iter().map(compile).collect()
}

fn source(program: &str) -> PathBuf {
    build::sources().join(format!("{program}.c"))
}

impl Check {
    /// Whether the check runs in such a cell.
    pub fn is_for(&self, cell: &Cell) -> bool {
        match (self.kind, cell.libc) {
            (Kind::Units, _) => !cell.processor.is_native(),
            // There are no programs of a distribution with musl.
            (_, Libc::Musl(_)) => !self.programs.is_empty(),
            _ => true,
        }
    }

    /// Runs the check; if it fails, runs it again without the library. A machine that does not answer in time, or by
    /// the end of its cell, counts as hanging.
    pub fn run(&self, machine: &mut Running, built: &Built, around: &str, end: Instant) -> Verdict {
        for name in &self.programs {
            match built.programs.get(name) {
                None => return Verdict::Skipped(format!("no tests/c/{name}.c")),
                Some(Err(why)) => return Verdict::Failed(why.clone()),
                Some(Ok(_)) => {}
            }
        }
        let mut ask = |preload: &str| {
            let (name, seconds) = (&self.name, self.seconds);
            let line =
                format!("{around} timeout -s KILL {seconds} sh /matrix/run {name} {preload}");
            let limit = Duration::from_secs(2 * seconds + 20);
            let left = end.saturating_duration_since(Instant::now());
            judge(&machine.ask(line.trim(), limit.min(left)))
        };
        if self.kind == Kind::Units {
            return ask("");
        }
        match ask("/programs/libebbtide.so") {
            Verdict::Failed(why) if self.kind == Kind::Any && why != DIED => match ask("") {
                Verdict::Passed => Verdict::Failed(why),
                Verdict::Failed(again) if again == DIED => Verdict::Failed(why),
                _ => Verdict::FailsAnyway(why),
            },
            verdict => verdict,
        }
    }
}

/// The machine is gone.
pub(super) const DIED: &str = "the machine died or hung";

fn judge(answer: &Answer) -> Verdict {
    let Some(end) = answer.end else {
        return Verdict::Failed(DIED.into());
    };
    let complaint = answer
        .stderr
        .lines()
        .find(|line| line.starts_with("ebbtide: ") || line.starts_with("ERROR: ld.so"));
    let said = |prefix: &str| {
        let both = answer.stdout.lines().chain(answer.stderr.lines());
        both.into_iter().find(|line| line.starts_with(prefix))
    };
    if let Some(line) = complaint {
        return Verdict::Failed(line.to_owned());
    }
    if end == 0 && answer.stdout.lines().any(|line| line == "ok") {
        return Verdict::Passed;
    }
    if let (0, Some(line)) = (end, said("skipped: ")) {
        return Verdict::Skipped(line["skipped: ".len()..].to_owned());
    }
    let last = answer
        .stderr
        .lines()
        .last()
        .or(answer.stdout.lines().last());
    let line = said("FAIL").or(last).unwrap_or("it said nothing");
    let how = match (end & 0x7f, end >> 8) {
        (libc::SIGKILL, _) => "over its time".to_owned(),
        (0, 0) => "no \"ok\"".to_owned(),
        (0, status) => format!("status {status}"),
        (signal, _) => format!("signal {signal}"),
    };
    Verdict::Failed(format!("{how}: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stdout: &str, stderr: &str, end: Option<i32>) -> Verdict {
        judge(&Answer {
            stdout: stdout.into(),
            stderr: stderr.into(),
            end,
        })
    }

    #[test]
    fn only_a_clean_ok_passes() {
        assert_eq!(answer("ok\n", "", Some(0)), Verdict::Passed);
        for (stdout, stderr, end) in [
            ("", "", Some(0)),
            ("ok\n", "", Some(1 << 8)),
            ("ok\n", "", Some(11)),
            ("ok\n", "", None),
            ("ok\n", "ebbtide: bad key\n", Some(0)),
            (
                "ok\n",
                "ERROR: ld.so: object cannot be preloaded\n",
                Some(0),
            ),
            ("not ok\n", "", Some(0)),
        ] {
            let verdict = answer(stdout, stderr, end);
            assert!(matches!(verdict, Verdict::Failed(_)), "{stdout} {stderr}");
        }
        let skipped = answer("skipped: no cgroup\n", "", Some(0));
        assert_eq!(skipped, Verdict::Skipped("no cgroup".into()));
    }

    #[test]
    fn a_failed_unit_test_is_named_with_its_message() {
        let said = |output: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, output.as_bytes()).unwrap();
            let run = std::process::Command::new("awk")
                .args(["-v", "program=unit", "-f"])
                .args([directory().join("failed.awk").as_path(), file.path()])
                .output()
                .unwrap();
            String::from_utf8(run.stdout).unwrap()
        };
        let output = "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n\n\
             ---- a::c stdout ----\nstep 1\n\nthread 'a::c' (7) panicked at a.rs:1:2:\n\
             assertion failed: x\nnote: run with `RUST_BACKTRACE=1`\n\nfailures:\n    a::c\n\n\
             test result: FAILED. 1 passed; 1 failed\n";
        let expected = "unit: a::c | thread 'a::c' (7) panicked at a.rs:1:2: assertion failed: x\n";
        assert_eq!(said(output), expected);
        assert_eq!(said("running 2 tests\nkilled\n\n"), "unit: | killed\n");
    }

    #[test]
    fn a_line_of_the_list() {
        let checks = parse("# x\n\nvfork  30  any  a=1 c/vfork 2 8\n").unwrap();
        assert_eq!(checks[0].command, "a=1 vfork 2 8");
        assert_eq!(checks[0].programs, ["vfork"]);
        assert_eq!((checks[0].seconds, checks[0].kind), (30, Kind::Any));
        assert!(!checks[0].short && parse("x 1 own+ y").unwrap()[0].short);
        assert!(parse("vfork any 30 vfork").is_err());
        assert!(list().unwrap().len() > 20);
    }
}
