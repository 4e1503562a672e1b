//! How long workers live, and what they do to the program beside memory: `c/worker_life.c`, `c/stalled.c`, `c/tls.c`.

use ebbtide_tests::{Run, c_program};

fn life(mode: &str, conf: &str) {
    let run = Run::new(c_program("worker_life")).args(mode).conf(conf);
    run.timeout(60).ok_with_ebbtide("has workers");
}

#[test]
fn workers_go() {
    life("threads", "");
}

#[test]
fn workers_do_not_stay_for_a_program_at_its_polling() {
    life("polls", "");
}

/// It was made in advance, and waits for a free.
#[test]
fn a_worker_that_waits_looks_at_spans() {
    life("early", "retain_ms=4000,thp=off,workers=1");
}

#[test]
fn a_worker_that_waits_ends_before_a_long_window() {
    life("awaits", "retain_ms=60000,workers=1");
}

/// Slow paths leave parts of huge pages to a worker, as many as there is room for, and wait for nobody.
#[test]
fn a_worker_that_does_not_come_to_its_work() {
    Run::new(c_program("stalled"))
        .conf("limit=8m,workers=1,retain_ms=100")
        .timeout(30)
        .ok_with_ebbtide("has workers");
}

/// A worker that has not begun holds no descriptor of the program's.
#[test]
fn a_worker_that_waits_for_a_cpu_at_its_start() {
    let run = Run::new(c_program("stalled")).args("pipe").timeout(30);
    run.ok_with_ebbtide("has workers");
}

#[test]
fn one_cpu_and_others() {
    life("cpu", "");
    life("cpu", "workers=4,dev=threshold:4096");
}

#[test]
fn setuid_beside_a_worker() {
    life("setuid", "");
}

/// A worker that libc counted once ran the program's exit, without its descriptors.
#[test]
fn output_of_a_main_thread_that_leaves() {
    life("last", "");
}

/// The table of ranges for a system call once overflowed such a stack.
#[test]
fn the_smallest_stack_releases_in_place() {
    life("stack", "workers=0,retain_ms=0");
    life("stack", "retain_ms=0");
}

#[test]
fn many_workers_beside_much_thread_local_storage() {
    Run::new(c_program("tls"))
        .conf("workers=8,dev=threshold:4096")
        .ok_with_ebbtide("has workers");
}
