//! Tests all kinds of fork: `c/fork.c` and `c/vfork.c`. A child that hangs on a lock shows as a time-out. `make soak` forks
//! for longer, as these do with `EBBTIDE_TEST_LONG`.

use ebbtide_tests::{Outcome, Run, c_program, only_ebbtide};

fn is_long() -> bool {
    std::env::var_os("EBBTIDE_TEST_LONG").is_some()
}

fn fork(args: &str) -> Outcome {
    Run::new(c_program("fork")).args(args).timeout(150).ok()
}

/// Forks beside threads that take the CPUs: each fork takes long.
fn busy(args: &str, rounds: u32, conf: &str) {
    let rounds = if is_long() { rounds * 5 } else { rounds };
    Run::new(c_program("fork"))
        .args(&format!("{args} {rounds}"))
        .conf(conf)
        .timeout(150)
        .ok();
}

fn vfork(args: &str) -> Outcome {
    Run::new(c_program("vfork")).args(args).timeout(150).ok()
}

/// Under an allocator that relies on atfork handlers, these children inherit other threads' locks.
fn skips_atfork() -> bool {
    only_ebbtide("recovers children that skip atfork")
}

#[test]
fn quiet_parent() {
    fork("main 0 60");
}

#[test]
fn busy_parent() {
    busy("main 6", 40, "");
}

#[test]
fn busy_parent_without_rseq() {
    busy("main 6", 20, "rseq=off");
}

#[test]
fn from_another_thread() {
    busy("thread 6", 40, "");
}

#[test]
fn children_with_threads_fork_again() {
    busy("nested 4", 12, "");
}

#[test]
fn exec_after_fork() {
    busy("exec 6", 20, "");
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
    if skips_atfork() {
        busy("_fork 6", 35, "");
    }
}

#[test]
fn raw_clone_busy() {
    if skips_atfork() {
        busy("clone 6", 35, "");
    }
}

#[test]
fn at_the_border_of_a_page_of_records() {
    if skips_atfork() {
        fork("border 1");
    }
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
    for (mode, few) in [
        ("flush", 100),
        ("popen", 30),
        ("dlopen", 30),
        ("getaddrinfo", 30),
        ("create", 30),
        ("setlocale", 30),
        ("all", 100),
    ] {
        let forks = if is_long() { 10_000 } else { few };
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
