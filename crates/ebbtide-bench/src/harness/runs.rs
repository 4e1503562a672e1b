//! The kinds of runs that several families use.

use std::time::Duration;

use anyhow::Result;

use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, finish, followed, parse, warm_host};
use crate::measured::Output;
use crate::outside::observe::{self, Watch};

/// One measured process.
#[derive(Debug)]
pub struct Worker {
    case: &'static str,
    amount: u64,
    idle: Duration,
}

impl Worker {
    /// A measured process for this case, with its amount.
    pub fn new(case: &'static str, amount: u64) -> Self {
        Worker {
            case,
            amount,
            idle: Duration::ZERO,
        }
    }

    /// The same, with the time for which it does nothing.
    pub fn idle(self, idle: Duration) -> Self {
        Worker { idle, ..self }
    }
}

impl Run for Worker {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        Ok(finish(starter.worker(self.case, self.amount, entry, ""))?.0)
    }

    fn idle(&self) -> Duration {
        self.idle
    }

    fn filled_bytes(&self) -> u64 {
        self.amount
    }
}

/// The measured process `fill`, right after another process has touched as much memory. Otherwise the host of a
/// virtual machine would have to provide the memory again. That would take most of the time, and vary by chance.
#[derive(Debug)]
pub struct Fill {
    /// Bytes to fill.
    pub bytes: u64,
}

impl Run for Fill {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        warm_host(self.bytes + self.bytes / 2)?;
        Ok(finish(starter.worker("fill", self.bytes, entry, ""))?.0)
    }
}

/// One measured process that is watched from outside.
#[derive(Debug)]
pub struct Watched {
    /// Its case.
    pub case: &'static str,
    /// The way of watching, and how much it fills.
    pub watch: Watch,
    /// Whether it runs without huge pages.
    pub is_thp_off: bool,
}

impl Run for Watched {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let conf = if self.is_thp_off { "thp=off" } else { "" };
        let command = starter.worker(self.case, self.watch.size_bytes, entry, conf);
        let (seen, line) = followed(command, false, |child, limit| {
            observe::follow(child, self.watch, limit)
        })?;
        let mut output = parse(&line)?;
        output.metrics.extend(seen.figures(self.watch.size_bytes));
        output.curve = Some(seen.curve());
        Ok(output)
    }

    fn idle(&self) -> Duration {
        match self.watch.until_back {
            true => Duration::ZERO,
            false => self.watch.wait,
        }
    }

    fn filled_bytes(&self) -> u64 {
        self.watch.size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_to_the_end_is_idle_as_long() {
        let second = Duration::from_secs(1);
        let watched = |until_back| Watched {
            case: "block_4k",
            watch: Watch {
                poll: Duration::ZERO,
                wait: second,
                until_back,
                size_bytes: 1 << 20,
            },
            is_thp_off: false,
        };
        assert_eq!(watched(true).idle(), Duration::ZERO);
        assert_eq!(watched(false).idle(), second);
        let worker = Worker::new("pair16", 1);
        assert_eq!(Run::idle(&worker), Duration::ZERO);
        assert_eq!(Run::idle(&worker.idle(second)), second);
    }
}
