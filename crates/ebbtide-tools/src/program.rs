//! The parts that every program needs: exit status, completions, manual pages.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
pub use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::manual::{self, Pages};
use crate::{complete, out};

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
    if error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(EXIT_OWN);
    }
    // Help and version are no errors.
    let text = error.render();
    let text = match out::is_fancy(&std::io::stdout()) {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    out::stdout(text.as_bytes());
    ended(Ok(0))
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

/// Prints the completion script of a program. Candidates come from the program itself: see [`complete`].
pub fn completions(command: &Command, shell: Shell) -> Result<u8> {
    let name = command.get_name();
    let shells = Shells::builtins();
    let script = shells
        .completer(&shell.to_string())
        .context("no completions for this shell")?;
    let mut text = Vec::new();
    script.write_registration(complete::ENV, name, name, name, &mut text)?;
    if shell == Shell::Zsh {
        // In a file of `fpath`, the script is the function itself, called at the first Tab.
        let function = name.replace('-', "_");
        let call = format!(
            "[[ $funcstack[1] = _{name} ]] && _clap_dynamic_completer_{function} \"$@\" || true\n"
        );
        text.extend(call.bytes());
    }
    out::stdout(&text);
    Ok(0)
}

/// Prints the manual page, or writes one for the command and each of its subcommands to a directory.
pub fn man(command: Command, pages: Pages, dir: Option<&Path>) -> Result<u8> {
    match dir {
        Some(dir) => manual::write_all(command, pages, dir)?,
        None => {
            out::stdout(&manual::text(command, pages)?);
        }
    }
    Ok(0)
}
