//! Tests that workers are threads that libc does not know: they find no rseq registration, have few rights, and leave
//! some files of the program alone: `c/worker_rights.c`, `c/worker_files.c`, `c/block.c`.

use ebbtide_tests::{Run, c_program_with, c_variant, only_ebbtide};

const PROMISE: &str = "has workers";

fn run(program: &str, mode: &str, conf: &str) {
    let run = Run::new(c_program_with(program, &["-lrt"])).args(mode);
    run.conf(conf).timeout(40).ok_with_ebbtide(PROMISE);
}

/// Checks the rights of workers.
fn rights(mode: &str, conf: &str) {
    run("worker_rights", mode, conf);
}

/// Checks which files workers leave alone.
fn files(mode: &str, conf: &str) {
    run("worker_files", mode, conf);
}

#[test]
fn a_filter_for_the_main_thread_alone() {
    for workers in [1, 2, 4] {
        rights("late", &format!("retain_ms=1000,workers={workers}"));
    }
}

#[test]
fn functions_that_bind_leave_no_worker() {
    rights("called", "retain_ms=60000");
    rights("strict", "");
}

/// Runs cases that mostly wait for a worker's ten seconds, all at once.
///
/// - a filter is added to those from before, as in a container; the window is so long that the worker would stay
/// - a worker of a filtered process stays if it is sure
/// - no other worker is made for memory that the first one would have released later
/// - a filter comes with the worker
/// - a filter beside a worker that opens no files
#[test]
fn workers_that_are_not_sure() {
    std::thread::scope(|scope| {
        for (mode, retain_ms) in [
            ("once_more", 60_000),
            ("sure", 60_000),
            ("idle", 4000),
            ("at_once", 60_000),
            ("blind", 60_000),
        ] {
            scope.spawn(move || rights(mode, &format!("retain_ms={retain_ms}")));
        }
    });
}

#[test]
fn a_filter_for_all_threads() {
    rights("together", "retain_ms=1000");
}

#[test]
fn another_user() {
    rights("user", "retain_ms=1000");
}

#[test]
fn a_signal_that_all_threads_must_handle() {
    rights("everybody", "retain_ms=60000");
}

#[test]
fn notifications_of_message_queues_stay() {
    for descriptor in ["", "70"] {
        files(&format!("queue {descriptor}"), "retain_ms=1000");
    }
}

#[test]
fn files_of_servers_hear_nothing() {
    files("flush", "retain_ms=1000");
}

/// The C library puts `struct rseq` below all static TLS; in the second case, the program does the same.
#[test]
fn static_tls_of_any_size() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for kib in [16, 64, 400, 3000] {
        let size = format!("-DTLS_KIB={kib}");
        let native = c_variant("block", &kib.to_string(), &[&size]);
        let emulated = c_variant(
            "block",
            &format!("{kib}-emulated"),
            &[&size, "-DEMULATE", "-rdynamic"],
        );
        for (program, rseq) in [(native, "1"), (emulated, "0")] {
            let tunable = format!("glibc.pthread.rseq={rseq}");
            Run::new(program)
                .env("GLIBC_TUNABLES", tunable)
                .conf("retain_ms=300")
                .timeout(30)
                .ok();
        }
    }
}
