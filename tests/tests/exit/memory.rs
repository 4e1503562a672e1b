//! Tests how much memory the system, a cgroup and other users get back from an ended process, and when.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ebbtide_tests::{Cgroup, Run, c_program, library, needs_root, skip};

use super::{
    DETACHED, MIB, built_program, detached, detached_with, has_helper, in_slots_of_its_own,
};

/// Users that no other process uses: their processes are counted.
const USERS: [u32; 2] = [61234, 61235];

/// Runs 1,000 programs with `EBBTIDE_TEST_LONG`. In a cgroup of their own, the memory that they leave is exact.
#[test]
fn many_programs_leave_nothing() {
    if !has_helper() {
        return;
    }
    let is_long = std::env::var_os("EBBTIDE_TEST_LONG").is_some();
    let places = tempfile::tempdir().expect("temporary directory");
    let mut run = Run::new(c_program("exit_memory"))
        .args(if is_long { "many 1000" } else { "many 60" })
        .env("XDG_RUNTIME_DIR", places.path())
        .conf(DETACHED)
        .timeout(110);
    // Without a group, memory is not compared.
    let group = Cgroup::limited("many", 2048 * MIB);
    if let Some(group) = &group {
        run = run.arg(group.file("")).cgroup(group);
    }
    run.ok();
}

#[test]
fn memory_is_the_systems_again() {
    detached("exit_memory", "returned");
    detached_with("exit_memory", "returned", ",thp=off,dev=teardown_workers:4");
}

/// A cgroup with this limit, and its usage file. If that is not possible, prints why.
fn limited(name: &str, bytes: u64) -> Option<(Cgroup, PathBuf)> {
    let group = Cgroup::limited(name, bytes)?;
    let usage = group.usage();
    if usage.is_none() {
        skip("the cgroup says no usage");
    }
    Some((group, usage?))
}

/// The result is exact, whatever other processes do.
#[test]
fn memory_is_the_cgroups_again() {
    if let Some((group, usage)) = limited("exit", 2048 * MIB)
        && has_helper()
    {
        let run = Run::new(c_program("exit_memory"))
            .arg("returned")
            .arg(&usage);
        in_slots_of_its_own(run.cgroup(&group), "").ok();
    }
}

/// A program of 1 GiB dies in a cgroup with a limit of 1.25 GiB, while other helpers of its user hold the admission
/// slots. Then `more_mib` more is used in the cgroup.
pub(super) fn admitted(name: &str, more_mib: u32, check: impl Fn(Run)) {
    let Some((group, usage)) = limited(name, 1280 * MIB) else {
        return;
    };
    if has_helper() {
        let places = tempfile::tempdir().expect("temporary directory");
        let run = Run::new(c_program("exit_memory"))
            .arg("hurried")
            .arg(&usage)
            .arg(more_mib.to_string())
            .env("XDG_RUNTIME_DIR", places.path())
            .conf(&format!("{DETACHED},thp=off"));
        check(run.cgroup(&group).timeout(110));
    }
}

#[test]
fn admission_is_waited_for_until_memory_is_short() {
    admitted("admitted", 200, |run| {
        run.ok();
    });
}

/// `ebbtide-bench` has a process that sets up swap and removes it when its input ends.
#[test]
fn swap_is_free_again() {
    let Some(program) = built_program("ebbtide-bench") else {
        return;
    };
    if !needs_root("swap") || !has_helper() {
        return;
    }
    let mut keeper = Command::new(program)
        .args(["worker", "swap_keeper"])
        .arg((512 * MIB).to_string())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut line = String::new();
    let said = keeper.stdout.take().expect("pipe");
    BufReader::new(said).read_line(&mut line).expect("read");
    let verdict = line.starts_with(r#"{"Ok":"#).then(|| {
        let run = Run::new(c_program("exit_memory")).args("swapped");
        in_slots_of_its_own(run, ",thp=off")
    });
    drop(keeper.stdin.take());
    assert!(keeper.wait().expect("wait").success(), "the swap stays");
    match verdict {
        Some(outcome) => outcome.ok(),
        None if line.starts_with(r#"{"Err":"#) => {
            skip(&format!("no swap can be set up here: {line}"));
        }
        None => panic!("not an answer of the keeper: {line}"),
    }
}

/// The program and the library in a place where any user can read them.
fn for_everybody(dir: &Path) -> Option<(PathBuf, PathBuf)> {
    if !needs_root("other users") || !has_helper() {
        return None;
    }
    let copy = |from: &Path, name: &str| {
        let to = dir.join(name);
        fs::copy(from, &to).expect("copy");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
        to
    };
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = copy(&c_program("exit_users"), "exit_users");
    let library = copy(&library()?, "libebbtide.so");
    Some((program, library))
}

/// Runs as other users, and removes the admission files that their helpers left.
fn as_users(args: &str, set: impl Fn(Run, &Path) -> Run) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let Some((program, library)) = for_everybody(dir.path()) else {
        return;
    };
    let run = Run::new(program)
        .args(args)
        .preload(&library)
        .conf(DETACHED);
    let outcome = set(run, dir.path()).run();
    for user in USERS {
        for place in ["/dev/shm", "/tmp"] {
            let _ = fs::remove_dir_all(format!("{place}/ebbtide-{user}"));
        }
    }
    outcome.ok();
}

#[test]
fn users_share_the_machine() {
    // One test for all cases: they use the same users, and remove the same directories.
    as_users(&format!("users {} {}", USERS[0], USERS[1]), |run, _| run);
    as_users(&format!("nproc {}", USERS[0]), |run, _| run);
    // A runtime directory that exists, but cannot be written to.
    as_users(&format!("user {}", USERS[0]), |run, dir| {
        let closed = dir.join("closed");
        fs::create_dir(&closed).expect("directory");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("chmod");
        run.env("XDG_RUNTIME_DIR", &closed)
    });
    as_users(&format!("user {}", USERS[0]), |run, _| {
        run.env("XDG_RUNTIME_DIR", "/no/such/place")
    });
}
