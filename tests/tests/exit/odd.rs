//! Tests odd circumstances: calls that a sandbox or a tracer refuses, and other users of a program's memory.

use ebbtide_tests::{Run, c_program, ensure_installed, library, skip};

use super::{has_helper, in_slots_of_its_own};

fn odd(args: &str) {
    if has_helper() {
        in_slots_of_its_own(Run::new(c_program("exit_odd")).args(args), "").ok();
    }
}

/// A helper whose `exit_group` is refused does not loop for ever.
#[test]
fn a_helper_that_may_not_end() {
    odd("refused end");
    if has_helper() {
        let run = Run::new(c_program("exit_odd")).args("refused trapped");
        let run = run.limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY);
        in_slots_of_its_own(run, "").ok();
    }
}

/// As under a tracer that does not follow the helper (`strace -f --seccomp-bpf`).
#[test]
fn a_helper_that_may_not_even_begin() {
    odd("refused start");
    odd("refused slow");
}

/// Under a tracer that follows, except the helper: hardly any of the helper's calls is answered, and the program goes
/// on.
#[test]
fn a_tracer_by_a_filter() {
    if !has_helper() {
        return;
    }
    if !ensure_installed("strace", "strace") {
        return skip("no strace");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let run = Run::new("strace")
        .args("-f --seccomp-bpf -o /dev/null -e trace=!futex -E")
        .arg(format!(
            "LD_PRELOAD={}",
            library().expect("library").display()
        ))
        .arg(c_program("exit_odd"))
        .arg("traced")
        .plain()
        .dir(dir.path())
        .limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY);
    in_slots_of_its_own(run, "").ok();
}

/// io_submit requests belong to the memory, which stays. They hold a port and a pipe open.
#[test]
fn requests_under_way_end_at_once() {
    odd("requests");
}

/// A helper made by such a thread would not start its work in time when that is urgent.
#[test]
fn a_thread_that_gives_way_makes_no_helper() {
    odd("nice nice");
    odd("nice idle");
    odd("nice all");
    odd("nice less");
}

/// A program may be in this state for days.
#[test]
fn a_main_thread_that_has_left_for_good() {
    odd("left");
}
