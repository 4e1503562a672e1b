//! A helper takes memory back after the program's end.

use ebbtide_tests::{Cgroup, Run, c_program, ensure_installed, is_ebbtide, is_root, library, skip};

fn program(mode: &str, conf: &str) -> Run {
    program_of("reaper", mode, conf)
}

fn program_of(name: &str, mode: &str, conf: &str) -> Run {
    let conf = format!("exit=detached,exit_threshold=32M{conf}");
    Run::new(c_program(name)).args(mode).conf(&conf).timeout(60)
}

fn reaper(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide has a helper");
    }
    // Nobody else's helpers before these in the slots.
    let places = tempfile::tempdir().expect("temporary directory");
    program(mode, conf)
        .env("XDG_RUNTIME_DIR", places.path())
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
    reaper("exit", ",dev=teardown_workers:16");
    reaper("kill", ",dev=teardown_workers:16,thp=off");
}

#[test]
fn an_exec_lets_go() {
    reaper("exec", "");
}

#[test]
fn execs_leave_no_helpers() {
    if !is_ebbtide() {
        return skip("only Ebbtide has a helper");
    }
    program_of("reaper_execs", "4", "").ok();
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

/// `ebbtide run --exit=…`: the summary says how long the end took, what that is counted from, and when memory
/// was back.
fn summary_of(words: &str, exit: &str) -> Option<[Option<String>; 3]> {
    let program = library()?.with_file_name("ebbtide");
    if !is_ebbtide() || !program.exists() {
        skip("no ebbtide beside the library");
        return None;
    }
    let run = Run::new(&program)
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
    if !is_ebbtide() {
        return skip("only Ebbtide has a helper");
    }
    let end = program("off", ",syscalls=basic").run();
    let told = end
        .stderr
        .contains("not possible with syscalls=basic in \"exit=detached\"");
    assert!(
        end.status.success() && told,
        "{}",
        end.describe("is silent")
    );
}

/// A program of 240 MiB in a group is killed, while no helper is admitted. `container`: in a namespace of cgroups, with the
/// group mounted as its root.
fn killed_in_a_group(limit_mib: u64, container: bool, how: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide has a helper");
    }
    if !is_root() || !ensure_installed("unshare", "util-linux") {
        return skip("a memory cgroup and a namespace need root");
    }
    let name = format!("short-{limit_mib}-{container}");
    let group = match Cgroup::with_memory_max(&name, limit_mib << 20) {
        Ok(group) => group,
        Err(why) => return skip(&why),
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
    reaper("vfork", ",exit_threshold=0");
}
