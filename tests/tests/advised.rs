//! What a program did to a large allocation (`madvise`, `mprotect`) is not met by whoever gets the memory next.

use ebbtide_tests::{Run, c_program, only_ebbtide};

fn advised(how: &str, what: &[&str], conf: &str) {
    for what in what {
        let run = Run::new(c_program("advised")).arg(how).arg(what);
        run.conf(conf).timeout(60).ok();
    }
}

const ADVICE: &[&str] = &["wipe", "dontfork", "dontdump"];
const ALL: &[&str] = &["wipe", "dontfork", "dontdump", "none", "read", "part"];

/// `realloc` moved the pages: the old place is ordinary memory, the new one keeps the advice.
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

/// Nothing makes the old place ordinary: nobody gets it.
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

/// Nothing takes the advice back: the place gets a fresh mapping.
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
