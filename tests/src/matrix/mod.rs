//! `make matrix`: runs the library with the kernels and C libraries of Debian's suites, in emulated machines.
//!
//! ```text
//!   suites ── kernel, root ──▶ machine of a cell ◀── overlay: library, programs of tests/c, tests/matrix
//!                                  │ tests/matrix/list, one check after the other
//!                                  ▼
//!              target/matrix/KEY/CELL ──▶ docs/results/matrix-DATE.md ──▶ docs/platforms.md
//! ```
//!
//! KEY is computed from the library and from everything that runs with it. An interrupted run continues where it was;
//! a new library starts from the beginning. A cell ends at its time limit and then counts as failed.

mod apt;
mod boot;
mod cells;
mod checks;
mod report;
mod suites;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::run::target_dir;
use crate::{build, library, skip};
use cells::Cell;
use checks::{Check, Programs};
use report::Outcome;

/// The oldest C library: programs compiled for it run with all others.
const OLDEST: &str = cells::LIBCS[0];

/// The inputs of this run.
struct Work {
    library: PathBuf,
    checks: Vec<Check>,
    results: PathBuf,
    /// Time limit of a cell.
    limit: Duration,
    /// The C library for which the programs are compiled; `None`: that of this machine.
    sysroot: Option<PathBuf>,
    programs: Programs,
}

/// The cells that run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Cells without a result.
    All,
    /// The newest cell, whether or not it has a result.
    Newest,
    /// The named cells, whether or not they have a result.
    Named,
    /// No cell: existing results are written.
    Kept,
}

/// `matrix [newest | only LABEL... | report | shell LABEL COMMAND]`.
#[must_use]
pub fn main(arguments: Vec<String>) -> ExitCode {
    if let [verb, label, command] = &arguments[..]
        && verb == "shell"
    {
        return match shell(label, command) {
            Ok(status) => ExitCode::from(status),
            Err(why) => {
                eprintln!("matrix: {why}");
                ExitCode::from(2)
            }
        };
    }
    let words: Vec<&str> = arguments
        .iter()
        .flat_map(|argument| argument.split_whitespace())
        .collect();
    let done = match words[..] {
        [] => run(&[], Which::All),
        ["newest"] => run(&[], Which::Newest),
        ["report"] => run(&[], Which::Kept),
        ["only", ref labels @ ..] if !labels.is_empty() => run(labels, Which::Named),
        _ => {
            Err("usage: matrix [newest | only 7.2/2.43 … | report | shell 7.2/2.43 COMMAND]".into())
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("matrix: {why}");
            ExitCode::from(2)
        }
    }
}

impl Work {
    fn new() -> Result<Work, String> {
        let library = library().ok_or("EBBTIDE_LIB=none: nothing to test")?;
        let checks = checks::list()?;
        let limit = match std::env::var("EBBTIDE_CELL_S") {
            Ok(text) => text.parse().map_err(|_| "EBBTIDE_CELL_S is no number")?,
            Err(_) => 180,
        };
        let key = key(&library, &checks)?;
        let results = target_dir().join("matrix").join(key);
        fs::create_dir_all(&results).map_err(|e| e.to_string())?;
        Ok(Work {
            results,
            limit: Duration::from_secs(limit),
            sysroot: None,
            programs: Programs::new(),
            library,
            checks,
        })
    }

    fn compile(&mut self, sysroot: Option<PathBuf>) {
        self.programs = checks::compile(&self.checks, sysroot.as_deref());
        self.sysroot = sysroot;
    }
}

/// Boots a cell for one line of shell, which finds the library as `$L`. For experiments.
fn shell(label: &str, command: &str) -> Result<u8, String> {
    let mut work = Work::new()?;
    work.compile(suites::sysroot(OLDEST).ok());
    let mut fetched = Fetched::default();
    let found = cells::all().into_iter().find_map(|cell| {
        let (kernel, root) = fetched.parts(&cell).ok()?;
        let names = [cell.label(&kernel, &root), cell.id()];
        names
            .contains(&label.to_owned())
            .then_some((cell, kernel, root))
    });
    let (cell, kernel, root) = found.ok_or(format!("no cell is called {label}"))?;
    boot::shell(&work, &cell, &kernel, &root, command)
}

/// Runs cells. Returns whether none failed.
fn run(labels: &[&str], which: Which) -> Result<bool, String> {
    if cfg!(not(target_arch = "x86_64")) {
        skip("the matrix is for x86-64");
        return Ok(true);
    }
    let mut work = Work::new()?;
    let (mut chosen, mut fetched) = (Vec::new(), Fetched::default());
    let mut missing = String::new();
    for cell in cells::all() {
        if which == Which::Newest && !cell.is_newest() {
            continue;
        }
        let parts = fetched.parts(&cell);
        let label = match &parts {
            Ok((kernel, root)) => cell.label(kernel, root),
            Err(why) => {
                missing = format!(" ({why})");
                cell.id()
            }
        };
        let id = cell.id();
        if which != Which::Named || labels.iter().any(|name| *name == label || *name == id) {
            chosen.push((cell, label, parts));
        }
    }
    let named = |label: &&&str| {
        let mut chosen = chosen.iter();
        chosen.any(|(cell, name, _)| name == **label || cell.id() == **label)
    };
    if let Some(label) = labels.iter().find(|label| !named(label)) {
        return Err(format!("no cell is called {label}{missing}"));
    }
    // Compiles no more than needed: a single cell whose libc is newer than this machine's takes the programs made
    // here.
    work.compile(match which {
        Which::Newest => None,
        _ => suites::sysroot(OLDEST).ok(),
    });
    let started = Instant::now();
    let (mut ran, mut all) = (0, Vec::new());
    let count = chosen.len();
    for (number, (cell, label, parts)) in chosen.into_iter().enumerate() {
        let kept = work.results.join(cell.id());
        let known = fs::read_to_string(&kept)
            .ok()
            .and_then(|text| Outcome::parse(&text));
        let known = known.filter(|outcome| {
            let release = parts.as_ref().map(|(kernel, _)| kernel.release.as_str());
            release.is_ok_and(|release| outcome.is_of(&label, release))
        });
        let again = matches!(which, Which::Newest | Which::Named);
        let outcome = match known {
            Some(outcome) if !again => outcome,
            None if which == Which::Kept => Outcome::skipped(&label, "not run"),
            _ => {
                let outcome = match parts {
                    Ok((kernel, root)) => {
                        ran += 1;
                        boot::run_cell(&work, &cell, &label, &kernel, &root)
                    }
                    Err(why) => Outcome::skipped(&label, &why),
                };
                if outcome.skipped.is_none() {
                    fs::write(&kept, outcome.text()).map_err(|e| e.to_string())?;
                }
                outcome
            }
        };
        let left = (count - number - 1) as u32;
        let each = started.elapsed().as_secs() as u32 / ran.max(1);
        let rest = match left * each.div_ceil(6) / 10 {
            0 => String::new(),
            minutes => format!("; about {minutes} min left"),
        };
        match &outcome.skipped {
            Some(why) => skip(&format!("{label}: {why}")),
            None => println!("[{:2}/{count}] {}{rest}", number + 1, outcome.line()),
        }
        for line in outcome.details() {
            println!("        {line}");
        }
        all.push((cell, outcome));
    }
    let failed = all
        .iter()
        .filter(|(_, outcome)| outcome.is_failed())
        .count();
    if matches!(which, Which::All | Which::Kept) {
        if all.iter().all(|(_, outcome)| outcome.skipped.is_some()) {
            println!("every cell was skipped: no result is written");
        } else {
            report::write(&all, &work.library)?;
        }
        println!("\n{}", report::table(&all));
    }
    println!(
        "matrix: {} cells, {failed} failed, after {} s; kept in {}",
        all.len(),
        started.elapsed().as_secs(),
        work.results.display()
    );
    Ok(failed == 0)
}

/// Computes the key of the library and of everything that runs with it.
fn key(library: &Path, checks: &[Check]) -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    let mut files = vec![library.to_owned()];
    files.extend(checks::sources(checks));
    files.push(build::sources().join("check.h"));
    files.extend(entries(&checks::directory())?);
    for path in files {
        let content = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        content.hash(&mut hasher);
    }
    include_bytes!("../../guest/init").hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(told)? {
        paths.push(entry.map_err(told)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The files that were fetched for the cells so far, or why they cannot be fetched. Nothing is tried twice.
#[derive(Default)]
struct Fetched {
    kernels: BTreeMap<&'static str, Result<suites::Kernel, String>>,
    roots: BTreeMap<&'static str, Result<suites::Root, String>>,
}

impl Fetched {
    fn kernel(&mut self, suite: &'static str) -> Result<suites::Kernel, String> {
        let fetch = || suites::kernel(suite);
        self.kernels.entry(suite).or_insert_with(fetch).clone()
    }

    /// Kernel and file system of a cell.
    fn parts(&mut self, cell: &Cell) -> Result<(suites::Kernel, suites::Root), String> {
        let kernel = self.kernel(cell.kernel)?;
        if cell.kernel == "experimental" {
            let stable = self.kernel(cells::NEWEST.0)?;
            if suites::short(&kernel.release) == suites::short(&stable.release) {
                return Err("no kernel that is newer than sid's".into());
            }
        }
        let fetch = || suites::root(cell.libc);
        let root = self.roots.entry(cell.libc).or_insert_with(fetch).clone();
        Ok((kernel, root?))
    }
}

/// Runs `git` in the repository.
fn git(arguments: &[&str]) -> Option<String> {
    let run = Command::new("git")
        .args(arguments)
        .current_dir(repository())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    run.status.success().then_some(text)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
