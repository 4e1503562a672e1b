//! The parts that every program needs: exit status, completions, manual pages.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
pub use clap_complete::Shell;

use crate::out;

/// Exit status for an error of the program itself, as in `env` and `timeout`.
pub const EXIT_OWN: u8 = 125;

/// An error with an exit status of its own.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// The message, with its remedy.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

/// Prints a usage error, or the requested help. Returns the exit status.
pub fn told(error: &clap::Error) -> ExitCode {
    // Help and version go to stdout and are no errors.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { EXIT_OWN } else { 0 })
}

/// Prints the error, if there is one. Returns the exit status.
pub fn ended(result: Result<u8>) -> ExitCode {
    match result {
        Ok(0) if out::is_lost() => ExitCode::from(EXIT_OWN),
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            out::error(&error);
            let failure = error.downcast_ref::<Failure>();
            ExitCode::from(failure.map_or(EXIT_OWN, |failure| failure.status))
        }
    }
}

/// Prints a completion script.
pub fn completions(mut command: Command, shell: Shell) -> Result<u8> {
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut text);
    out::stdout(&text);
    Ok(0)
}

/// Prints the manual page, or writes one for the command and each of its subcommands to a directory.
pub fn man(command: Command, dir: Option<&Path>) -> Result<u8> {
    match dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .with_context(|| told_of(dir))?,
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command).render(&mut text)?;
            out::stdout(&text);
        }
    }
    Ok(0)
}

/// Writes the manual page of the command, without those of its subcommands.
pub fn man_page(command: Command, dir: &Path) -> Result<u8> {
    let page = clap_mangen::Man::new(command);
    page.generate_to(dir).with_context(|| told_of(dir))?;
    Ok(0)
}

fn told_of(dir: &Path) -> String {
    format!("cannot write manual pages to {}", dir.display())
}
