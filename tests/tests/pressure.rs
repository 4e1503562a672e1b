//! Memory that is short: limits, events, the owner's limit. `c/pressure.c` works inside them.

use ebbtide_tests::{Cgroup, Outcome, Run, c_program, is_ebbtide, is_root, skip};

const MIB: u64 = 1 << 20;

fn pressure(mode: &str, conf: &str) -> Run {
    Run::new(c_program("pressure")).args(mode).conf(conf)
}

/// Runs it in a group of 256 MiB.
fn in_group(mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    if !is_root() {
        skip("a memory cgroup needs root");
        return None;
    }
    let name = format!("{mode}-{}", conf.replace(['=', ','], "-"));
    match Cgroup::with_memory_max(&name, 256 * MIB) {
        Err(why) => {
            skip(&why);
            None
        }
        Ok(group) => Some(pressure(mode, conf).cgroup(&group).run()),
    }
}

#[test]
fn garbage_in_spans_goes_before_the_limit() {
    if let Some(outcome) = in_group("grow", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: the same without is killed.
    if let Some(outcome) = in_group("grow", "retain_ms=60000,pressure=off") {
        assert!(outcome.killed_by(9), "{}", outcome.describe("lives"));
    }
}

#[test]
fn free_blocks_go_before_the_limit() {
    if let Some(outcome) = in_group("blocks", "pressure=on") {
        outcome.ok();
    }
}

#[test]
fn calls_of_a_child_with_its_parents_huge_pages_are_short() {
    for mode in ["fork", "reclone"] {
        if let Some(outcome) = in_group(mode, "pressure=on") {
            outcome.ok();
        }
    }
}

fn told_by_a_fifo(mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().expect("path")).expect("path");
    // SAFETY: a NUL-ended path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let run = pressure(mode, conf).env("MEMORY_PRESSURE_WATCH", &fifo);
    Some(run.run())
}

#[test]
fn an_event_empties_what_is_kept() {
    if let Some(outcome) = told_by_a_fifo("watch", "retain_ms=60000") {
        outcome.ok();
    }
    if let Some(outcome) = told_by_a_fifo("stay", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: nobody listens.
    if let Some(outcome) = told_by_a_fifo("watch", "retain_ms=60000,pressure=off") {
        assert!(!outcome.status.success(), "{}", outcome.describe("obeys"));
    }
}

#[test]
fn events_that_are_not_wanted() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for path in ["/dev/null", "/no/such/file", "/etc/passwd"] {
        pressure("stay", "retain_ms=60000")
            .env("MEMORY_PRESSURE_WATCH", path)
            .ok();
    }
}

#[test]
fn the_owners_limit() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for conf in [
        "limit=16m",
        "limit=16m,workers=0",
        "limit=16m,pressure=off",
        "limit=16m,rseq=off",
        "limit=0%",
    ] {
        pressure("limit 16", &format!("{conf},retain_ms=60000")).ok();
    }
    let without = pressure("limit 16", "pressure=off,retain_ms=60000").run();
    assert!(!without.status.success(), "{}", without.describe("obeys"));
}

#[test]
fn nobody_watches_when_there_is_nothing_to_give() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    pressure("idle", "pressure=on").ok();
}
