//! What every program has: exit status, completions, manual pages.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
pub use clap_complete::Shell;

use crate::out;

/// Exit status of an error of the program itself, as in `env` and `timeout`.
pub const EXIT_OWN: u8 = 125;

/// Prints a usage error, or the help that was asked for. Returns the exit status.
pub fn told(error: &clap::Error) -> ExitCode {
    // Help and version go to stdout and are no error.
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
            ExitCode::from(EXIT_OWN)
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

/// Writes the page of the command, without those of its subcommands.
pub fn man_page(command: Command, dir: &Path) -> Result<u8> {
    let page = clap_mangen::Man::new(command);
    page.generate_to(dir).with_context(|| told_of(dir))?;
    Ok(0)
}

fn told_of(dir: &Path) -> String {
    format!("cannot write manual pages to {}", dir.display())
}
