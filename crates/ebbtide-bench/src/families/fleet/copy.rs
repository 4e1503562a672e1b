//! One copy of a workload: a process tree under one allocator, in a directory of its own.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ebbtide_tools::proc;

use super::load::is_ready;
use super::parameters::Workload;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, on_path};
use crate::outside::interrupt;
use crate::outside::tree::{self, Group};

/// Maximum time until a copy answers.
const START: Duration = Duration::from_secs(120);
/// Time in which a new process loads the library.
const LOADED: Duration = Duration::from_secs(5);
/// Time between two tries.
const NAP: Duration = Duration::from_millis(20);
/// Maximum length of a socket's path, with room for its name.
const MOST_PATH: usize = 100;
/// What the command of python3 is called in the environment of a copy.
const PYTHON: &str = "PYTHON";

/// A running copy.
pub struct Running {
    group: Group,
    /// Its directory, with its sockets.
    pub dir: PathBuf,
}

impl Running {
    /// Starts a copy in a new directory, and waits until it answers.
    pub fn start(
        workload: &Workload,
        starter: &Starter,
        entry: &Entry,
        dir: PathBuf,
    ) -> Result<Self> {
        ensure!(
            dir.as_os_str().len() < MOST_PATH,
            "{} is too long for the path of a socket; set TMPDIR to a shorter one",
            dir.display()
        );
        fs::create_dir(&dir)?;
        for (name, text) in workload.files {
            fs::write(dir.join(name), text)?;
        }
        let log = File::create(dir.join("log"))?;
        let mut command = starter.shell(entry, "");
        if let Some(python) = python(workload.module) {
            command.env(PYTHON, python);
        }
        command
            .args(["-c", workload.start])
            .envs(workload.settings.iter().copied())
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let group = Group::start(&mut command)?;
        let mut copy = Running { group, dir };
        copy.wait(workload)?;
        copy.check(entry)?;
        Ok(copy)
    }

    /// Number of its first process.
    pub fn pid(&self) -> u32 {
        self.group.0.id()
    }

    fn wait(&mut self, workload: &Workload) -> Result<()> {
        let limit = Instant::now() + START;
        while !is_ready(&workload.load, &self.dir) {
            if let Some(status) = self.group.0.try_wait()? {
                bail!("ends with {status}: {}", self.last_line());
            }
            ensure!(interrupt::came().is_none(), "interrupted");
            ensure!(
                Instant::now() < limit,
                "no answer within {} s: {}",
                START.as_secs(),
                self.last_line()
            );
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Every process has the entry's library (INV-BENCH-2).
    fn check(&self, entry: &Entry) -> Result<()> {
        let Some(library) = &entry.library else {
            return Ok(());
        };
        let library = library.canonicalize()?;
        let library = library.to_string_lossy();
        let lacks = || {
            let mut pids = tree::all(self.pid()).into_iter();
            pids.find(|pid| {
                // A process that has just ended has no maps.
                let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
                !maps.is_empty() && !maps.contains(&*library)
            })
        };
        // A process that has just begun may not have loaded it yet.
        let limit = Instant::now() + LOADED;
        while let Some(pid) = lacks() {
            ensure!(
                Instant::now() < limit,
                "process {pid} does not have {library}; LD_PRELOAD was removed on the way"
            );
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// The last line that it printed.
    pub fn last_line(&self) -> String {
        let text = proc::text(self.dir.join("log")).unwrap_or_default();
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        line.unwrap_or("no message").to_owned()
    }
}

/// The first python3 that has a module; none if none is asked for. The distribution's comes first, because a launcher
/// in its place would be a process of its own.
fn python(module: &str) -> Option<PathBuf> {
    if module.is_empty() {
        return None;
    }
    let found = [Some("/usr/bin/python3".into()), on_path("python3")];
    found.into_iter().flatten().find(|python| {
        let mut command = Command::new(python);
        command.args(["-c", &format!("import {module}")]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// Why a workload cannot run here, with a remedy.
pub fn missing(workload: &Workload) -> Option<String> {
    let Workload {
        needs,
        module,
        remedy,
        ..
    } = workload;
    let program = needs.iter().find(|name| on_path(name).is_none());
    let missing = match program {
        Some(name) => format!("{name} is missing"),
        None if module.is_empty() || python(module).is_some() => return None,
        None => format!("python3 with the module {module} is missing"),
    };
    Some(format!("{missing} ({remedy})"))
}
