//! The command line: one definition per flag, from which help, completions and
//! manual pages come.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ebbtide_tools::library::LibArgs;
use ebbtide_tools::values;

use crate::harness::flags::{BenchArgs, SizedArgs};
use crate::harness::peers;

/// Measure Ebbtide beside other allocators.
#[derive(Debug, Parser)]
#[command(
    name = "ebbtide-bench",
    bin_name = "ebbtide-bench",
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
    /// A family.
    #[command(flatten)]
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
        /// Write ebbtide-bench.1, ebbtide-bench-micro.1, … to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// One measurement in a process of its own (started by the families)
    #[command(hide = true)]
    Worker(WorkerArgs),
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
