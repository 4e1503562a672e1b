//! Flags that families share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ebbtide_tools::complete::ArgValueCompleter;
use ebbtide_tools::library::LibArgs;
use ebbtide_tools::values;

use crate::harness::{Rounds, peers};

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
    #[arg(long, value_name = "NAME|PATH", num_args = 1.., add = ArgValueCompleter::new(peers::candidates))]
    pub against: Vec<String>,
    /// Only cases whose name contains this text, or one of several with commas between them
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
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
    /// The number of rounds that the user gave, or the family's own number: a full one, and one for a quick run.
    pub fn rounds_or(&self, usual: (u32, u32)) -> Rounds {
        Rounds {
            count: self.rounds.unwrap_or(self.pick(usual)),
            limit: self.time_limit,
        }
    }

    /// The first of two values, or the second in a quick run.
    pub fn pick<T>(&self, (full, quick): (T, T)) -> T {
        if self.quick { quick } else { full }
    }
}

/// Flags of the families that fill memory.
#[derive(Debug, Args)]
pub struct SizedArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Memory to fill, such as 512M; at most 40 % of the available memory
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// How long to wait for the memory
    #[arg(long, value_name = "TIME", value_parser = values::time, hide = true)]
    pub wait: Option<Duration>,
}
