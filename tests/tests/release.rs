//! `ebb_release`, and the system calls that release memory: `c/release.c`, and `c/tracer.c`, which makes them return short.

use ebbtide_tests::{Cgroup, Outcome, Run, c_program, only_ebbtide, skip};

fn release(mode: &str, conf: &str) {
    let run = Run::new(c_program("release")).args(mode).conf(conf);
    run.timeout(60).ok_with_ebbtide("has ebb_release");
}

/// The program's own thread sees no huge page that could not be split: a worker must, or what is told is wrong.
#[test]
fn what_release_says_is_what_the_system_got() {
    if !only_ebbtide("has ebb_release") {
        return;
    }
    // Nothing goes by itself meanwhile.
    let run = Run::new(c_program("release")).arg("shared");
    let run = run.conf("retain_ms=60000,pressure=off").timeout(60);
    match Cgroup::limited("shared", 2 << 30) {
        None => run.ok(),
        Some(group) => run.arg(group.usage().expect("usage")).cgroup(&group).ok(),
    };
}

#[test]
fn release_gives_back_every_page_without_a_live_byte() {
    for conf in [
        "dev=zones:1,retain_ms=60000",
        "dev=zones:1,retain_ms=60000,workers=0",
        "dev=zones:1,retain_ms=60000,dev=gather:inline",
        "dev=zones:1,retain_ms=60000,workers=4,dev=threshold:4096",
    ] {
        release("pages", conf);
    }
}

/// A program under `c/tracer.c`: what it said of cut calls and of all, and of names asked for. `None`: skipped.
fn traced(program: &str, mode: &str, conf: &str) -> Option<(Outcome, [u64; 3])> {
    if !only_ebbtide("makes these calls") {
        return None;
    }
    let run = Run::new(c_program("tracer")).arg(c_program(program));
    let outcome = run.args(mode).conf(conf).timeout(60).ok();
    let told = outcome.stdout.lines().find(|line| line.starts_with("cut "));
    let numbers: Vec<u64> = told?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let numbers = numbers.try_into().expect("three numbers");
    Some((outcome, numbers))
}

/// The kernel may do less than asked with any call; the rest must follow, no page twice and none skipped.
#[test]
fn calls_that_return_short() {
    for conf in [
        "dev=zones:1,retain_ms=60000",
        "dev=zones:1,retain_ms=60000,workers=0",
        "dev=zones:1,retain_ms=60000,thp=off",
    ] {
        let Some((outcome, [cut, calls, _])) = traced("release", "pages", conf) else {
            return;
        };
        if calls == 0 {
            return skip("process_madvise is not used here");
        }
        assert!(cut > 20, "{}", outcome.describe("was hardly cut"));
    }
}

#[test]
fn the_kernels_version_is_asked_once() {
    if let Some((outcome, [_, _, names])) = traced("give_back", "slack", "retain_ms=100") {
        assert!(names <= 1, "{}", outcome.describe("asked again and again"));
    }
}
