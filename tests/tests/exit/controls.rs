//! Positive controls: each kind of check fails where it should.

use std::fs;

use ebbtide_tests::{Run, c_library, c_program, is_ebbtide, skip};

use super::core_files::blocks_in_core;
use super::memory::admitted;

/// Whether the check fails.
fn fails(run: Run) -> bool {
    run.timeout(60).run().verdict().is_err()
}

#[test]
fn control_the_kernels_own_end_is_seen_late() {
    let run = Run::new(c_program("exit_seen")).args("seen 5 alone");
    let run = if is_ebbtide() {
        run.conf("exit=inline,thp=off")
    } else {
        run
    };
    assert!(fails(run), "1 GiB ends within 5 ms without a helper");
}

/// Nobody needs the memory: it waits, and the check of what happens under need sees that.
#[test]
fn control_a_turn_that_does_not_end_is_noticed() {
    admitted("no-need", 0, |run| {
        let outcome = run.run();
        if !outcome.stdout.contains("skipped: ") {
            assert!(outcome.verdict().is_err(), "back without need");
            let said = format!("{}{}", outcome.stdout, outcome.stderr);
            assert!(said.contains("still used after"), "{said}");
        }
    });
}

#[test]
fn control_a_missing_helper_is_noticed() {
    for args in ["ways", "waits", "killed", "spawned"] {
        let run = Run::new(c_program("exit")).args(args);
        assert!(fails(run.env("EXIT_PATIENCE", "1")), "{args}");
    }
}

/// A helper that keeps everything the program had open, for a second, and that can be waited for.
#[test]
fn control_a_clinging_helper_is_noticed() {
    let clinging = c_library("faulty/clinging");
    let programs = [
        ("exit_seen", "port alone"),
        ("exit_seen", "pipe alone"),
        ("exit_seen", "flock alone"),
        ("exit", "waits alone"),
    ];
    for (program, args) in programs {
        let run = Run::new(c_program(program)).args(args);
        let run = run.preload(&clinging).env("CLING_MS", "3000");
        assert!(fails(run), "{args}");
        // The check itself holds where nobody keeps anything. 1 GiB ends late without a helper, and so does its pipe.
        if args != "pipe alone" {
            Run::new(c_program(program)).args(args).plain().ok();
        }
    }
}

/// Its name is that of a helper, and it stays.
#[test]
fn control_what_stays_behind_is_noticed() {
    let clinging = c_library("faulty/clinging");
    for args in ["many 4", "returned"] {
        let run = Run::new(c_program("exit_memory")).args(args);
        // Longer than an admitted helper may take.
        let run = run.preload(&clinging).env("CLING_MS", "12000");
        assert!(fails(run.env("EXIT_PATIENCE", "1")), "{args}");
    }
}

#[test]
fn control_a_core_file_without_the_heap_is_noticed() {
    let program = c_program("exit_debug");
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '/']) {
        return skip("core_pattern leads elsewhere");
    }
    // No private memory in the file.
    let without = Run::new("sh")
        .arg("-c")
        .arg("echo 0 > /proc/self/coredump_filter; exec \"$0\" \"$@\"")
        .arg(&program)
        .plain()
        .env("NO_HELPER", "1");
    if let Some(blocks) = blocks_in_core(without) {
        assert_eq!(blocks, 0);
    }
}
