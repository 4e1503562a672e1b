//! Memory that is touched by a process of its own and held until it is told to end.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::bench::crowd::mark;

/// A process that has touched memory, holds it, and gives it back when it is told to end. What it held lies free
/// for the shortest time: a host takes back what has done so for some seconds.
pub struct Warm(Child);

impl Warm {
    /// It is all touched when this returns.
    pub fn start(bytes: u64) -> Result<Self> {
        Warm::with(bytes, &[])
    }

    /// The same, with flags of the worker.
    pub fn with(bytes: u64, flags: &[&str]) -> Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(exe)
            .env_remove("LD_PRELOAD")
            .args(["bench-worker", "warm_held", &bytes.to_string()])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start")?;
        let mut warm = Warm(child);
        let said = warm.0.stdout.take().context("no pipe")?;
        mark(&mut BufReader::new(said), "base").context("the memory was not touched")?;
        Ok(warm)
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
