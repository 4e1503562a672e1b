//! `ebbtide run --compare`: runs a command several times, with Ebbtide and without in turn.
//!
//! ```text
//!   warm-up (with, output shown) → with → without → with → without → …
//! ```
//!
//! The warm-up fills the kernel's caches, so no measured round pays for them. All rounds get the same input. All measured rounds write to
//! pipes, so that the program behaves the same in each. A signal that ends programs ends the round that runs, and no other begins; what was
//! measured until then is reported.

use std::process::Command;

use anyhow::Result;
use ebbtide_tools::conf::Conf;
use ebbtide_tools::out;

use crate::cli::RunArgs;
use crate::run::captured::{Captured, Difference, STREAMS, Written};
use crate::run::input::Input;
use crate::run::signals::{Passing, ending_signal, is_ending};
use crate::run::summary::{Figures, Round, Summary, rounds_shown};
use crate::run::{Launch, report, supervise, warn_of_no_library, with_ebbtide, words};

/// One command, many rounds.
struct Rounds<'a> {
    launch: &'a Launch<'a>,
    conf: &'a Conf,
    input: Input,
    passing: Passing,
}

/// The result of one round.
struct Done {
    figures: Figures,
    written: Option<Written>,
}

/// Runs all rounds, reports, and returns the exit status: that of the first round, or of the one that a signal ended.
pub fn compare(args: &RunArgs, launch: &Launch, conf: &Conf) -> Result<u8> {
    let input = Input::take()?;
    let passing = Passing::hold()?;
    passing.set_child(None);
    let rounds = Rounds {
        launch,
        conf,
        input,
        passing,
    };
    let warm = rounds.run(true, true)?.figures;
    let mut status = warm.exit_status;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut stopped = stopped_by(&warm);
    if stopped.is_none() {
        out::stderr(&format!(
            "ebbtide: that was the warm-up; now {} with Ebbtide and as many without, whose output is not shown\n",
            rounds_shown(args.rounds as usize)
        ));
    }
    for number in 0..args.rounds * 2 {
        if stopped.is_some() {
            break;
        }
        let is_with = number % 2 == 0;
        let done = rounds.run(is_with, false)?;
        stopped = stopped_by(&done.figures);
        match is_with {
            _ if stopped.is_some() => status = done.figures.exit_status,
            true => with.push(done),
            false => without.push(done),
        }
    }
    let Rounds { passing, .. } = rounds;
    drop(passing);
    if let Some(signal) = stopped {
        // A program may end in order after a signal.
        status = if status == 0 {
            128 + signal as u8
        } else {
            status
        };
    }
    if stopped.is_some() && without.is_empty() {
        out::warning(
            "interrupted before both kinds of rounds have run, so there is nothing to compare",
        );
        return Ok(status);
    }
    if stopped.is_some() {
        out::warning("interrupted; the figures are those of the rounds before");
    }
    with.truncate(without.len());
    let differences = differences(&with, &without);
    warn(args, &with, &without, &differences);
    let pairs = with.into_iter().zip(without);
    let pairs = pairs.map(|(with, without)| Round {
        with_ebbtide: with.figures,
        without_ebbtide: without.figures,
    });
    report(
        args,
        &Summary::compared(words(args), pairs.collect(), differences),
    );
    Ok(status)
}

impl Rounds<'_> {
    /// Runs the command once.
    fn run(&self, is_with: bool, is_shown: bool) -> Result<Done> {
        let mut written = None;
        let mut measure = |mut command: Command| {
            command.stdin(self.input.open()?);
            if is_shown {
                return supervise::measure(command, &self.passing);
            }
            let captured = Captured::start(&mut command)?;
            let figures = supervise::measure(command, &self.passing);
            written = Some(captured.finish());
            figures
        };
        let figures = match is_with {
            true => with_ebbtide(self.launch, self.conf, measure)?,
            false => measure(self.launch.command(None))
                .map_err(|error| self.launch.cannot_start(&error))?,
        };
        Ok(Done { figures, written })
    }
}

/// The signal that ends everything, if one came to this process or ended the command.
fn stopped_by(figures: &Figures) -> Option<libc::c_int> {
    ending_signal(0).or(figures.signal.filter(|&signal| is_ending(signal)))
}

/// How the streams differ between rounds.
fn differences(with: &[Done], without: &[Done]) -> [Difference; STREAMS.len()] {
    std::array::from_fn(|stream| {
        let digests = |rounds: &[Done]| -> Vec<_> {
            let written = rounds.iter().filter_map(|round| round.written);
            written.map(|written| written[stream]).collect()
        };
        Difference::of(&digests(with), &digests(without))
    })
}

/// Warns about everything that makes the rounds hard to compare.
fn warn(args: &RunArgs, with: &[Done], without: &[Done], differences: &[Difference]) {
    let reason = with
        .iter()
        .find_map(|done| done.figures.not_loaded.as_ref());
    if let Some(reason) = reason {
        warn_of_no_library(args, reason);
    }
    for (stream, difference) in STREAMS.iter().zip(differences) {
        if let Some(sentence) = difference.sentence(stream) {
            out::warning(&sentence);
        }
    }
    let statuses = |rounds: &[Done]| -> Vec<u8> {
        let mut all: Vec<u8> = rounds.iter().map(|done| done.figures.exit_status).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (with, without) = (statuses(with), statuses(without));
    if with != without || with.len() > 1 {
        out::warning(&format!(
            "the rounds ended with different exit statuses, so their figures are not comparable: with Ebbtide {with:?}, without {without:?}"
        ));
    } else if with != [0] {
        out::warning(&format!("every round ended with exit status {}", with[0]));
    }
}
