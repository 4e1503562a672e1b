//! Writes the results: a file for each cell, a dated result file, and the table in `docs/platforms.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use super::cells::{self, Cell, Variant};
use super::checks::Verdict;
use crate::{Processor, library, results};

/// Inputs of a result: changes below these directories make it outdated.
pub(super) const COVERS: &str = "crates tests/c tests/guest tests/matrix tests/src/matrix";
const BEGIN: &str = "<!-- matrix -->";
const END: &str = "<!-- /matrix -->";
/// Number of kernel log lines that are kept for a failed cell.
const TAIL: usize = 15;

/// The result of a cell.
pub(super) struct Outcome {
    label: String,
    kernel: String,
    /// The commit at which it ran.
    commit: String,
    /// What failed in earlier runs with the same library, programs and tests.
    earlier: Vec<String>,
    /// The reason why it did not run.
    pub skipped: Option<String>,
    /// The reason why it ended before its last check.
    ended: Option<String>,
    /// Verdict, check and output.
    lines: Vec<(String, String, String)>,
    log: String,
    pub took: Duration,
}

impl Outcome {
    pub fn new(label: &str, kernel: &str) -> Outcome {
        Outcome {
            label: label.to_owned(),
            kernel: kernel.to_owned(),
            commit: String::new(),
            earlier: Vec::new(),
            skipped: None,
            ended: None,
            lines: Vec::new(),
            log: String::new(),
            took: Duration::ZERO,
        }
    }

    pub fn skipped(label: &str, why: &str) -> Outcome {
        Outcome {
            skipped: Some(why.to_owned()),
            ..Outcome::new(label, "")
        }
    }

    pub fn add(&mut self, check: &str, verdict: &Verdict, took: Duration) {
        let (word, why) = match verdict {
            Verdict::Passed => ("ok", format!("{:.1} s", took.as_secs_f32())),
            Verdict::Failed(why) => ("FAIL", why.clone()),
            Verdict::Skipped(why) => ("skipped", why.clone()),
            Verdict::FailsAnyway(why) => ("anyway", why.clone()),
        };
        self.lines.push((word.into(), check.into(), why));
    }

    /// Notes the commit, and what failed in the run that this one repeats.
    pub fn ran_at(&mut self, commit: &str, before: Option<Outcome>) {
        self.commit = commit.to_owned();
        if let Some(before) = before {
            let failed = before.failures();
            self.earlier = before.earlier;
            self.earlier.extend(failed);
        }
    }

    /// One line for each check that failed.
    fn failures(&self) -> Vec<String> {
        let failed = self.lines.iter().filter(|line| line.0 == "FAIL");
        let mut lines: Vec<String> = failed
            .map(|(_, check, why)| format!("FAIL {check}: {why}"))
            .collect();
        lines.extend(self.ended.iter().map(|why| format!("ENDED: {why}")));
        lines
    }

    /// Marks the cell as ended too early.
    pub fn ended(mut self, why: &str, log: &str, took: Duration) -> Outcome {
        self.ended = Some(why.to_owned());
        self.keep_log(log);
        self.took = took;
        self
    }

    /// Keeps the end of a kernel's log, of the first machine only: later machines ran the rest of its checks.
    pub fn keep_log(&mut self, log: &str) {
        if !self.log.is_empty() {
            return;
        }
        let lines: Vec<&str> = log.lines().collect();
        self.log = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    }

    fn count(&self, word: &str) -> usize {
        self.lines.iter().filter(|line| line.0 == word).count()
    }

    /// Whether the result is about this kernel and this libc.
    pub fn is_of(&self, label: &str, kernel: &str) -> bool {
        self.label == label && self.kernel == kernel
    }

    pub fn is_failed(&self) -> bool {
        self.ended.is_some() || self.count("FAIL") > 0
    }

    /// The result as a line for people.
    pub fn line(&self) -> String {
        let mut text = format!("{}: {} ok", self.label, self.count("ok"));
        for (word, what) in [
            ("FAIL", "FAILED"),
            ("anyway", "fail without the library too"),
            ("skipped", "skipped"),
        ] {
            if self.count(word) > 0 {
                let _ = write!(text, ", {} {what}", self.count(word));
            }
        }
        let _ = write!(text, " in {} s", self.took.as_secs());
        text
    }

    /// One line for each check that did not pass, and for a failed cell the end of its console.
    pub fn details(&self) -> Vec<String> {
        let mut lines: Vec<String> = (self.lines.iter())
            .filter(|line| line.0 != "ok")
            .map(|(word, check, why)| match word.as_str() {
                "anyway" => format!("{check} fails without the library too: {why}"),
                _ => format!("{word} {check}: {why}"),
            })
            .collect();
        lines.extend(self.ended.iter().map(|why| format!("ENDED: {why}")));
        lines.extend(
            self.earlier
                .iter()
                .map(|why| format!("an earlier run: {why}")),
        );
        if self.is_failed() {
            lines.extend(self.log.lines().map(|line| format!("| {line}")));
        }
        lines
    }

    /// The result as text for [`Outcome::parse`].
    pub fn text(&self) -> String {
        let seconds = self.took.as_secs();
        let mut text = format!(
            "cell {}\nkernel {}\ncommit {}\ntook {seconds}\n",
            self.label, self.kernel, self.commit
        );
        for line in &self.earlier {
            let _ = writeln!(text, "earlier {line}");
        }
        for (word, check, why) in &self.lines {
            let _ = writeln!(text, "check {word} {check} {why}");
        }
        if let Some(line) = &self.ended {
            let _ = writeln!(text, "ended {line}");
        }
        for line in self.log.lines() {
            let _ = writeln!(text, "log {line}");
        }
        text + "done\n"
    }

    /// Parses the text of [`Outcome::text`]; `None` if it was cut short.
    pub fn parse(text: &str) -> Option<Outcome> {
        let mut outcome = Outcome::new("", "");
        let mut done = false;
        for line in text.lines() {
            let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "cell" => outcome.label = rest.to_owned(),
                "kernel" => outcome.kernel = rest.to_owned(),
                "commit" => outcome.commit = rest.to_owned(),
                "earlier" => outcome.earlier.push(rest.to_owned()),
                "took" => outcome.took = Duration::from_secs(rest.parse().ok()?),
                "check" => {
                    let mut words = rest.splitn(3, ' ').map(str::to_owned);
                    let mut word = || words.next();
                    outcome
                        .lines
                        .push((word()?, word()?, word().unwrap_or_default()));
                }
                "ended" => outcome.ended = Some(rest.to_owned()),
                "log" => outcome.log += &format!("{rest}\n"),
                "done" => done = true,
                _ => return None,
            }
        }
        done.then_some(outcome)
    }

    /// The mark for the table.
    fn mark(&self) -> String {
        let failed: Vec<&str> = (self.lines.iter())
            .filter(|line| line.0 == "FAIL")
            .map(|line| line.1.as_str())
            .collect();
        let mut text = format!("{} ok", self.count("ok"));
        for (word, what) in [("anyway", "fail anyway"), ("skipped", "skipped")] {
            if self.count(word) > 0 {
                let _ = write!(text, ", {} {what}", self.count(word));
            }
        }
        if !failed.is_empty() {
            let _ = write!(text, ", **{} failed**: {}", failed.len(), failed.join(", "));
        }
        if self.ended.is_some() {
            text += ", **ended early**";
        }
        match self.skipped {
            Some(_) => "skipped".into(),
            None => text,
        }
    }
}

/// The tables: for each processor a row for each kernel, with a column for each C library or for each size of pages; then
/// the cells with special conditions.
pub(super) fn table(all: &[(Cell, Outcome)]) -> String {
    let version = |outcome: &Outcome, part: usize| {
        // A cell that could not be fetched is named by its suites.
        let (kernel, libc) = outcome.label.split('+').next()?.split_once('/')?;
        Some([kernel, libc.trim_start_matches("musl-")][part].to_owned())
    };
    // What the first such cell says of its kernel (0) or of its C library (1).
    let found = |fits: &dyn Fn(&Cell) -> bool, part| {
        let mut fitting = all.iter().filter(|(cell, _)| fits(cell));
        let found = fitting.find_map(|(_, outcome)| version(outcome, part));
        found.unwrap_or("?".into())
    };
    let mark = |here: &dyn Fn(&Cell) -> bool| {
        let mut plain = all
            .iter()
            .filter(|(cell, _)| cell.variant == Variant::Plain);
        let found = plain.find(|(cell, _)| here(cell));
        found.map_or("–".to_owned(), |(_, outcome)| outcome.mark())
    };
    let head = |first: &str, columns: &[String]| {
        let rule = "|---".repeat(columns.len() + 1);
        format!("| {first} | {} |\n{rule}|\n", columns.join(" | "))
    };
    let row = |first: String, marks: Vec<String>| format!("| {first} | {} |\n", marks.join(" | "));

    let is = |cell: &Cell, processor, kernel| cell.processor == processor && cell.kernel == kernel;
    let columns = cells::LIBCS.map(|libc| {
        let version = found(
            &|cell| cell.libc == libc && cell.processor == Processor::X86_64,
            1,
        );
        format!("{} {version} ({})", libc.name(), libc.suite())
    });
    let mut text = head("kernel on x86-64", &columns);
    for kernel in cells::KERNELS {
        let here = |cell: &Cell| is(cell, Processor::X86_64, kernel);
        let marks = cells::LIBCS.map(|libc| mark(&|cell| here(cell) && cell.libc == libc));
        let first = format!("Linux {} ({kernel})", found(&here, 0));
        text += &row(first, marks.into());
    }

    let columns = cells::PAGES.map(|pages| format!("{} KiB", pages.kib()));
    text += &format!("\n{}", head("kernel on aarch64, pages of", &columns));
    for (kernel, libc, _) in cells::AARCH64 {
        let here = |cell: &Cell| is(cell, Processor::Aarch64, kernel);
        let marks = cells::PAGES.map(|pages| mark(&|cell| here(cell) && cell.pages == pages));
        let (version, libc_version) = (found(&here, 0), found(&here, 1));
        let first = format!("Linux {version} ({kernel}), glibc {libc_version} ({libc})");
        text += &row(first, marks.into());
    }

    text += &format!("\n{}", head("special, on x86-64", &["result".to_owned()]));
    for (cell, outcome) in all {
        if let Some(name) = cell.variant.name() {
            let label = outcome.label.split('+').next().unwrap_or_default();
            text += &row(format!("{name}, Linux/glibc {label}"), vec![outcome.mark()]);
        }
    }
    text
}

/// Writes the dated result file, and its table into `docs/platforms.md`.
pub(super) fn write(all: &[(Cell, Outcome)]) -> Result<(), String> {
    let (date, commit) = (results::today()?, results::commit(COVERS));
    let table = format!("Written on {date} at commit {commit}.\n\n{}", table(all));
    let times = || all.iter().map(|(_, outcome)| outcome.took.as_secs());
    let (slowest, sum) = (times().max().unwrap_or(0), times().sum::<u64>());
    let library = library().and_then(|path| fs::metadata(path).ok());
    let bytes = library.map_or(0, |meta| meta.len());
    let head = results::head("Kernels and C libraries", &date, COVERS, "make matrix");
    let mut text = format!(
        "{head}\
         The library (`libebbtide.so`, {bytes} bytes on x86-64) in emulated machines of 2 GiB, with 2 CPUs on x86-64 and \
         4 on aarch64. The slowest cell took {slowest} s, all together {sum} s.\n\
         A cell says how many checks of `tests/matrix/list` passed. `–` is a pair that is left out, as `cells.rs` says.\n\n\
         {BEGIN}\n{table}{END}\n\n{}## What did not pass\n",
        other_commits(all, &commit)
    );
    let before = text.len();
    for (_, outcome) in all {
        if let Some(why) = &outcome.skipped {
            let first = if text.len() == before { "\n" } else { "" };
            let _ = writeln!(text, "{first}- {}: skipped: {why}", outcome.label);
        }
    }
    for (_, outcome) in all {
        let details = outcome.details();
        if !details.is_empty() {
            let (label, kernel) = (&outcome.label, &outcome.kernel);
            let _ = write!(text, "\n### {label} (Linux {kernel})\n\n```\n");
            for line in details {
                let _ = writeln!(text, "{}", line.trim_end());
            }
            text += "```\n";
        }
    }
    if text.len() == before {
        text += "\nNothing.\n";
    }
    let name = results::write("matrix", &date, &text)?;
    let path = results::repository().join("docs/platforms.md");
    let page = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (head, rest) = page
        .split_once(BEGIN)
        .ok_or("docs/platforms.md: no table")?;
    let (_, tail) = rest
        .split_once(END)
        .ok_or("docs/platforms.md: no table's end")?;
    fs::write(&path, format!("{head}{BEGIN}\n{table}{END}{tail}")).map_err(|e| e.to_string())?;
    println!("\nwritten: {name}, docs/platforms.md");
    Ok(())
}

/// Lists the cells that ran at other commits. A result is kept under a key that is computed from the content of library,
/// programs and tests, so these were the same.
fn other_commits(all: &[(Cell, Outcome)], commit: &str) -> String {
    let mut labels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, outcome) in all {
        if outcome.skipped.is_none() && outcome.commit != commit {
            let labels = labels.entry(&outcome.commit).or_default();
            labels.push(&outcome.label);
        }
    }
    let mut text = String::new();
    for (commit, labels) in labels {
        let _ = writeln!(text, "- {commit}: {}", labels.join(", "));
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "These cells ran at other commits, with byte for byte the same library, programs and tests:\n\n{text}\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::cells::{NEWEST_CELL, NEWEST_ON_AARCH64};

    #[test]
    fn each_cell_has_its_place_in_the_table() {
        let mut first = Outcome::new("7.2/2.43", "7.2.13");
        first.add("api", &Verdict::Passed, Duration::ZERO);
        let mut second = Outcome::new("7.2/2.43+arm64-16k", "7.2.13-16k");
        second.add("api", &Verdict::Failed("x".into()), Duration::ZERO);
        let table = table(&[(NEWEST_CELL, first), (NEWEST_ON_AARCH64, second)]);
        let has = |line: &str| assert!(table.lines().any(|l| l == line), "{line}\n{table}");
        has("| Linux 7.2 (sid) | – | – | – | 1 ok | – |");
        has("| Linux 7.2 (sid), glibc 2.43 (sid) | – | 0 ok, **1 failed**: api | – |");
        assert!(table.contains("| glibc 2.43 (sid) |"));
    }

    #[test]
    fn a_kept_outcome_is_read_again_unless_it_was_cut() {
        let mut outcome = Outcome::new("7.2/2.43", "7.2.13");
        outcome.add("api", &Verdict::Passed, Duration::from_secs(2));
        outcome.add(
            "dash",
            &Verdict::Failed("signal 11: x".into()),
            Duration::ZERO,
        );
        outcome.keep_log("one\ntwo");
        let text = outcome.text();
        let again = Outcome::parse(&text).expect("whole");
        assert_eq!(again.text(), text);
        assert!(again.is_failed());
        assert_eq!(again.mark(), "1 ok, **1 failed**: dash");
        assert!(Outcome::parse(&text[..text.len() - 6]).is_none());
    }

    #[test]
    fn a_repeated_cell_says_what_failed_before() {
        let mut first = Outcome::new("7.2/2.43", "7.2.13");
        first.add("dash", &Verdict::Failed("x".into()), Duration::ZERO);
        first.ran_at("aaaa", None);
        let mut second = Outcome::new("7.2/2.43", "7.2.13");
        second.add("dash", &Verdict::Passed, Duration::ZERO);
        second.ran_at("bbbb", Outcome::parse(&first.text()));
        let kept = Outcome::parse(&second.text()).expect("whole");
        assert_eq!(kept.details(), ["an earlier run: FAIL dash: x"]);
        assert!(!kept.is_failed());
        let all = [(NEWEST_CELL, kept)];
        assert_eq!(other_commits(&all, "bbbb"), "");
        assert!(other_commits(&all, "cccc").contains("- bbbb: 7.2/2.43\n"));
    }
}
