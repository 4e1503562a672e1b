//! Runs `c/stress.c` with several thread counts, with migration, on one CPU, and in the fallback modes.

use ebbtide_tests::{Run, c_program, have, is_ebbtide, skip};

fn stress(args: &str) -> Run {
    let back = if is_ebbtide() { "back" } else { "" };
    Run::new(c_program("stress"))
        .args(args)
        .args(back)
        .timeout(60)
}

fn stress_in(conf: &str, args: &str) {
    stress(args).conf(conf).ok();
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
        .args("seed=7 threads=8 seconds=2 gens=4 trim")
        .ok();
}

#[test]
fn without_rseq() {
    stress_in("rseq=off", "seed=8 threads=8 seconds=2 gens=4 migrate trim");
}

#[test]
fn glibc_registers_no_rseq() {
    stress("seed=9 threads=8 seconds=2 gens=4 migrate trim")
        .without_libc_rseq()
        .ok();
}

#[test]
fn frame_by_frame() {
    stress_in("dev=cluster:off", "seed=10 threads=8 seconds=2 gens=4 trim");
}

#[test]
fn no_workers_inline_gather() {
    stress_in(
        "workers=0,dev=gather:inline",
        "seed=11 threads=8 seconds=2 gens=4 trim",
    );
}

#[test]
fn lazyfree_always() {
    stress_in("lazyfree=always", "seed=12 threads=4 seconds=2 gens=4 trim");
}

#[test]
fn depopulate_off() {
    stress_in(
        "dev=depopulate:off",
        "seed=13 threads=4 seconds=2 gens=4 trim",
    );
}

#[test]
fn hardened() {
    stress_in("harden=on", "seed=14 threads=4 seconds=2 gens=4 trim");
}
