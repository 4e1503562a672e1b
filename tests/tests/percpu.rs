//! Tests per-CPU data in C programs built against the installed header and library: `c/areas.c`.

use ebbtide_tests::{Outcome, Run, c_program_with, library, make, only_ebbtide};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The program, built with the files that `make install` put into a directory.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if !only_ebbtide("has per-CPU data") {
        return None;
    }
    Some(PROGRAM.get_or_init(|| {
        let library = library().expect("Ebbtide's own");
        let target = library.parent().and_then(Path::parent).expect("target");
        let root = target.join("installed");
        let done = make("install")
            .arg("PREFIX=/usr")
            .arg(format!("DESTDIR={}", root.display()))
            .status()
            .expect("make");
        assert!(done.success(), "make install");
        let include = format!("-I{}", root.join("usr/include").display());
        let own = library.to_str().expect("UTF-8");
        c_program_with("areas", &[&include, own])
    }))
}

fn topic(topic: &str, conf: &str) {
    if let Some(program) = program() {
        Run::new(program).arg(topic).conf(conf).timeout(60).ok();
    }
}

#[test]
fn arguments_and_alignments() {
    topic("arguments", "");
    topic("arguments", "rseq=off");
}

#[test]
fn arguments_with_copies_for_more_cpus() {
    topic("arguments", "dev=percpu_units:64");
}

/// Exact sums: a worker would have sums of its own there.
#[test]
fn figures_and_release() {
    topic("figures", "workers=0");
}

#[test]
fn figures_with_few_system_calls() {
    topic("figures", "syscalls=basic");
}

#[test]
fn figures_with_copies_for_more_cpus() {
    topic("figures", "dev=percpu_units:64,workers=0");
}

#[test]
fn a_worker_gives_empty_pages_back() {
    topic("calm", "workers=1");
}

/// The positive control of the test above.
#[test]
fn nothing_goes_back_without_depopulation() {
    if let Some(program) = program() {
        let outcome = Run::new(program)
            .arg("calm")
            .conf("dev=percpu_depopulate:off")
            .timeout(60)
            .run();
        assert!(
            outcome.stderr.contains("populated_bytes"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn children_have_copies_of_their_own() {
    topic("forks", "");
    topic("forks", "rseq=off");
}

#[test]
fn children_that_skip_the_handlers() {
    topic("raw", "");
}

#[test]
fn locked_memory_is_told_of() {
    topic("locked", "workers=0");
}

/// A system call would end the program.
#[test]
fn without_waiting() {
    topic("nowait", "workers=0");
    topic("nowait", "workers=0,rseq=off");
}

#[test]
fn signal_handlers_allocate_without_waiting() {
    topic("handlers", "");
    topic("handlers", "rseq=off");
}

/// Requires SIGABRT, and one line with the pointer that was passed.
fn judge(case: &str, outcome: &Outcome) {
    let named = outcome.stdout.lines().last().unwrap_or("(nothing)");
    let named = if case == "null-add" { "0x0" } else { named };
    assert!(
        outcome.killed_by(libc::SIGABRT)
            && outcome.stderr.lines().count() == 1
            && outcome.stderr.contains("]: ebb_percpu")
            && outcome.stderr.contains(named),
        "{}",
        outcome.describe(&format!("{case}: should abort and name {named}"))
    );
}

#[test]
fn misuse_is_found() {
    let Some(program) = program() else { return };
    let cases = "twice late inside heap heap-add heap-ptr null-add \
                 offset offset-far offset-odd offset-sum cpu";
    for case in cases.split_whitespace() {
        judge(case, &Run::new(program).arg(case).timeout(20).run());
    }
}
