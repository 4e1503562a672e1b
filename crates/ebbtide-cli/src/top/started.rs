//! A command that `ebbtide top` started to watch it.
//!
//! While the terminal shows the view, the command gets no input from it. Its output goes to a file without a name and
//! is shown afterwards, so that it does not disturb the view.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ebbtide_tools::out;
use rustix::process::{Pid, WaitIdOptions};

use crate::run::signals::Passing;
use crate::run::supervise::{exit_status, is_over, reap};

const STEP: Duration = Duration::from_millis(50);

/// Destination of the command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Stderr, because stdout is for figures.
    Stderr,
    /// Held back in a file, if it would go to a terminal.
    Held,
}

/// A started command that was not reaped yet.
pub struct Started {
    pid: Pid,
    passing: Passing,
    /// The file with the held output, and how many bytes of it have been shown.
    held: Option<(File, u64)>,
}

impl Started {
    /// Starts the command and passes signals on to it from now on.
    pub fn start(command: &mut Command, output: Output) -> io::Result<Self> {
        let mut held = None;
        match output {
            Output::Stderr => {
                command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
            }
            Output::Held => {
                let file = tempfile::tempfile()?;
                command.stdin(Stdio::null()).stdout(file.try_clone()?);
                if io::stderr().is_terminal() {
                    command.stderr(file.try_clone()?);
                }
                held = Some((file, 0));
            }
        }
        let passing = Passing::hold()?;
        let pid = passing.start(command)?;
        Ok(Started { pid, passing, held })
    }

    /// Whether the command has ended.
    pub fn has_ended(&self) -> io::Result<bool> {
        is_over(self.pid, WaitIdOptions::NOHANG)
    }

    /// Waits for the end of the command, shows its output, and returns its exit status.
    pub fn wait(&mut self) -> Result<u8> {
        let flags = match self.held {
            Some(_) => WaitIdOptions::STOPPED | WaitIdOptions::NOHANG,
            None => WaitIdOptions::STOPPED,
        };
        while !is_over(self.pid, flags).context("cannot wait for the command")? {
            self.show()?;
            if self.held.is_some() {
                thread::sleep(STEP);
            }
        }
        self.show()?;
        self.passing.clear_child();
        let (status, _) = reap(self.pid).context("cannot wait for the command")?;
        Ok(exit_status(status))
    }

    /// Shows the output that was held back since the last call.
    fn show(&mut self) -> io::Result<()> {
        let Some((file, shown)) = &mut self.held else {
            return Ok(());
        };
        let mut buffer = [0; 1 << 16];
        loop {
            match file.read_at(&mut buffer, *shown)? {
                0 => return Ok(()),
                len => {
                    out::stdout(&buffer[..len]);
                    *shown += len as u64;
                }
            }
        }
    }
}
