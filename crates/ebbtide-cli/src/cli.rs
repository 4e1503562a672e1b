//! The command line. Each flag is defined once; help, completions and manual pages are generated from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use ebbtide_tools::complete::{self, ArgValueCompleter, ProgramCompleter};
use ebbtide_tools::library::LibArgs;
use ebbtide_tools::program::Shell;
use ebbtide_tools::{conf, values};

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
    /// Watch the processes that run under Ebbtide: what they hold, keep, and release
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Show where the resident memory of a process is, and what would free how much
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainArgs),
    /// Show which code allocated the memory of a process, from samples
    #[command(after_help = PROFILE_HELP)]
    Profile(ProfileArgs),
    /// Let a running process give all its free memory back now
    Release(ReleaseArgs),
    /// Change a setting of a running process
    Set(SetArgs),
    /// Write the figures of processes under Ebbtide as OpenMetrics text, for Prometheus
    #[command(after_help = METRICS_HELP)]
    Metrics(MetricsArgs),
    /// Let a service of systemd run under Ebbtide, and undo it
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Report what this system offers to Ebbtide, and what is missing
    Doctor(DoctorArgs),
    /// Measure Ebbtide beside other allocators: runs the program ebbtide-bench
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(Words),
    /// Run the benchmarks that work on this machine, and write one page about the effect of each
    /// design: runs 'ebbtide-bench report'
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Report(Words),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write all of them to a directory
    Man {
        /// Write ebbtide.1, ebbtide-run.1, … to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Arguments that are passed on to another program.
#[derive(Debug, Args)]
pub struct Words {
    /// Its arguments; --help lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    pub words: Vec<OsString>,
}

/// `ebbtide run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Settings for the library; they override those in EBBTIDE_CONF
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append, add = ArgValueCompleter::new(complete::conf))]
    pub conf: Vec<String>,
    /// How the program ends; the same as --conf exit=…. A program whose memory is not from malloc
    /// may need --conf exit_threshold=0
    #[arg(long, value_name = "HOW", value_enum)]
    pub exit: Option<Exit>,
    /// At the end, print on stderr whether Ebbtide was loaded, and what the program used
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "text", value_enum)]
    pub summary: Option<Format>,
    /// Write the summary to this file instead of stderr
    #[arg(long, value_name = "FILE")]
    pub summary_file: Option<PathBuf>,
    /// Print all lines of the summary, with what Ebbtide released
    #[arg(short, long)]
    pub verbose: bool,
    /// Run the command once to warm up, then several times with Ebbtide and without in turn, and show both side by side.
    /// The command's output is shown once
    #[arg(long)]
    pub compare: bool,
    /// Number of rounds with Ebbtide, and of rounds without
    #[arg(long, value_name = "N", default_value_t = 3, requires = "compare", value_parser = values::rounds)]
    pub rounds: u32,
    /// Run the program even if Ebbtide cannot take effect in it
    #[arg(long)]
    pub force: bool,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", add = ArgValueCompleter::new(ProgramCompleter))]
    pub command: Vec<OsString>,
}

const TOP_HELP: &str = "\
'ebbtide top' finds all your processes that keep a statistics page, in any directory; as root, those of all users. \
A process keeps one if it was started with stats_dir=/DIRECTORY in EBBTIDE_CONF, or by 'ebbtide top -- COMMAND'. \
The output of COMMAND is held back while the terminal shows the view; with --once it goes to stderr.";

/// `ebbtide top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show only these processes
    #[arg(value_name = "PID", value_parser = values::process_or_program, conflicts_with = "command")]
    pub pids: Vec<u32>,
    /// Print one plain table and end; with COMMAND, after an interval or its end
    #[arg(long)]
    pub once: bool,
    /// Print a JSON object on a line every second, until a signal or the end of COMMAND; with --once, one instead of the table
    #[arg(long)]
    pub json: bool,
    /// Time between two samples, such as 250ms or 5s, up to 1h (default: 1s; with --once and no COMMAND 250ms)
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    pub interval: Option<Duration>,
    /// Settings for the library; they override those in EBBTIDE_CONF
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append, add = ArgValueCompleter::new(complete::conf), requires = "command")]
    pub conf: Vec<String>,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
    /// A program to start and watch, with its arguments; its exit status is this program's
    #[arg(last = true, value_name = "COMMAND", add = ArgValueCompleter::new(ProgramCompleter))]
    pub command: Vec<OsString>,
}

const EXPLAIN_HELP: &str = "\
The parts add up to what the kernel counts as resident. A process under Ebbtide needs no statistics page for this: its heap's records are \
read in its memory, which needs root or the right to trace the process. Without this right the parts are estimates from the statistics page. \
Of a process without Ebbtide the kernel's part is shown. The process is not stopped.";

/// `ebbtide explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = values::process)]
    pub pid: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const PROFILE_HELP: &str = "\
The live heap is shown, or the heap of COMMAND at its peak. If a process takes no samples, they are switched on for the time of --seconds; then \
only memory that was allocated meanwhile is shown. Sums are estimates with a sampling error (±, one standard deviation). The process is not stopped; reading its memory needs \
root or the right to trace it. COMMAND writes to stdout as always: use --output to keep its output apart.";

/// `ebbtide profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// A process, or a file: a dump (profile_dump=PATH) or a stored pprof file
    #[arg(
        value_name = "PID|FILE",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub source: Option<OsString>,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The form (default: by the ending of the output file: .pb.gz or .pprof, .svg, else text)
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<ProfileFormat>,
    /// Sample for this time, then write the profile; COMMAND runs on (default: its whole run, or 10 s if the process took no samples)
    #[arg(long, value_name = "N", value_parser = values::time)]
    pub seconds: Option<Duration>,
    /// Bytes between two samples, on average: less is more exact and slower (default: 512K)
    #[arg(long, value_name = "SIZE", value_parser = values::rate)]
    pub rate: Option<String>,
    /// Show all allocations, freed or not: of the time, or since sampling began
    #[arg(long, group = "view")]
    pub allocated: bool,
    /// Show what was live at the highest total
    #[arg(long, group = "view")]
    pub peak: bool,
    /// Show how long objects lived
    #[arg(long, group = "view", conflicts_with = "against")]
    pub lifetimes: bool,
    /// Show what COMMAND had not freed at its end
    #[arg(long, group = "view", conflicts_with_all = ["source", "seconds"])]
    pub leaks: bool,
    /// Show the change since this profile, a stored file
    #[arg(long, value_name = "OLD")]
    pub against: Option<PathBuf>,
    /// Settings for the library; they override those in EBBTIDE_CONF
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append, add = ArgValueCompleter::new(complete::conf), conflicts_with = "source")]
    pub conf: Vec<String>,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
    /// A program to run, with its arguments; its exit status is this program's
    #[arg(last = true, value_name = "COMMAND", add = ArgValueCompleter::new(ProgramCompleter))]
    pub command: Vec<OsString>,
}

/// Form of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileFormat {
    /// For 'go tool pprof' and other readers
    Pprof,
    /// A flame graph
    Svg,
    /// Lines for people
    Text,
}

/// `ebbtide release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The process; it keeps a statistics page (stats_dir)
    #[arg(value_name = "PID", value_parser = values::process)]
    pub pid: u32,
    /// How long to wait for the process; one that makes no slow call of malloc or free answers later
    #[arg(long, value_name = "TIME", value_parser = values::interval, default_value = "5s")]
    pub wait: Duration,
}

/// `ebbtide set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Process and wait.
    #[command(flatten)]
    pub request: ReleaseArgs,
    /// The setting: retain_ms or limit, in the form of EBBTIDE_CONF
    #[arg(value_name = "KEY=VALUE", add = ArgValueCompleter::new(complete::settable))]
    pub item: String,
}

const METRICS_HELP: &str = "\
Each process that keeps a statistics page (stats_dir=/DIRECTORY in EBBTIDE_CONF) is a sample of each family, with the labels pid, process, \
cgroup and container. As root, the processes of all users and containers are found. A scrape reads /proc/PID/maps of all processes.";

/// `ebbtide metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Only these processes
    #[arg(value_name = "PID", value_parser = values::process)]
    pub pids: Vec<u32>,
    /// Serve the text at http://ADDRESS:PORT/metrics until a signal comes, such as 127.0.0.1:9485
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "textfile")]
    pub listen: Option<String>,
    /// Replace this file, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<PathBuf>,
}

/// `ebbtide service`.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Write a drop-in file that lets the service run under Ebbtide from its next start on
    Enable(ServiceEnableArgs),
    /// Remove the drop-in file
    Disable(ServiceArgs),
    /// Show whether the service is enabled, and whether its process has loaded the library. The exit status is 0 if both hold, or if it is
    /// enabled and does not run; else 1
    Status(ServiceArgs),
}

/// A service.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// The service, with or without .service
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The root of the system, such as that of an image that is being built
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = clap::ValueHint::DirPath)]
    pub root: PathBuf,
}

/// `ebbtide service enable`.
#[derive(Debug, Args)]
pub struct ServiceEnableArgs {
    /// Name and root.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Settings for the library
    #[arg(long, value_name = "KEY=VALUE,…", action = clap::ArgAction::Append, add = ArgValueCompleter::new(complete::conf))]
    pub conf: Vec<String>,
    /// Write the file even if Ebbtide cannot take effect in the service
    #[arg(long)]
    pub force: bool,
    /// The library.
    #[command(flatten)]
    pub lib: LibArgs,
}

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exit {
    /// A wait for it returns at once; a helper returns the memory afterwards
    Detached,
    /// A wait for it returns when the kernel has freed its memory
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
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
        for bad in [&["7", "--", "ls"][..], &["--interval", "0"], &["x"]] {
            assert!(top(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn profile_takes_a_source_or_a_command() {
        let profile = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["ebbtide", "profile"], words].concat())?;
            let Command::Profile(args) = cli.command else {
                panic!()
            };
            Ok::<_, clap::Error>(args)
        };
        let args = profile(&["7", "--seconds", "5", "--rate", "64K"]).unwrap();
        assert_eq!(args.seconds, Some(Duration::from_secs(5)));
        assert_eq!(
            (args.source, args.rate),
            (Some("7".into()), Some("64K".into()))
        );
        let args = profile(&["--leaks", "-o", "x.svg", "--", "ls", "-o"]).unwrap();
        assert_eq!((args.leaks, args.command.len()), (true, 2));
        for bad in [
            &[][..],
            &["7", "--", "ls"],
            &["7", "--leaks"],
            &["7", "--peak", "--allocated"],
            &["7", "--rate", "0"],
            &["7", "--lifetimes", "--against", "x"],
        ] {
            assert!(profile(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_for_the_benchmarks_is_handed_on_as_it_is() {
        for words in [&[][..], &["--help"], &["micro", "--quick", "--", "-V"]] {
            let cli = Cli::try_parse_from([&["ebbtide", "bench"], words].concat()).unwrap();
            let Command::Bench(bench) = cli.command else {
                panic!()
            };
            assert_eq!(bench.words, words);
        }
    }

    #[test]
    fn run_needs_a_command() {
        assert!(Cli::try_parse_from(["ebbtide", "run", "--summary"]).is_err());
    }
}
