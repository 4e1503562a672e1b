//! Events that say that memory is short: `c/pressure_events.c`.

use ebbtide_tests::{Run, only_ebbtide};

use super::{PROMISE, run};

const PROGRAM: &str = "pressure_events";

/// "some 150000 2000000".
const TRIGGER: &str = "c29tZSAxNTAwMDAgMjAwMDAwMA==";

/// A run that is told of pressure by a FIFO, which lives as long as the directory.
fn with_a_fifo(mode: &str, conf: &str) -> (Run, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().expect("path")).expect("path");
    // SAFETY: a NUL-ended path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let run = run(PROGRAM, mode, conf)
        .env("MEMORY_PRESSURE_WATCH", &fifo)
        .env("MEMORY_PRESSURE_WRITE", TRIGGER);
    (run, dir)
}

#[test]
fn an_event_empties_what_is_kept() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["watch", "overwritten", "stay"] {
        let (run, _fifo) = with_a_fifo(mode, "retain_ms=60000");
        run.ok();
    }
    // The control: nobody listens.
    let (run, _fifo) = with_a_fifo("watch", "retain_ms=60000,pressure=off");
    run.must_fail("obeys");
}

#[test]
fn events_that_are_not_wanted() {
    for path in ["/dev/null", "/no/such/file", "/etc/passwd"] {
        run(PROGRAM, "stay", "retain_ms=60000")
            .env("MEMORY_PRESSURE_WATCH", path)
            .ok_with_ebbtide(PROMISE);
    }
}

#[test]
fn nobody_watches_when_there_is_nothing_to_give() {
    run(PROGRAM, "idle", "pressure=on").ok_with_ebbtide(PROMISE);
}

#[test]
fn nobody_stays_after_an_event() {
    let (run, _fifo) = with_a_fifo("gone", "retain_ms=60000");
    run.ok_with_ebbtide(PROMISE);
}
