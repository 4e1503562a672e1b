//! Tests that settings of a program on a large allocation (`madvise`, `mprotect`) do not affect the next owner of the
//! memory.

use ebbtide_tests::{Run, c_program, only_ebbtide};

fn advised(how: &str, what: &[&str], conf: &str) {
    for what in what {
        let run = Run::new(c_program("advised")).arg(how).arg(what);
        run.conf(conf).timeout(60).ok();
    }
}

const ADVICE: &[&str] = &["wipe", "dontfork", "dontdump"];
const ALL: &[&str] = &["wipe", "dontfork", "dontdump", "none", "read", "part"];

/// `realloc` moved the pages: the old range is ordinary memory, the new one keeps the advice.
#[test]
fn then_moved() {
    if !only_ebbtide("moves such memory") {
        return;
    }
    advised("moved", ADVICE, "");
}

#[test]
fn then_moved_without_huge_pages() {
    if !only_ebbtide("moves such memory") {
        return;
    }
    advised("moved", ADVICE, "thp=off");
}

/// If the old range cannot be made ordinary again, no allocation gets it.
#[test]
fn then_moved_where_no_mapping_can_be_replaced() {
    if !only_ebbtide("moves such memory") {
        return;
    }
    advised("refused", ADVICE, "");
}

#[test]
fn then_shrunk() {
    advised("shrunk", ALL, "");
}

#[test]
fn then_freed() {
    advised("freed", ALL, "");
}

/// If the advice cannot be undone, the range gets a fresh mapping.
#[test]
fn then_freed_where_it_cannot_be_undone() {
    if !only_ebbtide("keeps such memory") {
        return;
    }
    advised("stuck", ALL, "");
}

#[test]
fn then_freed_and_kept_from_use() {
    if !only_ebbtide("has harden=on") {
        return;
    }
    advised("freed", ALL, "harden=on");
}
