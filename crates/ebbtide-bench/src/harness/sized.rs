//! The part that families which fill memory share: size, wait, entries.

use std::time::Duration;

use anyhow::{Result, ensure};
use ebbtide_tools::{machine, out};

use crate::harness::flags::SizedArgs;
use crate::harness::peers::Entry;
use crate::harness::{self, Case, Results, Rounds};

/// Default sizes and times of a family.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Bytes to fill, and in a quick run.
    pub size_bytes: (u64, u64),
    /// Maximum time to wait for the memory, and in a quick run.
    pub wait: (Duration, Duration),
}

/// The values of this run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes to fill.
    pub size_bytes: u64,
    /// Maximum time to wait for the memory.
    pub wait: Duration,
    /// Rounds.
    pub rounds: Rounds,
    /// Upper bound of the bytes that a process fills.
    pub most_bytes: u64,
}

impl Plan {
    /// Computed from the flags and the available memory, of which 40 % may be filled.
    pub fn new(args: &SizedArgs, defaults: Defaults, rounds: (u32, u32)) -> Result<Self> {
        let most = machine::available_bytes().map_or(u64::MAX, |n| n / 5 * 2);
        if let Some(size) = args.size {
            ensure!(
                size <= most,
                "--size {size} is more than 40 % of the available memory; it may be up to {}M",
                most >> 20
            );
        }
        // Whole huge pages, so that freed memory can be released as whole pages.
        let size_bytes = args.bench.pick(defaults.size_bytes).min(most) >> 21 << 21;
        Ok(Plan {
            most_bytes: most,
            size_bytes: args.size.unwrap_or(size_bytes),
            wait: args.wait.unwrap_or(args.bench.pick(defaults.wait)),
            rounds: args.bench.rounds_or(rounds),
        })
    }

    /// `bytes` in whole huge pages, within the upper bound.
    pub fn at_most(&self, bytes: u64) -> u64 {
        bytes.min(self.most_bytes) >> 21 << 21
    }

    /// Bytes that the largest case fills.
    fn largest(&self, cases: &[Case]) -> u64 {
        let fills = cases.iter().map(|case| case.run.filled_bytes());
        fills.max().unwrap_or(self.size_bytes)
    }

    /// Runs the cases and notes how much was filled.
    pub fn run(&self, cases: &[Case], entries: Vec<Entry>) -> Result<Results> {
        // Includes memory of the allocator and the worker besides the objects.
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
