//! Runs the cases of a family, interleaved over the allocators.
//!
//! Round-robin with a rotating start: round 0 runs A B C, round 1 B C A, and so
//! on, for every case. An entry whose process does not really use its library,
//! or that fails, is reported and not measured.
//!
//! Invariants:
//! - `INV-BENCH-1`: within a case, every process reports the same checksum.
//! - `INV-BENCH-2`: a figure is kept only if `malloc` came from the entry's library.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use crate::bench::peers::{self, Entry};
use crate::bench::stats::Spread;
use crate::bench::worker::Output;
use crate::out;

/// A process that runs longer is stopped.
const TIMEOUT: Duration = Duration::from_secs(300);

/// One figure that a case gives; less is better.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in the process's output.
    pub id: &'static str,
    /// Its unit, for people.
    pub unit: &'static str,
}

/// What is run for a case.
#[derive(Clone, Debug)]
pub enum Run {
    /// This program's worker.
    Worker {
        /// Case of the worker.
        case: &'static str,
        /// Its amount.
        amount: u64,
    },
    /// A C program, compiled here; it prints what a worker prints. Where there
    /// is no compiler, the worker's case.
    Compiled {
        /// Its source.
        source: &'static str,
        /// Case of the worker to use without a compiler.
        or_case: &'static str,
    },
    /// A program started so many times; the figure is `ms_per_start`.
    Starts {
        /// Its path.
        program: &'static str,
        /// How often.
        times: u32,
    },
}

/// One case of a family.
#[derive(Clone, Debug)]
pub struct Case {
    /// Stable name.
    pub id: &'static str,
    /// What it does, on one line.
    pub about: &'static str,
    /// What is run.
    pub run: Run,
    /// What is measured.
    pub metrics: &'static [Metric],
}

/// Every value of one metric, by entry.
#[derive(Debug)]
pub struct Series {
    /// The case.
    pub case: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The metric.
    pub metric: Metric,
    /// One list of values per entry, in the order of the entries.
    pub values: Vec<Vec<f64>>,
}

/// Everything that came out.
#[derive(Debug)]
pub struct Results {
    /// The entries that were measured.
    pub entries: Vec<Entry>,
    /// One series per case and metric.
    pub series: Vec<Series>,
    /// What went wrong, for people.
    pub failures: Vec<String>,
}

/// Runs `cases` for `rounds` rounds.
pub fn run(cases: &[Case], entries: Vec<Entry>, rounds: u32) -> Result<Results> {
    let bench = Bench::new(cases)?;
    let mut failures = Vec::new();
    let mut kept = Vec::new();
    for entry in entries {
        match bench.serves(&entry) {
            Ok(()) => kept.push(entry),
            // Without Ebbtide itself there is nothing to compare with.
            Err(error) if entry.name == peers::OWN => return Err(error),
            Err(error) => failures.push(format!("{} is left out: {error:#}", entry.name)),
        }
    }
    let mut series: Vec<Series> = cases
        .iter()
        .flat_map(|c| c.metrics.iter().map(move |m| (c, m)))
        .map(|(case, metric)| Series {
            case: case.id,
            about: case.about,
            metric: *metric,
            values: vec![Vec::new(); kept.len()],
        })
        .collect();

    let bar = progress(u64::from(rounds) * (cases.len() * kept.len()) as u64);
    let mut checksums: Vec<Option<u64>> = vec![None; cases.len()];
    let mut broken = vec![vec![false; kept.len()]; cases.len()];
    for round in 0..rounds {
        for (c, case) in cases.iter().enumerate() {
            for turn in 0..kept.len() {
                let e = (turn + round as usize) % kept.len();
                bar.set_message(format!("{} {}", case.id, kept[e].name));
                bar.inc(1);
                if broken[c][e] {
                    continue;
                }
                let measured = bench.measure(case, &kept[e]).and_then(|output| {
                    let expected = *checksums[c].get_or_insert(output.checksum);
                    ensure!(
                        output.checksum == expected,
                        "wrong result: checksum {:x}, others have {expected:x}",
                        output.checksum
                    );
                    Ok(output)
                });
                match measured {
                    Ok(output) => keep(&mut series, case, e, &output),
                    Err(error) => {
                        broken[c][e] = true;
                        failures.push(format!("{} in {}: {error:#}", case.id, kept[e].name));
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(Results {
        entries: kept,
        series,
        failures,
    })
}

fn keep(series: &mut [Series], case: &Case, entry: usize, output: &Output) {
    for one in series.iter_mut().filter(|s| s.case == case.id) {
        if let Some(value) = output.metrics.get(one.metric.id) {
            one.values[entry].push(*value);
        }
    }
}

fn progress(len: u64) -> ProgressBar {
    // Hidden by itself where stderr is no terminal.
    let bar = ProgressBar::new(len);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// What all measurements share.
struct Bench {
    exe: PathBuf,
    /// Compiled programs, by case.
    programs: Vec<(&'static str, PathBuf)>,
    _dir: TempDir,
}

impl Bench {
    fn new(cases: &[Case]) -> Result<Self> {
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
        Ok(Bench {
            exe: std::env::current_exe().context("cannot find this program")?,
            programs,
            _dir: dir,
        })
    }

    fn command(&self, program: &Path, entry: &Entry) -> Command {
        let mut command = Command::new(program);
        for name in peers::SCRUBBED_ENV {
            command.env_remove(name);
        }
        if let Some(library) = &entry.library {
            command.env("LD_PRELOAD", library);
        }
        command.envs(entry.env.iter().map(|(k, v)| (k, v)));
        command
    }

    fn worker(&self, case: &str, amount: u64, entry: &Entry) -> Result<Output> {
        let mut command = self.command(&self.exe, entry);
        command.args(["bench-worker", case, &amount.to_string()]);
        finish(command)
    }

    /// Whether `malloc` really comes from the entry's library (INV-BENCH-2).
    fn serves(&self, entry: &Entry) -> Result<()> {
        let output = self.worker("which", 0, entry)?;
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

    fn measure(&self, case: &Case, entry: &Entry) -> Result<Output> {
        match &case.run {
            Run::Worker { case, amount } => self.worker(case, *amount, entry),
            Run::Compiled { or_case, .. } => {
                match self.programs.iter().find(|(id, _)| *id == case.id) {
                    Some((_, program)) => finish(self.command(program, entry)),
                    None => self.worker(or_case, 0, entry),
                }
            }
            Run::Starts { program, times } => self.starts(Path::new(program), *times, entry),
        }
    }

    fn starts(&self, program: &Path, times: u32, entry: &Entry) -> Result<Output> {
        let mut command = self.command(program, entry);
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

/// Waits for a worker and reads its last line.
fn finish(mut command: Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start")?;
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
    if let (Some(mut o), Some(mut e)) = (child.stdout.take(), child.stderr.take()) {
        o.read_to_string(&mut said)?;
        e.read_to_string(&mut errors)?;
    }
    let first_error = errors.lines().next().unwrap_or_default();
    ensure!(status.success(), "ends with {status} {first_error}");
    let line = said.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("not a worker's line: {line:?}"))
}
