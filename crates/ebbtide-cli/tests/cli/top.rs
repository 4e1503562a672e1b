//! `top` from outside: without a terminal, and on one. What it shows of real processes is tested with the library.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use assert_cmd::prelude::*;
use predicates::prelude::*;

use super::terminal::{in_terminal, status_within};
use super::{ebbtide, says};

#[test]
fn top_without_a_terminal_is_one_table() {
    ebbtide(&["top"])
        .assert()
        .success()
        .stdout(says("process").or(says("PID")))
        .stderr(says("not a terminal"));
    let output = ebbtide(&["top", "--once", "--json"]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(v["schema"] == 1 && v["processes"].is_array());
}

/// A stream has an object on each line. It ends with its reader, by a signal, or with the command.
#[test]
fn top_streams_objects() {
    let start = || {
        let mut command = ebbtide(&["top", "--json", "--interval", "100ms"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        (child, out)
    };
    let (mut child, mut out) = start();
    for _ in 0..3 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let v: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(v["schema"] == 1 && v["processes"].is_array());
    }
    drop(out);
    assert_eq!(
        status_within(&mut child, 10),
        Some(0),
        "the reader has gone"
    );
    let (mut child, mut out) = start();
    out.read_line(&mut String::new()).unwrap();
    // SAFETY: a plain call; the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn top_says_why_a_process_cannot_be_shown() {
    let mut sleep = Command::new("sleep").arg("100").spawn().unwrap();
    let pid = sleep.id().to_string();
    ebbtide(&["top", "--once", &pid, "4194304"])
        .assert()
        .code(125)
        .stderr(says("does not run under Ebbtide").and(says("no process 4194304")));
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    ebbtide(&["top", "ls"])
        .assert()
        .code(125)
        .stderr(says("behind '--'"));
    ebbtide(&["top", "--lib", "/no/such.so", "--", "true"])
        .assert()
        .code(125)
        .stderr(says("such.so"));
}

/// The view in a terminal of its own, and what it has drawn.
struct Shown {
    main: File,
    child: Child,
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Shown {
    fn new(args: &[&str]) -> Self {
        let mut command = ebbtide(&[&["top", "--interval", "0.1"], args].concat());
        command.env("TERM", "xterm-256color");
        let (main, child) = in_terminal(&mut command);
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (main.try_clone().unwrap(), drawn.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len) = from.read(&mut buffer) {
                to.lock().unwrap().extend_from_slice(&buffer[..len]);
            }
        });
        Shown { main, child, drawn }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    /// Waits until this has been drawn so many times.
    fn wait_for(&self, what: &str, times: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.text().matches(what).count() < times {
            assert!(Instant::now() < end, "no {what:?}, {times} times");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.main.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain call; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// The cursor and the screen of before.
    fn assert_restored(&self) {
        self.wait_for(LEAVE, 1);
        let text = self.text();
        let (left, shown) = (text.rfind(LEAVE), text.rfind("\x1b[?25h"));
        assert!(
            left > text.rfind(ENTER) && shown > text.rfind("\x1b[?25l"),
            "{text:?}"
        );
    }
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn keys_work_and_the_terminal_is_as_before() {
    let mut shown = Shown::new(&[]);
    shown.wait_for("ebbtide top:", 1);
    shown.press("?");
    // Only what was not there before is drawn, and words that stay the same are left out.
    shown.wait_for("AGAIN", 1);
    shown.press("qsq");
    assert_eq!(status_within(&mut shown.child, 10), Some(0));
    shown.assert_restored();
}

#[test]
fn signals_end_it_and_the_terminal_is_as_before() {
    // Under nohup it is ignored, and stays so.
    // SAFETY: a plain call; no other test here has to do with it.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut shown = Shown::new(&[]);
        shown.wait_for("ebbtide top:", 1);
        shown.signal(signal);
        shown.assert_restored();
        assert_eq!(shown.child.wait().unwrap().signal(), Some(signal));
    }
}

/// Nobody would continue it here, so it is not stopped; it lets go of the terminal, and takes it again.
#[test]
fn a_stop_lets_go_of_the_terminal() {
    let mut shown = Shown::new(&[]);
    shown.wait_for("ebbtide top:", 1);
    shown.press("\x1a");
    shown.wait_for(ENTER, 2);
    shown.signal(libc::SIGTSTP);
    shown.wait_for(ENTER, 3);
    assert_eq!(shown.text().matches(LEAVE).count(), 2);
    shown.press("\x03");
    assert_eq!(shown.child.wait().unwrap().signal(), Some(libc::SIGINT));
    shown.wait_for(LEAVE, 3);
    shown.assert_restored();
}
