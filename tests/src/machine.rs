//! Prepares the machine for tests: programs, settings that are restored, memory cgroups.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Runs share the machine; a [`Sysctl`] uses it alone.
static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The share that a run holds, unless its own thread uses the machine alone.
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

/// Whether the tests run as root. If not, prints `skipped: … root`; `what` names the purpose.
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

/// Whether the program is installed. If it is missing, root on Debian installs it once, from these packages.
/// Otherwise prints `skipped: name` and returns false.
pub fn ensure_installed(program: &str, packages: &str) -> bool {
    static UPDATED: AtomicBool = AtomicBool::new(false);
    // Suites run beside each other. The lock ends with the file, whose descriptor no child inherits.
    let name = crate::run::target_dir().join("installing.lock");
    let lock = File::create(&name).unwrap_or_else(|e| panic!("{}: {e}", name.display()));
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
    if !have(program) && is_root() && have("apt-get") {
        // A fresh machine may have no package lists.
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
        // Another apt may be at work.
        .args(["300", "apt-get", "-o", "DPkg::Lock::Timeout=120"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|run| run.status.success())
}

/// A system setting that is changed for a while and restored on drop. If this process is killed, a watcher process
/// restores it, because the watcher's stdin then ends. Until then the setting's file is locked: otherwise another
/// test run would save the changed value as the original one.
pub struct Sysctl {
    path: PathBuf,
    old: String,
    watcher: Child,
    /// None in a setting within another setting of the same thread.
    alone: Option<RwLockWriteGuard<'static, ()>>,
}

impl Sysctl {
    /// Sets `path` (in `/proc/sys` or `/sys/kernel`) to `value`; `None` if that is refused.
    pub fn set(path: &str, value: &str) -> Option<Sysctl> {
        let alone = (!ALONE.get()).then(|| {
            MACHINE
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        });
        let file = File::open(path).ok()?;
        // SAFETY: the descriptor is open. (`File::lock` is newer than the oldest Rust that builds this.)
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return None;
        }
        let old = std::fs::read_to_string(path).ok()?;
        // Some files list the choices; the current one is in brackets.
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
            // Nothing is written to it: this passes the lock to the watcher alone.
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

/// Makes core files go to the working directory of the ending program, while the setting lives, if a setting is
/// needed. `None`: they go elsewhere; a message was printed.
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
    /// Makes a group limited to `bytes`. The error says why that is not possible.
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
            // A plain directory (the mount point of v1) has no such file, and it must not be created.
            if knob.exists() && std::fs::write(knob, bytes.to_string()).is_ok() {
                return Ok(group);
            }
        }
        Err("no memory cgroup can be made here".into())
    }

    /// [`Cgroup::with_memory_max`], which prints `skipped: …` if that is not possible.
    pub fn limited(name: &str, bytes: u64) -> Option<Cgroup> {
        if !needs_root("a memory cgroup") {
            return None;
        }
        Self::with_memory_max(name, bytes)
            .inspect_err(|why| crate::skip(why))
            .ok()
    }

    /// The file with the memory usage of the group.
    pub fn usage(&self) -> Option<PathBuf> {
        let names = ["memory.current", "memory.usage_in_bytes"];
        let mut files = names.iter().map(|name| self.file(name));
        files.find(|file| file.exists())
    }

    /// Makes a group of version 2, whether or not it accounts for memory. The error says why that is not possible.
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

    /// The group's directory.
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
