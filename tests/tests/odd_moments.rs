//! Tests allocation at odd moments: signals, single steps, cancellation, constructors and destructors, dlopen, late
//! exits, refused system calls.

use ebbtide_tests::{Run, c_library, c_program, only_ebbtide};

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

/// Refuses calls that only a worker makes, at its start and to check whether a huge page was split.
#[test]
fn workers_that_are_killed() {
    for call in [
        libc::SYS_prctl,
        libc::SYS_capset,
        libc::SYS_sched_setscheduler,
        libc::SYS_close_range,
        libc::SYS_statx,
        libc::SYS_geteuid,
        libc::SYS_ioctl,
        libc::SYS_sched_setaffinity,
    ] {
        // stdout is a pipe, so libc does not ask whether it is a terminal.
        Run::new(c_program("lost_threads"))
            .args("killed")
            .arg(call.to_string())
            .timeout(20)
            .ok();
    }
}

/// A worker touches no descriptor of the program if leaving the table is refused, or only pretended.
#[test]
fn a_worker_that_cannot_leave_the_descriptors_opens_nothing() {
    if !only_ebbtide("has workers") {
        return;
    }
    for error in [0, libc::EPERM] {
        Run::new(c_program("lost_threads"))
            .args(&format!("table {error}"))
            .ok();
    }
}

/// A filter kills a worker that has claimed memory.
#[test]
fn a_worker_that_is_killed_leaves_nothing_behind() {
    if !only_ebbtide("has workers") {
        return;
    }
    for (mode, conf) in [("orphan", ""), ("spans", ",thp=off")] {
        Run::new(c_program("lost_threads"))
            .args(mode)
            .conf(&format!("retain_ms=100,workers=1{conf}"))
            .timeout(20)
            .ok();
    }
}

/// A worker that has made memory lazy ends, and no other worker can be made.
#[test]
fn lazy_memory_goes_where_no_worker_can_be_made() {
    Run::new(c_program("lost_threads"))
        .args("lazy")
        .conf("retain_ms=100,lazyfree=always,dev=lazy_ms:4000")
        .timeout(30)
        .ok_with_ebbtide("has lazy memory");
}

/// Kills threads of the program at the two calls that they make while they hold something that other threads wait
/// for.
#[test]
fn threads_that_are_killed_leave_no_lock_behind() {
    if !only_ebbtide("makes these calls") {
        return;
    }
    for mode in ["fence", "maker"] {
        Run::new(c_program("lost_threads"))
            .args(mode)
            .conf("workers=1")
            .timeout(30)
            .ok();
    }
}

const SETS: [&str; 6] = [
    "membarrier",
    "madvise",
    "process_madvise",
    "clone",
    "mremap",
    "all",
];

#[test]
fn refused_from_the_start() {
    for sets in SETS {
        sandbox("start", sets);
    }
}

#[test]
fn refused_later() {
    for sets in SETS {
        sandbox("later", sets);
    }
}

/// Refuses a call with each answer that a kernel or a filter may give. Freed memory is then released in another way.
fn refused_with(call: &str, answers: &[i32]) {
    if !only_ebbtide("promises this") {
        return;
    }
    for (turn, error) in answers.iter().enumerate() {
        let when = if turn % 2 == 0 { "start" } else { "later" };
        Run::new(c_program("sandbox"))
            .args(&format!("{when} {call} {error} back"))
            .conf("retain_ms=100")
            .timeout(60)
            .ok();
    }
}

const ANSWERS: [i32; 5] = [
    libc::ENOSYS,
    libc::EPERM,
    libc::EINVAL,
    libc::EAGAIN,
    libc::ENOMEM,
];

#[test]
fn any_answer_of_process_madvise() {
    refused_with("process_madvise", &ANSWERS);
    // The call reports that it did nothing.
    refused_with("process_madvise", &[0]);
}

#[test]
fn any_answer_of_madvise() {
    refused_with("madvise", &ANSWERS);
    // The call reports success from the start, and does nothing.
    refused_with("madvise", &[0]);
    refused_with("madvise,process_madvise", &[0]);
}

#[test]
fn any_answer_of_membarrier() {
    refused_with("membarrier", &ANSWERS);
}

#[test]
fn any_answer_of_clone() {
    refused_with("clone", &ANSWERS);
}

/// `syscalls=basic` makes few calls after the start, also for a program that asks for statistics.
#[test]
fn statistics_need_no_other_call() {
    let run = Run::new(c_program("few_calls")).conf("syscalls=basic");
    assert!(run.ok().stdout.ends_with("ok\n"));
}
