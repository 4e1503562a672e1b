//! Tests sections and the portable mode on another processor: programs run in an emulated machine with 8 aarch64 processors.

use ebbtide_tests::{Guest, Machine, Processor, is_ebbtide};

/// 8 processors on 2 nodes.
const MACHINE: Machine = Machine {
    name: "aarch64",
    processor: Processor::Aarch64,
    arguments: "-m 1280 -smp 8 \
        -object memory-backend-ram,id=near,size=640M -numa node,cpus=0-3,memdev=near \
        -object memory-backend-ram,id=far,size=640M -numa node,cpus=4-7,memdev=far",
};

/// Runs one line of shell, which must succeed within that time.
fn ok(command: &str, seconds: u64) {
    if is_ebbtide()
        && let Some(mut guest) = Guest::of(&MACHINE)
    {
        guest.ok(command, seconds);
    }
}

#[test]
fn the_machine_is_as_wanted() {
    let Some(mut guest) = Guest::of(&MACHINE) else {
        return;
    };
    let outcome = guest.ok("uname -m; cat /sys/devices/system/cpu/online", 10);
    assert_eq!(outcome.stdout, "aarch64\n0-7\n");
}

/// The unit tests of the crates that use the kernel. They have an allocator of their own. Linux 6.1 to 6.5 leave some
/// huge pages out of `smaps_rollup`, those scanned for balancing between nodes. One of the tests compares with that
/// file.
#[test]
fn units() {
    ok(
        "unset LD_PRELOAD; echo 0 > /proc/sys/kernel/numa_balancing; \
         for test in /programs/unit-*; do $test --test-threads=4 || exit 1; done",
        200,
    );
}

/// Sections aborted at each of their numbered points. Its kernel and C library have sections: nothing may be skipped.
#[test]
fn sections_are_aborted() {
    ok(
        "unset LD_PRELOAD; for test in /programs/inject-*; do \
         $test abort --nocapture > /tmp/aborts 2>&1 || { cat /tmp/aborts; exit 1; }; \
         ! grep skipped /tmp/aborts || exit 1; done",
        200,
    );
}

#[test]
fn the_c_interface() {
    ok(
        "for topic in basic align mix resize trim; do api $topic || exit 1; done",
        60,
    );
}

#[test]
fn stress() {
    ok(
        "stress seed=31 threads=8 seconds=3 live=128 gens=3 migrate trim",
        60,
    );
}

#[test]
fn stress_in_the_portable_mode() {
    ok(
        "EBBTIDE_CONF=rseq=off stress seed=31 threads=8 seconds=3 live=128 gens=3 migrate trim",
        60,
    );
}

/// What a `vfork` child and its parent find of the registration, in all orders.
#[test]
fn vfork_rules() {
    ok(
        "for rule in names nested 'threads 4' handler jump fails; do vfork_rules $rule || exit 1; done",
        100,
    );
}

/// The library registers each thread, as with glibc before 2.35.
#[test]
fn registration_by_the_library() {
    ok(
        "export GLIBC_TUNABLES=glibc.pthread.rseq=0; \
         for topic in threads 'exits 2' vfork clone fork other; do registers $topic || exit 1; done; \
         stress seed=33 threads=8 seconds=2 live=128 gens=2 migrate trim && vfork_rules guarded own nested",
        120,
    );
}

/// With sections each fork interrupts all processors, which are emulated on few.
#[test]
fn forks() {
    ok(
        "fork main 4 8 && fork thread 3 5 && fork _fork 4 5 && fork clone 4 5 && vfork 4 8",
        100,
    );
}

#[test]
fn memory_comes_back() {
    ok("give_back large && give_back small", 60);
}

/// Memory that would exceed the limit is released in time.
#[test]
fn garbage_goes_before_the_limit() {
    ok(
        "cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir -p t; echo 0 > t/cgroup.procs; \
         echo 256M > t/memory.max; export EBBTIDE_CONF=retain_ms=60000; near_limit grow && near_limit blocks",
        60,
    );
}

#[test]
fn a_killed_program_is_gone_before_its_memory() {
    ok(
        "export EBBTIDE_CONF=exit=detached,exit_threshold=32M; reaper kill && reaper_beside fork",
        60,
    );
}

#[test]
fn sums_over_eight_processors() {
    ok("percpu 1 move", 60);
}

#[test]
#[ignore = "runs the commands in the variable GUEST"]
fn by_hand() {
    ebbtide_tests::by_hand(&MACHINE, 300);
}
