//! `bench` when not everything can be measured: broken off, limited in time, with a peer that dies.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::prelude::*;

use super::measuring::stand_in;
use super::{program, says};

/// Sends a signal to a run once it says how far it is. Its stderr, and what of that was read.
pub(super) fn signal_once_measured(
    child: &mut Child,
    signal: &str,
) -> (BufReader<ChildStderr>, String) {
    once_measured(child, &format!("kill {signal} $1"))
}

/// The same with a shell script, whose first argument is the process.
fn once_measured(child: &mut Child, script: &str) -> (BufReader<ChildStderr>, String) {
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains(" measured, about ") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let pid = child.id().to_string();
    let sent = Command::new("sh").args(["-c", script, "sh", &pid]).status();
    assert!(sent.unwrap().success());
    (errors, said)
}

/// Breaks a run off with a shell script once it says how far it is. Its exit status, what it printed, what it said.
fn broken_off(family: &[&str], script: &str) -> Option<(i32, String, String)> {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return None;
    };
    let mut child = program(family)
        .args(["--lib", lib, "--against", "glibc", "--rounds", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut errors, mut said) = once_measured(&mut child, script);
    let began = Instant::now();
    let mut printed = String::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_string(&mut printed).unwrap();
    errors.read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "it ends at once");
    Some((status.code().unwrap(), printed, said))
}

#[test]
fn a_run_that_is_broken_off_prints_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let family = ["micro", "--json", "--only", "start", "--html"];
    let family = [&family[..], &[page.to_str().unwrap()]].concat();
    // Twice, as `timeout` sends it to the program and then to the group.
    let Some((code, printed, said)) = broken_off(&family, "kill -TERM $1; kill -TERM $1") else {
        return;
    };
    assert_eq!(code, 128 + 15, "{said}");
    let v: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(v["partial"], true);
    let why = v["broken_off"].as_str().unwrap();
    assert!(
        why.contains("SIGTERM in round") && said.contains(why),
        "{said}"
    );
    let values = v["measurements"][0]["results"][0]["values"].as_array();
    assert!(!values.unwrap().is_empty());
    assert_eq!(v["failures"].as_array().unwrap().len(), 0);
    assert!(fs::read_to_string(page).unwrap().contains("PARTIAL"));
}

/// Whether the process has a child at work at this case.
fn measures(pid: u32, case: &str) -> bool {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split(' ').any(|child| {
        let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        command
            .split(|&byte| byte == 0)
            .any(|word| word == case.as_bytes())
    })
}

#[test]
fn what_is_being_measured_is_ended_too() {
    // A step takes much longer than what is left to it here.
    let family = ["free", "--size", "1M", "--wait", "30"];
    let family = [&family[..], &["--only", "block_thp"]].concat();
    let Some(lib) = stand_in() else { return };
    let mut child = program(&family)
        .args(["--lib", lib, "--against", "glibc"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !measures(child.id(), "block") {
        assert!(Instant::now() < end, "nothing is measured");
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = Instant::now();
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let mut said = String::new();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{said}");
    assert!(code == 130 || code == 125, "{code} {said}");
    assert!(said.contains("broken off by SIGINT"), "{said}");
}

#[test]
fn figures_for_which_there_is_no_room_go_elsewhere() {
    let Some(lib) = stand_in() else { return };
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program(&["micro", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc", "--only", "start"])
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("cannot write to stdout") && said.contains("\"measurements\""),
        "{said}"
    );
}

#[test]
fn rounds_end_before_the_time_limit() {
    let Some(lib) = stand_in() else { return };
    let output = program(&["micro", "--json", "--rounds", "1000"])
        .args(["--lib", lib, "--against", "glibc", "--only", "start"])
        .args(["--time-limit", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rounds = v["rounds"].as_u64().unwrap();
    assert!((1..1000).contains(&rounds) && v["partial"] == false);
    let values = &v["measurements"][0]["results"][0]["values"];
    assert_eq!(values.as_array().unwrap().len() as u64, rounds);
    assert!(v["notes"].to_string().contains("time limit"));
}

#[test]
fn a_peer_that_is_killed_leaves_the_others_figures() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, peer) = (dir.path().join("p.c"), dir.path().join("p.so"));
    let text = r#"
        #include <fcntl.h>
        #include <signal.h>
        #include <stddef.h>
        #include <string.h>
        #include <unistd.h>
        static char room[64 << 20];
        static size_t used;
        void *malloc(size_t n) {
            size_t at = __sync_fetch_and_add(&used, (n + 31) & ~15ul);
            *(size_t *)(room + at) = n;
            return room + at + 16;
        }
        void *calloc(size_t n, size_t m) { return malloc(n * m); }
        void *realloc(void *old, size_t n) {
            void *new = malloc(n);
            if (old) memcpy(new, old, ((size_t *)old)[-2] < n ? ((size_t *)old)[-2] : n);
            return new;
        }
        void free(void *old) {}
        void *aligned_alloc(size_t a, size_t n) { char *p = malloc(n + a); return p + a - (size_t)p % a; }
        int posix_memalign(void **p, size_t a, size_t n) { *p = aligned_alloc(a, n); return 0; }
        __attribute__((constructor)) static void dies(void) {
            char line[256] = "";
            int fd = open("/proc/self/cmdline", O_RDONLY);
            ssize_t len = read(fd, line, sizeof line);
            close(fd);
            if (memmem(line, len > 0 ? len : 0, "pair16", 6)) raise(SIGKILL);
        }
    "#;
    fs::write(&source, format!("#define _GNU_SOURCE\n{text}")).unwrap();
    let cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&peer)
        .arg(&source)
        .status();
    assert!(cc.is_ok_and(|s| s.success()), "the tests need a C compiler");
    let run = |more: &[&str]| {
        let mut run = program(&["micro", "--quick", "--rounds", "2"]);
        run.args(["--lib", lib, "--only", "pair16", "--against"])
            .arg(&peer)
            .args(more);
        run
    };
    run(&[])
        .assert()
        .code(1)
        .stdout(says("PARTIAL"))
        .stdout(says("pair16 in"))
        .stderr(says("round 1: ends with signal: 9"));
    let output = run(&["--json"]).output().unwrap();
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(v["partial"] == true && v["broken_off"].is_null());
    let rows = v["measurements"][0]["results"].as_array().unwrap();
    let counts = rows.iter().map(|r| r["values"].as_array().unwrap().len());
    assert_eq!(counts.collect::<Vec<_>>(), [2, 2, 0]);
}
