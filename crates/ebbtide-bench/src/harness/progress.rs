//! What a run is at: a bar on a terminal, elsewhere a line now and then.

use std::time::{Duration, Instant};

use ebbtide_tools::out;
use indicatif::{ProgressBar, ProgressStyle};

use crate::harness::Rounds;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(5);

/// What is known of a case, and what it took so far.
struct Case {
    /// In all rounds.
    steps: u64,
    done: u64,
    /// Of one step, known beforehand.
    idle_s: f64,
    /// All that are done.
    took_s: f64,
}

/// How far a run is.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    said: Duration,
    /// The last step.
    ended: Duration,
    rounds: Rounds,
    cases: Vec<Case>,
}

impl Progress {
    /// At the beginning; of each case, how many steps a round of it has, and how long each of them does nothing.
    pub fn new(rounds: Rounds, cases: impl IntoIterator<Item = (u64, Duration)>) -> Self {
        let cases = cases.into_iter().map(|(steps, idle)| Case {
            steps: steps * u64::from(rounds.count),
            done: 0,
            idle_s: idle.as_secs_f64(),
            took_s: 0.0,
        });
        let cases: Vec<Case> = cases.collect();
        // Hidden by itself where stderr is no terminal.
        let bar = ProgressBar::new(cases.iter().map(|case| case.steps).sum());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {prefix} {msg}") {
            bar.set_style(style);
        }
        Progress {
            bar,
            began: Instant::now(),
            said: Duration::ZERO,
            ended: Duration::ZERO,
            rounds,
            cases,
        }
    }

    /// A step begins.
    pub fn begin(&self, what: String) {
        self.bar.set_message(what);
    }

    /// A step of the case at this place has ended.
    pub fn end(&mut self, at: usize, round: u32, name: &str) {
        let now = self.began.elapsed();
        self.note(at, now);
        self.bar.set_prefix(minutes(self.left_s(round, now)));
        self.bar.inc(1);
        let line = self.line(now, round, name);
        if self.bar.is_hidden()
            && let Some(line) = line
        {
            out::stderr(&line);
        }
    }

    /// How many steps have ended, of how many.
    pub fn done(&self) -> (u64, u64) {
        let sum = |of: fn(&Case) -> u64| self.cases.iter().map(of).sum();
        (sum(|case| case.done), sum(|case| case.steps))
    }

    /// No more of it.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn note(&mut self, at: usize, now: Duration) {
        let case = &mut self.cases[at];
        case.done += 1;
        case.took_s += now.saturating_sub(self.ended).as_secs_f64();
        self.ended = now;
    }

    /// What the rest takes. No round is begun that would end after the time limit; the first is there.
    fn left_s(&self, round: u32, now: Duration) -> f64 {
        let all_s = self.until_s(self.rounds.count);
        let Some(limit) = self.rounds.limit else {
            return all_s;
        };
        let until_limit_s = limit.saturating_sub(now).as_secs_f64();
        all_s.min(until_limit_s.max(self.until_s(round + 1)))
    }

    /// What these rounds still take, if a case goes on as it did, and one that is to come does as much as the others.
    fn until_s(&self, rounds: u32) -> f64 {
        let (done, _) = self.done();
        let busy_s = |case: &Case| case.took_s - case.done as f64 * case.idle_s;
        let busy_s = self.cases.iter().map(busy_s).sum::<f64>().max(0.0) / done.max(1) as f64;
        let left_s = |case: &Case| {
            let step_s = match case.done {
                0 => case.idle_s + busy_s,
                done => case.took_s / done as f64,
            };
            let steps = case.steps / u64::from(self.rounds.count.max(1)) * u64::from(rounds);
            step_s * steps.saturating_sub(case.done) as f64
        };
        self.cases.iter().map(left_s).sum()
    }

    fn line(&mut self, now: Duration, round: u32, name: &str) -> Option<String> {
        if now < self.said + EVERY {
            return None;
        }
        self.said = now;
        let (done, steps) = self.done();
        Some(format!(
            "ebbtide: round {} of {}, {name}: {done} of {steps} measured, about {} left\n",
            round + 1,
            self.rounds.count,
            minutes(self.left_s(round, now))
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

    const NO_TIME: Duration = Duration::ZERO;

    fn rounds(count: u32, limit: Option<Duration>) -> Rounds {
        Rounds { count, limit }
    }

    #[test]
    fn no_more_is_left_than_the_limit_allows() {
        let seconds = Duration::from_secs;
        let mut progress = Progress::new(rounds(100, Some(seconds(12))), [(5, NO_TIME)]);
        let mut left = Vec::new();
        for step in 0..10 {
            let now = seconds(step + 1);
            progress.note(0, now);
            left.push(progress.left_s(step as u32 / 5, now));
        }
        assert_eq!(left, [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]);
        // The first round is made to its end.
        let mut progress = Progress::new(rounds(100, Some(seconds(1))), [(5, NO_TIME)]);
        progress.note(0, seconds(2));
        assert_eq!(progress.left_s(0, seconds(2)), 8.0);
    }

    #[test]
    fn lines_come_now_and_then() {
        let mut progress = Progress::new(rounds(4, None), [(10, NO_TIME)]);
        let mut lines = Vec::new();
        for second in 1..=20 {
            let now = Duration::from_secs(second);
            progress.note(0, now);
            lines.extend(progress.line(now, 1, "a_case"));
        }
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[1],
            "ebbtide: round 2 of 4, a_case: 10 of 40 measured, about 30 s left\n"
        );
    }

    /// Two rounds, in each two steps of each case: what is left after each step.
    fn left_after_each(steps: [(Duration, u64); 3]) -> Vec<f64> {
        let mut progress = Progress::new(rounds(2, None), steps.map(|(idle, _)| (2, idle)));
        let (mut now, mut left) = (Duration::ZERO, Vec::new());
        for at in [0, 0, 1, 1, 2, 2].repeat(2) {
            now += Duration::from_secs(steps[at].1);
            progress.note(at, now);
            left.push(progress.left_s(0, now));
        }
        assert_eq!(progress.done(), (12, 12));
        left
    }

    #[test]
    fn cases_that_wait_longer_are_known_to_beforehand() {
        let seconds = Duration::from_secs;
        // Each works for 2 s.
        let steps = [(NO_TIME, 2), (seconds(4), 6), (seconds(40), 42)];
        let left = left_after_each(steps);
        let all = 4.0 * (2.0 + 6.0 + 42.0);
        assert_eq!(left[..4], [all - 2.0, all - 4.0, all - 10.0, all - 16.0]);
        assert_eq!(left[11], 0.0);
    }

    #[test]
    fn from_the_second_round_on_it_is_known_what_a_case_takes() {
        let left = left_after_each([(NO_TIME, 1), (NO_TIME, 10), (NO_TIME, 100)]);
        assert_eq!(left[0], 11.0, "as far as can be known");
        assert_eq!(left[5..8], [222.0, 221.0, 220.0]);
    }

    #[test]
    fn what_ends_before_its_time_takes_none_off_the_others() {
        // Its processes fail at once.
        let seconds = Duration::from_secs;
        let left = left_after_each([(seconds(9), 0), (seconds(4), 4), (NO_TIME, 5)]);
        assert_eq!(left[1], 4.0 * 4.0);
        assert_eq!(left[5], 2.0 * 4.0 + 2.0 * 5.0);
    }
}
