//! `ebbtide`: run programs with Ebbtide, look at what the system offers, and measure.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the flags, each defined once |
//! | `conf` | the keys of `EBBTIDE_CONF` |
//! | `known` | combinations that cannot work: the library's own table |
//! | `library` | finds `libebbtide.so` |
//! | `lock_figures` | what the library's locks cost |
//! | `out` | prints without failing on a closed pipe; units |
//! | `stats_page` | the page of figures that a process under Ebbtide keeps |
//! | `proc` | reads what `/proc` says |
//! | `run` | starts a program, passes signals and its exit status, measures it |
//! | `values` | what flags take: sizes, times |
//! | `top` | watches the processes that run under Ebbtide |
//! | `doctor` | probes the kernel, the limits and the library |
//! | `report` | all families of benchmarks, and one page that tells them |
//! | `bench` | interleaved benchmarks in fresh processes |

mod bench;
mod cli;
mod conf;
mod doctor;
mod known;
mod library;
mod lock_figures;
mod out;
mod proc;
mod report;
mod run;
mod stats_page;
mod top;
mod values;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use cli::{Cli, Command};

/// Exit status for an error of Ebbtide's own, as `env` and `timeout` use it.
pub const EXIT_OWN: u8 = 125;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and are no error.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_OWN } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Bench(command) => bench::main(&command),
        Command::Report(args) => report::main(&args),
        Command::BenchWorker(args) => bench::worker::main(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(dir.as_deref()),
    };
    match result {
        Ok(0) if out::is_lost() => ExitCode::from(EXIT_OWN),
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            out::error(&error);
            ExitCode::from(EXIT_OWN)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "ebbtide", &mut text);
    out::stdout(&text);
    Ok(0)
}

fn man(dir: Option<&std::path::Path>) -> Result<u8> {
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(cli::command(), dir))
                .with_context(|| format!("cannot write manual pages to {}", dir.display()))?;
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(cli::command()).render(&mut text)?;
            out::stdout(&text);
        }
    }
    Ok(0)
}
