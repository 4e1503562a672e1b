//! What a run is at: a bar on a terminal, elsewhere a line now and then.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::out;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(5);

/// How far a run is.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    said: Duration,
    steps: u64,
    done: u64,
}

impl Progress {
    /// At the beginning of so many steps.
    pub fn new(steps: u64) -> Self {
        // Hidden by itself where stderr is no terminal.
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}") {
            bar.set_style(style);
        }
        Progress {
            bar,
            began: Instant::now(),
            said: Duration::ZERO,
            steps,
            done: 0,
        }
    }

    /// A step begins.
    pub fn begin(&self, what: String) {
        self.bar.set_message(what);
    }

    /// It has ended.
    pub fn end(&mut self, round: u32, rounds: u32, case: &str) {
        self.done += 1;
        self.bar.inc(1);
        let line = self.line(self.began.elapsed(), round, rounds, case);
        if self.bar.is_hidden()
            && let Some(line) = line
        {
            out::stderr(&line);
        }
    }

    /// How many steps have ended, of how many.
    pub fn done(&self) -> (u64, u64) {
        (self.done, self.steps)
    }

    /// No more of it.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn line(&mut self, now: Duration, round: u32, rounds: u32, case: &str) -> Option<String> {
        if now < self.said + EVERY {
            return None;
        }
        self.said = now;
        let (done, steps) = self.done();
        let left = now.as_secs_f64() / done as f64 * (steps - done) as f64;
        Some(format!(
            "ebbtide: round {} of {rounds}, {case}: {done} of {steps} measured, about {} left\n",
            round + 1,
            minutes(left)
        ))
    }
}

/// A guess of seconds: `30 s`, `12 min`.
pub fn minutes(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_now_and_then() {
        let mut progress = Progress::new(40);
        let mut lines = Vec::new();
        for second in 1..=20 {
            progress.done += 1;
            let now = Duration::from_secs(second);
            lines.extend(progress.line(now, 1, 3, "a_case"));
        }
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[1],
            "ebbtide: round 2 of 3, a_case: 10 of 40 measured, about 30 s left\n"
        );
    }
}
