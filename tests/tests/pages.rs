//! Tests when a process has a statistics page, and that none is left behind.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use ebbtide_tests::{Outcome, Run, c_program, needs_root, only_ebbtide};
use tempfile::TempDir;

fn run(mode: &str, dir: &Path) -> Run {
    let dir = dir.display();
    Run::new(c_program("pages"))
        .args(&format!("{mode} {dir}"))
        .conf(&format!("stats_dir={dir}"))
        .timeout(60)
}

/// The directory, if the library under test keeps pages.
fn directory() -> Option<TempDir> {
    only_ebbtide("keeps pages").then(|| tempfile::tempdir().expect("temporary directory"))
}

fn files(dir: &TempDir) -> usize {
    std::fs::read_dir(dir).expect("the directory").count()
}

#[test]
fn a_page_lives_as_long_as_its_process() {
    let Some(dir) = directory() else { return };
    for mode in ["small", "large", "old", "forks", "vforks", "execs"] {
        run(mode, dir.path()).ok();
        assert_eq!(files(&dir), 0, "{mode}");
    }
}

/// The next process removes what a killed one has left. Files that are no pages stay.
#[test]
fn the_next_process_cleans_up() {
    let Some(dir) = directory() else { return };
    std::fs::write(dir.path().join("999999999.ebb"), "mine").expect("a file");
    for _ in 0..3 {
        let outcome = run("killed", dir.path()).run();
        assert_eq!(outcome.status.signal(), Some(libc::SIGKILL));
    }
    assert_eq!(files(&dir), 2, "each has removed its predecessor's");
    run("small", dir.path()).ok();
    assert_eq!(files(&dir), 2, "small ones do not look");
    run("large", dir.path()).ok();
    assert_eq!(files(&dir), 1);
}

#[test]
fn containers_that_share_a_directory_keep_their_pages() {
    let Some(dir) = directory().filter(|_| needs_root("process namespaces")) else {
        return;
    };
    let Outcome { status, stderr, .. } = run("others", dir.path()).run();
    let said = stderr;
    assert!(status.success(), "{said}");
    assert_eq!(said.matches("of another container").count(), 1, "{said}");
    assert_eq!(files(&dir), 0);
}

#[test]
fn a_directory_that_cannot_be_used_is_named_once() {
    let Some(dir) = directory() else { return };
    let Outcome { status, stderr, .. } = run("second", &dir.path().join("missing")).run();
    assert!(status.success(), "{stderr}");
    let is_named = stderr.lines().count() == 1 && stderr.contains("choose another directory");
    assert!(is_named, "{stderr}");
}

/// A process that has made no page removes none at its end.
#[test]
fn a_process_without_a_page_leaves_those_of_others() {
    let Some(dir) = directory().filter(|_| needs_root("process namespaces")) else {
        return;
    };
    let Outcome { status, stderr, .. } = run("late", dir.path()).run();
    assert!(status.success(), "{stderr}");
}

/// Many short processes leave nothing behind: 10,000 with `EBBTIDE_TEST_LONG`.
#[test]
fn short_processes_leave_nothing() {
    let Some(dir) = directory() else { return };
    let count = match std::env::var_os("EBBTIDE_TEST_LONG") {
        Some(_) => 10_000,
        None => 500,
    };
    let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true || exit 1; i=$((i+1)); done");
    let conf = format!("stats_dir={}", dir.path().display());
    let run = Run::new("sh").arg("-c").arg(&script).conf(&conf);
    let outcome = run.timeout(600).run();
    assert!(outcome.status.success(), "{}", outcome.describe("failed"));
    assert_eq!(files(&dir), 0);
}

/// A process that could make no page writes to no memory at its end.
#[test]
fn a_process_without_a_page_writes_nowhere() {
    let Some(dir) = directory().filter(|_| needs_root("a mapping at address 0")) else {
        return;
    };
    let Outcome { status, stderr, .. } = run("nowhere", &dir.path().join("missing")).run();
    assert!(status.success(), "{stderr}");
}
