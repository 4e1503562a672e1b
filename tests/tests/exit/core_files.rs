//! Core files of a process whose memory is a helper's too.

use std::fs;

use ebbtide_tests::{Run, c_program, core_files_here, skip};

use super::{DETACHED, has_helper};

/// How many of the 48 blocks a core file of the program has; `None` where none is written.
pub(super) fn blocks_in_core(run: Run) -> Option<usize> {
    const TEXT: &[u8] = b"heap-pattern-for-the-core-file";
    let dir = tempfile::tempdir().expect("temporary directory");
    let outcome = run
        .args("core")
        .dir(dir.path())
        .limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY)
        .run();
    assert!(
        outcome.killed_by(libc::SIGABRT),
        "{}",
        outcome.describe("should end by SIGABRT")
    );
    let files = fs::read_dir(dir.path()).expect("list");
    let core = files
        .filter_map(|f| Some(f.ok()?.path()))
        .find(|p| p.to_string_lossy().contains("core"))?;
    let core = fs::read(core).expect("core file");
    // Aligned as in memory: the middle of a block, wherever that begins.
    let found = core
        .chunks_exact(8)
        .enumerate()
        .filter(|(_, word)| *word == &TEXT[..8])
        .filter(|(at, _)| core[at * 8..].starts_with(TEXT))
        .count();
    Some(found)
}

#[test]
fn core_files_are_whole() {
    if !has_helper() {
        return;
    }
    let program = c_program("exit_debug");
    let Some(_pattern) = core_files_here() else {
        return;
    };
    let plain = Run::new(&program).plain().env("NO_HELPER", "1");
    let Some(usual) = blocks_in_core(plain) else {
        return skip("no core file is written here");
    };
    assert_eq!(usual, 48);
    for conf in ["", ",dev=teardown_workers:4", ",thp=off"] {
        let conf = format!("{DETACHED}{conf}");
        let blocks = blocks_in_core(Run::new(&program).conf(&conf));
        assert_eq!(blocks, Some(48), "{conf}");
    }
}
