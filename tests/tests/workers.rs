//! Workers are threads that libc does not know: where they find no registration, what they may do, which files
//! of the program's they leave alone.

use ebbtide_tests::{Run, c_program_with, c_variant, is_ebbtide, skip};

fn workers(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide has workers");
    }
    let program = c_program_with("workers", &["-lrt"]);
    let outcome = Run::new(program).args(mode).conf(conf).timeout(40).run();
    if outcome.stdout.starts_with("skipped: ") {
        return skip(outcome.stdout["skipped: ".len()..].trim_end());
    }
    outcome.ok();
}

#[test]
fn a_filter_for_the_main_thread_alone() {
    workers("late", "retain_ms=1000");
}

#[test]
fn functions_that_bind_leave_no_worker() {
    workers("called", "retain_ms=60000");
    workers("strict", "");
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
            scope.spawn(move || workers(mode, &format!("retain_ms={retain_ms}")));
        }
    });
}

#[test]
fn a_filter_for_all_threads() {
    workers("together", "retain_ms=1000");
}

#[test]
fn another_user() {
    workers("user", "retain_ms=1000");
}

#[test]
fn a_signal_that_all_threads_must_handle() {
    workers("everybody", "retain_ms=60000");
}

#[test]
fn notifications_of_message_queues_stay() {
    for descriptor in ["", "70"] {
        workers(&format!("queue {descriptor}"), "retain_ms=1000");
    }
}

#[test]
fn files_of_servers_hear_nothing() {
    workers("flush", "retain_ms=1000");
}

/// On a C library that puts `struct rseq` below all static TLS, and where the program does as that one.
#[test]
fn static_tls_of_any_size() {
    if !is_ebbtide() {
        return skip("only Ebbtide has workers");
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
            let outcome = Run::new(program)
                .env("GLIBC_TUNABLES", tunable)
                .conf("retain_ms=300")
                .timeout(30)
                .run();
            if outcome.stdout.starts_with("skipped: ") {
                skip(&format!(
                    "{kib} KiB, rseq={rseq}: {}",
                    outcome.stdout.trim_end()
                ));
                continue;
            }
            outcome.ok();
        }
    }
}
