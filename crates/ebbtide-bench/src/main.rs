//! `ebbtide-bench`: Ebbtide beside other allocators, and a page that tells what came out.

mod cli;
mod families;
mod figures;
mod harness;
mod measured;
mod outside;
mod report;
mod stats;

use std::process::ExitCode;

use clap::CommandFactory;
use ebbtide_tools::program;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli: Cli = match program::parsed() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    program::ended(match cli.command {
        Command::Bench(command) => families::main(&command),
        Command::Report(args) => report::main(&args),
        Command::Worker(args) => families::worker::main(&args),
        Command::Completions { shell } => program::completions(Cli::command(), shell),
        Command::Man { dir } => program::man(Cli::command(), dir.as_deref()),
    })
}
