//! Runs a command and watches all its processes: memory, whether the library is loaded, and what outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval while processes end.
const INTERVAL: Duration = Duration::from_millis(20);
/// Intervals of the samples: a twentieth of the time so far, within these bounds. A sample reads all of `/proc`.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(100);
/// Time that processes have to end after the command has ended.
const GRACE: Duration = Duration::from_secs(3);
/// Number of samples in which the library is looked for in a process.
const TRIES: u32 = 10;

/// What was seen of a run.
pub(super) struct Seen {
    /// How it ended; `None` after the time limit.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
    /// Largest sum of anonymous memory of all processes.
    pub peak_bytes: u64,
    /// Names of processes in which the library was mapped.
    pub loaded: BTreeSet<String>,
    /// Names of processes that outlived the command. They were ended.
    pub left: Vec<String>,
}

impl Seen {
    /// Why the run is no success, if so.
    pub fn failure(&self) -> Option<String> {
        let how = match self.status {
            None => "time limit".to_owned(),
            Some(status) if status.success() => return None,
            Some(status) => status.to_string(),
        };
        let text = match self.stderr.trim() {
            "" => &self.stdout,
            _ => &self.stderr,
        };
        Some(format!("{how}: {}", super::last_line(text)))
    }

    /// Whether it ended with the status by which scripts and automake say that a test cannot run.
    pub fn is_skip(&self) -> bool {
        self.status.is_some_and(|status| status.code() == Some(77))
    }
}

/// Makes this process the parent of orphans among its descendants, so that [`run`] sees them.
pub(super) fn adopt_orphans() {
    // SAFETY: sets an attribute of this process; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Runs a command until it ends, or until the limit.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<Seen, String> {
    let file = || tempfile::tempfile().map_err(|e| e.to_string());
    let (mut out, mut err) = (file()?, file()?);
    let copy = |file: &File| file.try_clone().map_err(|e| e.to_string());
    command
        .stdin(Stdio::null())
        .stdout(copy(&out)?)
        .stderr(copy(&err)?)
        .process_group(0);
    let start = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    let mut watch = Watch::default();
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => break None,
            None => watch.sample(),
        }
        std::thread::sleep((start.elapsed() / 20).clamp(SHORTEST, LONGEST));
    };
    let took = start.elapsed();
    let grace = if status.is_some() {
        GRACE
    } else {
        Duration::ZERO
    };
    let mut left = descendants();
    while !left.is_empty() && start.elapsed() < took + grace {
        std::thread::sleep(INTERVAL);
        left = descendants();
    }
    let names = left
        .iter()
        .map(|(pid, name)| format!("{name}[{pid}]"))
        .collect();
    end_all();
    Ok(Seen {
        status,
        stdout: text(&mut out)?,
        stderr: text(&mut err)?,
        took,
        peak_bytes: watch.peak_bytes,
        loaded: watch.loaded,
        left: if status.is_some() { names } else { Vec::new() },
    })
}

fn text(file: &mut File) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Kills and reaps all descendants.
fn end_all() {
    loop {
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for pid in left.keys() {
            // SAFETY: no memory is involved. The process is a descendant, which only this process reaps once it is an orphan.
            unsafe { libc::kill(*pid as libc::pid_t, libc::SIGKILL) };
        }
        std::thread::sleep(INTERVAL);
    }
}

/// All processes that descend from this one and have not ended, with their names. Reaps orphans that have.
fn descendants() -> BTreeMap<u32, String> {
    // SAFETY: no status is asked for. All children that `Command` started have been waited for.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
    tree()
}

/// The same without reaping.
fn tree() -> BTreeMap<u32, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = number(&entry.file_name())
            && let Some((name, state, parent)) = stat(pid)
            && state != "Z"
        {
            all.insert(pid, (name, parent));
        }
    }
    let mut found = BTreeMap::new();
    let mut parents = vec![std::process::id()];
    while let Some(parent) = parents.pop() {
        for (pid, (name, _)) in all.iter().filter(|(_, (_, of))| *of == parent) {
            found.insert(*pid, name.clone());
            parents.push(*pid);
        }
    }
    found
}

fn number(name: &OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// Name, state and parent of a process.
fn stat(pid: u32) -> Option<(String, String, u32)> {
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, rest) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.to_owned();
    Some((name.to_owned(), state, fields.next()?.parse().ok()?))
}

/// What the samples have shown so far.
#[derive(Default)]
struct Watch {
    peak_bytes: u64,
    loaded: BTreeSet<String>,
    /// How often a process of a name was looked at. A program that `exec` starts changes the name.
    tries: BTreeMap<(u32, String), u32>,
}

impl Watch {
    fn sample(&mut self) {
        let mut sum = 0;
        for (pid, name) in tree() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let mut lines = status.lines();
            let anonymous = lines.find_map(|line| line.strip_prefix("RssAnon:"));
            let kib =
                anonymous.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            sum += kib.unwrap_or(0) << 10;
            self.look_for_library(pid, name);
        }
        self.peak_bytes = self.peak_bytes.max(sum);
    }

    fn look_for_library(&mut self, pid: u32, name: String) {
        if self.loaded.contains(&name) {
            return;
        }
        let tries = self.tries.entry((pid, name.clone())).or_default();
        *tries += 1;
        if *tries <= TRIES && maps_library(Path::new("/proc").join(pid.to_string()).as_path()) {
            self.loaded.insert(name);
        }
    }
}

fn maps_library(process: &Path) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).contains("/libebbtide.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "EBBTIDE_TEST_ALONE";

    /// In a process of its own: it ends all descendants, and other tests have children too.
    #[test]
    fn a_run_is_watched() {
        if std::env::var_os(ALONE).is_none() {
            let name = concat!(module_path!(), "::a_run_is_watched");
            let name = name.split_once("::").expect("a module").1;
            let mut again = Command::new(std::env::current_exe().expect("a path"));
            let run = again.args(["--exact", name]).env(ALONE, "1").output();
            let run = run.expect("it starts");
            let text = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        adopt_orphans();
        let shell = |text: &str, limit: u64| {
            let mut command = Command::new("sh");
            run(command.args(["-c", text]), Duration::from_secs(limit)).expect("it starts")
        };
        let seen = shell("echo out; echo err >&2; exit 3", 10);
        assert_eq!((&*seen.stdout, &*seen.stderr), ("out\n", "err\n"));
        assert_eq!(seen.failure().as_deref(), Some("exit status: 3: err"));
        assert!(shell("exit 77", 10).is_skip());

        let seen = shell("setsid sleep 60 & exit 0", 10);
        assert!(seen.failure().is_none());
        assert!(
            seen.left.len() == 1 && seen.left[0].starts_with("sleep["),
            "{:?}",
            seen.left
        );

        let seen = shell("sleep 60", 1);
        assert_eq!(seen.failure().as_deref(), Some("time limit: no output"));
        assert!(tree().is_empty());
        assert!(seen.loaded.is_empty());
    }
}
