//! Emulated machines with properties that this machine may not have: many processors, several memory nodes, cgroup
//! v2, processors that come and go, an older kernel.
//!
//! ```text
//!   test ── Guest::run("stress …") ──▶ port 2 ──▶ /init ── sh -c ──▶ program under the library
//!        ◀─ Outcome ── o … e … @end N ◀─────────────┘      port 1: the kernel's log, to a file
//! ```
//!
//! A machine boots at its first use (about 6 s without KVM) and serves all tests of the process. Only one machine
//! works at a time. A machine that hangs or dies is ended, and the next test boots another. [`crate::image`] makes
//! the content of `/programs` in the machine.
//!
//! INV-TESTS-2 here: a command past its time limit ends its machine, and no machine outlives the test process. The
//! thread that starts a machine stays with it, and the machine dies with that thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::{Outcome, Processor, ensure_installed, image, library, skip};

/// A kind of machine.
pub struct Machine {
    /// Name of the file with its kernel's log, `target/guest/NAME.console`.
    pub name: &'static str,
    /// Its kind of processor.
    pub processor: Processor,
    /// Processors, memory and nodes, as arguments of the emulator.
    pub arguments: &'static str,
}

/// All running machines, by name. The thread that holds the lock uses one of them.
static RUNNING: Mutex<BTreeMap<&'static str, Running>> = Mutex::new(BTreeMap::new());

/// KVM was tried and does not work.
static NO_KVM: AtomicBool = AtomicBool::new(false);

/// A machine, reserved for this test while it is held.
pub struct Guest {
    all: MutexGuard<'static, BTreeMap<&'static str, Running>>,
    machine: &'static Machine,
}

impl Guest {
    /// A machine of this kind. Prints `skipped: reason` if there can be none.
    pub fn of(machine: &'static Machine) -> Option<Guest> {
        let mut all = locked(&RUNNING);
        if !all.contains_key(machine.name) {
            match boot(machine) {
                Ok(running) => all.insert(machine.name, running),
                Err(why) => {
                    skip(&why);
                    return None;
                }
            };
        }
        Some(Guest { all, machine })
    }

    /// Runs a line of shell in `/tmp` of the machine, its programs under the library.
    pub fn run(&mut self, command: &str, seconds: u64) -> Outcome {
        let running = self
            .all
            .get_mut(self.machine.name)
            .expect("an earlier command of this test ended the machine");
        let start = Instant::now();
        let preload = library().map_or(String::new(), |path| {
            format!("export LD_PRELOAD={}; ", image::inside(&path).display())
        });
        let answer = running.ask(&format!("{preload}{command}"), Duration::from_secs(seconds));
        let (status, timed_out) = match answer.end {
            Some(status) => (status, false),
            None => {
                let timed_out = running.alive();
                self.all.remove(self.machine.name);
                (libc::SIGKILL, timed_out)
            }
        };
        let mut stderr = answer.stderr;
        if answer.end.is_none() {
            stderr += "(the machine was ended; the end of its kernel's log)\n";
            stderr += &log(self.machine);
        }
        Outcome {
            label: format!("[{}] {command}", self.machine.name),
            status: ExitStatus::from_raw(status),
            timed_out,
            elapsed: start.elapsed(),
            stdout: answer.stdout,
            stderr,
        }
    }

    /// [`Guest::run`], then [`Outcome::ok`].
    pub fn ok(&mut self, command: &str, seconds: u64) -> Outcome {
        let outcome = self.run(command, seconds);
        outcome.ok();
        outcome
    }
}

/// For debugging: runs the lines of the variable `GUEST` in a machine, and prints their output.
///
/// # Panics
/// If the variable is missing.
pub fn by_hand(machine: &'static Machine, seconds: u64) {
    let commands = std::env::var("GUEST").expect("GUEST holds lines of shell");
    for command in commands.lines() {
        if let Some(mut guest) = Guest::of(machine) {
            eprintln!("{}", guest.run(command, seconds).describe("ended"));
        }
    }
}

/// The answer to a command. Without `end`, the machine will answer nothing more.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The wait status.
    pub(crate) end: Option<i32>,
}

/// The emulator of one machine. Dropping it ends the machine.
pub(crate) struct Running {
    emulator: Arc<Mutex<Child>>,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Running {
    /// Runs a line of shell. If the machine has died, its answers end.
    pub(crate) fn ask(&mut self, line: &str, limit: Duration) -> Answer {
        let _ = writeln!(self.commands, "{line}");
        self.answer(limit)
    }

    /// Collects lines until the line that ends the answer, the time limit, or the end of the machine.
    fn answer(&mut self, limit: Duration) -> Answer {
        let start = Instant::now();
        let mut answer = Answer::default();
        while let Some(left) = limit.checked_sub(start.elapsed()) {
            let Ok(line) = self.answers.recv_timeout(left) else {
                break;
            };
            if let Some(text) = line.strip_prefix("o ") {
                answer.stdout += &format!("{text}\n");
            } else if let Some(text) = line.strip_prefix("e ") {
                answer.stderr += &format!("{text}\n");
            } else if let Some(code) = line.strip_prefix("@end ") {
                answer.end = Some(wait_status(code.trim().parse().unwrap_or(255)));
                break;
            } else if line == "@ready" {
                answer.end = Some(0);
                break;
            }
        }
        answer
    }

    fn alive(&self) -> bool {
        matches!(locked(&self.emulator).try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closing its commands is not enough: the system inside may not react any more.
        let _ = locked(&self.emulator).kill();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The wait status for a shell's exit code, which is 128 + n for a signal.
fn wait_status(code: i32) -> i32 {
    if code > 128 { code - 128 } else { code << 8 }
}

fn console(machine: &Machine) -> PathBuf {
    image::directory().join(format!("{}.console", machine.name))
}

/// The kernel log of this machine.
pub(crate) fn log(machine: &Machine) -> String {
    String::from_utf8_lossy(&std::fs::read(console(machine)).unwrap_or_default()).into_owned()
}

/// Kernel and initial file system, made once.
fn parts() -> Result<&'static (PathBuf, PathBuf), String> {
    static PARTS: OnceLock<Result<(PathBuf, PathBuf), String>> = OnceLock::new();
    let parts = PARTS.get_or_init(|| {
        if !Processor::X86_64.is_native() {
            return Err("these emulated machines need a library for x86-64".into());
        }
        // First the parts that must exist already, so that no emulator is installed in vain.
        let parts = (image::kernel()?, image::file_system()?);
        have_emulator(Processor::X86_64)?;
        Ok(parts)
    });
    parts.as_ref().map_err(String::clone)
}

/// Installs the emulator if possible.
pub(crate) fn have_emulator(processor: Processor) -> Result<(), String> {
    let (emulator, package) = processor.emulator();
    if ensure_installed(emulator, package) {
        Ok(())
    } else {
        Err("no emulated machine".into())
    }
}

fn boot(machine: &'static Machine) -> Result<Running, String> {
    let (kernel, file_system) = parts()?;
    boot_with(machine, kernel, file_system, "")
}

/// Boots a machine outside of any test, with this kernel and file system; `more` is added to the kernel's command
/// line. It uses KVM if that works, else emulation.
pub(crate) fn boot_with(
    machine: &Machine,
    kernel: &Path,
    file_system: &Path,
    more: &str,
) -> Result<Running, String> {
    let parts = (kernel, file_system, more);
    let kvm = machine.processor.is_native()
        && File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
        && std::fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|text| text.contains(" vmx") || text.contains(" svm"))
        && !NO_KVM.load(Ordering::Relaxed);
    if kvm {
        let running = start(machine, parts, "kvm", 30);
        if running.is_ok() {
            return running;
        }
        NO_KVM.store(true, Ordering::Relaxed);
    }
    start(machine, parts, "tcg,thread=multi", 90)
}

fn start(
    machine: &Machine,
    (kernel, file_system, more): (&Path, &Path, &str),
    accelerator: &str,
    seconds: u64,
) -> Result<Running, String> {
    let mut command = Command::new(machine.processor.emulator().0);
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-accel", accelerator])
        .args(["-chardev", "stdio,id=port,signal=off"])
        .args(machine.processor.board(&console(machine)))
        .args(machine.arguments.split_whitespace())
        .arg("-append")
        .arg(format!(
            "{} panic=-1 loglevel=4 {more}",
            machine.processor.ports()
        ))
        .args([
            Path::new("-kernel"),
            kernel,
            Path::new("-initrd"),
            file_system,
        ])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: the closure only calls prctl, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let (begin, begun) = channel();
    let (send, answers) = channel();
    std::thread::spawn(move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return drop(begin.send(Err(e.to_string()))),
        };
        let commands = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let emulator = Arc::new(Mutex::new(child));
        let _ = begin.send(Ok((emulator.clone(), commands)));
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        for line in lines.map(|line| String::from_utf8_lossy(&line).into_owned()) {
            let _ = send.send(line);
        }
        let _ = locked(&emulator).wait();
    });
    let (emulator, commands) = begun.recv().expect("the thread's word")?;
    let mut running = Running {
        emulator,
        commands,
        answers,
    };
    match running.answer(Duration::from_secs(seconds)).end {
        Some(_) => Ok(running),
        None => Err(format!("{} does not boot ({accelerator})", machine.name)),
    }
}
