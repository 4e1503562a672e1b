//! `ebbtide report`: every family of benchmarks in turn, and one page that tells all of it.
//!
//! The page is written anew, as a whole, after each family: whoever interrupts this keeps what was measured.
//! `designs` says which figures tell what a design is worth.

mod designs;

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use crate::bench::plot::escape;
use crate::bench::report::{Report, SCHEMA};
use crate::bench::{self, html, interrupt};
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
        false => args
            .from
            .iter()
            .map(|file| saved(file))
            .collect::<Result<_>>()?,
    };
    // Better known before an hour of measuring that it cannot be written.
    write(&args.out, &parts)?;
    let count = parts.len();
    for at in 0..count {
        if !matches!(parts[at].state, State::ToCome) {
            continue;
        }
        let (name, command) = (&parts[at].family, parts[at].command());
        out::stderr(&format!(
            "ebbtide report: {} of {count}: {command}\n",
            at + 1
        ));
        let began = Instant::now();
        let state = parts[at].measure();
        let took = began.elapsed().as_secs_f64();
        let told = match &state {
            State::Measured(report) => told(report).into(),
            State::Skipped(reason) => format!("skipped: {reason}"),
            State::ToCome => String::new(),
        };
        out::stderr(&format!("ebbtide report: {name}: {told} ({took:.0} s)\n"));
        parts[at].state = state;
        write(&args.out, &parts)?;
        if let Some(signal) = interrupt::came() {
            out::warning(&format!(
                "broken off; {} has what was measured",
                args.out.display()
            ));
            return Ok(EXIT_SIGNAL + signal as u8);
        }
    }
    out::stdout(format!("{}\n", args.out.display()).as_bytes());
    let is_complete = |part: &Part| match &part.state {
        State::Measured(report) => !report.partial,
        _ => true,
    };
    let is_anything = parts.iter().any(|part| part.report().is_some());
    match is_anything && parts.iter().all(is_complete) {
        true => Ok(0),
        false => Ok(EXIT_PARTIAL),
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
        add("--wait", args.wait.map(|s| s.to_string()));
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

/// Results that were saved by `ebbtide bench --json`.
fn saved(file: &Path) -> Result<Part> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| {
        let shown = file.display();
        format!("{shown} does not hold the results of 'ebbtide bench FAMILY --json'")
    })?;
    if report.schema() != SCHEMA {
        bail!("{} is of another version", file.display());
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

/// Replaces the page as a whole.
fn write(file: &Path, parts: &[Part]) -> Result<()> {
    let told = || format!("cannot write {}", file.display());
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut new = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir.unwrap_or(Path::new(".")))
        .with_context(told)?;
    new.write_all(page(parts)?.as_bytes()).with_context(told)?;
    new.persist(file).with_context(told)?;
    Ok(())
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
