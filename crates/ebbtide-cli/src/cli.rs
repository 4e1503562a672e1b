//! The command line: one definition per flag, from which help, completions and
//! manual pages come.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::bench::harness::Rounds;
use crate::bench::peers;
use crate::conf;
use crate::values;

/// Memory manager for Linux that gives memory back.
#[derive(Debug, Parser)]
#[command(
    name = "ebbtide",
    bin_name = "ebbtide",
    version,
    propagate_version = true
)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with Ebbtide as its memory manager
    #[command(after_help = conf::key_table())]
    Run(RunArgs),
    /// Watch the processes that run under Ebbtide: what they hold, keep, and give back
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Say what this system offers to Ebbtide, and what is missing
    Doctor(DoctorArgs),
    /// Measure Ebbtide beside other allocators
    #[command(subcommand, arg_required_else_help = true)]
    Bench(BenchCommand),
    /// Measure what can be measured here, and write one page: what each design is worth
    #[command(after_help = REPORT_HELP)]
    Report(ReportArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them to a directory
    Man {
        /// Write ebbtide.1, ebbtide-run.1, … to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// One measurement in a process of its own (started by `bench`)
    #[command(hide = true)]
    BenchWorker(WorkerArgs),
}

/// Where the library is.
#[derive(Clone, Debug, Default, Args)]
pub struct LibArgs {
    /// Path of libebbtide.so (default: EBBTIDE_LIB, then beside this program,
    /// then the usual library directories)
    #[arg(long, value_name = "PATH")]
    pub lib: Option<PathBuf>,
}

/// `ebbtide run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Settings for the library, laid over those in EBBTIDE_CONF
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append)]
    pub conf: Vec<String>,
    /// How the program ends: seen at once and torn down beside whoever waits for it, or as
    /// the kernel does it; the same as --conf exit=…. A program whose memory is not from
    /// malloc may need --conf exit_threshold=0
    #[arg(long, value_name = "HOW", value_enum)]
    pub exit: Option<Exit>,
    /// At the end, say on stderr what the program used and what was given back
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "text", value_enum)]
    pub summary: Option<Format>,
    /// Write the summary to this file instead of stderr
    #[arg(long, value_name = "FILE")]
    pub summary_file: Option<PathBuf>,
    /// Run the command a second time without Ebbtide, and show both side by side
    #[arg(long)]
    pub compare: bool,
    /// Run the program even if Ebbtide cannot take effect in it
    #[arg(long)]
    pub force: bool,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const TOP_HELP: &str = "\
Every process of yours that keeps a page of figures is found by itself, wherever the page lies (as root, everybody's). \
A process keeps one if it was started with stats_dir=/DIRECTORY in EBBTIDE_CONF, or by 'ebbtide top -- COMMAND'. \
A COMMAND's output is held back while the terminal shows the view; with --once its output goes to stderr.";

/// `ebbtide top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only these processes
    #[arg(value_name = "PID", value_parser = values::process, conflicts_with = "command")]
    pub pids: Vec<u32>,
    /// Print one plain table and end; with COMMAND, after an interval or its end
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object instead of a table
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Time between two looks, such as 250ms or 5s, up to 1h (default: 1s; with --once and no COMMAND 250ms)
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    pub interval: Option<Duration>,
    /// Settings for the library, laid over those in EBBTIDE_CONF
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append, requires = "command")]
    pub conf: Vec<String>,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
    /// A program to start and watch, with its arguments; its exit status is this program's
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exit {
    /// Its end is seen at once; a helper takes the memory back after it
    Detached,
    /// Its end is seen when its memory is back
    Inline,
}

/// Form of a printed summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people
    Text,
    /// One JSON object
    Json,
}

/// `ebbtide doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
}

/// The benchmark families.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Single operations: pairs, batches, a working set, filling, start-up, small processes
    #[command(after_help = peers::known_list())]
    Micro(BenchArgs),
    /// One large block: what free() costs, and how long until its memory is back
    /// (half an hour with all peers; see --quick, --only, --against)
    #[command(after_help = peers::known_list())]
    Free(SizedArgs),
    /// Freed objects: how much goes back while the program does nothing, and what
    /// that costs the others (an hour with all peers; see --quick, --only, --against)
    #[command(after_help = peers::known_list())]
    Return(SizedArgs),
    /// Refills from the zones: alone, among threads, beside releases, and in real programs;
    /// by clusters and frame by frame (half an hour with all peers; see --quick, --only, --against)
    #[command(after_help = peers::known_list())]
    Cluster(SizedArgs),
    /// The end of a process that holds much memory: how long until its parent knows,
    /// and until the memory is back (see --quick, --size, --only)
    #[command(after_help = peers::known_list())]
    Exit(SizedArgs),
    /// Programs that free what they soon want again: copy, search, free, in processes and
    /// threads, with memory for all and within a limit (as root); an hour with all peers;
    /// see --quick, --only, --against
    #[command(after_help = peers::known_list())]
    Lazyfree(BenchArgs),
    /// Memory that is dropped and wanted again after 0.1, 1, 3 and 10 s: what that costs,
    /// and what is held meanwhile (an hour with all peers; see --quick, --only, --against)
    #[command(after_help = peers::known_list())]
    Reuse(SizedArgs),
    /// A process that had much memory and does nothing, and one that needs as much, within one
    /// limit: what the first costs the second, with swap and without; as root (see --quick, --pause,
    /// --only, --against)
    #[command(after_help = peers::known_list())]
    Neighbour(NeighbourArgs),
    /// Many processes, mostly swapped out, killed together while a program starts; as
    /// root, as it sets up swap for its time (see --quick, --size, --processes)
    #[command(after_help = peers::known_list())]
    SwapExit(SwapExitArgs),
    /// Per-CPU data: what stays after most of it was freed, counting, allocating
    /// (see --quick, --only)
    Percpu(BenchArgs),
}

/// Flags of the families that fill memory.
#[derive(Debug, Args)]
pub struct SizedArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// What to fill, such as 512M; at most 40 % of the available memory
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// How long to wait for the memory
    #[arg(long, value_name = "TIME", value_parser = values::time, hide = true)]
    pub wait: Option<Duration>,
}

/// `ebbtide bench neighbour`.
#[derive(Debug, Args)]
pub struct NeighbourArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// What each of the two fills, such as 768M; their limit is a third more
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// Least time between the first's last free and the second's start, such as 500ms
    /// (default: 2.5s; the cases 'at_once' have none)
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub pause: Option<Duration>,
}

/// `ebbtide bench swap-exit`.
#[derive(Debug, Args)]
pub struct SwapExitArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// What each process fills, such as 200M
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// How many processes are killed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub processes: Option<u32>,
}

impl BenchCommand {
    /// What all families take.
    pub fn bench(&self) -> &BenchArgs {
        match self {
            Self::Micro(bench) | Self::Lazyfree(bench) | Self::Percpu(bench) => bench,
            Self::Free(sized)
            | Self::Return(sized)
            | Self::Cluster(sized)
            | Self::Exit(sized)
            | Self::Reuse(sized) => &sized.bench,
            Self::Neighbour(args) => &args.bench,
            Self::SwapExit(args) => &args.bench,
        }
    }
}

const REPORT_HELP: &str = "\
Every family of 'ebbtide bench' in turn, beside glibc, the short ones first: a quarter of an hour, nearly half of it for \
the last, 'reuse' (see --time-limit and --only); plan a day for --full with all peers. Nothing else should run meanwhile. \
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
    #[arg(long, value_name = "FAMILY", conflicts_with = "from")]
    pub only: Vec<String>,
    /// Peers to measure, as for 'ebbtide bench' (default: glibc)
    #[arg(long, value_name = "NAME|PATH", num_args = 1.., conflicts_with = "from")]
    pub against: Vec<String>,
    /// Make the page from results that --keep has written, or 'ebbtide bench FAMILY --json' has printed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub from: Vec<PathBuf>,
    /// Write each family's results to DIR/FAMILY.json as soon as they are there, for --from
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub keep: Option<PathBuf>,
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

/// Flags that all benchmark families share.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Fewer rounds and a smaller heap
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Peers to measure: a name from the list, or the path of a library
    /// (default: every peer that is installed)
    #[arg(long, value_name = "NAME|PATH", num_args = 1..)]
    pub against: Vec<String>,
    /// Only cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Rounds, each with one process per case and allocator
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Do not begin another round that would end later than this, such as 90s, 5m or 1h; there is at least one
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub time_limit: Option<Duration>,
    /// Write a page with plots and tables to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each plot as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
}

impl BenchArgs {
    /// As many as asked for, or the family's own number: for all, and for a quick run.
    pub fn rounds_or(&self, (full, quick): (u32, u32)) -> Rounds {
        let usual = if self.quick { quick } else { full };
        Rounds {
            count: self.rounds.unwrap_or(usual),
            limit: self.time_limit,
        }
    }
}

/// `ebbtide bench-worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The case to run
    pub case: String,
    /// Its size, in the unit of the case
    pub amount: u64,
    /// How a block is had: malloc, munmap, madvise
    #[arg(long, default_value = "malloc")]
    pub method: String,
    /// Without huge pages
    #[arg(long)]
    pub thp_off: bool,
    /// Chunks for which searches are counted
    #[arg(long, default_value_t = 1)]
    pub searches_of_chunks: u64,
    /// What the foreground process reads
    #[arg(long)]
    pub file: Option<PathBuf>,
}

/// The command for help, completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn command_after_dashes_keeps_its_own_flags() {
        let cli =
            Cli::try_parse_from(["ebbtide", "run", "--summary", "--", "ls", "--summary=json"])
                .unwrap();
        let Command::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.summary, Some(Format::Text));
        assert_eq!(run.command, ["ls", "--summary=json"]);
    }

    #[test]
    fn command_without_dashes_works_too() {
        let cli = Cli::try_parse_from(["ebbtide", "run", "ls", "-l", "--force"]).unwrap();
        let Command::Run(run) = cli.command else {
            panic!()
        };
        assert!(!run.force);
        assert_eq!(run.command, ["ls", "-l", "--force"]);
    }

    #[test]
    fn top_takes_processes_or_a_command() {
        let top = |words: &[&str]| Cli::try_parse_from([&["ebbtide", "top"], words].concat());
        let Ok(Command::Top(args)) = top(&["7", "8", "--interval", "0.5"]).map(|c| c.command)
        else {
            panic!()
        };
        assert_eq!(
            (args.pids, args.interval),
            (vec![7, 8], Some(Duration::from_millis(500)))
        );
        let Ok(Command::Top(args)) = top(&["--once", "--", "ls", "-l"]).map(|c| c.command) else {
            panic!()
        };
        assert_eq!(args.command, ["ls", "-l"]);
        for bad in [
            &["7", "--", "ls"][..],
            &["--json"],
            &["--interval", "0"],
            &["x"],
        ] {
            assert!(top(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn run_needs_a_command() {
        assert!(Cli::try_parse_from(["ebbtide", "run", "--summary"]).is_err());
    }
}
