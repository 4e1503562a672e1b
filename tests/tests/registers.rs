//! Tests the registration for rseq that the library makes where the C library makes none: `c/registers.c`. glibc 2.35 and
//! later makes none if told so. `vfork.rs` and `stress.rs` have such runs too.

use ebbtide_tests::{Run, c_library, c_program, library, only_ebbtide};

fn run(args: &str) -> Run {
    Run::new(c_program("registers"))
        .args(args)
        .without_libc_rseq()
        .timeout(60)
}

fn registers(args: &str) {
    if only_ebbtide("registers threads") {
        run(args).ok();
    }
}

#[test]
fn every_thread_on_its_first_slow_path() {
    registers("threads");
}

#[test]
fn threads_that_end() {
    registers("exits 4");
}

#[test]
fn children_of_vfork_stay_out() {
    registers("vfork");
}

#[test]
fn children_in_the_same_memory_stay_out() {
    registers("clone");
}

#[test]
fn forked_children_keep_it() {
    registers("fork");
}

#[test]
fn no_registration_under_a_late_filter() {
    registers("filter");
}

#[test]
fn a_filter_refuses_from_the_start() {
    registers("refused");
}

#[test]
fn a_thread_keeps_its_own_registration() {
    registers("other");
}

#[test]
fn handlers_while_threads_register() {
    registers("handler 4");
}

#[test]
fn none_with_rseq_off() {
    if only_ebbtide("registers threads") {
        run("none").conf("rseq=off").ok();
    }
}

/// The second library only says that it will register.
#[test]
fn none_beside_another_owner() {
    if !only_ebbtide("registers threads") {
        return;
    }
    let library = library().expect("a library");
    for other in ["own_rseq", "own_rseq_abi"] {
        let both = format!("{}:{}", library.display(), c_library(other).display());
        run("none").env("LD_PRELOAD", both).ok();
    }
}

#[test]
fn threads_made_before_the_library_was_opened() {
    if !only_ebbtide("registers threads") {
        return;
    }
    let library = library().expect("a library");
    run("dlopen").arg(library).plain().ok();
}

/// Other programs of these tests.
fn also(program: &str, args: &str) {
    Run::new(c_program(program))
        .args(args)
        .without_libc_rseq()
        .timeout(150)
        .ok();
}

#[test]
fn forks_of_a_busy_parent() {
    also("fork", "main 6 20");
    also("fork", "nested 4 8");
}

#[test]
fn forks_without_handlers() {
    if only_ebbtide("recovers children that skip atfork") {
        also("fork", "_fork 4 20");
        also("fork", "clone 4 20");
    }
}

#[test]
fn vforks_of_a_busy_parent() {
    also("vfork", "3 40 hop");
    also("vfork", "3 40 pin=other");
}

#[test]
fn signals_at_any_moment() {
    for case in ["storm", "usr", "step", "cancel"] {
        also("signals", case);
    }
}

#[test]
fn constructors_destructors_and_keys() {
    also("life", "ends");
}

#[test]
fn per_cpu_data() {
    if only_ebbtide("has per-CPU data") {
        also("percpu", "1 move");
    }
}

#[test]
fn workers_beside_much_tls() {
    also("tls", "");
}
