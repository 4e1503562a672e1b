//! `ebbtide-bench`: measures Ebbtide beside other allocators, and writes a page with the results.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the command line |
//! | `report` | runs all families, and writes one page about the results |
//! | `families` | each family of benchmarks, and its measured processes |
//! | `figures` | shows results side by side: as text, JSON, a page, plots |
//! | `harness` | runs a family's cases, interleaved, in fresh processes |
//! | `outside` | observes processes from outside |
//! | `measured` | the part that measured processes share |
//! | `stats` | medians and quartiles |
//!
//! Each module imports only modules below it.

mod cli;
mod families;
mod figures;
mod harness;
mod measured;
mod outside;
mod report;
mod stats;

use std::process::ExitCode;

use ebbtide_tools::{complete, program};

use cli::{Line, Other};

fn main() -> ExitCode {
    complete::answer(cli::command);
    let line = match cli::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => return program::told(&error),
    };
    program::ended(match line {
        Line::Family(asked) => families::main(&asked),
        Line::Other(Other::Report(args)) => report::main(&args),
        Line::Other(Other::Worker(args)) => families::worker::main(&args),
        Line::Other(Other::Completions { shell }) => program::completions(&cli::command(), shell),
        Line::Other(Other::Man { dir }) => program::man(cli::command(), cli::page, dir.as_deref()),
    })
}
