//! What a family of benchmarks is.

use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::figures::Measured;
use crate::harness::flags::BenchArgs;
use crate::harness::{Results, peers};
use crate::measured::{Output, WorkerArgs};

/// A family of benchmarks: a file or a folder here, and a line in [`FAMILIES`](super::FAMILIES). It says what is
/// measured; figures as text, JSON, pages and pictures follow from its results.
pub trait Family: 'static {
    /// Its flags, those that all families take among them.
    type Flags: Args + AsRef<BenchArgs> + 'static;
    /// Its name.
    const NAME: &'static str;
    /// What its help says.
    const ABOUT: &'static str;
    /// Rounds, and those of the quick form.
    const ROUNDS: (u32, u32);
    /// How many seconds a round of the quick form takes, beside one peer on 2 CPUs.
    const QUICK_ROUND_S: f64;

    /// Runs it.
    fn measure(flags: &Self::Flags) -> Result<Results>;

    /// The measured process at this case, if it is one of the family's. It prints nothing but marks.
    fn process(args: &WorkerArgs) -> Option<Result<Output>>;

    /// What its help says below the flags.
    fn more_help() -> String {
        peers::known_list()
    }
}

/// A family as the list has it.
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
    /// For the list.
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

    /// Its command line, from what was found for the subcommand.
    pub fn asked(&self, matches: &ArgMatches) -> Result<Box<dyn Asked>, clap::Error> {
        (self.asked)(matches)
    }

    /// Whether it has a flag of this name.
    pub fn takes(&self, flag: &str) -> bool {
        self.command()
            .get_arguments()
            .any(|arg| arg.get_id() == flag)
    }
}

/// A family with its flags.
pub trait Asked {
    /// What all families take.
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
