//! What a family of benchmarks is.

use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::figures::Measured;
use crate::harness::flags::BenchArgs;
use crate::harness::{Results, peers};
use crate::measured::{Output, WorkerArgs};

/// A family of benchmarks is a file or a folder here, and a line in [`FAMILIES`](super::FAMILIES). It returns results as
/// data. Text, JSON, pages and pictures are made from the results in the same way for every family.
pub trait Family: 'static {
    /// Its flags. They include the flags that all families share.
    type Flags: Args + AsRef<BenchArgs> + 'static;
    /// Its name.
    const NAME: &'static str;
    /// One sentence for the help.
    const ABOUT: &'static str;
    /// Number of rounds, and number of rounds in the quick form.
    const ROUNDS: (u32, u32);
    /// Seconds that one round of the quick form takes with one peer on 2 CPUs.
    const QUICK_ROUND_S: f64;

    /// Runs it.
    fn measure(flags: &Self::Flags) -> Result<Results>;

    /// Runs a case of the family in the measured process. `None` if the case is not one of the family's.
    fn process(args: &WorkerArgs) -> Option<Result<Output>>;

    /// Text below the flags in the help.
    fn more_help() -> String {
        peers::known_list()
    }
}

/// An entry of the list of families.
pub struct Registered {
    /// [`Family::NAME`].
    pub name: &'static str,
    /// Rounds of the quick form.
    pub quick_rounds: u32,
    /// [`Family::QUICK_ROUND_S`].
    pub quick_round_s: f64,
    /// [`Family::process`].
    pub process: fn(&WorkerArgs) -> Option<Result<Output>>,
    command: fn() -> Command,
    asked: fn(&ArgMatches) -> Result<Box<dyn Asked>, clap::Error>,
}

impl Registered {
    /// The entry of a family.
    pub const fn new<F: Family>() -> Self {
        Registered {
            name: F::NAME,
            quick_rounds: F::ROUNDS.1,
            quick_round_s: F::QUICK_ROUND_S,
            process: F::process,
            command: || {
                let command = Command::new(F::NAME)
                    .about(F::ABOUT)
                    .after_help(F::more_help());
                F::Flags::augment_args(command)
            },
            asked: |matches| Ok(Box::new(Line::<F>(F::Flags::from_arg_matches(matches)?))),
        }
    }

    /// Its subcommand.
    pub fn command(&self) -> Command {
        (self.command)()
    }

    /// Reads the flags of the subcommand.
    pub fn asked(&self, matches: &ArgMatches) -> Result<Box<dyn Asked>, clap::Error> {
        (self.asked)(matches)
    }

    /// Whether the family has a flag of this name.
    pub fn takes(&self, flag: &str) -> bool {
        self.command()
            .get_arguments()
            .any(|arg| arg.get_id() == flag)
    }
}

/// A family with its flags.
pub trait Asked {
    /// The flags that all families share.
    fn bench(&self) -> &BenchArgs;
    /// Runs it.
    fn measure(&self) -> Result<Measured>;
}

struct Line<F: Family>(F::Flags);

impl<F: Family> Asked for Line<F> {
    fn bench(&self) -> &BenchArgs {
        self.0.as_ref()
    }

    fn measure(&self) -> Result<Measured> {
        Ok(Measured::new(F::NAME, F::measure(&self.0)?))
    }
}
