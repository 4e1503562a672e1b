//! A helper takes memory back after the program's end: `c/reaper.c`, `c/reaper_beside.c`, `c/reaper_execs.c`, `c/reaper_short.c`.

use ebbtide_tests::{
    Cgroup, Run, c_program, command_line, ensure_installed, needs_root, only_ebbtide,
};

const PROMISE: &str = "has a helper";

fn program(name: &str, mode: &str, conf: &str) -> Run {
    let conf = format!("exit=detached,exit_threshold=32M{conf}");
    Run::new(c_program(name)).args(mode).conf(&conf).timeout(60)
}

fn run(name: &str, mode: &str, conf: &str) {
    // Nobody else's helpers before these in the slots.
    let places = tempfile::tempdir().expect("temporary directory");
    program(name, mode, conf)
        .env("XDG_RUNTIME_DIR", places.path())
        .ok_with_ebbtide(PROMISE);
}

/// What is left by programs that end.
fn reaper(mode: &str, conf: &str) {
    run("reaper", mode, conf);
}

/// A helper beside a program that goes on.
fn beside(mode: &str, conf: &str) {
    run("reaper_beside", mode, conf);
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
    reaper("exit", ",dev=teardown_workers:16");
    reaper("kill", ",dev=teardown_workers:16,thp=off");
}

#[test]
fn an_exec_lets_go() {
    beside("exec", "");
}

#[test]
fn execs_leave_no_helpers() {
    program("reaper_execs", "4", "").ok_with_ebbtide(PROMISE);
}

#[test]
fn an_exec_by_another_thread_lets_go() {
    beside("thread", "");
}

#[test]
fn joining_the_main_thread() {
    beside("join", "");
    beside("joined", "");
}

#[test]
fn a_vfork_child_that_outlives_its_parent() {
    beside("vfork", "");
}

#[test]
fn descriptors_go_with_the_program() {
    reaper("apart", "");
}

#[test]
fn a_word_that_is_not_libcs() {
    beside("moved", "");
}

#[test]
fn forked_children() {
    beside("fork", "");
}

#[test]
fn what_it_may() {
    beside("rights", "");
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

/// `ebbtide run --exit=…`: the summary says how long the end took, what that is counted from, and when memory
/// was back.
fn summary_of(words: &str, exit: &str) -> Option<[Option<String>; 3]> {
    if !only_ebbtide(PROMISE) {
        return None;
    }
    let run = Run::new(command_line()?)
        .plain()
        .args("run --conf exit_threshold=32M --summary=json")
        .arg(format!("--exit={exit}"))
        .arg("--")
        .arg(c_program("reaper"))
        .args(words)
        .run();
    let value = |key: &str| {
        let behind = run.stderr.split(&format!("\"{key}\":")).nth(1);
        let value = behind.and_then(|behind| behind.split([',', '}']).next());
        let value = value.unwrap_or_else(|| panic!("{}", run.describe(&format!("has no {key}"))));
        (value != "null").then(|| value.trim_matches('"').to_owned())
    };
    Some(["end_seen_ns", "end_seen_since", "memory_back_ns"].map(value))
}

#[test]
fn run_tells_of_each_end() {
    for (how, since) in [
        ("exit", "exit"),
        ("quick", "leaving"),
        ("_exit", "leaving"),
        ("abort", "leaving"),
        ("segv", "leaving"),
        ("kill", "leaving"),
    ] {
        let Some([seen, from, back]) = summary_of(&format!("alone {how}"), "detached") else {
            return;
        };
        let ns = |value: &Option<String>| value.as_ref().and_then(|v| v.parse::<u64>().ok());
        assert!(
            ns(&seen).is_some_and(|ns| ns < 1_000_000_000),
            "{how}: {seen:?}"
        );
        assert_eq!(from.as_deref(), Some(since), "{how}");
        assert!(ns(&back).is_some_and(|ns| ns > 0), "{how}: {back:?}");
    }
}

/// Without a helper nobody knows of ends out of order.
#[test]
fn run_says_what_it_does_not_know() {
    let Some([seen, from, back]) = summary_of("alone exit", "inline") else {
        return;
    };
    assert!(seen.is_some() && from.as_deref() == Some("exit"));
    assert_eq!(back.as_deref(), Some("0"));
    let Some([seen, from, back]) = summary_of("alone kill", "inline") else {
        return;
    };
    assert_eq!((seen, from, back.as_deref()), (None, None, Some("0")));
}

#[test]
fn a_small_program_has_none() {
    reaper("none", "");
}

#[test]
fn none_without_the_key() {
    reaper("off", ",exit=inline");
}

/// And it says so.
#[test]
fn none_with_few_calls() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let end = program("reaper", "off", ",syscalls=basic").run();
    let line = "\"exit=detached\" is ignored: not possible with syscalls=basic";
    let told = end.stderr.contains(line);
    assert!(
        end.status.success() && told,
        "{}",
        end.describe("is silent")
    );
}

/// A program of 240 MiB in a group is killed, while no helper is admitted. `container`: in a namespace of cgroups, with the
/// group mounted as its root.
fn killed_in_a_group(limit_mib: u64, container: bool, how: &str) {
    if !only_ebbtide(PROMISE)
        || !needs_root("a namespace")
        || !ensure_installed("unshare", "util-linux")
    {
        return;
    }
    let name = format!("short-{limit_mib}-{container}");
    let Some(group) = Cgroup::limited(&name, limit_mib << 20) else {
        return;
    };
    let mount = group.dir().parent().expect("a mount point").to_owned();
    let kind = match group.file("memory.max").exists() {
        true => "cgroup2",
        false => "cgroup -o memory",
    };
    let script = match container {
        true => "umount -l $MOUNT; mount -t $KIND none $MOUNT; exec \"$@\"",
        false => "exec \"$@\"",
    };
    let places = tempfile::tempdir().expect("temporary directory");
    Run::new("unshare")
        .args(if container { "-m -C" } else { "-m" })
        .args("sh -ec")
        .arg(script)
        .arg("sh")
        .arg(c_program("reaper_short"))
        .args(&format!("240 {how}"))
        .conf("exit=detached,exit_threshold=32M")
        .env("MOUNT", mount)
        .env("KIND", kind)
        .env("XDG_RUNTIME_DIR", places.path())
        .cgroup(&group)
        .ok();
}

#[test]
fn short_of_memory_it_does_not_wait_for_admission() {
    killed_in_a_group(256, false, "soon");
    // The control: there is enough.
    killed_in_a_group(1024, false, "later");
}

/// What `/proc/self/cgroup` names there is "/", and the limit that of the root that it sees.
#[test]
fn the_limit_of_a_container_is_seen() {
    killed_in_a_group(256, true, "soon");
    killed_in_a_group(1024, true, "later");
}

#[test]
fn from_the_first_call_on() {
    reaper("exit", ",exit_threshold=0");
    beside("vfork", ",exit_threshold=0");
}
