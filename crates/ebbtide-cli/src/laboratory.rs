//! `ebbtide bench` and `ebbtide report` start the program `ebbtide-bench`, which need not be installed.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow};

const PROGRAM: &str = "ebbtide-bench";

/// Replaces this process by that program with these arguments. Returns only if that fails.
pub fn run(subcommand: Option<&str>, words: &[OsString]) -> Result<u8> {
    let beside = env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(PROGRAM)))
        .filter(|path| path.is_file());
    // Without one beside it, the first in PATH.
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(subcommand).args(words).exec();
    Err(match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is neither beside this program nor in PATH: build it with 'make', install it with \
             'make install-bench', or install the package that has it"
        ),
        _ => anyhow!("cannot start {}: {error}", program.display()),
    })
}
