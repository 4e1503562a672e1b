//! Workers are threads that libc does not know: where they find no registration, what they may do, which files
//! of the program's they leave alone: `c/worker_rights.c`, `c/worker_files.c`, `c/block.c`.

use ebbtide_tests::{Run, c_program_with, c_variant, only_ebbtide};

const PROMISE: &str = "has workers";

fn run(program: &str, mode: &str, conf: &str) {
    let run = Run::new(c_program_with(program, &["-lrt"])).args(mode);
    run.conf(conf).timeout(40).ok_with_ebbtide(PROMISE);
}

/// What workers may do.
fn rights(mode: &str, conf: &str) {
    run("worker_rights", mode, conf);
}

/// Which files workers leave alone.
fn files(mode: &str, conf: &str) {
    run("worker_files", mode, conf);
}

#[test]
fn a_filter_for_the_main_thread_alone() {
    rights("late", "retain_ms=1000");
}

#[test]
fn functions_that_bind_leave_no_worker() {
    rights("called", "retain_ms=60000");
    rights("strict", "");
}

/// Cases that mostly wait for a worker's ten seconds, all at once.
///
/// - a filter more than there was before, as in a container; with a window so long that the worker would stay
/// - a worker of a filtered process stays when it is sure
/// - nobody makes another worker for what the first one would have given back later
/// - a filter that comes with the worker
/// - a filter beside a worker that cannot look
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

/// On a C library that puts `struct rseq` below all static TLS, and where the program does as that one.
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
