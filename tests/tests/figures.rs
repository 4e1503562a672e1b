//! Tests the statistics page (`stats_dir`) on a full file system, cut short, or deleted: the program never suffers.

use std::path::Path;

use ebbtide_interface::word;
use ebbtide_tests::{Outcome, Run, c_program, needs_root, only_ebbtide};

/// The index of the figure in the page.
const RELEASED: usize = word!(released_bytes);
const REFUSED: usize = word!(refused);
const HELPER: usize = word!(helper);
const END_NS: usize = word!(end_ns);
const LEFT_NS: usize = word!(left_ns);
const DETACHED: usize = word!(exits_detached);
const FALLEN_BACK: usize = word!(exits_fallen_back);

const PROMISE: &str = "keeps figures";

fn figures(mode: &str, conf: &str, dir: &Path) -> Run {
    let dir = dir.display();
    Run::new(c_program("figures"))
        .args(&format!("{mode} {dir}"))
        .conf(&format!(
            "stats_dir={dir},dev=pages:all,retain_ms=100{conf}"
        ))
        .timeout(60)
}

fn survives(modes: &[&str], conf: &str) {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in modes {
        let outer = tempfile::tempdir().expect("temporary directory");
        let dir = outer.path().join("figures");
        std::fs::create_dir(&dir).expect("directory");
        figures(mode, conf, &dir).ok();
    }
}

/// Reads a word of the statistics page that the program left behind.
fn word(outcome: &Outcome, dir: &Path, place: usize) -> u64 {
    let pid = outcome.stdout.lines().next().expect("a number");
    let page = std::fs::read(dir.join(format!("{pid}.ebb"))).expect("the page");
    let bytes = page[place * 8..][..8].try_into().expect("8 bytes");
    u64::from_le_bytes(bytes)
}

/// Passes the words of the page that the program left behind to a check.
fn leaves(mode: &str, conf: &str, check: impl FnOnce(&dyn Fn(usize) -> u64)) {
    if only_ebbtide(PROMISE) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let outcome = figures(mode, conf, dir.path()).ok();
        check(&|place| word(&outcome, dir.path(), place));
    }
}

#[test]
fn a_file_that_is_cut_short() {
    survives(&["cut", "half"], "");
    survives(&["cut", "half"], ",workers=0,dev=lockstat:on");
}

#[test]
fn a_file_that_is_removed() {
    survives(&["removed", "gone"], "");
}

/// The helper also writes to the page, after the end of the program.
#[test]
fn a_file_that_is_cut_short_under_a_helper() {
    survives(
        &["cut", "removed", "gone"],
        ",exit=detached,exit_threshold=32M",
    );
}

#[test]
fn a_full_file_system() {
    if !only_ebbtide(PROMISE) || !needs_root("a mount") {
        return;
    }
    for taken in [4096, 8192] {
        let dir = tempfile::tempdir().expect("temporary directory");
        Run::new(c_program("figures"))
            .args(&format!("full {} {taken}", dir.path().display()))
            .timeout(60)
            .ok();
    }
}

/// A write beyond the file size limit would end the program by SIGXFSZ.
#[test]
fn a_limit_for_sizes_of_files() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let run = figures("none", "", dir.path());
    run.limit(libc::RLIMIT_FSIZE, 4096).ok_with_ebbtide(PROMISE);
}

/// The figures at the end, written by the process and by its helper.
#[test]
fn the_last_figures_are_there() {
    leaves("kept", ",exit=detached,exit_threshold=32M", |word| {
        for place in [END_NS, HELPER] {
            assert!(word(place) > 0, "{place}");
        }
        assert!(word(RELEASED) >= 200 << 20);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while word(LEFT_NS) == 0 {
            assert!(std::time::Instant::now() < end, "the helper said nothing");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        while word(DETACHED) == 0 {
            assert!(std::time::Instant::now() < end, "the end is not counted");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(word(FALLEN_BACK), 0);
    });
}

/// An end counts as fallen back where a helper was wanted and is not possible: as for the first process of a container.
#[test]
fn an_end_without_its_helper_is_counted() {
    leaves("kept", ",exit=inline", |word| {
        assert_eq!((word(DETACHED), word(FALLEN_BACK)), (0, 0), "none wanted");
    });
    leaves("kept", ",exit=detached,exit_threshold=64G", |word| {
        assert_eq!((word(DETACHED), word(FALLEN_BACK)), (0, 0), "too small");
    });
    if !only_ebbtide(PROMISE) || !needs_root("a process namespace") {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = dir.path().display();
    let program = c_program("figures");
    let conf = format!("stats_dir={place},dev=pages:all,exit=detached,exit_threshold=32M");
    Run::new("unshare")
        .args(&format!(
            "-pf --mount-proc {} kept {place}",
            program.display()
        ))
        .conf(&conf)
        .timeout(60)
        .ok();
    let page = std::fs::read(dir.path().join("1.ebb")).expect("the page of process 1");
    let value =
        |place: usize| u64::from_le_bytes(page[place * 8..][..8].try_into().expect("8 bytes"));
    assert_eq!((value(DETACHED), value(FALLEN_BACK)), (0, 1));
}

/// A process continues after its first thread has ended. That thread has no memory any more.
#[test]
fn the_first_thread_has_ended() {
    for conf in ["", ",workers=0"] {
        leaves("leaderless", conf, |word| {
            assert!(word(END_NS) > 0, "{conf}");
            assert!(word(RELEASED) >= 200 << 20, "{conf}");
        });
    }
}

#[test]
fn a_filter_that_refuses_the_copies() {
    for conf in ["", ",workers=0"] {
        leaves("refused", conf, |word| {
            assert!(word(END_NS) > 0, "{conf}");
            // The bit of `process_vm_writev` in the list of features.
            assert!(word(REFUSED) >> 13 & 1 == 1, "{conf}");
            assert!(word(RELEASED) >= 200 << 20, "{conf}");
        });
    }
}
