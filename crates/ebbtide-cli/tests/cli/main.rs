//! The other commands from outside: help, completions, manual pages, doctor; `top`; and `bench`, in files by what it
//! measures.

mod bench;
mod bench_families;
mod bench_partial;
mod bench_system;
mod report;
#[path = "../terminal/mod.rs"]
mod terminal;
mod top;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use assert_cmd::prelude::*;
use predicates::prelude::*;

fn ebbtide(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ebbtide").unwrap();
    command
        .args(args)
        .env_remove("EBBTIDE_LIB")
        .env_remove("EBBTIDE_CONF");
    command
}

fn says(text: &str) -> impl Predicate<str> + '_ {
    predicate::str::contains(text)
}

#[test]
fn version_help_and_usage_errors() {
    ebbtide(&["--version"])
        .assert()
        .success()
        .stdout(says("ebbtide 0."));
    ebbtide(&["run", "--help"])
        .assert()
        .success()
        .stdout(says("retain_max=SIZE"));
    ebbtide(&["frobnicate"])
        .assert()
        .code(125)
        .stderr(says("frobnicate"));
    ebbtide(&["--help"])
        .assert()
        .success()
        .stdout(says("bench-worker").not());
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        ebbtide(&["completions", shell])
            .assert()
            .success()
            .stdout(says("doctor").and(says("top")).and(says("interval")));
    }
}

#[test]
fn manual_pages() {
    ebbtide(&["man"]).assert().success().stdout(says(".TH"));
    let dir = tempfile::tempdir().unwrap();
    ebbtide(&["man", "--dir", dir.path().to_str().unwrap()])
        .assert()
        .success();
    let run = fs::read_to_string(dir.path().join("ebbtide-run.1")).unwrap();
    assert!(run.contains("retain") && run.contains("summary"));
    assert!(dir.path().join("ebbtide.1").exists());
    let top = fs::read_to_string(dir.path().join("ebbtide-top.1")).unwrap();
    assert!(top.contains("stats_dir") && top.contains("interval"));
    assert!(!dir.path().join("ebbtide-bench-worker.1").exists());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for args in [
        &["man"][..],
        &["--help"],
        &["doctor", "--json"],
        &["completions", "bash"],
    ] {
        let mut child = ebbtide(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        child.wait().unwrap();
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn doctor_without_a_library_says_what_to_do() {
    let output = ebbtide(&["doctor", "--json", "--lib", "/no/lib.so"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(v["works"], false);
    assert!(
        v["sections"][0]["checks"][0]["remedy"]
            .as_str()
            .unwrap()
            .contains("/no/lib.so")
    );
    let kernel = v["sections"][1]["checks"].as_array().unwrap();
    assert!(kernel.iter().any(|c| c["id"] == "process_madvise"));
}

/// What a check of doctor's says, without a library.
fn doctor_says(command: &mut Command, id: &str) -> String {
    let output = command.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sections = report["sections"].as_array().unwrap();
    let mut checks = sections
        .iter()
        .flat_map(|s| s["checks"].as_array().unwrap());
    let check = checks.find(|check| check["id"] == id).unwrap();
    check["value"].as_str().unwrap().to_owned()
}

#[test]
fn doctor_looks_for_turns_as_helpers_do() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::DirBuilder::new().mode(0o700).create(&real).unwrap();
    symlink(&real, &link).unwrap();
    let admission = |place: &Path| {
        let mut doctor = ebbtide(&["doctor", "--json", "--lib", "/no/lib.so"]);
        doctor_says(doctor.env("XDG_RUNTIME_DIR", place), "exit_admission")
    };
    assert_eq!(admission(&real), real.to_str().unwrap());
    assert_ne!(admission(&link), link.to_str().unwrap());
}

#[test]
fn doctor_tells_of_a_container() {
    let inside = |args: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["-pf", "--mount-proc"]).args(args);
        unshare
    };
    if !inside(&["true"]).output().is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: no process namespaces to be had");
        return;
    }
    let program = env!("CARGO_BIN_EXE_ebbtide");
    let doctor = [program, "doctor", "--json", "--lib", "/no/lib.so"];
    let first = doctor_says(&mut inside(&doctor), "exit_first_process");
    assert!(first.contains("this is the first process"), "{first}");
    let second = [&["sh", "-c", "\"$@\"; exit $?", "sh"], &doctor[..]].concat();
    let second = doctor_says(&mut inside(&second), "exit_first_process");
    assert!(
        second.contains("process 1 of this container has no helper"),
        "{second}"
    );
}
