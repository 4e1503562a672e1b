//! Positive controls: libraries with one planted fault each (`c/faulty`) must fail the runs that should find the
//! fault. They wrap glibc's malloc, so that they work without the library under test.

use ebbtide_tests::{Run, c_library, c_program, have, only_ebbtide, skip};

/// Runs `program args` under the faulty library.
fn run(fault: &str, program: &str, args: &str, seconds: u64) -> Result<(), String> {
    let library = c_library(&format!("faulty/{fault}"));
    Run::new(c_program(program))
        .args(args)
        .preload(&library)
        .timeout(seconds)
        .run()
        .verdict()
}

fn is_found(fault: &str, program: &str, args: &str) {
    assert!(
        run(fault, program, args, 10).is_err(),
        "{program} {args} does not find {fault}"
    );
}

const STRESS: &str = "seed=1 threads=4 seconds=1 gens=2";
const SOAK: &str = "seed=1 threads=4 seconds=2";

/// The wrapper alone passes: so the fault causes the failures below.
#[test]
fn no_fault() {
    for topic in [
        "basic", "too_big", "align", "zero", "resize", "usable", "errno", "trim",
    ] {
        run("none", "api", topic, 60).unwrap();
    }
    run("none", "stress", STRESS, 60).unwrap();
    run("none", "soak", SOAK, 60).unwrap();
    run("none", "fork", "main 4 20", 60).unwrap();
    run("none", "vfork", "3 20", 60).unwrap();
}

#[test]
fn calloc_that_does_not_zero() {
    is_found("calloc_dirty", "api", "zero");
    is_found("calloc_dirty", "api", "mix");
    is_found("calloc_dirty", "stress", STRESS);
    is_found("calloc_dirty", "soak", SOAK);
}

#[test]
fn memalign_that_does_not_align() {
    is_found("memalign_off", "api", "align");
    is_found("memalign_off", "stress", STRESS);
    is_found("memalign_off", "soak", SOAK);
}

#[test]
fn realloc_that_loses_the_tail() {
    is_found("realloc_tail", "api", "resize");
    is_found("realloc_tail", "stress", STRESS);
    is_found("realloc_tail", "soak", SOAK);
}

#[test]
fn free_that_changes_errno() {
    is_found("free_errno", "api", "errno");
    is_found("free_errno", "stress", STRESS);
    is_found("free_errno", "soak", SOAK);
}

#[test]
fn an_object_handed_out_twice() {
    is_found("handed_out_twice", "stress", STRESS);
    is_found("handed_out_twice", "vfork", "2 20");
}

#[test]
fn an_object_scribbled_on() {
    is_found("scribble", "stress", STRESS);
    is_found("scribble", "fork", "main 4 20");
    is_found("scribble", "limits", "work 64");
}

#[test]
fn usable_size_that_is_not() {
    is_found("usable_more", "api", "usable");
}

#[test]
fn memory_that_never_comes_back() {
    is_found("trim_nothing", "api", "trim");
    is_found(
        "trim_nothing",
        "stress",
        "seed=1 threads=4 seconds=2 gens=2 back",
    );
}

#[test]
fn sizes_that_wrap() {
    is_found("overflow", "api", "too_big");
}

#[test]
fn a_lock_held_across_fork() {
    is_found("fork_lock", "fork", "main 6 20");
    is_found("fork_lock", "fork", "_fork 6 20");
    is_found("fork_lock", "soak", "seed=1 threads=4 seconds=5");
}

#[test]
fn a_cache_that_is_not_the_callers() {
    is_found("vfork_cache", "vfork", "4 60 hop");
    is_found(
        "vfork_cache",
        "stress",
        "seed=3 threads=8 seconds=2 migrate",
    );
}

/// The same with the real library: without its `vfork` guard, children that share the parent's caches must visibly
/// break them.
#[test]
fn vfork_without_the_guard() {
    let conf = "dev=vfork_guard:off";
    if !only_ebbtide("has a vfork guard") {
        return;
    }
    let found = ["3 150 pin=other", "4 150 hop", "3 150 pin=same", "6 150"]
        .iter()
        .any(|args| {
            let run = Run::new(c_program("vfork"))
                .args(args)
                .conf(conf)
                .timeout(20);
            run.run().verdict().is_err()
        });
    assert!(found, "the vfork runs do not notice a missing guard");
}

#[test]
fn out_of_memory_that_kills() {
    let library = c_library("faulty/deaf");
    let limit = 256 << 20;
    let oom = |run: Run| {
        run.args(&format!("oom {limit}"))
            .limit(libc::RLIMIT_AS, limit)
            .run()
    };
    assert!(
        oom(Run::new(c_program("limits")).preload(&library))
            .verdict()
            .is_err()
    );
}

#[test]
fn a_thread_before_it_is_needed() {
    if Run::new(c_program("limits"))
        .arg("newuser")
        .plain()
        .run()
        .verdict()
        .is_err()
    {
        return skip("user namespaces are off here");
    }
    is_found("eager_thread", "limits", "newuser");
}

/// Tests the harness itself: a program that hangs is killed, with the processes that it started.
#[test]
fn a_program_that_hangs() {
    if !have("sleep") {
        return skip("sleep");
    }
    let outcome = Run::new("sh")
        .arg("-c")
        .arg("sleep 77 & sleep 78")
        .plain()
        .timeout(1)
        .run();
    assert!(outcome.timed_out && outcome.elapsed.as_secs() < 5);
}
