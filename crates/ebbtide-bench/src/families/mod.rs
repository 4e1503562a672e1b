//! The families of benchmarks: Ebbtide beside other allocators.
//!
//! Every figure comes from a fresh process under one allocator. The allocators alternate within each round, so that
//! drift of the machine affects all alike. Ebbtide is in the rotation twice: the difference between the two is noise.
//!
//! A family is a file or a folder with a [`Family`], and a line in [`FAMILIES`]. The subcommand with its help and flags,
//! the measured processes and the place in the report follow from that. A text, `cases.txt` or beside the file, has the
//! family's cases and figures. `worker` is the measured process.

mod apps;
mod cluster;
mod exit;
mod family;
mod fleet;
mod free;
mod give_back;
mod lazyfree;
mod micro;
mod neighbour;
mod percpu;
mod reuse;
mod swap_exit;
pub mod worker;

use anyhow::{Context, Result};
use clap::{ArgMatches, Command};

use crate::figures::{self, html};
pub use family::{Asked, Family, Registered};

/// All families in the order in which a report runs them: for each design one that shows it, then the others, short ones
/// first.
pub static FAMILIES: [Registered; 12] = [
    Registered::new::<free::Free>().core(),
    Registered::new::<cluster::Cluster>().core(),
    Registered::new::<exit::Exit>().core(),
    Registered::new::<percpu::Percpu>().core(),
    Registered::new::<lazyfree::Lazyfree>().core(),
    Registered::new::<swap_exit::SwapExit>(),
    Registered::new::<give_back::Return>(),
    Registered::new::<neighbour::Neighbour>(),
    Registered::new::<reuse::Reuse>(),
    Registered::new::<micro::Micro>(),
    Registered::new::<apps::Apps>(),
    Registered::new::<fleet::Days>(),
];

/// The family that the command line names, if any.
pub fn asked(matches: &ArgMatches) -> Result<Option<Asked>, clap::Error> {
    let Some((name, matches)) = matches.subcommand() else {
        return Ok(None);
    };
    let family = FAMILIES.iter().find(|family| family.name == name);
    family.map(|family| family.asked(matches)).transpose()
}

/// Reads a command line that begins with a family's name.
pub fn parse(words: impl Iterator<Item = String>) -> Result<Asked> {
    let commands = FAMILIES.iter().map(|family| family.command());
    let all = Command::new("ebbtide bench")
        .no_binary_name(true)
        .subcommand_required(true)
        .subcommands(commands);
    asked(&all.try_get_matches_from(words)?)?.context("no family")
}

/// Runs a family and prints the results.
pub fn main(asked: &Asked) -> Result<u8> {
    html::check(&asked.bench)?;
    figures::print(asked.measure()?, &asked.bench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::runs::Worker;

    fn has_unique_cases_with_figures<F: Family>() {
        let cases = F::cases(&[], |id| Some(Box::new(Worker::new(id, 0)))).unwrap();
        assert!(!cases.is_empty());
        for (i, case) in cases.iter().enumerate() {
            assert!(cases[i + 1..].iter().all(|other| other.id != case.id));
            assert!(!case.about.is_empty() && !case.metrics.is_empty());
        }
    }

    #[test]
    fn texts_have_cases_and_figures() {
        has_unique_cases_with_figures::<free::Free>();
        has_unique_cases_with_figures::<cluster::Cluster>();
        has_unique_cases_with_figures::<exit::Exit>();
        has_unique_cases_with_figures::<percpu::Percpu>();
        has_unique_cases_with_figures::<lazyfree::Lazyfree>();
        has_unique_cases_with_figures::<swap_exit::SwapExit>();
        has_unique_cases_with_figures::<give_back::Return>();
        has_unique_cases_with_figures::<neighbour::Neighbour>();
        has_unique_cases_with_figures::<reuse::Reuse>();
        has_unique_cases_with_figures::<micro::Micro>();
        has_unique_cases_with_figures::<apps::Apps>();
        has_unique_cases_with_figures::<fleet::Days>();
    }

    #[test]
    fn each_has_a_name_of_its_own() {
        for (i, family) in FAMILIES.iter().enumerate() {
            let name = family.name;
            assert!(FAMILIES[i + 1..].iter().all(|other| other.name != name));
            assert!(parse([name.to_owned()].into_iter()).is_ok());
        }
        assert!(parse(["nonesuch".to_owned()].into_iter()).is_err());
    }
}
