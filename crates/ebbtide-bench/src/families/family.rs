//! The interface of a family of benchmarks.
//!
//! A family describes itself in a text. Its first paragraph is one sentence for the help. Each other paragraph has
//! cases, with the figures that all of them have:
//!
//! ```text
//! What becomes of one block (see --quick)
//!
//! freed: free a block
//! kept held: keep a block
//!   took_ms: ms in the call
//!   rss_mib: MiB resident after it
//! ```

use anyhow::{Context, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::figures::Measured;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{self, Entry, Takes};
use crate::harness::{self, Case, Metric, Results, Run};
use crate::measured::{Output, WorkerArgs};

/// A family of benchmarks is a file or a folder here, and a line in [`FAMILIES`](super::FAMILIES). It returns results as
/// data. Text, JSON, pages and pictures are made from the results in the same way for every family.
pub trait Family: 'static {
    /// Its flags. They include [`BenchArgs`].
    type Flags: Args;
    /// Its name.
    const NAME: &'static str;
    /// Its description, with its cases and figures.
    const TEXT: &'static str;
    /// Number of rounds, and number of rounds in the quick form.
    const ROUNDS: (u32, u32);
    /// Seconds that one round of the quick form takes with one peer on 2 CPUs.
    const QUICK_ROUND_S: f64;

    /// Runs the family.
    fn measure(flags: &Self::Flags) -> Result<Results>;

    /// Runs a case of the family in the measured process. `None` if the case is not one of the family's.
    fn process(args: &WorkerArgs) -> Option<Result<Output>>;

    /// Text below the flags in the help.
    fn more_help() -> String {
        peers::known_list()
    }

    /// The cases of the text for which `run` gives the work, but only those whose name contains one of `only`, if that
    /// is not empty.
    fn cases(
        only: &[String],
        run: impl Fn(&'static str) -> Option<Box<dyn Run>>,
    ) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        for paragraph in Self::TEXT.split("\n\n").skip(1) {
            let lines = paragraph.lines().map(|line| line.split_once(": "));
            let lines = lines.collect::<Option<Vec<_>>>();
            let lines = lines.with_context(|| format!("not cases and figures: {paragraph}"))?;
            let is_figure = |(name, _): &(&str, &str)| name.starts_with("  ");
            let (figures, lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_figure);
            let figures = figures.iter().map(|(name, unit)| Metric {
                id: name.trim_start(),
                unit,
            });
            let metrics: Vec<Metric> = figures.collect();
            for (names, about) in lines {
                let runs = names.split(' ').filter_map(|id| Some((id, run(id)?)));
                cases.extend(runs.map(|(id, run)| Case {
                    id,
                    about,
                    run,
                    metrics: metrics.clone(),
                }));
            }
        }
        harness::select(&mut cases, only)?;
        Ok(cases)
    }
}

/// The allocators that a family measures: Ebbtide, Ebbtide again, its variants, and the peers. A variant has a setting,
/// and cases that it takes. With `is_waiting`, the peers have the settings that matter only if time passes.
pub fn entries(
    args: &BenchArgs,
    is_waiting: bool,
    variants: &[(&str, Takes)],
) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(args, is_waiting)?;
    let own = entries[0].clone();
    let variants = variants
        .iter()
        .map(|(conf, takes)| own.variant(conf, *takes));
    entries.splice(2..2, variants);
    Ok(entries)
}

/// An entry of the list of families.
pub struct Registered {
    /// [`Family::NAME`].
    pub name: &'static str,
    /// [`Family::TEXT`].
    pub text: &'static str,
    /// Rounds of the quick form.
    pub quick_rounds: u32,
    /// [`Family::QUICK_ROUND_S`].
    pub quick_round_s: f64,
    /// Whether a report measures it for a design, with fewer rounds where time is short.
    pub is_core: bool,
    /// [`Family::process`].
    pub process: fn(&WorkerArgs) -> Option<Result<Output>>,
    more_help: fn() -> String,
    flags: fn(Command) -> Command,
    measure: fn(&ArgMatches) -> Result<Results>,
}

impl Registered {
    /// The entry of a family.
    pub const fn new<F: Family>() -> Self {
        Registered {
            name: F::NAME,
            text: F::TEXT,
            quick_rounds: F::ROUNDS.1,
            quick_round_s: F::QUICK_ROUND_S,
            is_core: false,
            process: F::process,
            more_help: F::more_help,
            flags: F::Flags::augment_args,
            measure: |matches| F::measure(&F::Flags::from_arg_matches(matches)?),
        }
    }

    /// The entry of a family that shows a design.
    pub const fn core(mut self) -> Self {
        self.is_core = true;
        self
    }

    /// The family's subcommand.
    pub fn command(&self) -> Command {
        let about = self.text.split("\n\n").next().unwrap_or_default();
        let command = Command::new(self.name)
            .about(about.replace('\n', " "))
            .after_help((self.more_help)());
        (self.flags)(command)
    }

    /// Reads the flags of the subcommand.
    pub fn asked(&'static self, matches: &ArgMatches) -> Result<Asked, clap::Error> {
        Ok(Asked {
            family: self,
            bench: BenchArgs::from_arg_matches(matches)?,
            matches: matches.clone(),
        })
    }

    /// Whether the family has a flag of this name.
    pub fn takes(&self, flag: &str) -> bool {
        self.command()
            .get_arguments()
            .any(|arg| arg.get_id() == flag)
    }
}

/// A family with its flags.
pub struct Asked {
    family: &'static Registered,
    /// The flags that all families share.
    pub bench: BenchArgs,
    matches: ArgMatches,
}

impl Asked {
    /// Runs the family.
    pub fn measure(&self) -> Result<Measured> {
        let results = (self.family.measure)(&self.matches)?;
        Ok(Measured::new(self.family.name, results))
    }
}
