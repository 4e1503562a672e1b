//! Tests all kinds of fork: `c/fork.c` and `c/vfork.c`. A child that hangs on a lock shows as a time-out.

use ebbtide_tests::{Outcome, Run, c_program, only_ebbtide};

fn fork(args: &str) -> Outcome {
    Run::new(c_program("fork")).args(args).timeout(150).ok()
}

fn vfork(args: &str) -> Outcome {
    Run::new(c_program("vfork")).args(args).timeout(150).ok()
}

/// Under an allocator that relies on atfork handlers, these children inherit other threads' locks.
fn raw(args: &str) {
    if only_ebbtide("recovers children that skip atfork") {
        fork(args);
    }
}

#[test]
fn quiet_parent() {
    fork("main 0 60");
}

#[test]
fn busy_parent() {
    fork("main 6 120");
}

#[test]
fn busy_parent_without_rseq() {
    Run::new(c_program("fork"))
        .args("main 6 60")
        .conf("rseq=off")
        .timeout(150)
        .ok();
}

#[test]
fn from_another_thread() {
    fork("thread 6 120");
}

#[test]
fn children_with_threads_fork_again() {
    fork("nested 4 40");
}

#[test]
fn exec_after_fork() {
    fork("exec 6 60");
}

#[test]
fn spawn_system_popen() {
    fork("spawn 4 25");
}

#[test]
fn underscore_fork_single_threaded() {
    fork("_fork 0 40");
}

#[test]
fn raw_clone_single_threaded() {
    fork("clone 0 40");
}

#[test]
fn underscore_fork_busy() {
    raw("_fork 6 100");
}

#[test]
fn raw_clone_busy() {
    raw("clone 6 100");
}

#[test]
fn at_the_border_of_a_page_of_records() {
    raw("border 1");
}

/// The program's handlers run while Ebbtide's handlers hold all locks, in every mode.
#[test]
fn handlers_inside_the_librarys_own_allocate() {
    for threads in ["0", "4"] {
        for conf in ["", "rseq=off", "harden=on", "exit=detached"] {
            Run::new(c_program("atfork"))
                .args(threads)
                .conf(conf)
                .timeout(60)
                .ok();
        }
    }
}

/// The child's statistics page is written once more at the end.
#[test]
fn a_handler_inside_the_librarys_own_ends_the_program() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for conf in ["rseq=off", "harden=on", "retain_ms=1000"] {
        let conf = format!("{conf},dev=pages:all,stats_dir={}", dir.path().display());
        Run::new(c_program("atfork"))
            .args("ends")
            .conf(&conf)
            .timeout(20)
            .ok();
    }
}

/// A fork in between would hold all locks and wait for the mutex of the handlers.
#[test]
fn threads_fork_beside_handlers_that_lock_and_allocate() {
    for conf in ["", "rseq=off"] {
        Run::new(c_program("forkers"))
            .args("2 100")
            .conf(conf)
            .timeout(60)
            .ok();
    }
}

/// Other threads hold locks that libc takes inside `fork`, and allocate. 10,000 forks each with `EBBTIDE_TEST_LONG`.
#[test]
fn beside_threads_in_libc() {
    let is_long = std::env::var_os("EBBTIDE_TEST_LONG").is_some();
    for (mode, few) in [
        ("flush", 100),
        ("popen", 30),
        ("dlopen", 30),
        ("getaddrinfo", 30),
        ("create", 30),
        ("setlocale", 30),
        ("all", 100),
    ] {
        let forks = if is_long { 10_000 } else { few };
        Run::new(c_program("forklocks"))
            .args(&format!("{mode} {forks}"))
            .timeout(600)
            .ok();
    }
    for conf in ["rseq=off", "harden=on"] {
        Run::new(c_program("forklocks"))
            .args("all 50")
            .conf(conf)
            .timeout(120)
            .ok();
    }
}

/// A fork handler that runs between the library's own handlers waits for a thread that makes every kind of call.
#[test]
fn a_fork_waits_for_a_thread_that_allocates() {
    for conf in ["", "rseq=off", "harden=on"] {
        Run::new(c_program("forklocks"))
            .args("handler 20")
            .conf(conf)
            .timeout(120)
            .ok();
    }
}

/// As many zones as on a large machine; most are never used.
#[test]
fn many_zones() {
    if !only_ebbtide("has zones") {
        return;
    }
    for zones in [3, 12] {
        for args in ["main 4 10", "_fork 4 10", "clone 0 10"] {
            Run::new(c_program("fork"))
                .args(args)
                .conf(&format!("dev=zones:{zones}"))
                .timeout(150)
                .ok();
        }
    }
}

#[test]
fn vfork_alone() {
    vfork("0 200");
}

#[test]
fn vfork_beside_threads() {
    vfork("4 60");
}

#[test]
fn vfork_pinned_with_the_threads() {
    vfork("3 40 pin=same");
}

#[test]
fn vfork_pinned_away_from_the_threads() {
    vfork("3 60 pin=other");
}

#[test]
fn vfork_child_changes_cpu() {
    vfork("3 60 hop");
}

#[test]
fn vfork_without_rseq() {
    Run::new(c_program("vfork"))
        .args("3 60 hop")
        .conf("rseq=off")
        .timeout(150)
        .ok();
}
