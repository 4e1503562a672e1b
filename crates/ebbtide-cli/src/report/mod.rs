//! `ebbtide report`: every family of benchmarks in turn, and one page that tells all of it.
//!
//! The page is written anew, as a whole, after each family: whoever interrupts this keeps what was measured. An older page
//! stays until something has been measured.
//! `designs` says which figures tell what a design is worth.

mod designs;

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tempfile::NamedTempFile;

use crate::bench::interrupt::{self, Listening};
use crate::bench::plot::escape;
use crate::bench::report::{Report, SCHEMA};
use crate::bench::{self, html, tables};
use crate::cli::{BenchCommand, Cli, Command, ReportArgs};
use crate::out;
use designs::DESIGNS;

/// The families in the order in which they are run: the short ones first.
const FAMILIES: [&str; 10] = [
    "percpu",
    "exit",
    "free",
    "micro",
    "reuse",
    "return",
    "cluster",
    "lazyfree",
    "neighbour",
    "swap-exit",
];
/// Those that fill what they are told to.
const SIZED: [&str; 5] = ["exit", "free", "reuse", "return", "cluster"];
/// Without `--full` and `--against`: what nearly every program has now.
const PEER: &str = "glibc";
/// Exit status when something was measured, but not everything.
const EXIT_PARTIAL: u8 = 1;
/// The same after a signal, whose number is added.
const EXIT_SIGNAL: u8 = 128;

/// What has become of a family.
#[derive(Debug)]
enum State {
    ToCome,
    Skipped(String),
    Measured(Box<Report>),
}

/// A family, and its command line.
#[derive(Debug)]
struct Part {
    family: String,
    words: Vec<String>,
    state: State,
}

/// Writes the page; gives the exit status to end with.
pub fn main(args: &ReportArgs) -> Result<u8> {
    let mut parts = match args.from.is_empty() {
        true => parts(args)?,
        false => saved_parts(&args.from)?,
    };
    let file = args.out.display();
    // Better known before an hour of measuring that it cannot be written.
    check(&args.out)?;
    // Between two families, too: no signal takes along what was measured.
    let _listening = Listening::start()?;
    measure(&mut parts, &args.out);
    let broken_off = interrupt::came().map(|signal| EXIT_SIGNAL + signal as u8);
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    if reports.is_empty() {
        out::warning(&format!("nothing was measured: {file} is left as it was"));
        return Ok(broken_off.unwrap_or(EXIT_PARTIAL));
    }
    if let Err(error) = write(&args.out, &parts) {
        // Rather at the wrong place than lost.
        for report in reports {
            out::stdout(tables::render(report).as_bytes());
        }
        return Err(error.context("the figures are on stdout, without their pictures"));
    }
    out::stdout(format!("{file}\n").as_bytes());
    if let Some(status) = broken_off {
        out::warning(&format!("broken off; {file} has what was measured"));
        return Ok(status);
    }
    match reports.iter().all(|report| !report.partial) {
        true => Ok(0),
        false => Ok(EXIT_PARTIAL),
    }
}

/// Measures what is to come, and writes the page before each family but the first.
fn measure(parts: &mut [Part], file: &Path) {
    let count = parts.len();
    for at in 0..count {
        if !matches!(parts[at].state, State::ToCome) || interrupt::came().is_some() {
            continue;
        }
        if parts.iter().any(|part| part.report().is_some())
            && let Err(error) = write(file, parts)
        {
            out::warning(&format!("{error:#}; it is tried again after this family"));
        }
        let (number, part) = (at + 1, &mut parts[at]);
        let command = part.command();
        out::stderr(&format!("ebbtide report: {number} of {count}: {command}\n"));
        let began = Instant::now();
        part.state = part.measure();
        let took = began.elapsed().as_secs_f64();
        let told = match &part.state {
            State::Measured(report) => told(report).into(),
            State::Skipped(reason) => format!("skipped: {reason}"),
            State::ToCome => String::new(),
        };
        let name = &part.family;
        out::stderr(&format!("ebbtide report: {name}: {told} ({took:.0} s)\n"));
    }
}

/// What is to be measured.
fn parts(args: &ReportArgs) -> Result<Vec<Part>> {
    for name in &args.only {
        ensure!(
            FAMILIES.contains(&name.as_str()),
            "--only {name}: no such family; the families are: {}",
            FAMILIES.join(", ")
        );
    }
    let wanted = |family: &&str| args.only.is_empty() || args.only.iter().any(|o| o == family);
    let parts = FAMILIES.into_iter().filter(wanted).map(|family| Part {
        family: family.into(),
        words: words(args, family),
        state: State::ToCome,
    });
    Ok(parts.collect())
}

/// The command line of a family.
fn words(args: &ReportArgs, family: &str) -> Vec<String> {
    let mut words: Vec<String> = ["ebbtide", "bench", family].map(String::from).into();
    let mut add = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([flag.to_owned(), value]);
        }
    };
    if SIZED.contains(&family) {
        add("--size", args.size.clone());
        add("--wait", args.wait.clone());
    }
    add("--rounds", args.rounds.map(|n| n.to_string()));
    add(
        "--lib",
        args.lib.lib.as_ref().map(|p| p.display().to_string()),
    );
    if !args.full {
        words.push("--quick".into());
    }
    if !args.against.is_empty() {
        words.push("--against".into());
        words.extend(args.against.iter().cloned());
    } else if !args.full {
        words.extend(["--against".into(), PEER.into()]);
    }
    words
}

/// Of files, each with another family's results.
fn saved_parts(files: &[PathBuf]) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for file in files {
        let part = saved(file)?;
        ensure!(
            parts.iter().all(|other| other.family != part.family),
            "{}: another file has results of '{}', too; give one for each family",
            file.display(),
            part.family
        );
        parts.push(part);
    }
    Ok(parts)
}

/// Results that were saved by `ebbtide bench --json`.
fn saved(file: &Path) -> Result<Part> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| {
        let shown = file.display();
        format!("{shown} does not hold the results of 'ebbtide bench FAMILY --json'")
    })?;
    if report.schema() != SCHEMA {
        bail!(
            "{} is of another version; measure again with this one",
            file.display()
        );
    }
    let command = report.command.split(' ').map(String::from);
    Ok(Part {
        family: report.family.clone(),
        words: command.collect(),
        state: State::Measured(Box::new(report)),
    })
}

impl Part {
    fn command(&self) -> String {
        self.words.join(" ")
    }

    fn bench_command(&self) -> Result<BenchCommand> {
        match Cli::try_parse_from(&self.words)?.command {
            Command::Bench(command) => Ok(command),
            _ => bail!("not a family: {}", self.family),
        }
    }

    /// Whatever goes wrong is this family's alone.
    fn measure(&self) -> State {
        let measured = self.bench_command().and_then(|command| {
            let measured = bench::measure(&command)?;
            Ok(bench::report::new(
                &measured,
                &self.command(),
                command.bench().quick,
            ))
        });
        match measured {
            Ok(report) => State::Measured(Box::new(report)),
            Err(error) => State::Skipped(format!("{error:#}").trim().replace('\n', " ")),
        }
    }

    fn report(&self) -> Option<&Report> {
        match &self.state {
            State::Measured(report) => Some(report),
            _ => None,
        }
    }
}

fn told(report: &Report) -> &'static str {
    match report.partial {
        true => "measured in part",
        false => "measured",
    }
}

/// The file behind links, and whether it can be replaced: a device or a pipe is written to instead.
fn place(file: &Path) -> (PathBuf, bool) {
    let file = file.canonicalize().unwrap_or_else(|_| file.into());
    let is_special = fs::metadata(&file).is_ok_and(|meta| !meta.is_file());
    (file, !is_special)
}

/// Whether the page can be written; it stays as it is.
fn check(file: &Path) -> Result<()> {
    let told = || {
        format!(
            "cannot write {}; choose another place with --out",
            file.display()
        )
    };
    match place(file) {
        (file, true) => beside(&file).map(drop).with_context(told),
        (file, false) => {
            let opened = File::options().write(true).open(file);
            opened.map(drop).with_context(told)
        }
    }
}

/// A file in the same directory.
fn beside(file: &Path) -> io::Result<NamedTempFile> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir.unwrap_or(Path::new(".")))
}

/// Replaces the page as a whole.
fn write(file: &Path, parts: &[Part]) -> Result<()> {
    let page = page(parts)?;
    let told = || format!("cannot write {}", file.display());
    match place(file) {
        (file, true) => {
            let mut new = beside(&file).with_context(told)?;
            new.write_all(page.as_bytes()).with_context(told)?;
            let placed = new.persist(file).map_err(|error| error.error);
            placed.map(drop).with_context(told)
        }
        (file, false) => fs::write(file, page).with_context(told),
    }
}

fn page(parts: &[Part]) -> Result<String> {
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    let mut body = String::from(
        "<h1>What Ebbtide is worth here</h1>\n\
         <p>Each family of benchmarks runs fresh processes, allocators in turn; a figure is the median of its rounds. \
         Less is better. Ebbtide is measured twice: what the two differ by is the noise, and ≈ is within it. \
         What a design is worth is told by the same measured without it; ÷ is without over with, so above 1 the design \
         helps, and below 1 it costs.</p>\n<h2>Families</h2>\n<ul>\n",
    );
    for part in parts {
        let (name, command) = (escape(&part.family), escape(&part.command()));
        let state = match &part.state {
            State::ToCome => "not yet".into(),
            State::Skipped(reason) => format!("skipped: {}", escape(reason)),
            State::Measured(report) => format!("<a href=\"#{name}\">{}</a>", told(report)),
        };
        body.push_str(&format!(
            "<li>{name}: {state}<br><code>{command}</code></li>\n"
        ));
    }
    body.push_str("</ul>\n<h2>The five designs, with and without</h2>\n");
    for design in &DESIGNS {
        body.push_str(&format!(
            "<h3>{}</h3>\n<p>{}</p>\n<pre>{}</pre>\n",
            escape(design.name),
            escape(design.about),
            escape(&designs::table(design, &reports))
        ));
        for (about, svg) in designs::pictures(design, &reports)? {
            body.push_str(&html::picture(&about, &svg));
        }
    }
    let mut machines: Vec<&[(String, String)]> = reports.iter().map(|r| &r.machine[..]).collect();
    machines.dedup();
    for machine in machines {
        let lines = machine
            .iter()
            .map(|(name, value)| format!("{name}: {value}\n"));
        let lines = escape(&lines.collect::<String>());
        body.push_str(&format!("<h2>The machine</h2>\n<pre>{lines}</pre>\n"));
    }
    for report in reports {
        let family = escape(&report.family);
        body.push_str(&format!("<h1 id=\"{family}\">{family}</h1>\n"));
        body.push_str(&html::section(report)?);
    }
    Ok(html::document("Ebbtide: what it is worth here", &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(words: &[&str]) -> ReportArgs {
        let cli = Cli::try_parse_from([&["ebbtide", "report"], words].concat()).unwrap();
        let Command::Report(args) = cli.command else {
            panic!()
        };
        args
    }

    #[test]
    fn every_family_is_run_and_its_command_is_understood() {
        let cli = Cli::command();
        let bench = cli.find_subcommand("bench").unwrap();
        let mut known: Vec<&str> = bench.get_subcommands().map(|c| c.get_name()).collect();
        let mut ours = FAMILIES.to_vec();
        known.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, known);
        for flags in [
            &[][..],
            &["--full"],
            &["--size", "8M", "--wait", "0.1", "--rounds", "1"],
        ] {
            for part in parts(&args(flags)).unwrap() {
                let command = part.bench_command().unwrap();
                let is_full = flags.contains(&"--full");
                assert_eq!(command.bench().quick, !is_full, "{:?}", part.words);
                assert_eq!(command.bench().against.is_empty(), is_full);
            }
        }
        assert!(parts(&args(&["--only", "nonesuch"])).is_err());
    }

    #[test]
    fn a_family_that_cannot_run_does_not_lose_the_others() {
        let part = |family: &str, words: &[&str]| Part {
            family: family.into(),
            words: words.iter().map(|w| (*w).into()).collect(),
            state: State::ToCome,
        };
        let mut bad = part(
            "free",
            &["ebbtide", "bench", "free", "--lib", "/no/such.so"],
        );
        bad.state = bad.measure();
        let State::Skipped(reason) = &bad.state else {
            panic!()
        };
        assert!(
            reason.contains("such.so") && !reason.contains('\n'),
            "{reason}"
        );
        let page = page(&[bad, part("a & b", &["ebbtide"])]).unwrap();
        assert!(
            page.contains("skipped: ") && page.contains("a &amp; b: not yet"),
            "{page}"
        );
        assert!(!page.contains("http") && page.contains("Lazy freeing"));
    }
}
