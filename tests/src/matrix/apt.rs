//! Runs apt for one Debian suite and one processor with a configuration of its own, and keeps the results in a directory.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Processor, have};

/// The keyring that signs all suites.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRRORS: [&str; 2] = [
    "http://deb.debian.org/debian",
    // The archive of suites that are no longer supported.
    "http://archive.debian.org/debian",
];
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) fn version(dir: &Path) -> Result<String, String> {
    let text = fs::read_to_string(dir.join("version")).map_err(|e| e.to_string())?;
    Ok(text.trim().to_owned())
}

pub(crate) fn keep(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, content).map_err(|e| format!("{}: {e}", path.display()))
}

/// The directory of everything that is fetched.
pub(crate) fn cache() -> Result<PathBuf, String> {
    let from = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
    from("EBBTIDE_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(from("XDG_CACHE_HOME")?).join("ebbtide")))
        .or_else(|| Some(PathBuf::from(from("HOME")?).join(".cache/ebbtide")))
        .ok_or("neither EBBTIDE_CACHE nor HOME is set".into())
}

/// The packages of a suite for one processor, or its source packages, locked.
pub(crate) struct Suite {
    name: String,
    processor: Processor,
    /// `deb` or `deb-src`.
    kind: &'static str,
    dir: PathBuf,
    _lock: File,
}

impl Suite {
    pub(super) fn open(name: &str, processor: Processor) -> Result<Suite, String> {
        let dir = match processor {
            Processor::X86_64 => name.to_owned(),
            other => format!("{name}-{}", other.debian()),
        };
        let dir = cache()?.join("debian").join(dir);
        Suite::open_in(dir, name, processor, "deb")
    }

    /// The source packages of a suite.
    pub(crate) fn of_sources(name: &str) -> Result<Suite, String> {
        let dir = cache()?.join("suites").join(format!("debian-{name}"));
        Suite::open_in(dir, name, Processor::X86_64, "deb-src")
    }

    fn open_in(
        dir: PathBuf,
        name: &str,
        processor: Processor,
        kind: &'static str,
    ) -> Result<Suite, String> {
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let lock = File::create(dir.join("lock")).map_err(|e| e.to_string())?;
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
        Ok(Suite {
            name: name.to_owned(),
            processor,
            kind,
            dir,
            _lock: lock,
        })
    }

    /// The directory `part`. If it is missing or older than a week, `make` fills it. If that fails, an old one is
    /// kept.
    pub(crate) fn kept(
        &self,
        part: &str,
        make: impl FnOnce(&Apt, &Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        self.kept_for(FRESH, part, make)
    }

    /// The same for a part that becomes old after another time.
    pub(super) fn kept_for(
        &self,
        fresh: Duration,
        part: &str,
        make: impl FnOnce(&Apt, &Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let dir = self.dir.join(part);
        let stamp = dir.join("version");
        let age = fs::metadata(&stamp)
            .and_then(|m| m.modified())
            .ok()
            .map(|t| t.elapsed().unwrap_or_default());
        let refresh = std::env::var("EBBTIDE_REFRESH").is_ok_and(|value| value == "1");
        if age.is_some_and(|age| age < fresh && !refresh) {
            return Ok(dir);
        }
        let (name, architecture) = (&self.name, self.processor.debian());
        eprintln!("fetching {part} of Debian {name} for {architecture}");
        let draft = self.dir.join(format!("{part}.draft"));
        let _ = fs::remove_dir_all(&draft);
        let made = fs::create_dir_all(&draft)
            .map_err(|e| e.to_string())
            .and_then(|()| make(&self.apt()?, &draft));
        match made {
            Ok(()) => {
                let _ = fs::remove_dir_all(&dir);
                fs::rename(&draft, &dir).map_err(|e| e.to_string())?;
                Ok(dir)
            }
            Err(_) if age.is_some() => Ok(dir),
            Err(why) => Err(format!("{name}: {why}")),
        }
    }

    /// apt with a configuration of its own and new package lists.
    fn apt(&self) -> Result<Apt, String> {
        for tool in ["apt-get", "apt-cache", "dpkg"] {
            if !have(tool) {
                return Err(format!("no {tool}"));
            }
        }
        if !Path::new(KEYRING).exists() {
            return Err("no debian-archive-keyring".into());
        }
        let dir = self.dir.join("apt");
        for name in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(name)).map_err(|e| e.to_string())?;
        }
        // For this apt, no package is installed.
        keep(&dir.join("status"), "")?;
        let architecture = self.processor.debian();
        let configuration = include_str!("apt.conf")
            .replace("DIR", &dir.to_string_lossy())
            .replace("ARCHITECTURE", architecture);
        keep(&dir.join("apt.conf"), configuration)?;
        let apt = Apt { dir, architecture };
        let own = std::env::var("EBBTIDE_MIRROR").ok();
        let own = own.or_else(mirror_of_this_machine);
        let mut why = String::new();
        for mirror in own.as_deref().into_iter().chain(MIRRORS) {
            let (kind, name) = (self.kind, &self.name);
            let source = format!("{kind} [signed-by={KEYRING}] {mirror} {name} main\n");
            keep(&apt.dir.join("sources"), source)?;
            match apt.run("apt-get", &["update", "-qq", "--error-on=any"]) {
                Ok(_) => return Ok(apt),
                Err(e) => why = e,
            }
        }
        Err(format!("its packages cannot be had ({why})"))
    }
}

/// The mirror from which this machine fetches its own packages.
fn mirror_of_this_machine() -> Option<String> {
    let run = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .output()
        .ok()?;
    String::from_utf8_lossy(&run.stdout)
        .lines()
        .map(|uri| uri.trim_end_matches('/'))
        .find(|uri| uri.ends_with("/debian"))
        .map(str::to_owned)
}

/// apt for one suite and one processor.
pub(crate) struct Apt {
    dir: PathBuf,
    architecture: &'static str,
}

impl Apt {
    fn run(&self, tool: &str, arguments: &[&str]) -> Result<String, String> {
        self.run_in(&self.dir, tool, arguments)
    }

    fn run_in(&self, dir: &Path, tool: &str, arguments: &[&str]) -> Result<String, String> {
        let run = Command::new("timeout")
            .args(["300", tool, "-c"])
            .arg(self.dir.join("apt.conf"))
            .args(arguments)
            .current_dir(dir)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{tool}: {e}"))?;
        if run.status.success() {
            return Ok(String::from_utf8_lossy(&run.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&run.stderr);
        let line = errors.lines().find(|line| line.starts_with("E: "));
        let line = line.or(errors.lines().next()).unwrap_or("no answer");
        Err(line.trim_start_matches("E: ").to_owned())
    }

    /// The first dependency of a package whose name is `prefix` followed by a digit.
    pub(super) fn dependency(&self, package: &str, prefix: &str) -> Result<String, String> {
        let text = self.run("apt-cache", &["depends", package])?;
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| {
                name.strip_prefix(prefix)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
            .map(str::to_owned)
            .ok_or(format!("{package} needs no {prefix}…"))
    }

    pub(super) fn version(&self, package: &str) -> Result<String, String> {
        let text = self.run("apt-cache", &["show", "--no-all-versions", package])?;
        text.lines()
            .find_map(|line| line.strip_prefix("Version: "))
            .map(str::to_owned)
            .ok_or(format!("no {package}"))
    }

    /// The files of packages and of all their dependencies.
    pub(super) fn with_dependencies(&self, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
        let install = ["install", "-qq", "-y", "--no-install-recommends"];
        let simulated = self.run("apt-get", &[&install[..], &["-s"], packages].concat())?;
        let archives = self.dir.join("cache/archives");
        self.run(
            "apt-get",
            &[&install[..], &["--download-only"], packages].concat(),
        )?;
        // "Inst libc6 (2.43-7 Debian:unstable [amd64])"
        let files: Option<Vec<PathBuf>> = simulated
            .lines()
            .filter_map(|line| line.strip_prefix("Inst "))
            .map(|line| {
                let mut words = line.split([' ', '(', ')', '[', ']']);
                let name = words.next()?;
                let version = words.find(|word| !word.is_empty())?.replace(':', "%3a");
                let file = |kind: &str| archives.join(format!("{name}_{version}_{kind}.deb"));
                [file(self.architecture), file("all")]
                    .into_iter()
                    .find(|path| path.exists())
            })
            .collect();
        files.ok_or("a package that was fetched is not there".into())
    }

    /// Unpacks a source package as `dir/tree`, and returns its version.
    pub(crate) fn unpack_source(&self, package: &str, dir: &Path) -> Result<String, String> {
        self.run_in(dir, "apt-get", &["source", "-qq", package])?;
        let entries = fs::read_dir(dir).map_err(|e| e.to_string())?;
        let mut entries = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let tree = entries.find(|path| path.is_dir());
        let tree = tree.ok_or(format!("{package} has no source"))?;
        fs::rename(&tree, dir.join("tree")).map_err(|e| e.to_string())?;
        let shown = self.run("apt-cache", &["showsrc", package])?;
        let version = shown
            .lines()
            .find_map(|line| line.strip_prefix("Version: "));
        version
            .map(str::to_owned)
            .ok_or(format!("{package} has no version"))
    }

    pub(super) fn unpack(&self, package: &str, dir: &Path) -> Result<(), String> {
        let room = tempfile::tempdir_in(&self.dir).map_err(|e| e.to_string())?;
        self.run_in(room.path(), "apt-get", &["download", "-qq", package])?;
        let file = fs::read_dir(room.path()).map_err(|e| e.to_string())?;
        let file = file
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ext| ext == "deb"));
        unpack(&file.ok_or(format!("no {package}"))?, dir)
    }
}

pub(super) fn unpack(package: &Path, dir: &Path) -> Result<(), String> {
    let run = Command::new("dpkg")
        .arg("-x")
        .arg(package)
        .arg(dir)
        .output();
    match run {
        Ok(run) if run.status.success() => Ok(()),
        _ => Err(format!("cannot unpack {}", package.display())),
    }
}
