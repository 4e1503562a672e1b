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
