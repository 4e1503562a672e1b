//! The command line: one subcommand for each family, and the other subcommands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Command, FromArgMatches, Subcommand};
use ebbtide_tools::manual::Page;
use ebbtide_tools::program::Shell;

use crate::families::{self, Asked, FAMILIES};
use crate::measured::WorkerArgs;
use crate::report::{self, ReportArgs};

/// A parsed command line.
pub enum Line {
    /// A family.
    Family(Asked),
    /// Another subcommand.
    Other(Other),
}

/// The subcommands that are not families.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// Run the benchmarks that work on this machine, and write one page about the effect of each design
    #[command(after_help = report::HELP)]
    Report(Box<ReportArgs>),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
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

/// The command for help, completions and manual pages.
pub fn command() -> Command {
    let command = Command::new("ebbtide-bench")
        .bin_name("ebbtide-bench")
        .about("Measure Ebbtide beside other allocators")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(FAMILIES.iter().map(|family| family.command()));
    Other::augment_subcommands(command)
}

/// What the manual page of a command says beside its options.
pub fn page(name: &str) -> Page {
    let example = |command: &str, meaning: &str| (command.to_owned(), meaning.to_owned());
    let examples = match name.strip_prefix("ebbtide-bench-") {
        Some("report") => vec![
            example(
                "ebbtide-bench report",
                "All families in their quick form, and one page about them in ebbtide-report.html:",
            ),
            example(
                "ebbtide-bench report --only free --against glibc --keep results",
                "One family, with its figures kept in results/free.json:",
            ),
        ],
        Some("completions") => vec![example(
            "source <(ebbtide-bench completions bash)",
            "Completions for this shell only:",
        )],
        Some("man") => vec![example(
            "ebbtide-bench man --dir pages",
            "All pages, into a directory:",
        )],
        Some(family) => vec![
            example(
                &format!("ebbtide-bench {family} --quick --against glibc"),
                "A first result beside one peer:",
            ),
            example(
                &format!("ebbtide-bench {family} --time-limit 10m --html page.html"),
                "Full rounds for ten minutes, with plots:",
            ),
        ],
        None => vec![
            example(
                "ebbtide-bench micro --quick",
                "Single operations beside all installed peers:",
            ),
            example(
                "ebbtide-bench report",
                "All families in their quick form, and one page about them in ebbtide-report.html:",
            ),
        ],
    };
    Page {
        status: &[
            (
                "0",
                "The benchmark has run. An interrupted one prints what it has.",
            ),
            (
                "125",
                "An error of this program, such as an unknown option, an unknown peer or a missing library; the line on stderr names the remedy.",
            ),
        ],
        environment: &[
            ("EBBTIDE_LIB", "Path of libebbtide.so; --lib overrides it."),
            (
                "EBBTIDE_CONF, LD_PRELOAD, MALLOC_CONF, GLIBC_TUNABLES, MALLOC_ARENA_MAX",
                "Have no effect on measured processes.",
            ),
        ],
        examples,
    }
}

/// Reads a command line.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Line, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    match families::asked(&matches)? {
        Some(family) => Ok(Line::Family(family)),
        None => Ok(Line::Other(Other::from_arg_matches(&matches)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn families_and_others_are_told_apart() {
        let line = |words: &str| parse(words.split(' ').map(OsString::from));
        let Ok(Line::Family(free)) = line("ebbtide-bench free --quick --size 8M") else {
            panic!()
        };
        assert!(free.bench.quick);
        assert!(matches!(
            line("ebbtide-bench worker which 0"),
            Ok(Line::Other(Other::Worker(_)))
        ));
        assert!(line("ebbtide-bench micro --size 8M").is_err());
    }
}
