//! Runs one program under the library, with resource limits and a time limit, and keeps its output.

use ebbtide_interface::keys;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::machine;

/// The library under test; `None` for `EBBTIDE_LIB=none` (libc's own malloc).
///
/// # Panics
/// If the file does not exist. The message is one line that names the remedy.
pub fn library() -> Option<PathBuf> {
    let path = match std::env::var_os("EBBTIDE_LIB") {
        Some(value) if value == "none" => return None,
        Some(value) => PathBuf::from(value),
        None => built().join("release/libebbtide.so"),
    };
    let Ok(path) = path.canonicalize() else {
        panic!(
            "{} is missing: run `make` first (or set EBBTIDE_LIB)",
            path.display()
        );
    };
    Some(path)
}

pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
    }
}

/// The directory whose `release` holds what is tested: `EBBTIDE_BUILT`, else the target directory.
pub(crate) fn built() -> PathBuf {
    std::env::var_os("EBBTIDE_BUILT").map_or_else(target_dir, PathBuf::from)
}

/// `make TARGET` for what is tested.
pub fn make(target: &str) -> Command {
    let mut command = Command::new("make");
    command
        .arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["--silent", target])
        .env("CARGO_TARGET_DIR", built())
        .env_remove("DESTDIR");
    command
}

/// The program `ebbtide` beside the library under test, else the one that was built here. If there is none, prints
/// `skipped: …`.
pub fn command_line() -> Option<PathBuf> {
    let path = match library() {
        Some(library) => library.with_file_name("ebbtide"),
        None => built().join("release/ebbtide"),
    };
    let path = path.canonicalize().ok();
    if path.is_none() {
        crate::skip("the program ebbtide is not built");
    }
    path
}

/// Whether the library under test is Ebbtide (judged by the file's name), not a stand-in.
pub fn is_ebbtide() -> bool {
    library().is_some_and(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains("ebbtide"))
    })
}

/// The same. If the library is not Ebbtide, prints `skipped: only Ebbtide …`; `what` is the promise that only Ebbtide
/// makes.
pub fn only_ebbtide(what: &str) -> bool {
    let is_it = is_ebbtide();
    if !is_it {
        crate::skip(&format!("only Ebbtide {what}"));
    }
    is_it
}

/// Whether a line of the library begins with `ebbtide: PROGRAM[PID]: `.
pub fn names_process(line: &str, program: &str) -> bool {
    let behind = line.strip_prefix("ebbtide: ");
    let behind = behind.and_then(|line| line.strip_prefix(program)?.strip_prefix('['));
    let number = behind.and_then(|line| line.split_once("]: "));
    number.is_some_and(|(number, _)| number.parse().is_ok_and(|number: u32| number > 0))
}

/// Checks a configuration and returns it.
///
/// # Panics
/// If the library would ignore an item of it: the test would then check the default.
pub fn known(conf: &str) -> &str {
    let mut items = keys::items(conf.as_bytes());
    if let Some(problem) = items.find_map(|item| keys::read(item).err()) {
        panic!("{conf}: {problem}");
    }
    conf
}

/// One program to run. It preloads [`library`] unless set otherwise.
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    preload: Option<PathBuf>,
    dir: Option<PathBuf>,
    stdin: Option<Vec<u8>>,
    limits: Vec<(libc::__rlimit_resource_t, u64)>,
    join: Vec<PathBuf>,
    timeout: Duration,
    is_stderr_socket: bool,
}

impl Run {
    /// Runs `program` (a path, or a name looked up in `PATH`).
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Run {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            preload: library(),
            dir: None,
            stdin: None,
            limits: vec![(libc::RLIMIT_CORE, 0)],
            join: Vec::new(),
            timeout: Duration::from_secs(60),
            is_stderr_socket: false,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments, split at white space.
    pub fn args(mut self, args: &str) -> Self {
        self.args
            .extend(args.split_whitespace().map(OsString::from));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Sets `EBBTIDE_CONF` to a configuration that is [`known`].
    pub fn conf(self, conf: &str) -> Self {
        if conf.is_empty() {
            self
        } else {
            self.env("EBBTIDE_CONF", known(conf))
        }
    }

    /// Keeps glibc from registering for restartable sequences, as before 2.35: Ebbtide then registers each thread.
    pub fn without_libc_rseq(self) -> Self {
        self.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
    }

    /// Preloads this library instead.
    pub fn preload(mut self, library: &Path) -> Self {
        self.preload = Some(library.to_owned());
        self
    }

    /// Preloads nothing.
    pub fn plain(mut self) -> Self {
        self.preload = None;
        self
    }

    /// Runs in this directory.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Feeds these bytes to stdin (default: `/dev/null`).
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Sets soft and hard limit of a resource, before exec. A later call for a resource wins.
    pub fn limit(mut self, resource: libc::__rlimit_resource_t, value: u64) -> Self {
        self.limits.retain(|&(other, _)| other != resource);
        self.limits.push((resource, value));
        self
    }

    /// Joins a cgroup before exec.
    pub fn cgroup(mut self, group: &machine::Cgroup) -> Self {
        self.join.push(group.procs_file());
        self
    }

    /// Time limit in seconds (default 60).
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// Makes stderr a socket in place of a file. It holds some 200 KB.
    pub fn stderr_is_socket(mut self) -> Self {
        self.is_stderr_socket = true;
        self
    }

    /// Runs to the end or to the time limit.
    pub fn run(self) -> Outcome {
        let _shared = machine::shared();
        let mut out = tempfile::tempfile().expect("temporary file");
        let mut err = tempfile::tempfile().expect("temporary file");
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.env_remove("LD_PRELOAD").env_remove("EBBTIDE_CONF");
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
            if let Some(conf) = std::env::var_os("EBBTIDE_TEST_CONF") {
                command.env("EBBTIDE_CONF", conf);
            }
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        match &self.stdin {
            None => command.stdin(Stdio::null()),
            Some(bytes) => {
                let mut file = tempfile::tempfile().expect("temporary file");
                std::io::Write::write_all(&mut file, bytes).expect("stdin file");
                file.rewind().expect("stdin file");
                command.stdin(file)
            }
        };
        command
            .stdout(out.try_clone().expect("dup"))
            .stderr(err.try_clone().expect("dup"));
        let heard = self.is_stderr_socket.then(|| {
            let (heard, said) = UnixStream::pair().expect("socket pair");
            command.stderr(OwnedFd::from(said));
            heard
        });
        command.process_group(0);
        let limits = self.limits.clone();
        let join: Vec<std::fs::File> = self.join.iter().map(machine::open_for_write).collect();
        // SAFETY: the closure only calls signal, setrlimit and write, all async-signal-safe, on values
        // made before the fork.
        unsafe {
            command.pre_exec(move || {
                // These signals are ignored if the tests were started by nohup or in the background.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                for file in &join {
                    std::io::Write::write_all(&mut &*file, b"0")?;
                }
                for &(resource, value) in &limits {
                    let limit = libc::rlimit {
                        rlim_cur: value,
                        rlim_max: value,
                    };
                    if libc::setrlimit(resource, &limit) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let label = format!("{command:?}");
        let start = Instant::now();
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {label}: {e}"));
        let group = child.id() as libc::pid_t;
        let mut timed_out = false;
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            if start.elapsed() > self.timeout {
                timed_out = true;
                kill_group(group);
                break child.wait().expect("wait");
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        let elapsed = start.elapsed();
        kill_group(group);
        // Closes this end of the socket. Otherwise the other end would never see that all others are closed.
        drop(command);
        if let Some(mut heard) = heard {
            std::io::copy(&mut heard, &mut err).expect("what was said");
        }
        Outcome {
            label,
            status,
            timed_out,
            elapsed,
            stdout: text(&mut out),
            stderr: text(&mut err),
        }
    }

    /// [`Run::run`], then [`Outcome::ok`].
    pub fn ok(self) -> Outcome {
        let outcome = self.run();
        outcome.ok();
        outcome
    }

    /// [`Run::ok`] under Ebbtide; otherwise skips as [`only_ebbtide`] does.
    pub fn ok_with_ebbtide(self, what: &str) {
        if only_ebbtide(what) {
            self.ok();
        }
    }

    /// [`Run::run`], for a positive control. Panics unless the program fails or is killed; `otherwise` is the text of
    /// the panic.
    pub fn must_fail(self, otherwise: &str) -> Outcome {
        let outcome = self.run();
        let failed = outcome.timed_out || !outcome.status.success();
        assert!(failed, "{}", outcome.describe(otherwise));
        outcome
    }
}

fn kill_group(group: libc::pid_t) {
    // SAFETY: killpg has no memory effects; the group was made by this run's child alone.
    unsafe { libc::killpg(group, libc::SIGKILL) };
}

fn text(file: &mut std::fs::File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("rewind");
    file.read_to_end(&mut bytes).expect("read output");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A program's output, and how it ended.
pub struct Outcome {
    pub(crate) label: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Killed at the time limit.
    pub timed_out: bool,
    /// Wall-clock time.
    pub elapsed: Duration,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
}

impl Outcome {
    /// Good: exit status 0, in time, and no message from Ebbtide on stderr. Otherwise the reason.
    pub fn verdict(&self) -> Result<(), String> {
        let why = if self.timed_out {
            "ran past its time limit"
        } else if !self.status.success() {
            "failed"
        } else if self
            .stderr
            .lines()
            .any(|line| line.starts_with("ebbtide: "))
        {
            "succeeded, but the library complained"
        } else {
            return Ok(());
        };
        Err(self.describe(why))
    }

    /// Panics unless [`Outcome::verdict`] is good. Prints a program's own `skipped:` lines.
    pub fn ok(&self) {
        if let Err(why) = self.verdict() {
            panic!("{why}");
        }
        for line in self
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("skipped: "))
        {
            crate::skip(line);
        }
    }

    /// Whether this signal killed the program.
    pub fn killed_by(&self, signal: i32) -> bool {
        !self.timed_out && self.status.signal() == Some(signal)
    }

    /// The run in words, for a panic.
    pub fn describe(&self, why: &str) -> String {
        format!(
            "{} {why} after {:.1?} ({})\n--- stdout\n{}\n--- stderr\n{}",
            self.label,
            self.elapsed,
            self.status,
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn a_configuration_that_is_known() {
        for conf in [
            "",
            "thp=off,dev=zones:2",
            "exit=detached,exit_threshold=32M",
        ] {
            assert_eq!(known(conf), conf);
        }
    }

    #[test]
    #[should_panic(expected = "write dev=zones:VALUE")]
    fn a_key_that_needs_dev() {
        known("thp=off,zones=2");
    }

    #[test]
    #[should_panic(expected = "the keys are")]
    fn a_misspelt_key() {
        known("retian_ms=0");
    }
}
