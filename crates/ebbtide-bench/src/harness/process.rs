//! Starts measured processes and reads their output.
//!
//! Each process runs under its entry's library and settings. The caller's settings for other allocators are removed
//! from the environment.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ebbtide_tools::machine;
use tempfile::TempDir;

use crate::harness::Case;
use crate::harness::peers::{self, Entry};
use crate::measured::{Output, worker};

/// Maximum run time of a process; then it is stopped.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The state that all measurements share.
pub struct Starter {
    exe: PathBuf,
    _dir: TempDir,
}

impl Starter {
    /// Prepares the cases.
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

    /// A command under the entry's library; `conf` overrides the settings of the caller and of the entry.
    pub fn command(&self, program: &Path, entry: &Entry, conf: &str) -> Command {
        let mut command = Command::new(program);
        for name in peers::SCRUBBED_ENV {
            command.env_remove(name);
        }
        if let Some(library) = &entry.library {
            command.env("LD_PRELOAD", library);
        }
        command.envs(entry.env);
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

    /// The same for a shell that starts other programs. Some are linked with an allocator, as Debian's redis-server is
    /// with jemalloc: without a library to preload, the C library comes before it.
    pub fn shell(&self, entry: &Entry, conf: &str) -> Command {
        let mut command = self.command(Path::new("/bin/sh"), entry, conf);
        if entry.library.is_none() {
            command.env("LD_PRELOAD", "libc.so.6");
        }
        command
    }

    /// This program as a measured process that runs the named case. If `conf` has `thp=off`, the process has no huge
    /// pages under any allocator.
    pub fn worker(&self, case: &str, amount: u64, entry: &Entry, conf: &str) -> Command {
        let mut command = self.command(&self.exe, entry, conf);
        command.args(["worker", case, &amount.to_string()]);
        command.args(["--method", entry.method]);
        if conf.contains("thp=off") {
            command.arg("--thp-off");
        }
        command
    }

    /// Checks that `malloc` really comes from the entry's library (INV-BENCH-2), and that the library accepts the
    /// entry's settings.
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

/// The file of a program, if it is installed.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(name));
    files.find(|file| file.is_file())
}

/// The library's own default.
const EXIT_THRESHOLD_BYTES: u64 = 256 << 20;

/// The setting `exit_threshold` with which a process of this size has a helper: small ones would never get one.
pub fn threshold_kib(size_bytes: u64) -> u64 {
    (size_bytes / 2).min(EXIT_THRESHOLD_BYTES) >> 10
}

/// Touches memory in a process that then ends, at most 60 % of the available memory. A host that provides memory only
/// at the first touch makes that touch many times as expensive. Returns the bytes, and the seconds that it took.
pub fn warm_host(bytes: u64) -> Result<(u64, f64)> {
    let most = machine::available_bytes().map_or(bytes, |n| n / 5 * 3);
    let bytes = bytes.min(most);
    let mut command = worker("warm", bytes)?;
    command.env_remove("LD_PRELOAD");
    let (output, _) = finish(command).context("cannot touch the memory beforehand")?;
    let seconds = output.metrics.get("warm_s").copied().unwrap_or(0.0);
    Ok((bytes, seconds))
}

/// Connects pipes to all three streams.
pub fn piped(command: &mut Command) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// Starts a worker, follows it with `follow` until the time given there is up, and waits for its end. If it failed, the
/// error says how the worker ended and what it wrote to stderr: that explains more than the failure to follow it.
pub fn followed<T>(
    mut command: Command,
    may_fail: bool,
    follow: impl FnOnce(&mut Child, Instant) -> Result<T>,
) -> Result<T> {
    piped(&mut command);
    let mut child = command.spawn().context("cannot start")?;
    let error = match follow(&mut child, Instant::now() + TIMEOUT) {
        Ok(found) => return ended(&mut child, may_fail).map(|_| found),
        Err(error) => error,
    };
    let status = child.try_wait()?;
    let _ = child.kill();
    let (_, errors) = ended(&mut child, true)?;
    let error = match status {
        Some(status) => error.context(format!("ends with {status}")),
        None => error,
    };
    Err(match errors.lines().next() {
        Some(first) => error.context(first.to_owned()),
        None => error,
    })
}

/// Waits for a worker. Returns its last line, and all of its stderr.
pub fn finish(mut command: Command) -> Result<(Output, String)> {
    piped(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start")?;
    let (said, errors) = ended(&mut child, false)?;
    Ok((parse(said.lines().last().unwrap_or_default())?, errors))
}

/// Waits for the end. Returns the rest of its output.
fn ended(child: &mut Child, may_fail: bool) -> Result<(String, String)> {
    let Some(status) = wait(child, TIMEOUT)? else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("no end within {} s", TIMEOUT.as_secs());
    };
    rest(child, status, may_fail)
}

/// Waits for the end, at most so long. A worker's output fits into the pipe, so it never waits for a reader.
pub fn wait(child: &mut Child, most: Duration) -> Result<Option<ExitStatus>> {
    let limit = Instant::now() + most;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() > limit {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The rest of the output of a worker that has ended in this way.
pub fn rest(child: &mut Child, status: ExitStatus, may_fail: bool) -> Result<(String, String)> {
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

/// Parses the figures in a worker's line.
pub fn parse(line: &str) -> Result<Output> {
    serde_json::from_str(line).with_context(|| format!("not a worker's line: {line:?}"))
}
