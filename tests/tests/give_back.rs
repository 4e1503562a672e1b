//! Memory comes back without a call, and nothing that lives is touched: `c/give_back.c`.

use ebbtide_tests::{Run, c_program, needs_root};

fn give_back(mode: &str, conf: &str) {
    let run = Run::new(c_program("give_back")).args(mode).conf(conf);
    run.timeout(60)
        .ok_with_ebbtide("gives memory back without a call");
}

#[test]
fn a_large_block_while_the_program_sleeps() {
    give_back("large", "");
}

#[test]
fn a_large_block_of_small_pages() {
    give_back("large", "thp=off");
}

#[test]
fn a_large_block_with_many_workers() {
    give_back("large", "workers=8,dev=threshold:4096");
}

/// They start each other, without any thread-local storage of libc's.
#[test]
fn many_workers_without_rseq() {
    give_back("large", "workers=8,dev=threshold:4096,rseq=off");
}

#[test]
fn large_blocks_with_calls_of_their_own() {
    give_back("large", "dev=gather:inline");
}

#[test]
fn spans_of_pages() {
    give_back("objects", "");
}

#[test]
fn spans_of_pages_without_rseq() {
    give_back("objects", "rseq=off");
}

#[test]
fn spans_of_pages_without_huge_pages() {
    give_back("objects", "thp=off,dev=zones:2");
}

#[test]
fn pages_of_small_objects() {
    give_back("small", "");
}

#[test]
fn temporaries_do_not_fault_again() {
    give_back("loop", "");
}

#[test]
fn room_to_grow_into() {
    give_back("slack", "");
    give_back("slack", "thp=off");
}

#[test]
fn locked_memory() {
    if !needs_root("locking memory") {
        return;
    }
    give_back("mlock", "");
    give_back("mlock", "thp=off");
}

#[test]
fn forks_beside_workers() {
    give_back("fork", "retain_ms=20,workers=4,dev=threshold:512");
}

#[test]
fn children_that_skip_the_handlers_beside_workers() {
    give_back("clone", "retain_ms=20,workers=4,dev=threshold:512");
    give_back(
        "clone",
        "retain_ms=20,workers=4,dev=threshold:512,dev=zones:12",
    );
}

#[test]
fn caches_of_a_program_at_work() {
    give_back("busy", "");
}

#[test]
fn caches_of_a_program_at_work_without_rseq() {
    give_back("busy", "rseq=off");
}
