//! Tests limits of the process and of the machine: address space, data, descriptors, locked memory, cgroup,
//! overcommit 2, user namespaces, core dumps. `c/limits.c` works inside them.

use std::os::unix::fs::MetadataExt;

use ebbtide_tests::{
    Cgroup, Outcome, Run, Sysctl, c_program, core_files_here, needs_root, only_ebbtide, skip,
};

const MIB: u64 = 1 << 20;

fn limits(args: &str) -> Run {
    Run::new(c_program("limits")).args(args)
}

#[test]
fn address_space_of_256_mib() {
    limits("work 64").limit(libc::RLIMIT_AS, 256 * MIB).ok();
}

#[test]
fn address_space_of_1_gib() {
    limits("work 300").limit(libc::RLIMIT_AS, 1024 * MIB).ok();
    limits("threads").limit(libc::RLIMIT_AS, 1024 * MIB).ok();
}

#[test]
fn address_space_of_4_gib() {
    limits("work 1000").limit(libc::RLIMIT_AS, 4096 * MIB).ok();
}

#[test]
fn out_of_address_space_and_on() {
    limits(&format!("oom {}", 256 * MIB))
        .limit(libc::RLIMIT_AS, 256 * MIB)
        .ok();
    limits(&format!("oom {}", 1024 * MIB))
        .limit(libc::RLIMIT_AS, 1024 * MIB)
        .ok();
}

#[test]
fn data_segment_of_256_mib() {
    limits("work 64").limit(libc::RLIMIT_DATA, 256 * MIB).ok();
}

#[test]
fn out_of_data_segment_and_on() {
    limits(&format!("oom {}", 256 * MIB))
        .limit(libc::RLIMIT_DATA, 256 * MIB)
        .timeout(150)
        .ok();
}

#[test]
fn no_descriptors() {
    for n in 0..=3 {
        limits(&format!("nofile {n}")).ok();
    }
    limits("work 150").limit(libc::RLIMIT_NOFILE, 4).ok();
}

/// A real limit, while `odd_moments` simulates others by a filter: the worker's clone fails with `EAGAIN`.
#[test]
fn no_thread_more() {
    if !only_ebbtide("promises this") {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all).expect("chmod");
    limits("nproc")
        .arg(dir.path())
        .conf(&format!(
            "retain_ms=100,dev=pages:all,stats_dir={}",
            dir.path().display()
        ))
        .ok();
}

#[test]
fn locked_memory_in_a_cgroup() {
    if let Some(group) = Cgroup::limited("mlock", 300 * MIB) {
        limits("mlock 64").cgroup(&group).ok();
    }
}

#[test]
fn a_cgroup_nearly_full() {
    if let Some(group) = Cgroup::limited("full", 300 * MIB) {
        limits("work 200").cgroup(&group).ok();
    }
}

#[test]
fn strict_overcommit() {
    if !needs_root("overcommit_memory") {
        return;
    }
    let plenty = || {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |key: &str| -> u64 {
            let line = text
                .lines()
                .find(|line| line.starts_with(key))
                .unwrap_or("");
            line.split_whitespace()
                .nth(1)
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        };
        kib("CommitLimit:") > kib("Committed_AS:") + 3 * 1024 * 1024
    };
    if !plenty() {
        return skip("less than 3 GiB of commit to spare on this machine");
    }
    let program = c_program("limits");
    let Some(_strict) = Sysctl::set("/proc/sys/vm/overcommit_memory", "2") else {
        return skip("overcommit_memory cannot be set");
    };
    Run::new(&program).args("work 300").ok();
    Run::new(&program).args("threads").ok();
    Run::new(&program).args("nofile 0").ok();
}

#[test]
fn a_new_user_namespace() {
    let plain = limits("newuser").plain().run();
    if !plain.status.success() {
        return skip("user namespaces are off here");
    }
    limits("newuser").ok();
}

/// A reservation must not be written to a core file. (Opened but untouched memory is a hole in the file.)
#[test]
fn core_dump_of_a_small_program_is_small() {
    let program = c_program("limits");
    let Some(_pattern) = core_files_here() else {
        return;
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let dump = |run: Run| -> (Outcome, u64, u64) {
        let outcome = run
            .dir(dir.path())
            .limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY)
            .run();
        let files = std::fs::read_dir(dir.path())
            .expect("list")
            .filter_map(Result::ok);
        let core = files
            .map(|f| f.path())
            .find(|p| p.to_string_lossy().contains("core"));
        let about = core
            .as_ref()
            .map(|path| path.metadata().expect("core file"));
        if let Some(core) = core {
            let _ = std::fs::remove_file(core);
        }
        let (length, on_disk) = about.map_or((0, 0), |about| (about.len(), about.blocks() * 512));
        (outcome, length, on_disk)
    };
    if dump(Run::new(&program).arg("core").plain()).1 == 0 {
        return skip("no core file is written here");
    }
    let (outcome, length, on_disk) = dump(Run::new(&program).arg("core"));
    assert!(
        outcome.killed_by(libc::SIGABRT),
        "{}",
        outcome.describe("should end by SIGABRT")
    );
    let small = length > 0 && length < 80 * MIB && on_disk < 16 * MIB;
    assert!(small, "the core file has {length} bytes, {on_disk} on disk");
}

/// The same limits with fewer system calls, and without restartable sequences.
#[test]
fn limits_in_fallback_modes() {
    if !only_ebbtide("has these modes") {
        return;
    }
    for conf in ["syscalls=basic", "rseq=off", "workers=0", "thp=off"] {
        limits("work 300").conf(conf).ok();
        limits("work 64")
            .conf(conf)
            .limit(libc::RLIMIT_AS, 256 * MIB)
            .ok();
    }
}
