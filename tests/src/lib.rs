//! The harness of the process-level tests of `libebbtide.so` (see `tests/tests`).
//!
//! A test compiles a small C program ([`c_program`]), runs it or any other program with the library
//! preloaded ([`Run`]) and judges exit status, output and time ([`Outcome`]).
//!
//! The library under test is `EBBTIDE_LIB`, else `release/libebbtide.so` in `EBBTIDE_BUILT`, `CARGO_TARGET_DIR` or
//! `target`. The program `ebbtide` lies beside it.
//! `EBBTIDE_LIB=none` runs everything on libc's own malloc, any other path on that library. Tests of promises that
//! only Ebbtide makes are skipped there ([`is_ebbtide`]).
//!
//! Invariants:
//! - INV-TESTS-1: nothing here builds the library; a missing one is one line that names the remedy.
//! - INV-TESTS-2: no run outlives its time limit: its whole process group is killed.
//! - INV-TESTS-3: a changed system setting is restored even if the test process is killed
//!   ([`Sysctl`]), and no other run of this test process overlaps with the change.
//! - INV-TESTS-4: a test that cannot run says `skipped: reason` on the real stderr.

mod archive;
mod build;
mod guest;
mod image;
mod machine;
pub mod matrix;
pub mod others;
mod processor;
mod results;
mod run;

pub use build::{
    c_library, c_library_for_musl, c_program, c_program_for_musl, c_program_with, c_static_program,
    c_static_program_for_musl, c_variant, compile, cxx_variant,
};
pub use guest::{Guest, Machine, by_hand};
pub use machine::{Cgroup, Sysctl, core_files_here, ensure_installed, have, is_root, needs_root};
pub use processor::Processor;
pub use run::{
    Outcome, Run, command_line, is_ebbtide, known, library, make, names_process, only_ebbtide,
};

use std::io::Write;

/// Prints why a test does not run. It bypasses the test runner's capture, so that it is always visible.
pub fn skip(reason: &str) {
    let line = format!("skipped: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
