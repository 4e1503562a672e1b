//! The program from outside, in files by what is measured, with a stand-in for the library.

mod families;
mod measuring;
mod page;
mod partial;
mod report;
mod system;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use assert_cmd::prelude::*;
use predicates::prelude::*;

fn program(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ebbtide-bench").unwrap();
    command
        .args(args)
        .env_remove("EBBTIDE_LIB")
        .env_remove("EBBTIDE_CONF");
    // SAFETY: signal is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            // Ignored where the tests were started by nohup or in the background.
            for signal in [libc::SIGHUP, libc::SIGINT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
}

fn says(text: &str) -> impl Predicate<str> + '_ {
    predicate::str::contains(text)
}

#[test]
fn version_help_and_usage_errors() {
    program(&["--version"])
        .assert()
        .success()
        .stdout(says("ebbtide-bench 0."));
    program(&["micro", "--help"])
        .assert()
        .success()
        .stdout(says("--against").and(says("mimalloc3")));
    program(&["--help"]).assert().success().stdout(
        says("swap-exit")
            .and(says("report"))
            .and(says("worker").not()),
    );
    program(&["frobnicate"])
        .assert()
        .code(125)
        .stderr(says("frobnicate"));
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        program(&["completions", shell])
            .assert()
            .success()
            .stdout(says("EBBTIDE_COMPLETE").and(says("ebbtide-bench")));
    }
    program(&["--", "ebbtide-bench", "neigh"])
        .env("EBBTIDE_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "1")
        .assert()
        .success()
        .stdout("neighbour");
    let dir = tempfile::tempdir().unwrap();
    program(&["man", "--dir", dir.path().to_str().unwrap()])
        .assert()
        .success();
    let page = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("ebbtide-bench.1").contains("swap\\-exit"));
    assert!(page("ebbtide-bench-report.1").contains("keep"));
    assert!(!dir.path().join("ebbtide-bench-worker.1").exists());
}
