//! What the families that fill memory share: how much, how long, over which entries.

use std::time::Duration;

use anyhow::{Result, ensure};
use ebbtide_tools::{machine, out};

use crate::harness::flags::SizedArgs;
use crate::harness::peers::Entry;
use crate::harness::{self, Case, Results, Rounds};

/// Sizes and times of a family.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// What is filled, and in a quick run.
    pub size_bytes: (u64, u64),
    /// How long to wait for it, and in a quick run.
    pub wait: (Duration, Duration),
}

/// What holds in this run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is filled.
    pub size_bytes: u64,
    /// How long to wait for it.
    pub wait: Duration,
    /// Rounds.
    pub rounds: Rounds,
    /// No process may fill more.
    pub most_bytes: u64,
}

fn pick<T>(is_quick: bool, (full, quick): (T, T)) -> T {
    if is_quick { quick } else { full }
}

impl Plan {
    /// From the flags and what is available; 40 % of it may be filled.
    pub fn new(args: &SizedArgs, defaults: Defaults, rounds: (u32, u32)) -> Result<Self> {
        let quick = args.bench.quick;
        let most = machine::available_bytes().map_or(u64::MAX, |n| n / 5 * 2);
        if let Some(size) = args.size {
            ensure!(
                size <= most,
                "--size {size} is more than 40 % of the available memory; it may be up to {}M",
                most >> 20
            );
        }
        // Whole huge pages, so that what is freed can go as a whole.
        let size_bytes = pick(quick, defaults.size_bytes).min(most) >> 21 << 21;
        Ok(Plan {
            most_bytes: most,
            size_bytes: args.size.unwrap_or(size_bytes),
            wait: args.wait.unwrap_or(pick(quick, defaults.wait)),
            rounds: args.bench.rounds_or(rounds),
        })
    }

    /// `bytes` in whole huge pages, within what is available.
    pub fn at_most(&self, bytes: u64) -> u64 {
        bytes.min(self.most_bytes) >> 21 << 21
    }

    /// What the largest case fills.
    fn largest(&self, cases: &[Case]) -> u64 {
        let fills = cases.iter().map(|case| case.run.filled_bytes());
        fills.max().unwrap_or(self.size_bytes)
    }

    /// Runs the cases and notes what was filled.
    pub fn run(&self, cases: &[Case], entries: Vec<Entry>) -> Result<Results> {
        // What an allocator and the worker take beside the objects.
        let warm_bytes = self.largest(cases) / 4 * 5;
        let mut results = harness::run(cases, entries, self.rounds, warm_bytes)?;
        let mut note = format!("{} are filled", out::bytes(self.size_bytes));
        if !self.wait.is_zero() {
            note += &format!("; waited for up to {:.1} s", self.wait.as_secs_f64());
        }
        results.notes.push(note);
        results.wait = self.wait;
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SizedArgs,
    }

    fn plan(flags: &[&str]) -> Result<Plan> {
        let args = Line::try_parse_from(["free"].iter().chain(flags))?.args;
        let defaults = Defaults {
            size_bytes: (64 << 20, 8 << 20),
            wait: (Duration::from_secs(10), Duration::from_secs(3)),
        };
        Plan::new(&args, defaults, (5, 2))
    }

    #[test]
    fn flags_over_defaults() {
        let p = plan(&[]).unwrap();
        assert_eq!((p.size_bytes, p.rounds.count), (64 << 20, 5));
        let p = plan(&["--quick", "--size", "3M", "--wait", "0.5"]).unwrap();
        assert_eq!((p.size_bytes, p.rounds.count), (3 << 20, 2));
        assert_eq!(p.wait, Duration::from_millis(500));
        assert!(plan(&["--size", "8000000G"]).is_err());
        assert!(plan(&["--size", "4K"]).is_err());
    }
}
