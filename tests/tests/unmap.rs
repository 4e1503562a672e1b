//! Tests `ebb_unmap`: the program's own mappings, unmapped beside it.

use ebbtide_tests::{Run, c_program};

const CONFIGURATIONS: [&str; 4] = [
    "",
    "workers=0",
    "workers=4",
    "rseq=off,exit=detached,exit_threshold=0",
];

fn unmap(case: &str) {
    for conf in CONFIGURATIONS {
        let run = Run::new(c_program("unmap")).args(case).conf(conf);
        run.timeout(120).ok_with_ebbtide("has ebb_unmap");
    }
}

#[test]
fn addresses_are_free_at_once_and_memory_soon() {
    unmap("once 512");
    unmap("once 17");
}

#[test]
fn all_kinds_of_mappings() {
    unmap("kinds");
}

#[test]
fn threads_unmap_and_fork() {
    unmap("storm 60");
}
