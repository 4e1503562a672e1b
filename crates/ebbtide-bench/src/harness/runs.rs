//! What is run for the cases of more than one family.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, TIMEOUT, explained, finish, parse, piped, warm_host};
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
    /// At this case, with its amount.
    pub fn new(case: &'static str, amount: u64) -> Self {
        Worker {
            case,
            amount,
            idle: Duration::ZERO,
        }
    }

    /// The same, which does nothing for so long.
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

/// The measured process `fill`, right after another process has touched as much: what the host of a virtual machine must
/// provide again would be most of the time, and by chance.
#[derive(Debug)]
pub struct Fill {
    /// How much.
    pub bytes: u64,
}

impl Run for Fill {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        warm_host(self.bytes + self.bytes / 2)?;
        Ok(finish(starter.worker("fill", self.bytes, entry, ""))?.0)
    }
}

/// One measured process, watched from outside.
#[derive(Debug)]
pub struct Watched {
    /// Its case.
    pub case: &'static str,
    /// How, and how much it fills.
    pub watch: Watch,
    /// Without huge pages.
    pub is_thp_off: bool,
}

impl Run for Watched {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let conf = if self.is_thp_off { "thp=off" } else { "" };
        let mut command = starter.worker(self.case, self.watch.size_bytes, entry, conf);
        if self.is_thp_off {
            command.arg("--thp-off");
        }
        piped(&mut command);
        let mut child = command.spawn().context("cannot start")?;
        let followed = observe::follow(&mut child, self.watch, Instant::now() + TIMEOUT);
        let (seen, line) = explained(&mut child, followed, false)?;
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
