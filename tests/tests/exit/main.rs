//! The end of a large process under `exit=detached`: every way to die, and what its parent and others see at once.
//! `c/exit.c` and the programs beside it start, end and watch the processes.

mod controls;
mod core_files;
mod memory;
mod odd;
mod programs;

use std::path::PathBuf;

use ebbtide_tests::{Outcome, Run, c_program, ensure_installed, library, only_ebbtide, skip};

const MIB: u64 = 1 << 20;
const DETACHED: &str = "exit=detached,exit_threshold=32M";

/// The library as it should be, or says why not.
fn has_helper() -> bool {
    only_ebbtide("has a helper")
}

fn detached(program: &str, args: &str) {
    detached_with(program, args, "");
}

fn detached_with(program: &str, args: &str, more: &str) {
    if has_helper() {
        in_slots_of_its_own(Run::new(c_program(program)).args(args), more).ok();
    }
}

/// No other program's helpers are waited for.
fn in_slots_of_its_own(run: Run, more: &str) -> Outcome {
    let places = tempfile::tempdir().expect("temporary directory");
    run.env("XDG_RUNTIME_DIR", places.path())
        .conf(&format!("{DETACHED}{more}"))
        .timeout(110)
        .run()
}

/// `ebbtide` or `ebbtide-bench`, beside the library.
fn built_program(name: &str) -> Option<PathBuf> {
    let program = library()?.with_file_name(name);
    if !program.is_file() {
        skip(&format!("the program {name} is not built"));
        return None;
    }
    Some(program)
}

#[test]
fn every_way_to_die() {
    detached("exit", "ways");
}

#[test]
fn a_terminal_that_hangs_up() {
    detached("exit", "hangup");
}

/// 1 GiB of small pages takes the kernel 20 ms and more; the helper makes it a part of one.
#[test]
fn the_end_is_seen_at_once() {
    detached_with("exit_seen", "seen 5", ",thp=off");
}

#[test]
fn ports_are_free_at_once() {
    detached("exit_seen", "port");
}

#[test]
fn pipes_end_at_once() {
    detached("exit_seen", "pipe");
}

#[test]
fn locks_are_free_at_once() {
    detached("exit_seen", "flock");
}

#[test]
fn waiting_finds_no_helper() {
    detached("exit", "waits");
}

#[test]
fn a_helper_that_is_killed() {
    detached("exit", "killed");
}

#[test]
fn a_spawned_child_that_outlives_its_parent() {
    detached("exit", "spawned");
}

#[test]
fn a_small_program_has_no_helper() {
    if has_helper() {
        let run = Run::new(c_program("exit")).args("small");
        run.conf("exit=detached").ok();
    }
}

#[test]
fn traced_programs() {
    detached("exit_debug", "traced");
}

#[test]
fn gdb_attaches() {
    if ensure_installed("gdb", "gdb") {
        detached("exit_debug", "attach");
    }
}
