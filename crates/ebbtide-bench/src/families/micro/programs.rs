//! Small programs: the time that they take to start, and the memory that they hold.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ebbtide_tools::out;

use crate::harness::peers::Entry;
use crate::harness::process::{Starter, finish};
use crate::harness::{Case, Run};
use crate::measured::Output;
use crate::stats::Spread;

/// A C program that is compiled here and prints the output of a measured process. Without a compiler, the measured
/// process runs a case that does the same.
#[derive(Debug, Default)]
pub struct Hello {
    program: OnceCell<PathBuf>,
}

impl Run for Hello {
    fn prepare(&self, case: &Case, dir: &Path) {
        match compile(dir) {
            Ok(program) => drop(self.program.set(program)),
            Err(error) => out::warning(&format!(
                "{}: {error:#}; this program's own process is measured instead (apt-get install gcc)",
                case.id
            )),
        }
    }

    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let command = match self.program.get() {
            Some(program) => starter.command(program, entry, ""),
            None => starter.worker("rss", 0, entry, ""),
        };
        Ok(finish(command)?.0)
    }
}

fn compile(dir: &Path) -> Result<PathBuf> {
    let (file, program) = (dir.join("hello.c"), dir.join("hello"));
    std::fs::write(&file, include_str!("hello.c"))?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).args([&program, &file]);
    let output = command.output().context("no C compiler 'cc'")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cc fails: {}",
        said.lines().next().unwrap_or_default()
    );
    Ok(program)
}

/// Starts `/bin/true` so many times. The figure is `ms_per_start`.
#[derive(Debug)]
pub struct Starts(pub u32);

impl Run for Starts {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let mut command = starter.command(Path::new("/bin/true"), entry, "");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut values = Vec::new();
        for _ in 0..self.0 {
            let began = Instant::now();
            let status = command.status()?;
            values.push(began.elapsed().as_secs_f64() * 1e3);
            ensure!(status.success(), "/bin/true ends with {status}");
        }
        let median = Spread::of(&values).map(|spread| ("ms_per_start", spread.median));
        Ok(Output::new(u64::from(self.0), median))
    }
}
