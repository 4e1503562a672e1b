//! What a test needs of the machine: programs, settings that are put back, memory cgroups.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Runs share the machine; a [`Sysctl`] has it alone.
static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The share a run holds, unless its own thread has the machine alone.
pub(crate) fn shared() -> Option<RwLockReadGuard<'static, ()>> {
    if ALONE.get() {
        return None;
    }
    Some(
        MACHINE
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner()),
    )
}

pub(crate) fn open_for_write(path: &PathBuf) -> File {
    File::options()
        .write(true)
        .open(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Whether the tests run as root. Says `skipped: … root` where they do not; `what` is what it is for.
pub fn needs_root(what: &str) -> bool {
    if !is_root() {
        crate::skip(&format!("root is needed for {what}"));
    }
    is_root()
}

/// Whether a program of this name is in `PATH`.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Whether the program is there; as root on Debian it is installed once when it is not, from these packages. Says
/// `skipped: name` and returns false otherwise.
pub fn ensure_installed(program: &str, packages: &str) -> bool {
    static APT: Mutex<()> = Mutex::new(());
    static UPDATED: AtomicBool = AtomicBool::new(false);
    let _one = APT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !have(program) && is_root() && have("apt-get") {
        // A fresh machine may have no lists of packages.
        let mut install = vec!["install", "-qq", "-y", "--no-install-recommends"];
        install.extend(packages.split_whitespace());
        let installed = apt_get(&install);
        if !installed && !UPDATED.swap(true, Ordering::Relaxed) && apt_get(&["update", "-qq"]) {
            apt_get(&install);
        }
    }
    let there = have(program);
    if !there {
        crate::skip(program);
    }
    there
}

fn apt_get(arguments: &[&str]) -> bool {
    Command::new("timeout")
        .args(["120", "apt-get"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|run| run.status.success())
}

/// A system setting changed for a while. Put back on drop; a watcher process puts it back when this
/// one is killed: its stdin then ends. Until then its file is locked: another test run that came between would take
/// what is set here for what was there.
pub struct Sysctl {
    path: PathBuf,
    old: String,
    watcher: Child,
    /// Absent in a setting within another one of the same thread.
    alone: Option<RwLockWriteGuard<'static, ()>>,
}

impl Sysctl {
    /// Sets `path` (of `/proc/sys`, `/sys/kernel`) to `value`; `None` when that is refused.
    pub fn set(path: &str, value: &str) -> Option<Sysctl> {
        let alone = (!ALONE.get()).then(|| {
            MACHINE
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        });
        let file = File::open(path).ok()?;
        // SAFETY: the descriptor is open. (`File::lock` is younger than the oldest Rust that builds this.)
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return None;
        }
        let old = std::fs::read_to_string(path).ok()?;
        // Where the kernel lists the choices, the one that holds stands in brackets.
        let held = old
            .split_once('[')
            .and_then(|(_, rest)| rest.split(']').next());
        let old = held.unwrap_or(&old).trim().to_owned();
        let mut watcher = Command::new("setsid")
            .args([
                "sh",
                "-c",
                r#"read -r _; printf '%s\n' "$1" > "$0""#,
                path,
                &old,
            ])
            .stdin(Stdio::piped())
            // Not to write: the lock is the watcher's alone.
            .stdout(file)
            .stderr(Stdio::null())
            .env_remove("LD_PRELOAD")
            .spawn()
            .ok()?;
        if std::fs::write(path, value).is_err() {
            drop(watcher.stdin.take());
            let _ = watcher.wait();
            return None;
        }
        ALONE.set(true);
        Some(Sysctl {
            path: path.into(),
            old,
            watcher,
            alone,
        })
    }
}

/// Core files in the directory of the program that ends, while the setting lives, if there must be one. `None`: they
/// go elsewhere, and that was said.
pub fn core_files_here() -> Option<Option<Sysctl>> {
    let path = "/proc/sys/kernel/core_pattern";
    let set = is_root().then(|| Sysctl::set(path, "core")).flatten();
    let pattern = std::fs::read_to_string(path).unwrap_or_default();
    if pattern.starts_with(['|', '/']) {
        crate::skip("core_pattern leads elsewhere");
        return None;
    }
    Some(set)
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.path, &self.old);
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        if self.alone.is_some() {
            ALONE.set(false);
        }
    }
}

/// A memory cgroup of this test (v2, else v1), removed on drop.
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Makes a group limited to `bytes`, or says why that cannot be.
    pub fn with_memory_max(name: &str, bytes: u64) -> Result<Cgroup, String> {
        let name = format!("ebbtide-test-{name}-{}", std::process::id());
        let choices = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        for (root, knob) in choices {
            let dir = Path::new(root).join(&name);
            if std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Cgroup { dir };
            let knob = group.dir.join(knob);
            // A plain directory (the mount point of v1) has no such file: it must not be made.
            if knob.exists() && std::fs::write(knob, bytes.to_string()).is_ok() {
                return Ok(group);
            }
        }
        Err("no memory cgroup can be made here".into())
    }

    /// [`Cgroup::with_memory_max`], which says `skipped: …` where that cannot be.
    pub fn limited(name: &str, bytes: u64) -> Option<Cgroup> {
        if !needs_root("a memory cgroup") {
            return None;
        }
        Self::with_memory_max(name, bytes)
            .inspect_err(|why| crate::skip(why))
            .ok()
    }

    /// The file that says how much memory the group uses.
    pub fn usage(&self) -> Option<PathBuf> {
        let names = ["memory.current", "memory.usage_in_bytes"];
        let mut files = names.iter().map(|name| self.file(name));
        files.find(|file| file.exists())
    }

    /// Makes a group of version 2, whether it accounts memory or not, or says why that cannot be.
    pub fn unified(name: &str) -> Result<Cgroup, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        let root = mounts.find_map(|mut words| {
            let at = words.nth(1)?;
            (words.next()? == "cgroup2").then_some(at)
        });
        let dir = Path::new(root.ok_or("no cgroup of version 2 is mounted")?);
        let dir = dir.join(format!("ebbtide-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|why| format!("{}: {why}", dir.display()))?;
        Ok(Cgroup { dir })
    }

    pub(crate) fn procs_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One of the group's files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reads one of the group's files.
    pub fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.join(file)).ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            match std::fs::remove_dir(&self.dir) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}
