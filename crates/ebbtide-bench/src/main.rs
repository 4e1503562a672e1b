//! `ebbtide-bench`: Ebbtide beside other allocators, and a page that tells what came out.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the command line |
//! | `report` | all families in turn, and one page that tells them |
//! | `families` | what is measured: each family, its processes |
//! | `figures` | sets figures side by side: as text, JSON, a page, pictures |
//! | `harness` | runs a family's cases, interleaved, in fresh processes |
//! | `outside` | looks at processes from outside |
//! | `measured` | what measured processes share |
//! | `stats` | medians and quartiles |
//!
//! Each imports those below it.

mod cli;
mod families;
mod figures;
mod harness;
mod measured;
mod outside;
mod report;
mod stats;

use std::process::ExitCode;

use ebbtide_tools::program;

use cli::{Line, Other};

fn main() -> ExitCode {
    let line = match cli::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => return program::told(&error),
    };
    program::ended(match line {
        Line::Family(asked) => families::main(&*asked),
        Line::Other(Other::Report(args)) => report::main(&args),
        Line::Other(Other::Worker(args)) => families::worker::main(&args),
        Line::Other(Other::Completions { shell }) => program::completions(cli::command(), shell),
        Line::Other(Other::Man { dir }) => program::man(cli::command(), dir.as_deref()),
    })
}
