//! `ebbtide report`: every family of benchmarks in turn, and one page that begins with what each design is worth.
//!
//! The page is written anew, as a whole, after each family: whoever interrupts this keeps what was measured. An older page
//! stays until something has been measured.
//!
//! | module | what it does |
//! |---|---|
//! | `designs` | which figures tell what a design is worth |
//! | `page` | the page |
//! | `peers` | how Ebbtide stands beside each other allocator |
//! | `keep` | the results beside it |
//! | `pace` | how long families take |

mod designs;
mod keep;
mod pace;
mod page;
mod peers;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use ebbtide_tools::complete::ArgValueCompleter;
use ebbtide_tools::library::LibArgs;
use ebbtide_tools::{out, values};

use crate::families::{self, Asked, FAMILIES, Registered};
use crate::figures::{self, Report, SCHEMA, html, place, tables};
use crate::harness::peers::candidates;
use crate::harness::progress::minutes;
use crate::outside::interrupt::{self, Listening};
use pace::Pace;

/// Below the flags.
pub const HELP: &str = "\
Every family of 'ebbtide bench' in turn, beside glibc: a quarter of an hour, nearly half of it for 'reuse' (see --only). \
The families of the five designs run first; where --time-limit is short they run fewer rounds, and the page says which \
families were left out; plan a day for --full with all peers. Nothing else should run meanwhile. \
Families that need root, swap or a memory cgroup say so in the page and are skipped. The page holds everything itself, and \
is written anew after each family: Ctrl-C keeps what was measured.";

/// `ebbtide report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The page
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "ebbtide-report.html"
    )]
    pub out: PathBuf,
    /// All rounds, larger heaps, and every peer that is installed
    #[arg(long, conflicts_with = "from")]
    pub full: bool,
    /// Only these families
    #[arg(long, value_name = "FAMILY", value_parser = names(), conflicts_with = "from")]
    pub only: Vec<String>,
    /// Peers to measure, as for 'ebbtide bench' (default: glibc)
    #[arg(long, value_name = "NAME|PATH", num_args = 1.., add = ArgValueCompleter::new(candidates), conflicts_with = "from")]
    pub against: Vec<String>,
    /// Make the page from results that --keep has written, or 'ebbtide bench FAMILY --json' has printed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub from: Vec<PathBuf>,
    /// Write each family's results to DIR/FAMILY.json as soon as they are there, for --from
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub keep: Option<PathBuf>,
    /// Write each picture of the families into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Rounds, instead of each family's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "from")]
    pub rounds: Option<u32>,
    /// Leave out families that would end later than this, such as 5m or 1h, and further rounds of the others
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "from")]
    pub time_limit: Option<Duration>,
    /// As for the families that take it
    #[arg(long, value_name = "SIZE", value_parser = values::size_text, hide = true)]
    pub size: Option<String>,
    /// As for the families that take it
    #[arg(long, value_name = "TIME", value_parser = values::time_text, hide = true)]
    pub wait: Option<String>,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
}

/// Without `--full` and `--against`: what nearly every program has now.
const PEER: &str = "glibc";

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
    /// How long it takes as a rule, where that is known.
    usual_s: Option<f64>,
    /// How long one round takes of a core family, which is begun if there is time for that.
    least_s: Option<f64>,
    /// With fewer rounds it took less than that.
    rounds: u32,
    state: State,
}

/// Writes the page; gives the exit status to end with.
pub fn main(args: &ReportArgs) -> Result<u8> {
    let mut parts = match args.from.is_empty() {
        true => parts(args),
        false => saved_parts(&args.from)?,
    };
    let file = args.out.display();
    // Better known before an hour of measuring that it cannot be written.
    place::check(&args.out, "--out")?;
    if let Some(dir) = &args.keep {
        keep::check(dir, parts.iter().map(|part| part.family.as_str()))?;
    }
    if let Some(dir) = &args.plots {
        html::check_plots(dir)?;
    }
    // Between two families, too: no signal takes along what was measured.
    let _listening = Listening::start()?;
    measure(&mut parts, args);
    let signal = interrupt::came();
    let reports: Vec<&Report> = parts.iter().filter_map(Part::report).collect();
    if reports.is_empty() {
        out::warning(&format!("nothing was measured: {file} is left as it was"));
        return Ok(figures::status(signal, true));
    }
    if let Err(error) = write(&args.out, &parts) {
        // Rather at the wrong place than lost.
        for report in reports {
            out::stdout(tables::render(report).as_bytes());
        }
        return Err(error.context("the figures are on stdout, without their pictures"));
    }
    if let Some(dir) = &args.plots {
        for report in &reports {
            html::write_plots(dir, report)?;
        }
    }
    out::stdout(format!("{file}\n").as_bytes());
    if signal.is_some() {
        out::warning(&format!("broken off; {file} has what was measured"));
    }
    let is_partial = reports.iter().any(|report| report.partial);
    Ok(figures::status(signal, is_partial))
}

/// Measures what is to come, keeps each family's results, and writes the page before each family but the first.
fn measure(parts: &mut [Part], args: &ReportArgs) {
    let (count, began) = (parts.len(), Instant::now());
    let mut pace = Pace::default();
    for at in 0..count {
        if !matches!(parts[at].state, State::ToCome) {
            continue;
        }
        if let Some(signal) = interrupt::came() {
            let why = format!("broken off by {}", interrupt::name(signal));
            parts[at].state = State::Skipped(why);
            continue;
        }
        if parts.iter().any(|part| part.report().is_some())
            && let Err(error) = write(&args.out, parts)
        {
            out::warning(&format!("{error:#}; it is tried again after this family"));
        }
        let left = pace.of(parts[at..].iter().map(|part| part.usual_s).sum());
        let left = left.map_or(String::new(), |s| format!(", about {} left", minutes(s)));
        let later = parts[at + 1..].iter();
        let later_s = later.filter_map(|part| pace.of(part.least_s)).sum();
        let (number, part) = (at + 1, &mut parts[at]);
        let room = args.time_limit.map(|t| t.saturating_sub(began.elapsed()));
        let room = match pace.of(part.least_s) {
            Some(least_s) => pace::share(room, least_s, later_s),
            None => room,
        };
        let begins = Instant::now();
        part.state = match pace.no_room(part.least_s.or(part.usual_s), room) {
            Some(reason) => State::Skipped(reason),
            None => {
                let what = format!("{number} of {count}{left}: {}", part.command());
                out::stderr(&format!("ebbtide report: {what}\n"));
                part.measure(room)
            }
        };
        if let (Some(dir), Some(report)) = (&args.keep, part.report())
            && let Err(error) = keep::write(dir, report)
        {
            out::warning(&format!("{error:#}; the page has these figures"));
        }
        let took = begins.elapsed().as_secs_f64();
        let told = match &part.state {
            State::Measured(report) => {
                if part.is_whole() {
                    pace.note(part.usual_s, took);
                }
                format!("{} ({took:.0} s)", told(report))
            }
            State::Skipped(reason) => format!("skipped: {reason}"),
            State::ToCome => String::new(),
        };
        let name = &part.family;
        out::stderr(&format!("ebbtide report: {name}: {told}\n"));
    }
}

fn write(file: &Path, parts: &[Part]) -> Result<()> {
    place::write(file, &page::page(parts))
}

fn names() -> PossibleValuesParser {
    FAMILIES.iter().map(|family| family.name).into()
}

/// What is to be measured.
fn parts(args: &ReportArgs) -> Vec<Part> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|o| o == name);
    let is_usual = !args.full && args.against.is_empty();
    let families = FAMILIES.iter().filter(|family| wanted(family.name));
    let parts = families.map(|family| {
        let rounds = args.rounds.unwrap_or(family.quick_rounds);
        Part {
            family: family.name.into(),
            words: words(args, family),
            usual_s: is_usual.then(|| family.quick_round_s * f64::from(rounds)),
            least_s: (is_usual && family.is_core).then_some(family.quick_round_s),
            rounds,
            state: State::ToCome,
        }
    });
    parts.collect()
}

/// The command line of a family.
fn words(args: &ReportArgs, family: &Registered) -> Vec<String> {
    let mut words: Vec<String> = ["ebbtide", "bench", family.name].map(String::from).into();
    // Those that fill what they are told to.
    let fills = family.takes("size") && family.takes("wait");
    let lib = args.lib.lib.as_ref();
    let flags = [
        ("--size", args.size.clone().filter(|_| fills)),
        ("--wait", args.wait.clone().filter(|_| fills)),
        ("--rounds", args.rounds.map(|n| n.to_string())),
        ("--lib", lib.map(|path| path.display().to_string())),
    ];
    for (flag, value) in flags {
        words.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
    }
    if !args.full {
        words.push("--quick".into());
    }
    let usual = [PEER.to_owned()];
    let against = match args.against.is_empty() && !args.full {
        true => &usual,
        false => args.against.as_slice(),
    };
    if !against.is_empty() {
        words.push("--against".into());
        words.extend_from_slice(against);
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
    // As they would have been measured, however the files were named.
    let place = |part: &Part| FAMILIES.iter().position(|f| f.name == part.family);
    parts.sort_by_key(place);
    Ok(parts)
}

/// Results that were saved by `ebbtide bench --json`.
fn saved(file: &Path) -> Result<Part> {
    let shown = file.display();
    let text = fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| {
        format!("{shown} does not hold the results of 'ebbtide bench FAMILY --json'")
    })?;
    ensure!(
        report.schema == SCHEMA,
        "{shown} is of another version; measure again with this one"
    );
    Ok(Part {
        family: report.family.clone(),
        words: report.command.split(' ').map(String::from).collect(),
        usual_s: None,
        least_s: None,
        rounds: report.rounds,
        state: State::Measured(Box::new(report)),
    })
}

impl Part {
    fn command(&self) -> String {
        self.words.join(" ")
    }

    /// Begins no round that would end later than in `room`, which is of this report and not shown as the family's.
    fn asked(&self, room: Option<Duration>) -> Result<Asked> {
        let limit = room.map(|room| format!("--time-limit={}s", room.as_secs()));
        let words = self.words.iter().skip_while(|word| **word != self.family);
        families::parse(words.cloned().chain(limit))
    }

    /// Whatever goes wrong is this family's alone.
    fn measure(&self, room: Option<Duration>) -> State {
        let measured = self.asked(room).and_then(|asked| {
            let measured = asked.measure()?;
            let quick = asked.bench.quick;
            Ok(figures::new(measured, &self.command(), quick))
        });
        match measured {
            Ok(report) => State::Measured(Box::new(report)),
            Err(error) => State::Skipped(format!("{error:#}").trim().replace('\n', " ")),
        }
    }

    /// Whether all of it was measured, in all rounds.
    fn is_whole(&self) -> bool {
        self.report()
            .is_some_and(|report| !report.partial && report.rounds >= self.rounds)
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReportArgs,
    }

    fn args(words: &[&str]) -> ReportArgs {
        Line::try_parse_from([&["report"], words].concat())
            .unwrap()
            .args
    }

    #[test]
    fn every_familys_command_is_understood() {
        for flags in [
            &[][..],
            &["--full"],
            &["--size", "8M", "--wait", "0.1", "--rounds", "1"],
        ] {
            for part in parts(&args(flags)) {
                let asked = part.asked(None).unwrap();
                let is_full = flags.contains(&"--full");
                assert_eq!(asked.bench.quick, !is_full, "{:?}", part.words);
                assert_eq!(asked.bench.against.is_empty(), is_full);
            }
        }
        assert!(Line::try_parse_from(["report", "--only", "nonesuch"]).is_err());
    }

    #[test]
    fn a_limit_is_kept_and_not_shown() {
        let parts = parts(&args(&["--only", "micro", "--time-limit", "1h"]));
        let asked = parts[0].asked(Some(Duration::from_secs(893)));
        let limit = asked.unwrap().bench.time_limit;
        assert_eq!(limit, Some(Duration::from_secs(893)));
        let shown = parts[0].command();
        assert_eq!(shown, "ebbtide bench micro --quick --against glibc");
    }

    #[test]
    fn a_family_cut_short_is_not_whole() {
        let mut part = parts(&args(&["--only", "micro"])).remove(0);
        let json = |rounds: u32, partial: bool| {
            serde_json::json!({
                "schema": SCHEMA, "family": "micro", "rounds": rounds, "partial": partial,
                "quick": true, "machine": [], "measurements": [], "curves": [], "notes": [],
                "failures": [],
            })
        };
        for (rounds, partial, is_whole) in [(3, false, true), (2, false, false), (3, true, false)] {
            let report = serde_json::from_value(json(rounds, partial)).unwrap();
            part.state = State::Measured(Box::new(report));
            assert_eq!(part.is_whole(), is_whole);
        }
    }

    #[test]
    fn a_family_that_cannot_run_does_not_lose_the_others() {
        let part = |family: &str, words: &[&str]| Part {
            family: family.into(),
            words: words.iter().map(|w| (*w).into()).collect(),
            usual_s: None,
            least_s: None,
            rounds: 1,
            state: State::ToCome,
        };
        let mut bad = part(
            "free",
            &["ebbtide", "bench", "free", "--lib", "/no/such.so"],
        );
        bad.state = bad.measure(None);
        let State::Skipped(reason) = &bad.state else {
            panic!()
        };
        assert!(
            reason.contains("such.so") && !reason.contains('\n'),
            "{reason}"
        );
        let page = page::page(&[bad, part("a & b", &["ebbtide"])]);
        assert!(
            page.contains("left out: ") && page.contains("a &#38; b: not yet"),
            "{page}"
        );
        assert!(!page.contains("http") && page.contains("Lazy free"));
    }
}
