//! `make matrix`: runs the library with the kernels and C libraries of Debian's suites, in emulated machines of two
//! kinds of processor.
//!
//! ```text
//!   suites ── kernel, root ──▶ machine of a cell ◀── overlay ◀── builds: library, programs of tests/c, unit tests
//!                                  │ tests/matrix/list, one check after the other
//!                                  ▼
//!              target/matrix/KEY/CELL ──▶ docs/results/matrix-DATE.md ──▶ docs/platforms.md
//! ```
//!
//! KEY is computed from the library and from everything that runs with it. An interrupted run continues where it was;
//! a new library starts from the beginning. A cell ends at its time limit and then counts as failed. A repeated cell
//! (`matrix only`) keeps what failed before, and the result file says at which commit each cell ran.

pub(crate) mod apt;
mod boot;
mod builds;
mod cells;
mod checks;
mod kernel_64k;
mod report;
mod suites;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::run::target_dir;
use crate::{Processor, guest, results, skip};
use builds::Built;
use cells::{Cell, Libc, Pages};
use checks::Check;
use report::Outcome;

/// The inputs of this run.
struct Work {
    checks: Vec<Check>,
    /// Time limit of a cell, if one was given.
    limit: Option<Duration>,
    /// Whether few checks run, and no result is kept.
    short: bool,
}

/// The cells that run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Cells without a result.
    All,
    /// One cell, whether or not it has a result.
    One(Cell),
    /// The named cells, whether or not they have a result.
    Named,
    /// No cell: existing results are written.
    Kept,
}

/// `matrix [newest [aarch64] | only LABEL... | report | shell LABEL COMMAND]`.
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
        ["newest"] => run(&[], Which::One(cells::NEWEST_CELL)),
        ["newest", "aarch64"] => run(&[], Which::One(cells::NEWEST_ON_AARCH64)),
        ["report"] => run(&[], Which::Kept),
        ["only", ref labels @ ..] if !labels.is_empty() => run(labels, Which::Named),
        _ => Err(
            "usage: matrix [newest [aarch64] | only 7.2/2.43 … | report | shell 7.2/2.43 COMMAND]"
                .into(),
        ),
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
        let limit = match std::env::var("EBBTIDE_CELL_S") {
            Ok(text) => {
                let seconds = text.parse().map_err(|_| "EBBTIDE_CELL_S is no number")?;
                Some(Duration::from_secs(seconds))
            }
            Err(_) => None,
        };
        Ok(Work {
            checks: checks::list()?,
            limit,
            short: false,
        })
    }

    /// Time limit of this cell.
    fn limit(&self, cell: &Cell) -> Duration {
        let usual = match cell.processor {
            Processor::X86_64 => 180,
            // Unit tests too, on more processors.
            Processor::Aarch64 => 420,
        };
        self.limit.unwrap_or(Duration::from_secs(usual))
    }

    fn checks_of(&self, cell: &Cell) -> Vec<&Check> {
        let checks = self.checks.iter();
        checks
            .filter(|check| check.is_for(cell) && (check.short || !self.short))
            .collect()
    }
}

/// Boots a cell for one line of shell, which finds the library as `$L`. For experiments.
fn shell(label: &str, command: &str) -> Result<u8, String> {
    let work = Work::new()?;
    let mut parts = Parts::new(true);
    // By its suites a cell is found without fetching others.
    let by_id = cells::all().into_iter().find(|cell| cell.id() == label);
    let found = match by_id {
        Some(cell) => Some((cell, parts.fetched(&cell)?)),
        None => cells::all().into_iter().find_map(|cell| {
            let (kernel, root) = parts.fetched(&cell).ok()?;
            (cell.label(&kernel, &root) == label).then_some((cell, (kernel, root)))
        }),
    };
    let (cell, (kernel, root)) = found.ok_or(format!("no cell is called {label}"))?;
    let built = parts.built(&work, &cell)?;
    boot::shell(&work, &built, &cell, &kernel, &root, command)
}

/// Runs cells. Returns whether none failed.
fn run(labels: &[&str], which: Which) -> Result<bool, String> {
    if cfg!(not(target_arch = "x86_64")) {
        skip("the matrix is for x86-64");
        return Ok(true);
    }
    let mut work = Work::new()?;
    // In `make test`. `make matrix` runs all checks.
    work.short = matches!(which, Which::One(_));
    // Compiles no more than needed: a single cell whose libc is newer than this machine's takes the programs made
    // here.
    let mut parts = Parts::new(!matches!(which, Which::One(_)));
    if let Which::One(cell) = which {
        // Before anything is fetched in vain.
        let built = parts.built(&work, &cell);
        if let Err(why) = built.and(guest::have_emulator(cell.processor)) {
            skip(&format!("{}: {why}", cell.id()));
            return Ok(true);
        }
    }
    let mut chosen = Vec::new();
    let mut missing = String::new();
    for cell in cells::all() {
        let id = cell.id();
        let by_id = labels.contains(&&*id);
        let wanted = match which {
            Which::One(one) => cell == one,
            // A name by versions says less than one by suites: what it means is known when all are fetched.
            Which::Named => by_id || labels.iter().any(|label| label.contains('/')),
            Which::All | Which::Kept => true,
        };
        if !wanted {
            continue;
        }
        let fetched = parts.fetched(&cell);
        let label = match &fetched {
            Ok((kernel, root)) => cell.label(kernel, root),
            Err(why) => {
                missing = format!(" ({why})");
                id
            }
        };
        if which != Which::Named || by_id || labels.contains(&&*label) {
            chosen.push((cell, label, fetched));
        }
    }
    let named = |label: &&&str| {
        let mut chosen = chosen.iter();
        chosen.any(|(cell, name, _)| name == **label || cell.id() == **label)
    };
    if let Some(label) = labels.iter().find(|label| !named(label)) {
        return Err(format!("no cell is called {label}{missing}"));
    }
    let started = Instant::now();
    let (mut ran, mut all) = (0, Vec::new());
    let count = chosen.len();
    for (number, (cell, label, fetched)) in chosen.into_iter().enumerate() {
        let ready = fetched.and_then(|fetched| Ok((fetched, parts.built(&work, &cell)?)));
        let known = ready.as_ref().ok().and_then(|((kernel, _), built)| {
            let text = fs::read_to_string(built.results.join(cell.id())).ok()?;
            Outcome::parse(&text).filter(|outcome| outcome.is_of(&label, &kernel.release))
        });
        let again = matches!(which, Which::One(_) | Which::Named);
        let outcome = match (known, ready) {
            (Some(outcome), _) if !again => outcome,
            (None, Ok(_)) if which == Which::Kept => Outcome::skipped(&label, "not run"),
            (_, Err(why)) => Outcome::skipped(&label, &why),
            (before, Ok(((kernel, root), built))) => {
                ran += 1;
                let commit = results::commit(report::COVERS);
                let mut outcome = boot::run_cell(&work, &built, &cell, &label, &kernel, &root);
                outcome.ran_at(&commit, before);
                if outcome.skipped.is_none() && !work.short {
                    fs::write(built.results.join(cell.id()), outcome.text())
                        .map_err(|e| e.to_string())?;
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
            report::write(&all)?;
        }
        println!("\n{}", report::table(&all));
    }
    println!(
        "matrix: {} cells, {failed} failed, after {} s; kept in {}",
        all.len(),
        started.elapsed().as_secs(),
        target_dir().join("matrix").display()
    );
    Ok(failed == 0)
}

/// The files in a directory, by name.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(told)? {
        paths.push(entry.map_err(told)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// What was fetched and built for the cells so far, or why that cannot be done. Nothing is tried twice.
struct Parts {
    /// Whether programs are compiled for all versions of the C library.
    for_all: bool,
    kernels: BTreeMap<(&'static str, Processor, Pages), Result<suites::Kernel, String>>,
    roots: BTreeMap<(Libc, Processor), Result<suites::Root, String>>,
    builds: BTreeMap<builds::Kind, Result<Rc<Built>, String>>,
}

impl Parts {
    fn new(for_all: bool) -> Parts {
        Parts {
            for_all,
            kernels: BTreeMap::new(),
            roots: BTreeMap::new(),
            builds: BTreeMap::new(),
        }
    }

    fn kernel(&mut self, suite: &'static str, cell: &Cell) -> Result<suites::Kernel, String> {
        let (processor, pages) = (cell.processor, cell.pages);
        let fetch = || suites::kernel(suite, processor, pages);
        let kernel = self.kernels.entry((suite, processor, pages));
        kernel.or_insert_with(fetch).clone()
    }

    /// Kernel and file system of a cell.
    fn fetched(&mut self, cell: &Cell) -> Result<(suites::Kernel, suites::Root), String> {
        let kernel = self.kernel(cell.kernel, cell)?;
        if cell.kernel == "experimental" {
            let stable = self.kernel(cells::NEWEST, cell)?;
            if suites::short(&kernel.release) == suites::short(&stable.release) {
                return Err("no kernel that is newer than sid's".into());
            }
        }
        let root = self.roots.entry((cell.libc, cell.processor));
        let root = root.or_insert_with(|| suites::root(cell)).clone();
        Ok((kernel, root?))
    }

    /// Library and programs of a cell.
    fn built(&mut self, work: &Work, cell: &Cell) -> Result<Rc<Built>, String> {
        let kind = builds::Kind::of(cell);
        let build = || kind.build(&work.checks, self.for_all).map(Rc::new);
        self.builds.entry(kind).or_insert_with(build).clone()
    }
}
