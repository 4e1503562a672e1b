//! Programs in emulated machines (`src/guest.rs`): 8 processors on 2 memory nodes, processors that come and
//! go, control groups of version 2, and a kernel of 2022.

use ebbtide_tests::{Guest, Machine, Processor, is_ebbtide, known, only_ebbtide};

/// 8 processors on 2 nodes.
const WIDE: Machine = Machine {
    name: "wide",
    processor: Processor::X86_64,
    arguments: "-m 1280 -smp 8 \
        -object memory-backend-ram,id=near,size=640M -numa node,cpus=0-3,memdev=near \
        -object memory-backend-ram,id=far,size=640M -numa node,cpus=4-7,memdev=far",
};

/// 2 processors where 8 could be.
const SPARSE: Machine = Machine {
    name: "sparse",
    processor: Processor::X86_64,
    arguments: "-m 640 -smp 2,maxcpus=8",
};

/// One line of shell, which must end well in that time.
fn wide(command: &str, seconds: u64) {
    if let Some(mut guest) = Guest::of(&WIDE) {
        guest.ok(command, seconds);
    }
}

fn wide_with(conf: &str, program: &str, seconds: u64) {
    wide(&format!("EBBTIDE_CONF={} {program}", known(conf)), seconds);
}

#[test]
fn the_machine_is_as_wanted() {
    let Some(mut guest) = Guest::of(&WIDE) else {
        return;
    };
    let outcome = guest.ok(
        "cat /sys/devices/system/cpu/online /sys/devices/system/node/online; \
         grep -o memory /sys/fs/cgroup/cgroup.controllers",
        10,
    );
    assert_eq!(outcome.stdout, "0-7\n0-1\nmemory\n");
}

#[test]
fn stress_on_eight_processors() {
    wide(
        "stress seed=21 threads=8 seconds=2 live=128 gens=3 migrate trim",
        40,
    );
}

#[test]
fn stress_between_the_nodes() {
    wide(
        "taskset 81 stress seed=22 threads=8 seconds=1.5 live=64 gens=2 migrate",
        40,
    );
}

#[test]
fn stress_without_rseq() {
    wide_with(
        "rseq=off",
        "stress seed=23 threads=8 seconds=1.5 live=64 gens=2 migrate",
        40,
    );
}

#[test]
fn stress_with_more_zones() {
    wide_with(
        "dev=zones:8",
        "stress seed=24 threads=12 seconds=1.5 live=128 gens=3 migrate trim",
        40,
    );
}

#[test]
fn the_c_interface() {
    wide(
        "for topic in basic align mix resize trim; do api $topic || exit 1; done",
        60,
    );
}

#[test]
fn forks_of_busy_parents() {
    wide("fork main 4 8 && fork thread 3 5 && fork nested 2 3", 60);
}

#[test]
fn children_that_skip_the_handlers() {
    if !only_ebbtide("recovers children that skip atfork") {
        return;
    }
    wide("fork _fork 4 5 && fork clone 4 5", 60);
}

#[test]
fn vfork_children() {
    wide("vfork 4 15 && vfork 3 15 hop && vfork 3 15 pin=other", 60);
    let guarded = if is_ebbtide() { "guarded" } else { "" };
    wide(&format!("vfork_rules {guarded} nested"), 60);
}

#[test]
fn memory_comes_back() {
    if !only_ebbtide("promises this") {
        return;
    }
    wide(
        "give_back large && EBBTIDE_CONF=rseq=off give_back large",
        60,
    );
}

#[test]
fn processors_go_and_come_back() {
    wide(
        "processors 2 && EBBTIDE_CONF=rseq=off processors 1 large",
        60,
    );
}

/// What the start counted is not what there is later.
#[test]
fn more_processors_than_at_the_start() {
    wide(
        "cpus=/sys/devices/system/cpu; \
         for n in 2 3 4 5 6 7; do echo 0 > $cpus/cpu$n/online; done; \
         stress seed=25 threads=8 seconds=2 live=64 gens=3 migrate & job=$!; \
         sleep 0.5; \
         for n in 2 3 4 5 6 7; do echo 1 > $cpus/cpu$n/online; done; \
         wait $job",
        60,
    );
}

#[test]
fn processors_that_could_be() {
    let Some(mut guest) = Guest::of(&SPARSE) else {
        return;
    };
    let outcome = guest.ok("cat /sys/devices/system/cpu/possible", 10);
    assert_eq!(outcome.stdout, "0-7\n");
    guest.ok("api basic && fork main 3 6 && fork clone 3 6", 40);
    guest.ok(
        "stress seed=26 threads=6 seconds=1 live=64 gens=2 migrate back",
        40,
    );
}

/// For what only Ebbtide promises.
fn sparse_with_ebbtide() -> Option<Guest> {
    if only_ebbtide("watches for pressure") {
        Guest::of(&SPARSE)
    } else {
        None
    }
}

/// Makes a group of version 2, with the shell in it.
fn in_group(name: &str) -> String {
    format!(
        "cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir -p {name}; \
         echo 0 > {name}/cgroup.procs; "
    )
}

/// Nobody is killed, and nobody is held up at the limit.
#[test]
fn a_group_nearly_full() {
    let Some(mut guest) = Guest::of(&SPARSE) else {
        return;
    };
    guest.ok(
        &format!(
            "{} echo 160M > t/memory.max; limits work 110",
            in_group("t")
        ),
        60,
    );
    let events = guest.ok("cat /sys/fs/cgroup/t/memory.events", 10).stdout;
    assert!(events.contains("oom 0\noom_kill 0\n"), "{events}");
}

/// Version 2: what would not fit goes back in time; without that, somebody is killed.
#[test]
fn garbage_goes_before_the_limit() {
    let Some(mut guest) = sparse_with_ebbtide() else {
        return;
    };
    let limited = format!("{} echo 256M > t/memory.max; ", in_group("t"));
    guest.ok(
        &format!(
            "{limited} export EBBTIDE_CONF=retain_ms=60000; near_limit grow && near_limit blocks"
        ),
        60,
    );
    let events = guest.ok("cat /sys/fs/cgroup/t/memory.events", 10).stdout;
    assert!(events.contains("oom 0\noom_kill 0\n"), "{events}");
    let control = guest.run(
        &format!("{limited} (EBBTIDE_CONF=retain_ms=60000,pressure=off near_limit grow)"),
        60,
    );
    assert!(control.verdict().is_err(), "{}", control.describe("lives"));
}

/// Version 2: limits that change under a program that does nothing. `memory.high` may be set below what is used.
#[test]
fn limits_that_change() {
    let Some(mut guest) = sparse_with_ebbtide() else {
        return;
    };
    // A group of its own: others end with somebody killed on purpose, and it is counted.
    let group = in_group("changing");
    let within = |limit: &str, mode: &str| {
        format!(
            "{group} echo {limit} > changing/memory.max; export EBBTIDE_CONF=retain_ms=60000 GROUP=$PWD/changing; \
             pressure_group {mode}; status=$?; echo max > changing/memory.high; exit $status"
        )
    };
    guest.ok(&within("512M", "lowered 64"), 30);
    guest.ok(&within("512M", "high 64"), 60);
    guest.ok(&within("max", "appears 64"), 30);
    guest.ok(&within("256M", "beside 64 220"), 30);
    let events = guest
        .ok("cat /sys/fs/cgroup/changing/memory.events", 10)
        .stdout;
    assert!(events.contains("oom 0\noom_kill 0\n"), "{events}");
}

/// Version 2: somebody stalls for memory in another group. It counts if the program was told to watch that
/// group, and only then.
#[test]
fn stalls_of_others() {
    let Some(mut guest) = sparse_with_ebbtide() else {
        return;
    };
    let beside_a_stall = |command: &str| {
        format!(
            "cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir -p other; \
             [ -e other/memory.pressure ] || {{ echo 'skipped: no PSI'; exit 0; }}; \
             echo 20M > other/memory.high; \
             (sleep 2; echo 0 > other/cgroup.procs; unset LD_PRELOAD; exec pressure_group hog 60) & \
             export EBBTIDE_CONF=retain_ms=60000; {command}"
        )
    };
    // The trigger is "some 150000 2000000".
    let watch = "MEMORY_PRESSURE_WATCH=$PWD/other/memory.pressure MEMORY_PRESSURE_WRITE=c29tZSAxNTAwMDAgMjAwMDAwMA==";
    guest.ok(
        &beside_a_stall(&format!("{watch} pressure_events stalled 64")),
        30,
    );
    guest.ok(&beside_a_stall("pressure_events stay"), 30);
}

/// Version 2: another group below the same parent meets its own limit. That is not this one's need.
#[test]
fn a_neighbour_at_its_limit() {
    let Some(mut guest) = sparse_with_ebbtide() else {
        return;
    };
    guest.ok(
        "cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir p; echo 600M > p/memory.max; \
         echo +memory > p/cgroup.subtree_control; mkdir p/a p/b; echo 20M > p/b/memory.high; \
         (echo 0 > p/b/cgroup.procs; unset LD_PRELOAD; while [ ! -e /tmp/over ]; do pressure_group hog 30; done) & \
         (echo 0 > p/a/cgroup.procs; exec env EBBTIDE_CONF=retain_ms=60000 pressure_events stay); status=$?; \
         touch /tmp/over; wait; grep 'high [1-9]' p/memory.events && exit $status",
        60,
    );
}

/// The harness itself: how a command ended is known, and one without an end takes its machine with it.
#[test]
fn endings_are_told_apart() {
    let Some(mut guest) = Guest::of(&SPARSE) else {
        return;
    };
    let failed = guest.run("echo one; echo two >&2; exit 3", 10);
    assert_eq!(failed.status.code(), Some(3));
    assert_eq!((&*failed.stdout, &*failed.stderr), ("one\n", "two\n"));
    assert!(guest.run("kill -SEGV $$", 10).killed_by(11));
    let endless = guest.run("sleep 100", 1);
    assert!(endless.timed_out && endless.verdict().is_err());
    drop(guest);
    let Some(mut guest) = Guest::of(&SPARSE) else {
        return;
    };
    guest.ok("! pidof sleep", 10);
}

const DETACHED: &str = "exit=detached,exit_threshold=32M";

#[test]
fn a_killed_program_is_gone_before_its_memory() {
    if only_ebbtide("has a helper") {
        wide_with(DETACHED, "reaper kill", 40);
    }
}

#[test]
fn a_large_child_makes_a_helper_of_its_own() {
    if only_ebbtide("has a helper") {
        wide_with(DETACHED, "reaper_beside fork", 40);
    }
}

#[test]
fn sums_over_eight_processors() {
    wide("percpu 1.5 move", 60);
    wide_with("rseq=off", "percpu 0.5 move", 60);
}

#[test]
fn sums_over_processors_that_go_and_come_back() {
    wide("percpu 2 processors", 60);
}

#[test]
#[ignore = "runs the commands in the variable GUEST"]
fn by_hand() {
    ebbtide_tests::by_hand(&WIDE, 120);
}
