//! Starts the program `ebbtide-bench` for `ebbtide bench` and `ebbtide report`. That program need not be installed.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow};
use ebbtide_tools::complete;

const PROGRAM: &str = "ebbtide-bench";
/// The variable by which bash and zsh tell which word is completed.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";

/// The program beside this one, else the first in `PATH`.
fn program() -> PathBuf {
    let beside = env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(PROGRAM)))
        .filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from(PROGRAM))
}

/// If a shell completes the arguments of `ebbtide bench` or `ebbtide report`, that program answers.
pub fn complete() {
    if env::var_os(complete::ENV).is_none() {
        return;
    }
    let mut words: Vec<OsString> = env::args_os().skip(1).collect();
    let place = words.iter().position(|word| word == "--").unwrap_or(0);
    let Some(command) = words
        .get(place + 2)
        .filter(|word| *word == "bench" || *word == "report")
    else {
        return;
    };
    let index: Option<usize> = env::var(INDEX).ok().and_then(|index| index.parse().ok());
    // The word itself is this program's to complete.
    if index.unwrap_or(words.len() - place - 2) < 2 {
        return;
    }
    let mut other = Command::new(program());
    if command == "bench" {
        words.remove(place + 2);
        if let Some(index) = index {
            other.env(INDEX, (index - 1).to_string());
        }
    }
    // Without that program there are no candidates.
    let _ = other.args(words).exec();
}

/// Replaces this process by `ebbtide-bench` with these arguments. Returns only if that fails.
pub fn run(subcommand: Option<&str>, words: &[OsString]) -> Result<u8> {
    let program = program();
    let error = Command::new(&program).args(subcommand).args(words).exec();
    Err(match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is neither beside this program nor in PATH: build it with 'make', install it with \
             'make install-bench', or the package ebbtide-bench"
        ),
        _ => anyhow!("cannot start {}: {error}", program.display()),
    })
}
