//! `ebbtide`: runs programs with Ebbtide, watches them, and reports what the system offers to Ebbtide.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the flags, each defined once |
//! | `pages` | exit status, environment and examples of each command, for its manual page |
//! | `run` | starts a program, passes signals and its exit status on, and measures it |
//! | `top` | watches the processes that run under Ebbtide |
//! | `control` | asks a running process to release memory, or to change a setting |
//! | `profile` | shows which code allocated memory, by sampled stacks |
//! | `explain` | shows where the resident memory of a process is |
//! | `service` | lets a service of systemd run under Ebbtide |
//! | `metrics` | writes their figures as OpenMetrics text |
//! | `doctor` | checks the kernel, the limits and the library |
//! | `output` | writes files as a whole |
//! | `laboratory` | finds and runs the program `ebbtide-bench` |
//! | `memory`, `smaps` | read the memory and the mappings of another process |
//! | `library` | finds the library, and checks its symbols |
//! | `elf` | reads from an ELF file whether a preloaded library takes effect |
//! | `emulator` | finds the emulator that this program runs under |
//!
//! Code shared with `ebbtide-bench` is in the crate `ebbtide-tools`.

mod cli;
mod control;
mod doctor;
mod elf;
mod emulator;
mod explain;
mod laboratory;
mod library;
mod memory;
mod metrics;
mod output;
mod pages;
mod profile;
mod run;
mod service;
mod smaps;
mod top;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use ebbtide_tools::complete::{self, ArgValueCompleter};
use ebbtide_tools::{manual, out, program};

use cli::{Cli, Command};
use top::find;

fn main() -> ExitCode {
    laboratory::complete();
    complete::answer(with_processes);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let status = program::told(&error);
            if let Some(tip) = tip(&error) {
                out::stderr(&format!("\ntip: {tip}\n"));
            }
            return status;
        }
    };
    program::ended(match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Profile(args) => profile::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Release(args) => control::release(&args),
        Command::Set(args) => control::set(&args),
        Command::Metrics(args) => metrics::main(&args),
        Command::Service(args) => service::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Bench(args) => laboratory::run(None, &args.words),
        Command::Report(args) => laboratory::run(Some("report"), &args.words),
        Command::Completions { shell } => program::completions(&Cli::command(), shell),
        Command::Man { dir } => man(dir.as_deref()),
    })
}

/// What may have been meant, where clap cannot know it.
fn tip(error: &clap::Error) -> Option<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let program = words.first()?;
            let is_program = run::is_program(program.as_ref());
            is_program.then(|| format!("to run a program: ebbtide run {}", words.join(" ")))
        }
        ErrorKind::MissingRequiredArgument => match words.first()?.as_str() {
            "run" if !words.iter().any(|word| word.starts_with("--rounds")) => {
                Some("name a program: ebbtide run redis-server".into())
            }
            "explain" | "release" | "set" => {
                Some("'ebbtide top' lists the processes under Ebbtide".into())
            }
            "profile" => {
                Some("name a program or a process: ebbtide profile -- redis-server".into())
            }
            "service" => Some("'systemctl list-unit-files' lists the services".into()),
            "completions" => Some("name a shell: ebbtide completions bash".into()),
            _ => None,
        },
        _ => None,
    }
}

/// The command line, whose process numbers are completed.
fn with_processes() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|arg| match arg.get_id().as_str() {
            "pid" | "pids" => arg.add(ArgValueCompleter::new(find::candidates)),
            "source" => arg.add(ArgValueCompleter::new(find::candidates_or_files)),
            _ => arg,
        })
    })
}

/// Writes the manual pages. `ebbtide bench` has no page here, because ebbtide-bench.1 is that program's own.
fn man(dir: Option<&Path>) -> Result<u8> {
    let all = Cli::command();
    let Some(dir) = dir else {
        return program::man(all, pages::page, None);
    };
    let others = all
        .clone()
        .mut_subcommand("bench", |bench| bench.hide(true));
    program::man(others, pages::page, Some(dir))?;
    manual::write_page(all, pages::page, dir)?;
    Ok(0)
}
