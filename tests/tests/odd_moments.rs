//! Allocation at odd moments: signals, single steps, cancellation, constructors and destructors,
//! dlopen, late exits, refused system calls.

use ebbtide_tests::{Run, c_library, c_program};

fn signals(case: &str) {
    Run::new(c_program("signals")).arg(case).timeout(60).ok();
}

fn life(case: &str) {
    Run::new(c_program("life")).arg(case).timeout(30).ok();
}

fn sandbox(when: &str, sets: &str) {
    Run::new(c_program("sandbox"))
        .arg(when)
        .arg(sets)
        .timeout(40)
        .ok();
}

#[test]
fn timer_storm() {
    signals("storm");
}

#[test]
fn threads_signal_each_other() {
    signals("usr");
}

#[test]
fn single_stepped() {
    signals("step");
}

#[test]
fn cancelled_threads() {
    signals("cancel");
}

#[test]
fn constructors_destructors_and_keys() {
    let outcome = Run::new(c_program("life")).arg("ends").timeout(30).ok();
    assert!(
        outcome.stdout.ends_with("ok\ndestroyed\n"),
        "{}",
        outcome.describe("skipped its end")
    );
}

#[test]
fn dlopen_and_dlclose() {
    let plugin = c_library("plugin");
    Run::new(c_program("life"))
        .arg("dlopen")
        .arg(plugin)
        .timeout(30)
        .ok();
}

#[test]
fn main_ends_first() {
    life("mainexit");
}

#[test]
fn exit_beside_busy_threads() {
    for _ in 0..20 {
        life("quit");
    }
}

#[test]
fn setuid_with_threads() {
    life("setuid");
}

#[test]
fn refused_from_the_start() {
    for sets in [
        "membarrier",
        "madvise",
        "process_madvise",
        "clone",
        "mremap",
        "all",
    ] {
        sandbox("start", sets);
    }
}

#[test]
fn refused_later() {
    for sets in [
        "membarrier",
        "madvise",
        "process_madvise",
        "clone",
        "mremap",
        "all",
    ] {
        sandbox("later", sets);
    }
}
