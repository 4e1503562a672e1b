//! Tests the effect of `vfork` on the registration of restartable sequences, threads made by raw calls, and CPUs that
//! `/sys` does not list, and a heap that begins in a child: `c/vfork_rules.c`, `c/own_block.c`, `c/unlisted.c`,
//! `c/vfork_first.c`. Children that allocate are in `fork.rs`.

use ebbtide_tests::{Outcome, Run, c_program, is_ebbtide, only_ebbtide, skip};

/// Runs with the guard under Ebbtide, without one on other libraries. Under Ebbtide, runs also where libc registers
/// nothing.
fn rules(args: &str) -> Outcome {
    if !is_ebbtide() {
        return unguarded(args, "");
    }
    Run::new(c_program("vfork_rules"))
        .args(&format!("guarded own {args}"))
        .without_libc_rseq()
        .timeout(60)
        .ok();
    unguarded(&format!("guarded {args}"), "")
}

fn unguarded(args: &str, conf: &str) -> Outcome {
    Run::new(c_program("vfork_rules"))
        .args(args)
        .conf(conf)
        .timeout(60)
        .ok()
}

/// The parent changes its CPU after each vfork.
#[test]
fn children_that_execute() {
    rules("exec 200");
}

#[test]
fn both_names_are_one_function() {
    rules("names");
}

#[test]
fn children_of_children() {
    rules("nested");
}

#[test]
fn from_several_threads() {
    rules("threads 40");
}

#[test]
fn a_handler_runs_before_the_parent_is_registered_again() {
    rules("handler");
}

#[test]
fn a_handler_jumps_out() {
    rules("jump");
}

#[test]
fn a_vfork_that_fails() {
    rules("fails");
}

/// Then `vfork` is a fork. With the last answer, the kernel claims success and did nothing.
#[test]
fn the_registration_cannot_be_taken_off() {
    for error in [libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::EACCES, 0] {
        rules(&format!("refused {error}"));
    }
}

#[test]
fn the_registration_cannot_be_put_on_again() {
    rules("halfway");
}

/// As docs/limits.md describes it, with the workaround given there.
#[test]
fn a_filter_that_kills_for_rseq() {
    rules("killed");
    unguarded("killed", "rseq=off");
    unguarded("killed", "dev=vfork_guard:off");
}

#[test]
fn time_slice_extension_stays_on() {
    rules("slice");
}

#[test]
fn without_sections() {
    for args in ["exec 20", "names", "nested", "handler", "jump", "halfway"] {
        unguarded(args, "rseq=off");
    }
}

fn own_block(topic: &str) -> Run {
    Run::new(c_program("own_block"))
        .args(&format!("{topic} 3"))
        .timeout(30)
}

/// Follows the advice in docs/limits.md for threads made by a raw clone.
#[test]
fn a_thread_with_a_block_of_its_own() {
    if !only_ebbtide("works without libc's thread blocks") {
        return;
    }
    own_block("marked").ok();
    own_block("marked").without_libc_rseq().ok();
}

/// Positive control: without the mark, the run above finds objects with two owners.
#[test]
fn a_thread_with_a_block_that_says_cpu_0() {
    if !only_ebbtide("works without libc's thread blocks") {
        return;
    }
    let outcome = own_block("zeroed").run();
    if outcome.stdout.starts_with("skipped: ") {
        return skip("one CPU");
    }
    assert!(outcome.verdict().is_err(), "nobody notices");
}

#[test]
fn cpus_that_are_not_listed() {
    for conf in ["", "rseq=off", "harden=on"] {
        Run::new(c_program("unlisted")).conf(conf).timeout(60).ok();
    }
}

/// With all pages, the child would make one at the start.
#[test]
fn the_first_malloc_is_that_of_a_child() {
    if !only_ebbtide("has workers") {
        return;
    }
    for pages in ["", "dev=pages:all,"] {
        let dir = tempfile::tempdir().expect("temporary directory");
        Run::new(c_program("vfork_first"))
            .arg(dir.path())
            .conf(&format!("{pages}stats_dir={}", dir.path().display()))
            .ok();
    }
}
