//! The other commands from outside: help, completions, manual pages, doctor; `top`; and the way to `ebbtide-bench`.

#[path = "../terminal/mod.rs"]
mod terminal;
mod top;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
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
        .stdout(says("limit=SIZE|PERCENT%"));
    ebbtide(&["frobnicate"])
        .assert()
        .code(125)
        .stderr(says("frobnicate"));
    ebbtide(&["--help"])
        .assert()
        .success()
        .stdout(says("ebbtide-bench report").and(says("runs the program ebbtide-bench")));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        ebbtide(&["completions", shell])
            .assert()
            .success()
            .stdout(says("EBBTIDE_COMPLETE").and(says("ebbtide")));
    }
}

#[test]
fn a_shell_that_asks_gets_candidates() {
    let ask = |words: &[&str]| {
        let index = (words.len() - 1).to_string();
        let words = [&["--"], words].concat();
        let mut command = ebbtide(&words);
        command
            .env("EBBTIDE_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", index);
        command.assert().success()
    };
    ask(&["ebbtide", "set", "1", "l"]).stdout("limit=");
    ask(&["ebbtide", "run", "--exit", "d"]).stdout("detached");
    ask(&["ebbtide", "run", "--conf", "rseq=o"]).stdout("rseq=on\nrseq=off");
    ask(&["ebbtide", "run", "env", "/et"]).stdout("/etc/");
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
    // That program writes its own.
    assert!(!dir.path().join("ebbtide-bench.1").exists());
    for page in fs::read_dir(dir.path()).unwrap() {
        let text = fs::read_to_string(page.unwrap().path()).unwrap();
        for section in [".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH EXAMPLES"] {
            assert!(text.contains(section), "{section}: {text}");
        }
    }
    let all = fs::read_to_string(dir.path().join("ebbtide.1")).unwrap();
    assert!(all.contains("ebbtide\\-bench(1)"), "{all}");
}

#[test]
fn errors_name_the_remedy() {
    for (words, remedy) in [
        (
            &["sh", "-c", "true"][..],
            "to run a program: ebbtide run sh -c true",
        ),
        (&["run"], "name a program: ebbtide run redis-server"),
        (&["run", "--sumary", "true"], "'--summary'"),
        (&["explain"], "'ebbtide top' lists"),
        (
            &["explain", "redis-server"],
            "'pgrep redis-server' may find it",
        ),
        (&["top", "ls"], "behind '--'"),
        (&["explain", "0"], "'ebbtide top' lists"),
        (&["explain", "4194999"], "'pgrep NAME' finds"),
        (&["profile"], "ebbtide profile -- redis-server"),
        (&["profile", "4194999"], "there is no process 4194999"),
        (&["release", "4194999"], "there is no process 4194999"),
        (&["metrics", "4194999"], "there is no process 4194999"),
        (&["run", "--lib", "/no/x.so", "true"], "check the path"),
        (
            &["run", "--compare", "--rounds", "x", "true"],
            "from 1 to 100",
        ),
        (&["service", "enable"], "'systemctl list-unit-files'"),
        (
            &["service", "enable", "x", "--root", "/no/such"],
            "give the root of a system",
        ),
        (&["completions"], "ebbtide completions bash"),
        (&["set", "1", "retain_mx=1"], "retain_ms"),
        (&["profile", "/etc/passwd"], "behind '--'"),
        (&["profile", "-o", "/no/such/x"], "PID|FILE"),
        (
            &["metrics", "--textfile", "/no/such/x"],
            "in which you may write",
        ),
        (&["metrics", "--listen", "9485"], "127.0.0.1:9485"),
        (&["metrics", "--textfile", "/"], "not a directory"),
        (&["man", "--dir", "/proc/x"], "in which you may write"),
        (&["completions", "ksh"], "bash, elvish, fish"),
    ] {
        ebbtide(words).assert().code(125).stderr(says(remedy));
    }
    let own = std::process::id().to_string();
    ebbtide(&["release", &own]).assert().code(125).stderr(says(
        "does not run under Ebbtide; start it with 'ebbtide run'",
    ));
}

#[test]
fn lost_output_is_an_error() {
    let own = std::process::id().to_string();
    for words in [
        &["--help"][..],
        &["--version"],
        &["top", "--once"],
        &["explain", &own, "--json"],
        &["metrics"],
        &["man"],
        &["completions", "fish"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full");
        let output = ebbtide(words).stdout(full.unwrap()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("cannot write to stdout"), "{words:?}: {told}");
        assert_eq!(output.status.code(), Some(125), "{words:?}");
    }
}

#[test]
fn profile_says_what_to_give() {
    ebbtide(&["profile", "--help"])
        .assert()
        .success()
        .stdout(says("--leaks").and(says("one standard deviation")));
    ebbtide(&["profile"])
        .assert()
        .code(125)
        .stderr(says("PID|FILE"));
    ebbtide(&["profile", "/no/such/file"])
        .assert()
        .code(125)
        .stderr(says("give a process number, or a file with a profile"));
    ebbtide(&["profile", "/dev/null"])
        .assert()
        .code(125)
        .stderr(says("neither a dump (profile_dump=PATH"));
    ebbtide(&["profile", "7", "--leaks"])
        .assert()
        .code(125)
        .stderr(says("--leaks"));
    let own = std::process::id().to_string();
    ebbtide(&["profile", &own])
        .assert()
        .code(125)
        .stderr(says("does not run under Ebbtide").or(says("may not be read")));
}

/// A copy of the program where no other program of the project is, and a directory for `PATH`.
fn alone() -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin/ebbtide");
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::create_dir(dir.path().join("path")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_ebbtide"), &program).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", dir.path().join("path"));
    (dir, command)
}

/// A program that says how it was called.
fn put_program(file: &Path, says: &str) {
    fs::write(file, format!("#!/bin/sh\necho {says} \"$@\"\nexit 7\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn benchmarks_are_another_program_that_is_found_and_run() {
    let run = |args: &[&str], beside: bool, in_path: bool| {
        let (dir, mut command) = alone();
        if beside {
            put_program(&dir.path().join("bin/ebbtide-bench"), "beside");
        }
        if in_path {
            put_program(&dir.path().join("path/ebbtide-bench"), "path");
        }
        command.args(args).assert()
    };
    run(&["bench", "micro", "--quick", "--help"], true, true)
        .code(7)
        .stdout("beside micro --quick --help\n");
    run(&["report", "--from", "x"], false, true)
        .code(7)
        .stdout("path report --from x\n");
    for args in [["bench", "micro"], ["report", "--full"]] {
        run(&args, false, false).code(125).stderr(
            says("make install-bench")
                .and(predicate::function(|said: &str| said.lines().count() == 1)),
        );
    }
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
