//! Tests settings that change while a program runs, and requests from outside: `ebb_set`, `ebbtide set`, `ebbtide release`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ebbtide_tests::{Run, c_program, command_line, library, only_ebbtide};
use tempfile::TempDir;

#[test]
fn the_program_changes_settings() {
    for conf in ["", ",rseq=off", ",workers=0"] {
        let conf = format!("retain_ms=3600000{conf}");
        let run = Run::new(c_program("control")).args("set").conf(&conf);
        run.timeout(60).ok_with_ebbtide("has settings");
    }
}

/// A program that holds 1 GiB of free memory and is idle.
struct Waiting {
    child: Child,
    stdout: BufReader<ChildStdout>,
    _dir: TempDir,
}

impl Waiting {
    fn start(conf: &str) -> Option<Self> {
        let library = library().filter(|_| only_ebbtide("answers"))?;
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut child = Command::new(c_program("control"))
            .arg("waits")
            .env("LD_PRELOAD", library)
            .env(
                "EBBTIDE_CONF",
                format!("stats_dir={},{conf}", dir.path().display()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("control");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut waiting = Self {
            child,
            stdout,
            _dir: dir,
        };
        let resident = waiting.answer();
        assert!(resident > 900, "{resident} MiB are resident");
        Some(waiting)
    }

    fn answer(&mut self) -> u64 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }

    /// Sends a line, and returns the resident MiB.
    fn resident(&mut self, line: &str) -> u64 {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("sent");
        self.answer()
    }

    fn ask(&self, command: &str, more: &[&str]) -> Output {
        let mut ebbtide = Command::new(command_line().expect("ebbtide"));
        ebbtide
            .arg(command)
            .arg(self.child.id().to_string())
            .args(more);
        ebbtide.output().expect("ebbtide")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker lives, because memory will be due in 5 s.
#[test]
fn a_worker_releases_a_gibibyte_at_once() {
    if command_line().is_none() {
        return;
    }
    let Some(mut waiting) = Waiting::start("retain_ms=5000,workers=1") else {
        return;
    };
    let began = Instant::now();
    let output = waiting.ask("release", &[]);
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("released"),
        "{output:?}"
    );
    let resident = waiting.resident("");
    assert!(resident < 100, "{resident} MiB stay; {said}");
    // 0.5 s on a quiet machine.
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Without a worker the request waits for the next slow path, and is then done once.
#[test]
fn an_idle_program_answers_later() {
    if command_line().is_none() {
        return;
    }
    let Some(mut waiting) = Waiting::start("retain_ms=3600000,workers=0") else {
        return;
    };
    let output = waiting.ask("release", &["--wait", "300ms"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(75) && said.contains("no slow call"),
        "{output:?}"
    );
    assert!(waiting.resident("") > 900);
    let again = waiting.ask("release", &[]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        !again.status.success() && said.contains("another request"),
        "{again:?}"
    );
    let resident = waiting.resident("slow");
    assert!(resident < 100, "{resident} MiB stay");
}

#[test]
fn settings_change_from_outside() {
    if command_line().is_none() {
        return;
    }
    let Some(mut waiting) = Waiting::start("retain_ms=20000,workers=1") else {
        return;
    };
    for bad in ["retain_ms=x", "no_such=1", "harden=on"] {
        let output = waiting.ask("set", &[bad]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(bad), "{output:?}");
    }
    assert!(waiting.resident("") > 900);
    let output = waiting.ask("set", &["retain_ms=100"]);
    assert!(output.status.success(), "{output:?}");
    let end = Instant::now() + Duration::from_secs(10);
    while waiting.resident("") > 100 {
        assert!(Instant::now() < end, "the memory stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}
