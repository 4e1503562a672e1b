//! Boots the machine of a cell, verifies that it is the intended one, and runs the checks in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::builds::Built;
use super::cells::{Cell, Libc, Variant};
use super::checks::{self, Check, Verdict};
use super::report::Outcome;
use super::suites::{Kernel, Root};
use super::{Work, entries};
use crate::archive::Archive;
use crate::guest::{self, Running};
use crate::run::target_dir;
use crate::{Machine, Processor};

/// Time limit for a command that is no check.
const ASK: Duration = Duration::from_secs(20);

/// Root, library, programs and scripts as one file. The file must live until the machine has booted.
fn file_system(checks: &[&Check], built: &Built, root: &Root) -> Result<NamedTempFile, String> {
    let told = |e: std::io::Error| e.to_string();
    let mut file = NamedTempFile::new_in(target_dir().join("matrix")).map_err(told)?;
    file.write_all(&fs::read(&root.archive).map_err(told)?)
        .map_err(told)?;
    file.write_all(&overlay(checks, built, &root.libc)?)
        .map_err(told)?;
    Ok(file)
}

/// The machine of a cell.
fn machine(name: &'static str, processor: Processor) -> Machine {
    Machine {
        name,
        processor,
        arguments: match processor {
            Processor::X86_64 => "-m 2048 -smp 2",
            // More than this machine is likely to have, on two nodes.
            Processor::Aarch64 => {
                "-m 2048 -smp 4 \
                 -object memory-backend-ram,id=near,size=1G -numa node,cpus=0-1,memdev=near \
                 -object memory-backend-ram,id=far,size=1G -numa node,cpus=2-3,memdev=far"
            }
        },
    }
}

/// Library, programs and scripts, as an archive that follows the archive of the file system.
fn overlay(checks: &[&Check], built: &Built, libc: &str) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    let mut add = |name: PathBuf, path: &Path| {
        let content = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        archive.file(&name, &content);
        Ok::<(), String>(())
    };
    add("/programs/libebbtide.so".into(), &built.library)?;
    if built.glibc.is_some_and(|glibc| glibc > number(libc)) {
        return Err(format!("nothing to compile with for glibc {libc}"));
    }
    for (name, program) in &built.programs {
        if let Ok(path) = program {
            add(Path::new("/programs").join(name), path)?;
        }
    }
    for (dir, paths) in [
        ("/matrix", entries(&checks::directory())?),
        ("/units", built.units.clone()),
    ] {
        for path in paths {
            let name = path.file_name().expect("a file");
            add(Path::new(dir).join(name), &path)?;
        }
    }
    for check in checks {
        let name = Path::new("/matrix/commands").join(&check.name);
        archive.file(&name, format!("{}\n", check.command).as_bytes());
    }
    Ok(archive.end())
}

/// A version as numbers.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Boots a cell for one line of shell, which finds the library as `$L`. For experiments.
pub(super) fn shell(
    work: &Work,
    built: &Built,
    cell: &Cell,
    kernel: &Kernel,
    root: &Root,
    command: &str,
) -> Result<u8, String> {
    guest::have_emulator(cell.processor)?;
    let machine = machine("matrix-shell", cell.processor);
    let more = cell.variant.boot_argument();
    let file_system = file_system(&work.checks_of(cell), built, root)?;
    let mut running = guest::boot_with(&machine, &kernel.image, file_system.path(), more)?;
    let around = identity(&mut running, cell, kernel, root)??;
    let line = format!("export L=/programs/libebbtide.so; {command}").replace('\'', "'\\''");
    let answer = running.ask(&format!("{around} sh -c '{line}'"), work.limit(cell));
    print!("{}", answer.stdout);
    eprint!("{}", answer.stderr);
    match answer.end {
        Some(0) => Ok(0),
        Some(status) => Err(format!("wait status {status:#x}")),
        None => Err(format!("{}\n{}", checks::DIED, guest::log(&machine))),
    }
}

/// Boots a cell and runs all checks in it.
pub(super) fn run_cell(
    work: &Work,
    built: &Built,
    cell: &Cell,
    label: &str,
    kernel: &Kernel,
    root: &Root,
) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome::new(label, &kernel.release);
    if let Err(why) = guest::have_emulator(cell.processor) {
        return Outcome::skipped(label, &why);
    }
    let checks = work.checks_of(cell);
    let file_system = match file_system(&checks, built, root) {
        Ok(file) => file,
        Err(why) => return Outcome::skipped(label, &why),
    };
    let name = Box::leak(format!("matrix-{}", cell.id()).into_boxed_str());
    let machine = machine(name, cell.processor);
    let boot = || {
        let more = cell.variant.boot_argument();
        guest::boot_with(&machine, &kernel.image, file_system.path(), more)
    };
    let limit = work.limit(cell);
    let end = Instant::now() + limit;
    // Nothing of this project runs yet. Under emulation, a new kernel sometimes dies in its first second.
    let mut running = match boot().or_else(|_| boot()) {
        Ok(running) => running,
        Err(why) => return outcome.ended(&why, &guest::log(&machine), started.elapsed()),
    };
    let around = match identity(&mut running, cell, kernel, root) {
        Ok(Ok(around)) => around,
        Ok(Err(why)) => return Outcome::skipped(label, &why),
        Err(why) => return outcome.ended(&why, &guest::log(&machine), started.elapsed()),
    };
    let mut results = BTreeMap::new();
    let mut died = false;
    for (number, check) in checks.iter().enumerate() {
        if died {
            // Runs the other checks in a new machine, if there is time.
            match boot() {
                Ok(again) => running = again,
                Err(_) => break,
            }
        }
        if Instant::now() >= end {
            break;
        }
        let start = Instant::now();
        let verdict = check.run(&mut running, built, &around, end);
        died = verdict == Verdict::Failed(checks::DIED.into());
        if died {
            outcome.keep_log(&guest::log(&machine));
        }
        results.insert(number, (verdict, start.elapsed()));
    }
    for (number, (verdict, took)) in &results {
        outcome.add(&checks[*number].name, verdict, *took);
    }
    let missing = checks.len() - results.len();
    if missing > 0 {
        let why = format!("{missing} checks did not run within {} s", limit.as_secs());
        return outcome.ended(&why, &guest::log(&machine), started.elapsed());
    }
    if outcome.is_failed() {
        outcome.keep_log(&guest::log(&machine));
    }
    outcome.took = started.elapsed();
    outcome
}

/// Whether the machine is as the cell says, and how commands are started there. `Ok(Err)`: it cannot be.
fn identity(
    running: &mut Running,
    cell: &Cell,
    kernel: &Kernel,
    root: &Root,
) -> Result<Result<String, String>, String> {
    let mut ask = |line: &str| {
        let answer = running.ask(line, ASK);
        (answer.end == Some(0)).then_some(answer.stdout)
    };
    let release = ask("uname -r").unwrap_or_default();
    if release.trim() != kernel.release {
        return Err(format!("the machine runs {}", release.trim()));
    }
    let (libc, version) = match cell.libc {
        Libc::Glibc(_) => {
            let path = format!("/usr/lib/{}/libc.so.6", cell.processor.libraries());
            (path, format!("release version {}", root.libc))
        }
        // It prints its version as a message about wrong usage.
        Libc::Musl(_) => (
            "/lib/ld-musl-x86_64.so.1 2>&1; true".to_owned(),
            format!("Version {}", root.libc),
        ),
    };
    let libc = ask(&libc).unwrap_or_default();
    if !libc.contains(&version) {
        return Err(format!("the machine has the C library {libc:?}"));
    }
    let pages = ask("grep -m 1 KernelPageSize /proc/self/smaps").unwrap_or_default();
    if !pages.contains(&format!(" {} kB", cell.pages.kib())) {
        return Err(format!("the machine has pages of {pages:?}"));
    }
    match cell.variant {
        Variant::Plain => Ok(Ok(String::new())),
        Variant::Filter(name) => {
            let around = format!("filter /matrix/{name}.filter");
            // A filter that allows everything would not test anything.
            let refused = ask(&format!(
                "{around} sh -c 'mkdir -p m; ! mount -t tmpfs m m 2>/dev/null && echo refused'"
            ));
            match refused.as_deref().map(str::trim) {
                Some("refused") => Ok(Ok(around)),
                _ => Err(format!("the filter {name} does not hold")),
            }
        }
        Variant::RseqDebug => {
            let switch = "/sys/kernel/debug/rseq/debug";
            let on = ask(&format!(
                "mount -t debugfs d /sys/kernel/debug; cat {switch}"
            ));
            match on.as_deref().map(str::trim) {
                Some("1" | "Y" | "on") => Ok(Ok(String::new())),
                _ => Ok(Err(format!("{} has no {switch}", kernel.release))),
            }
        }
    }
}
