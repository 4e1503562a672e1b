//! Runs of `c/stress.c`: thread counts, migration, one CPU, and the fallback modes.

use ebbtide_tests::{Run, c_program, have, skip};

fn stress(args: &str) -> Run {
    Run::new(c_program("stress")).args(args).timeout(60)
}

#[test]
fn one_thread() {
    stress("seed=1 threads=1 seconds=2 gens=3 trim").ok();
}

#[test]
fn two_threads() {
    stress("seed=2 threads=2 seconds=3 gens=3").ok();
}

#[test]
fn eight_threads_migrating() {
    stress("seed=3 threads=8 seconds=4 gens=8 migrate trim").ok();
}

#[test]
fn thirty_two_threads() {
    stress("seed=4 threads=32 seconds=3 gens=6").ok();
}

#[test]
fn short_lived_threads() {
    stress("seed=5 threads=16 seconds=3 gens=60").ok();
}

#[test]
fn large_objects() {
    stress("seed=6 threads=4 seconds=3 live=1024 trim").ok();
}

#[test]
fn one_cpu() {
    if !have("taskset") {
        return skip("taskset");
    }
    let program = c_program("stress");
    Run::new("taskset")
        .args("-c 0")
        .arg(program)
        .args("seed=7 threads=8 seconds=3 gens=4 trim")
        .ok();
}

#[test]
fn without_rseq() {
    stress("seed=8 threads=8 seconds=3 gens=4 migrate trim").conf("rseq=off").ok();
}

#[test]
fn glibc_keeps_rseq_to_itself() {
    stress("seed=9 threads=8 seconds=3 gens=4 migrate")
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .ok();
}

#[test]
fn frame_by_frame() {
    stress("seed=10 threads=8 seconds=3 gens=4 trim").conf("cluster=off").ok();
}

#[test]
fn no_workers_inline_gather() {
    stress("seed=11 threads=8 seconds=3 gens=4 trim").conf("workers=0,gather=inline").ok();
}

#[test]
fn lazyfree_always() {
    stress("seed=12 threads=4 seconds=3 gens=4 trim").conf("lazyfree=always").ok();
}

#[test]
fn depopulate_off() {
    stress("seed=13 threads=4 seconds=2 gens=4 trim").conf("depopulate=off").ok();
}

#[test]
fn hardened() {
    stress("seed=14 threads=4 seconds=2 gens=4 trim").conf("harden=on").ok();
}
