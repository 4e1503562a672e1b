//! Starts measured processes and reads what they print.
//!
//! Each starts under its entry's library and settings, with the caller's own
//! settings of other allocators taken out of the environment.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ebbtide_tools::machine;
use tempfile::TempDir;

use crate::harness::Case;
use crate::harness::peers::{self, Entry};
use crate::measured::Output;

/// A process that runs longer is stopped.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// What all measurements share.
pub struct Starter {
    exe: PathBuf,
    _dir: TempDir,
}

impl Starter {
    /// Makes ready what the cases need.
    pub fn new(cases: &[Case]) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory; set TMPDIR")?;
        for case in cases {
            case.run.prepare(case, dir.path());
        }
        Ok(Starter {
            exe: std::env::current_exe().context("cannot find this program")?,
            _dir: dir,
        })
    }

    /// `conf` is laid over the settings of the caller and of the entry.
    pub fn command(&self, program: &Path, entry: &Entry, conf: &str) -> Command {
        let mut command = Command::new(program);
        for name in peers::SCRUBBED_ENV {
            command.env_remove(name);
        }
        if let Some(library) = &entry.library {
            command.env("LD_PRELOAD", library);
        }
        command.envs(entry.env.iter().map(|(k, v)| (k, v)));
        if entry.is_own() {
            let callers = std::env::var("EBBTIDE_CONF").unwrap_or_default();
            let parts = [callers.as_str(), &entry.conf, conf];
            let parts: Vec<&str> = parts.into_iter().filter(|p| !p.is_empty()).collect();
            if !parts.is_empty() {
                command.env("EBBTIDE_CONF", parts.join(","));
            }
        }
        command
    }

    /// This program as a measured process, at a case of that name.
    pub fn worker(&self, case: &str, amount: u64, entry: &Entry, conf: &str) -> Command {
        let mut command = self.command(&self.exe, entry, conf);
        command.args(["worker", case, &amount.to_string()]);
        command.args(["--method", entry.method]);
        command
    }

    /// Whether `malloc` really comes from the entry's library (INV-BENCH-2), and
    /// the library knows the entry's settings.
    pub fn serves(&self, entry: &Entry) -> Result<()> {
        let (output, errors) = finish(self.worker("which", 0, entry, ""))?;
        if let Some(line) = errors.lines().find(|l| l.contains("EBBTIDE_CONF")) {
            let short: String = line.split(". Keys").next().unwrap_or(line).into();
            ensure!(entry.conf.is_empty(), "the library says: {short}");
        }
        let found = Path::new(&output.allocator);
        let real = found.canonicalize().unwrap_or_else(|_| found.to_path_buf());
        match &entry.library {
            Some(library) if real != *library => bail!(
                "{} does not define malloc (it comes from {}); build the library, or name another with --lib",
                library.display(),
                found.display()
            ),
            None if !output.allocator.contains("libc.so") => {
                bail!(
                    "malloc comes from {}, not from the C library",
                    found.display()
                )
            }
            _ => Ok(()),
        }
    }
}

/// The library's own default.
const EXIT_THRESHOLD_BYTES: u64 = 256 << 20;

/// The setting `exit_threshold` with which a process of this size has a helper: small ones would never get one.
pub fn threshold_kib(size_bytes: u64) -> u64 {
    (size_bytes / 2).min(EXIT_THRESHOLD_BYTES) >> 10
}

/// Touches so much memory in a process that ends: a host that lends memory only
/// on first touch makes that touch many times dearer. At most 60 % of what is
/// available. Bytes, and seconds that it took.
pub fn warm_host(bytes: u64) -> Result<(u64, f64)> {
    let most = machine::available_bytes().map_or(bytes, |n| n / 5 * 3);
    let bytes = bytes.min(most);
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command.env_remove("LD_PRELOAD");
    command.args(["worker", "warm", &bytes.to_string()]);
    let (output, _) = finish(command).context("cannot touch the memory beforehand")?;
    let seconds = output.metrics.get("warm_s").copied().unwrap_or(0.0);
    Ok((bytes, seconds))
}

/// Gives it pipes for all three streams.
pub fn piped(command: &mut Command) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// Waits for the end of a worker that was followed. Why it failed: how it ended by itself is
/// the better reason, and what it said on stderr.
pub fn explained<T>(child: &mut Child, followed: Result<T>, may_fail: bool) -> Result<T> {
    let Err(error) = followed else {
        ended(child, may_fail)?;
        return followed;
    };
    let status = child.try_wait()?;
    let _ = child.kill();
    let (_, errors) = ended(child, true)?;
    let error = match status {
        Some(status) => error.context(format!("ends with {status}")),
        None => error,
    };
    Err(match errors.lines().next() {
        Some(first) => error.context(first.to_owned()),
        None => error,
    })
}

/// Waits for a worker and reads its last line, and all of its stderr.
pub fn finish(mut command: Command) -> Result<(Output, String)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start")?;
    let (said, errors) = ended(&mut child, false)?;
    Ok((parse(said.lines().last().unwrap_or_default())?, errors))
}

/// Waits for the end; what is left to read from its pipes.
fn ended(child: &mut Child, may_fail: bool) -> Result<(String, String)> {
    let end = Instant::now() + TIMEOUT;
    // What a worker prints fits into the pipe, so it never waits for a reader.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            bail!("no end within {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let (mut said, mut errors) = (String::new(), String::new());
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut said)?;
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut errors)?;
    }
    let first_error = errors.lines().next().unwrap_or_default();
    ensure!(
        may_fail || status.success(),
        "{}",
        format!("ends with {status} {first_error}").trim_end()
    );
    Ok((said, errors))
}

/// The figures in a worker's line.
pub fn parse(line: &str) -> Result<Output> {
    serde_json::from_str(line).with_context(|| format!("not a worker's line: {line:?}"))
}
