//! The apps family: real programs and common shapes of memory use, as whole processes.
//!
//! A program is run by a script of `scripts`; a shape is a measured process of this program. Both are watched from
//! outside in the same way ([`watch`]). Half of the cases are sealed: `sealed.txt` names them, and only `--sealed`
//! measures them, so that nobody tunes for them.

mod program;
mod shapes;
mod sizes;
mod watch;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use ebbtide_tools::values;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::{self, Case, Results, peers};
use crate::measured::{Output, WorkerArgs};
use program::Program;
use shapes::Shape;

/// Time for which a process is watched after its work, and in a quick run.
const REST: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(500));
/// Length of the case `fragments`, and in a quick run.
const LENGTH: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(1));
/// Memory that is touched beforehand, and in a quick run.
const WARM_BYTES: (u64, u64) = (3 << 30, 256 << 20);

/// Flags of the family.
#[derive(Debug, Args)]
pub struct AppsArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Measure the sealed cases too: those that nobody tunes for
    #[arg(long)]
    pub sealed: bool,
    /// Length of the case fragments, such as 10m (default: 20s)
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub length: Option<Duration>,
}

/// The names of the sealed cases.
fn sealed() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("sealed.txt").lines();
    lines.filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// The cases that were asked for, and notes about those that are left out.
fn cases(args: &AppsArgs) -> Result<(Vec<Case>, Vec<String>)> {
    let bench = &args.bench;
    let (rest, length) = (bench.pick(REST), args.length.unwrap_or(bench.pick(LENGTH)));
    let mut cases = Apps::cases(&bench.only, |id| {
        Some(match Program::of(id, bench.quick, rest) {
            Some(program) => Box::new(program),
            None => Box::new(Shape::new(id, bench.quick, length, rest)),
        })
    })?;
    let mut notes = Vec::new();
    if !args.sealed {
        let is_sealed = |case: &Case| sealed().any(|name| name == case.id);
        let closed: Vec<&str> = cases
            .iter()
            .filter(|c| is_sealed(c))
            .map(|c| c.id)
            .collect();
        if !closed.is_empty() {
            notes.push(format!(
                "sealed, measured with --sealed: {}",
                closed.join(", ")
            ));
        }
        cases.retain(|case| !is_sealed(case));
        ensure!(
            !cases.is_empty(),
            "only sealed cases are left ({}); give --sealed to measure them",
            closed.join(", ")
        );
    }
    notes.extend(harness::leave_out(&mut cases, program::missing)?);
    Ok((cases, notes))
}

/// The family.
pub struct Apps;

impl Family for Apps {
    type Flags = AppsArgs;
    const NAME: &'static str = "apps";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 80.0;

    fn measure(args: &AppsArgs) -> Result<Results> {
        let (cases, notes) = cases(args)?;
        let rounds = args.bench.rounds_or(Self::ROUNDS);
        let entries = peers::rotation(&args.bench, false)?;
        let mut results = harness::run(&cases, entries, rounds, args.bench.pick(WARM_BYTES))?;
        results.notes.extend(notes);
        let rest = args.bench.pick(REST);
        results.notes.push(format!(
            "each process rests {:.1} s after its work; RSS is that of all processes of a case, without clients and \
             without pages of files",
            rest.as_secs_f64()
        ));
        results.wait = rest;
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        shapes::process(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    fn all() -> Vec<&'static str> {
        let cases = Apps::cases(&[], |id| {
            let program = Program::of(id, true, Duration::ZERO)?;
            Some(Box::new(program))
        });
        assert!(cases.is_ok());
        let lines = Apps::TEXT.lines().skip(3);
        let lines = lines.filter(|line| !line.starts_with(' '));
        lines.filter_map(|line| line.split(": ").next()).collect()
    }

    #[test]
    fn every_second_case_is_sealed() {
        let second: Vec<&str> = all().into_iter().skip(1).step_by(2).collect();
        assert_eq!(sealed().collect::<Vec<_>>(), second);
    }

    #[test]
    fn each_case_is_a_program_or_a_shape() {
        for id in all() {
            let is_program = Program::of(id, true, Duration::ZERO).is_some();
            assert_ne!(is_program, shapes::is_shape(id), "{id}");
        }
    }

    #[test]
    fn sealed_cases_are_closed_until_asked_for() {
        let parse = |words: &[&str]| {
            let words = ["apps"].iter().chain(words).map(|w| (*w).to_owned());
            families::parse(words).unwrap()
        };
        let told = parse(&["--only", "churn", "--lib", "/no/lib.so"]).measure();
        let told = told.err().unwrap().to_string();
        assert!(
            told.contains("--sealed") && told.contains("churn"),
            "{told}"
        );
        let told = parse(&["--only", "churn", "--sealed", "--lib", "/no/lib.so"]).measure();
        assert!(told.err().unwrap().to_string().contains("/no/lib.so"));
    }
}
