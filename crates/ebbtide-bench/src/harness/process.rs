//! Starts measured processes and reads what they print.
//!
//! Each starts under its entry's library and settings, with the caller's own
//! settings of other allocators taken out of the environment.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ebbtide_tools::out;
use ebbtide_tools::proc::kib_field;
use tempfile::TempDir;

use crate::families::cluster::script;
use crate::families::exit::dying::{self, Ending};
use crate::families::neighbour::beside;
use crate::families::swap_exit::NOBODY;
use crate::families::swap_exit::crowd::{self, Crowd};
use crate::harness::peers::{self, Entry};
use crate::harness::{Case, Run};
use crate::measured::Output;
use crate::outside::observe::{self, Watch};
use crate::outside::swap::join;
use crate::stats::Spread;

/// A process that runs longer is stopped.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The library's own default.
const EXIT_THRESHOLD_BYTES: u64 = 256 << 20;

/// What all measurements share.
pub struct Starter {
    exe: PathBuf,
    /// Compiled programs, by case.
    programs: Vec<(&'static str, PathBuf)>,
    _dir: TempDir,
}

impl Starter {
    /// Compiles what the cases need.
    pub fn new(cases: &[Case]) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory; set TMPDIR")?;
        let mut programs = Vec::new();
        for case in cases {
            if let Run::Compiled { source, .. } = case.run {
                match compile(case.id, source, dir.path()) {
                    Ok(program) => programs.push((case.id, program)),
                    Err(error) => out::warning(&format!(
                        "{}: {error:#}; this program's own process is measured instead (apt-get install gcc)",
                        case.id
                    )),
                }
            }
        }
        Ok(Starter {
            exe: std::env::current_exe().context("cannot find this program")?,
            programs,
            _dir: dir,
        })
    }

    /// `conf` is laid over the settings of the caller and of the entry.
    fn command(&self, program: &Path, entry: &Entry, conf: &str) -> Command {
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

    fn worker(&self, case: &str, amount: u64, entry: &Entry, conf: &str) -> Command {
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

    /// One process, one set of figures.
    pub fn measure(&self, case: &Case, entry: &Entry) -> Result<Output> {
        match &case.run {
            Run::Worker { case, amount } => Ok(finish(self.worker(case, *amount, entry, ""))?.0),
            Run::Fill { bytes } => {
                warm_host(bytes + bytes / 2)?;
                Ok(finish(self.worker("fill", *bytes, entry, ""))?.0)
            }
            Run::Watched {
                case,
                watch,
                is_thp_off,
            } => {
                let conf = if *is_thp_off { "thp=off" } else { "" };
                let mut command = self.worker(case, watch.size_bytes, entry, conf);
                if *is_thp_off {
                    command.arg("--thp-off");
                }
                watched(command, *watch)
            }
            Run::Ends { ending, is_thp_off } => self.ends(*ending, *is_thp_off, entry),
            Run::Script { name, is_quick } => {
                let command = self.command(Path::new("/bin/sh"), entry, "");
                let counts = entry.is_own() && entry.conf.contains("lockstat");
                script::run(command, name, *is_quick, counts)
            }
            Run::Crowd(crowd) => self.crowd(crowd, entry),
            Run::Neighbour(what) => {
                beside::run(what, &|case, bytes| self.worker(case, bytes, entry, ""))
            }
            Run::Search {
                case,
                chunks,
                searches_of_chunks,
                group,
            } => {
                let mut command = self.worker(case, *chunks, entry, "");
                command.args(["--searches-of-chunks", &searches_of_chunks.to_string()]);
                if let Some(group) = group {
                    join(&mut command, group)?;
                }
                Ok(finish(command)?.0)
            }
            Run::Compiled { or_case, .. } => {
                let program = self.programs.iter().find(|(id, _)| *id == case.id);
                let command = match program {
                    Some((_, program)) => self.command(program, entry, ""),
                    None => self.worker(or_case, 0, entry, ""),
                };
                Ok(finish(command)?.0)
            }
            Run::Starts { program, times } => self.starts(Path::new(program), *times, entry),
        }
    }

    fn crowd(&self, crowd: &Crowd, entry: &Entry) -> Result<Output> {
        let app = || {
            let threshold = threshold_kib(crowd.size_bytes);
            let conf = format!("exit_threshold={threshold}K,thp=off");
            let mut command = self.worker("app", crowd.size_bytes, entry, &conf);
            command.arg("--thp-off");
            command
        };
        let plain = Entry::plain("foreground");
        let mut foreground = self.worker("foreground", crowd.foreground_bytes, &plain, "");
        foreground.arg("--file").arg(&crowd.file);
        let processes = if entry.name == NOBODY {
            0
        } else {
            crowd.processes
        };
        crowd::run(crowd, processes, &app, foreground, is_detached(entry))
    }

    fn ends(&self, ending: Ending, is_thp_off: bool, entry: &Entry) -> Result<Output> {
        let threshold = threshold_kib(ending.size_bytes);
        let mut conf = format!("exit_threshold={threshold}K");
        if is_thp_off {
            conf.push_str(",thp=off");
        }
        let mut command = self.worker(ending.death.case(), ending.size_bytes, entry, &conf);
        if is_thp_off {
            command.arg("--thp-off");
        }
        piped(&mut command);
        let mut child = command.spawn().context("cannot start")?;
        let end = Instant::now() + TIMEOUT;
        let followed = dying::follow(&mut child, ending, is_detached(entry), end);
        explained(&mut child, followed, true)
    }

    fn starts(&self, program: &Path, times: u32, entry: &Entry) -> Result<Output> {
        let mut command = self.command(program, entry, "");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut values = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            let status = command.status()?;
            values.push(began.elapsed().as_secs_f64() * 1e3);
            ensure!(status.success(), "{} ends with {status}", program.display());
        }
        let spread = Spread::of(&values).ok_or_else(|| anyhow!("nothing was started"))?;
        Ok(Output {
            checksum: u64::from(times),
            metrics: [("ms_per_start".to_owned(), spread.median)].into(),
            ..Output::default()
        })
    }
}

/// Small sizes would never get a helper.
fn threshold_kib(size_bytes: u64) -> u64 {
    (size_bytes / 2).min(EXIT_THRESHOLD_BYTES) >> 10
}

fn is_detached(entry: &Entry) -> bool {
    entry.conf.contains("exit=detached")
}

/// Touches so much memory in a process that ends: a host that lends memory only
/// on first touch makes that touch many times dearer. At most 60 % of what is
/// available. Bytes, and seconds that it took.
pub fn warm_host(bytes: u64) -> Result<(u64, f64)> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let most = kib_field(&info, "MemAvailable").map_or(bytes, |n| n / 5 * 3);
    let bytes = bytes.min(most);
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command.env_remove("LD_PRELOAD");
    command.args(["worker", "warm", &bytes.to_string()]);
    let (output, _) = finish(command).context("cannot touch the memory beforehand")?;
    let seconds = output.metrics.get("warm_s").copied().unwrap_or(0.0);
    Ok((bytes, seconds))
}

fn compile(id: &str, source: &str, dir: &Path) -> Result<PathBuf> {
    let file = dir.join(format!("{id}.c"));
    std::fs::write(&file, source)?;
    let program = dir.join(id);
    let output = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&file)
        .output()
        .context("no C compiler 'cc'")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cc fails: {}",
        said.lines().next().unwrap_or_default()
    );
    Ok(program)
}

/// Waits for a worker, watching it, and reads its last line.
fn watched(mut command: Command, watch: Watch) -> Result<Output> {
    piped(&mut command);
    let mut child = command.spawn().context("cannot start")?;
    let followed = observe::follow(&mut child, watch, Instant::now() + TIMEOUT);
    let (seen, line) = explained(&mut child, followed, false)?;
    let mut output: Output = parse(&line)?;
    output.metrics.extend(seen.figures(watch.size_bytes));
    output.curve = Some(seen.curve());
    Ok(output)
}

fn piped(command: &mut Command) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// Waits for the end of a worker that was followed. Why it failed: how it ended by itself is
/// the better reason, and what it said on stderr.
fn explained<T>(child: &mut Child, followed: Result<T>, may_fail: bool) -> Result<T> {
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
fn finish(mut command: Command) -> Result<(Output, String)> {
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

fn parse(line: &str) -> Result<Output> {
    serde_json::from_str(line).with_context(|| format!("not a worker's line: {line:?}"))
}
