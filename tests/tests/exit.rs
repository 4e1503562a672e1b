//! The end of a large process under `exit=detached`: every way to die, what its parent and others see at once,
//! and what the system has back. `c/exit.c` and `c/exit_system.c` start, end and watch the processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ebbtide_tests::{
    Cgroup, Run, Sysctl, c_library, c_program, ensure_installed, is_ebbtide, is_root, library,
    skip, understands,
};

const MIB: u64 = 1 << 20;
const DETACHED: &str = "exit=detached,exit_threshold=32M";
/// Users that nobody else uses: their processes are counted.
const USERS: [u32; 2] = [61234, 61235];

/// The library as it should be, or says why not.
fn has_helper() -> bool {
    if !is_ebbtide() {
        skip("only Ebbtide has a helper");
        return false;
    }
    understands(DETACHED)
}

fn detached(program: &str, args: &str) {
    detached_with(program, args, "");
}

fn detached_with(program: &str, args: &str, more: &str) {
    if has_helper() {
        let conf = format!("{DETACHED}{more}");
        Run::new(c_program(program))
            .args(args)
            .conf(&conf)
            .timeout(110)
            .ok();
    }
}

#[test]
fn every_way_to_die() {
    detached("exit", "ways");
}

#[test]
fn a_terminal_that_hangs_up() {
    detached("exit", "hangup");
}

/// 1 GiB of small pages takes the kernel 20 ms and more; the helper makes it a part of one.
#[test]
fn the_end_is_seen_at_once() {
    detached_with("exit", "seen 5", ",thp=off");
}

#[test]
fn ports_are_free_at_once() {
    detached("exit", "port");
}

#[test]
fn pipes_end_at_once() {
    detached("exit", "pipe");
}

#[test]
fn locks_are_free_at_once() {
    detached("exit", "flock");
}

#[test]
fn waiting_finds_no_helper() {
    detached("exit", "waits");
}

#[test]
fn a_helper_that_is_killed() {
    detached("exit", "killed");
}

#[test]
fn a_spawned_child_that_outlives_its_parent() {
    detached("exit", "spawned");
}

#[test]
fn a_small_program_has_no_helper() {
    if has_helper() {
        let run = Run::new(c_program("exit")).args("small");
        run.conf("exit=detached").ok();
    }
}

#[test]
fn traced_programs() {
    detached("exit_system", "traced");
}

#[test]
fn gdb_attaches() {
    if ensure_installed("gdb", "gdb") {
        detached("exit_system", "attach");
    }
}

/// 1,000 programs with `EBBTIDE_TEST_LONG`. In a cgroup of their own the memory that they leave is exact.
#[test]
fn many_programs_leave_nothing() {
    if !has_helper() {
        return;
    }
    let is_long = std::env::var_os("EBBTIDE_TEST_LONG").is_some();
    let places = tempfile::tempdir().expect("temporary directory");
    let mut run = Run::new(c_program("exit_system"))
        .args(if is_long { "many 1000" } else { "many 60" })
        .env("XDG_RUNTIME_DIR", places.path())
        .conf(DETACHED)
        .timeout(110);
    let group = Cgroup::with_memory_max("many", 2048 * MIB);
    match &group {
        Ok(group) => run = run.arg(group.file("")).cgroup(group),
        Err(why) => skip(&format!("memory is not compared: {why}")),
    }
    run.ok();
}

#[test]
fn memory_is_the_systems_again() {
    detached("exit_system", "returned");
    detached_with("exit_system", "returned", ",thp=off,teardown_workers=4");
}

/// A cgroup with this limit, and the file of its usage; or says why not.
fn limited(name: &str, bytes: u64) -> Option<(Cgroup, PathBuf)> {
    let group = match Cgroup::with_memory_max(name, bytes) {
        Ok(group) => group,
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    let usage = ["memory.usage_in_bytes", "memory.current"]
        .map(|name| group.file(name))
        .into_iter()
        .find(|file| file.exists());
    if usage.is_none() {
        skip("the cgroup says no usage");
    }
    Some((group, usage?))
}

/// Exact, whatever others do.
#[test]
fn memory_is_the_cgroups_again() {
    if let Some((group, usage)) = limited("exit", 2048 * MIB)
        && has_helper()
    {
        Run::new(c_program("exit_system"))
            .arg("returned")
            .arg(&usage)
            .conf(DETACHED)
            .cgroup(&group)
            .ok();
    }
}

/// A program of 1 GiB dies in a cgroup of 1.25 while its user's other helpers have the slots; then so much more is
/// used there.
fn turns(name: &str, more_mib: u32, check: impl Fn(Run)) {
    let Some((group, usage)) = limited(name, 1280 * MIB) else {
        return;
    };
    if has_helper() {
        let places = tempfile::tempdir().expect("temporary directory");
        let run = Run::new(c_program("exit_system"))
            .arg("hurried")
            .arg(&usage)
            .arg(more_mib.to_string())
            .env("XDG_RUNTIME_DIR", places.path())
            .conf(&format!("{DETACHED},thp=off"));
        check(run.cgroup(&group).timeout(60));
    }
}

#[test]
fn turns_are_kept_until_memory_is_short() {
    turns("turns", 200, |run| {
        run.ok();
    });
}

/// `ebbtide bench` has a process that sets up swap and takes it down when its input ends.
#[test]
fn swap_is_free_again() {
    let Some(program) = command_line() else {
        return;
    };
    if !is_root() || !has_helper() {
        return skip("swap needs root and the helper");
    }
    let mut keeper = Command::new(program)
        .args(["bench-worker", "swap_keeper"])
        .arg((512 * MIB).to_string())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut line = String::new();
    let said = keeper.stdout.take().expect("pipe");
    BufReader::new(said).read_line(&mut line).expect("read");
    let verdict = if line.contains(r#""error":null"#) {
        let run = Run::new(c_program("exit_system")).args("swapped");
        Some(run.conf(&format!("{DETACHED},thp=off")).run())
    } else {
        None
    };
    drop(keeper.stdin.take());
    assert!(keeper.wait().expect("wait").success(), "the swap stays");
    match verdict {
        Some(outcome) => outcome.ok(),
        None => skip(&format!("no swap can be set up here: {line}")),
    }
}

/// The program and the library where any user can read them.
fn for_everybody(dir: &Path) -> Option<(PathBuf, PathBuf)> {
    if !is_root() {
        skip("other users need root");
        return None;
    }
    if !has_helper() {
        return None;
    }
    let copy = |from: &Path, name: &str| {
        let to = dir.join(name);
        fs::copy(from, &to).expect("copy");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
        to
    };
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = copy(&c_program("exit_system"), "exit_system");
    let library = copy(&library()?, "libebbtide.so");
    Some((program, library))
}

/// Runs as other users; what their helpers left for their turns is removed.
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
    // One test for all: they use the same numbers, and remove the same directories.
    as_users(&format!("users {} {}", USERS[0], USERS[1]), |run, _| run);
    as_users(&format!("nproc {}", USERS[0]), |run, _| run);
    // A runtime directory that is there, and cannot be written to.
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

/// How many of the 48 blocks a core file of the program has; `None` where none is written.
fn blocks_in_core(run: Run) -> Option<usize> {
    const TEXT: &[u8] = b"heap-pattern-for-the-core-file";
    let dir = tempfile::tempdir().expect("temporary directory");
    let outcome = run
        .args("core")
        .dir(dir.path())
        .limit(libc::RLIMIT_CORE, libc::RLIM_INFINITY)
        .run();
    assert!(
        outcome.killed_by(libc::SIGABRT),
        "{}",
        outcome.describe("should end by SIGABRT")
    );
    let files = fs::read_dir(dir.path()).expect("list");
    let core = files
        .filter_map(|f| Some(f.ok()?.path()))
        .find(|p| p.to_string_lossy().contains("core"))?;
    let core = fs::read(core).expect("core file");
    // Aligned as in memory: the middle of a block, wherever that begins.
    let found = core
        .chunks_exact(8)
        .enumerate()
        .filter(|(_, word)| *word == &TEXT[..8])
        .filter(|(at, _)| core[at * 8..].starts_with(TEXT))
        .count();
    Some(found)
}

#[test]
fn core_files_are_whole() {
    if !has_helper() {
        return;
    }
    let program = c_program("exit_system");
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let _changed = if pattern.starts_with(['|', '/']) {
        match is_root()
            .then(|| Sysctl::set("/proc/sys/kernel/core_pattern", "core"))
            .flatten()
        {
            None => return skip("core_pattern leads elsewhere"),
            set => set,
        }
    } else {
        None
    };
    let plain = Run::new(&program).plain().env("NO_HELPER", "1");
    let Some(usual) = blocks_in_core(plain) else {
        return skip("no core file is written here");
    };
    assert_eq!(usual, 48);
    for conf in ["", ",teardown_workers=4", ",thp=off"] {
        let conf = format!("{DETACHED}{conf}");
        let blocks = blocks_in_core(Run::new(&program).conf(&conf));
        assert_eq!(blocks, Some(48), "{conf}");
    }
}

// Real programs.

/// `ebbtide`, beside the library.
fn command_line() -> Option<PathBuf> {
    let program = library()?.with_file_name("ebbtide");
    if !program.is_file() {
        skip("the program ebbtide is not built");
        return None;
    }
    Some(program)
}

/// Runs a program whose memory is not all from malloc, and checks what it says.
fn real(words: &[&str], says: &str) {
    let Some(ebbtide) = command_line() else {
        return;
    };
    if !has_helper() {
        return;
    }
    let mut run = Run::new(ebbtide)
        .plain()
        .args("run --exit=detached --conf exit_threshold=32M --");
    for word in words {
        run = run.arg(word);
    }
    let outcome = run.timeout(100).run();
    if outcome.stderr.contains("unexpected argument '--exit") {
        return skip("this program has no run --exit");
    }
    outcome.ok();
    assert_eq!(outcome.stdout.trim(), says, "{}", outcome.describe("said"));
}

#[test]
fn python() {
    let code = "a = [bytes(1 << 20) for _ in range(96)]; print(len(a), sum(map(len, a)) >> 20)";
    if ensure_installed("python3", "python3") {
        real(&["python3", "-c", code], "96 96");
        let fork = "import os\na = bytearray(64 << 20)\npid = os.fork()\n\
                    if not pid: os._exit(len(a) >> 20)\nprint(os.waitpid(-1, 0)[1] >> 8)";
        real(&["python3", "-c", fork], "64");
    }
}

#[test]
fn node() {
    let code = "let a = []; for (let i = 0; i < 96; i++) a.push(Buffer.alloc(1 << 20, 7)); \
                console.log(a.length, a[95][5])";
    if ensure_installed("node", "nodejs") {
        real(&["node", "-e", code], "96 7");
    }
}

#[test]
fn java() {
    let source = "class Large { public static void main(String[] a) { byte[][] b = new byte[96][]; \
                  for (int i = 0; i < 96; i++) { b[i] = new byte[1 << 20]; b[i][7] = (byte) i; } \
                  System.out.println(b[95][7]); } }";
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("Large.java");
    fs::write(&file, source).expect("source");
    if ensure_installed("java", "default-jdk-headless") {
        real(&["java", "-Xms128m", file.to_str().expect("path")], "95");
    }
}

/// A Go program with C in it takes the library; its heap is its own.
#[test]
fn go() {
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|name| {
        let asked = Command::new(name).arg("version").output();
        asked.is_ok_and(|output| output.status.success())
    }) else {
        return skip("go");
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, program) = (dir.path().join("large.go"), dir.path().join("large"));
    let text = "package main\n// #include <stdlib.h>\nimport \"C\"\nimport \"fmt\"\n\
                func main() {\n\tp := C.malloc(64 << 20)\n\tdefer C.free(p)\n\ta := make([][]byte, 96)\n\
                \tfor i := range a { a[i] = make([]byte, 1<<20); a[i][9] = byte(i) }\n\
                \tfmt.Println(a[95][9], p != nil)\n}\n";
    fs::write(&source, text).expect("source");
    let built = Command::new(go)
        .args(["build", "-o"])
        .arg(&program)
        .arg(&source)
        .env_remove("LD_PRELOAD")
        .env("CGO_ENABLED", "1")
        .env("GOFLAGS", "-mod=mod")
        .current_dir(dir.path())
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        return skip("go cannot build here");
    }
    real(&[program.to_str().expect("path")], "95 true");
}

// Positive controls: each kind of check fails where it should.

/// Whether the check fails.
fn fails(run: Run) -> bool {
    run.timeout(60).run().verdict().is_err()
}

#[test]
fn control_the_kernels_own_end_is_seen_late() {
    let run = Run::new(c_program("exit")).args("seen 5 alone");
    let run = if is_ebbtide() && understands(DETACHED) {
        run.conf("exit=inline,thp=off")
    } else {
        run
    };
    assert!(fails(run), "1 GiB ends within 5 ms without a helper");
}

/// Nobody needs the memory: it waits, and the check of what happens under need sees that.
#[test]
fn control_a_turn_that_does_not_end_is_noticed() {
    turns("no-need", 0, |run| {
        let outcome = run.run();
        if !outcome.stdout.contains("skipped: ") {
            assert!(outcome.verdict().is_err(), "back without need");
            let said = format!("{}{}", outcome.stdout, outcome.stderr);
            assert!(said.contains("still used after"), "{said}");
        }
    });
}

#[test]
fn control_a_missing_helper_is_noticed() {
    for args in ["ways", "waits", "killed", "spawned"] {
        let run = Run::new(c_program("exit")).args(args);
        assert!(fails(run.env("EXIT_PATIENCE", "1")), "{args}");
    }
}

/// A helper that keeps everything the program had open, for a second, and that can be waited for.
#[test]
fn control_a_clinging_helper_is_noticed() {
    let clinging = c_library("faulty/clinging");
    for args in ["port alone", "pipe alone", "flock alone", "waits alone"] {
        let run = |library: Option<&Path>| {
            let run = Run::new(c_program("exit")).args(args);
            match library {
                Some(library) => run.preload(library).env("CLING_MS", "3000"),
                None => run.plain(),
            }
        };
        assert!(fails(run(Some(&clinging))), "{args}");
    }
    // The checks themselves hold where nobody keeps anything.
    for args in ["port alone", "flock alone", "waits alone"] {
        Run::new(c_program("exit")).args(args).plain().ok();
    }
}

/// Its name is that of a helper, and it stays.
#[test]
fn control_what_stays_behind_is_noticed() {
    let clinging = c_library("faulty/clinging");
    for args in ["many 4", "returned"] {
        let run = Run::new(c_program("exit_system")).args(args);
        let run = run.preload(&clinging).env("CLING_MS", "6000");
        assert!(fails(run.env("EXIT_PATIENCE", "1")), "{args}");
    }
}

#[test]
fn control_a_core_file_without_the_heap_is_noticed() {
    let program = c_program("exit_system");
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '/']) {
        return skip("core_pattern leads elsewhere");
    }
    // No private memory in the file.
    let without = Run::new("sh")
        .arg("-c")
        .arg("echo 0 > /proc/self/coredump_filter; exec \"$0\" \"$@\"")
        .arg(&program)
        .plain()
        .env("NO_HELPER", "1");
    if let Some(blocks) = blocks_in_core(without) {
        assert_eq!(blocks, 0);
    }
}
