//! A helper takes memory back after the program's end.

use ebbtide_tests::{Run, c_program, is_ebbtide, library, skip};

fn reaper(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide has a helper");
    }
    let conf = format!("exit=detached,exit_threshold=32M{conf}");
    Run::new(c_program("reaper"))
        .args(mode)
        .conf(&conf)
        .timeout(60)
        .ok();
}

#[test]
fn every_way_to_end() {
    for how in [
        "exit", "_exit", "quick", "kill", "segv", "abort", "term", "hup", "leave",
    ] {
        reaper(how, "");
    }
}

#[test]
fn ends_with_many_threads() {
    reaper("exit", ",teardown_workers=16");
    reaper("kill", ",teardown_workers=16,thp=off");
}

#[test]
fn an_exec_lets_go() {
    reaper("exec", "");
}

#[test]
fn an_exec_by_another_thread_lets_go() {
    reaper("thread", "");
}

#[test]
fn joining_the_main_thread() {
    reaper("join", "");
    reaper("joined", "");
}

#[test]
fn a_vfork_child_that_outlives_its_parent() {
    reaper("vfork", "");
}

#[test]
fn descriptors_go_with_the_program() {
    reaper("apart", "");
}

#[test]
fn a_word_that_is_not_libcs() {
    reaper("moved", "");
}

#[test]
fn forked_children() {
    reaper("fork", "");
}

#[test]
fn what_it_may() {
    reaper("rights", "");
}

#[test]
fn many_short_programs_leave_nothing_behind() {
    reaper("many", "");
    reaper("many", ",exit_threshold=0");
}

#[test]
fn no_process_to_be_had() {
    reaper("limit", "");
}

/// `ebbtide run --exit=detached`: the summary says when memory was back.
#[test]
fn run_waits_for_the_helper() {
    let Some(program) = library().map(|path| path.with_file_name("ebbtide")) else {
        return skip("only Ebbtide has a helper");
    };
    if !is_ebbtide() || !program.exists() {
        return skip("no ebbtide beside the library");
    }
    let run = Run::new(&program)
        .plain()
        .args("run --exit=detached --conf exit_threshold=32M --summary=json --")
        .arg(c_program("reaper"))
        .arg("plain")
        .run();
    let number = |key: &str| {
        let behind = run.stderr.split(&format!("\"{key}\":")).nth(1)?;
        behind.split([',', '}']).next()?.parse::<u64>().ok()
    };
    assert!(run.status.success(), "{}", run.describe("failed"));
    assert!(
        number("end_seen_ns").is_some_and(|ns| ns > 0),
        "{}",
        run.describe("has no latency")
    );
    assert!(
        number("memory_back_ns").is_some_and(|ns| ns > 0),
        "{}",
        run.describe("did not wait")
    );
}

#[test]
fn a_small_program_has_none() {
    reaper("none", "");
}

#[test]
fn none_without_the_key_or_with_few_calls() {
    reaper("off", ",exit=inline");
    reaper("off", ",syscalls=basic");
}

#[test]
fn from_the_first_call_on() {
    reaper("exit", ",exit_threshold=0");
    reaper("vfork", ",exit_threshold=0");
}
