//! Tests `guard`: mistakes with guarded objects are reported with sizes, distances and stacks; programs keep their own
//! actions of SIGSEGV; correct programs run as usual. Only Ebbtide has it: skipped on stand-ins.

use ebbtide_tests::{
    Outcome, Run, c_program, c_program_for_musl, ensure_installed, names_process, only_ebbtide,
};
use std::path::Path;

const ALL: &str = "guard=all";

fn is_there() -> bool {
    only_ebbtide("has guard")
}

/// A mistake: its name, the signal that ends the program, and words of the first line.
type Case = (&'static str, i32, &'static str);

const OF_THE_KERNEL: i32 = libc::SIGSEGV;
const OF_FREE: i32 = libc::SIGABRT;

const CASES: [Case; 16] = [
    (
        "after-write",
        OF_THE_KERNEL,
        "use after free: write at byte 16 of the 100-byte object at ",
    ),
    (
        "after-read",
        OF_THE_KERNEL,
        "use after free: read at byte 99 of the 100-byte object at ",
    ),
    (
        "after-thread",
        OF_THE_KERNEL,
        "use after free: read at byte 0 of the 100-byte object at ",
    ),
    (
        "behind-far",
        OF_THE_KERNEL,
        "access outside of an object: write 12 bytes behind the end of the 100-byte object at ",
    ),
    (
        "behind-read",
        OF_THE_KERNEL,
        "access outside of an object: read 12 bytes behind the end of the 100-byte object at ",
    ),
    (
        "behind-near",
        OF_FREE,
        "write outside of an object, found by free: 0 bytes behind the end of the 100-byte object at ",
    ),
    (
        "before",
        OF_THE_KERNEL,
        "access outside of an object: write 8 bytes before the start of the 100-byte object at ",
    ),
    (
        "before-read",
        OF_THE_KERNEL,
        "access outside of an object: read 1 bytes before the start of the 100-byte object at ",
    ),
    (
        "before-near",
        OF_FREE,
        "write outside of an object, found by free: 1 bytes before the start of the 100-byte object at ",
    ),
    ("twice", OF_FREE, "double free of "),
    ("twice-thread", OF_FREE, "double free of "),
    (
        "inside",
        OF_FREE,
        ", where no object begins, at byte 16 of the 100-byte object at ",
    ),
    (
        "realloc-freed",
        OF_FREE,
        ", which was freed before, a 100-byte object",
    ),
    (
        "realloc-inside",
        OF_FREE,
        ", where no object begins, at byte 32 of the 100-byte object at ",
    ),
    (
        "usable-freed",
        OF_FREE,
        ", which was freed before, a 100-byte object",
    ),
    (
        "near-freed",
        OF_FREE,
        ", at byte 16 of the 100-byte object at ",
    ),
];

fn run(case: &str, conf: &str) -> Outcome {
    Run::new(c_program("guard"))
        .args(case)
        .conf(conf)
        .timeout(20)
        .run()
}

/// Requires the signal before the line "returned", the words and the pointer in the first line, and the stacks behind it.
fn judge(outcome: &Outcome, (case, signal, words): Case) -> Result<(), String> {
    let said: Vec<&str> = outcome.stderr.lines().collect();
    let pointer = outcome.stdout.lines().last().unwrap_or_default();
    let first = said.first().copied().unwrap_or_default();
    let has = |words: &str| said.iter().any(|line| line.contains(words));
    let by = if signal == OF_FREE {
        "found by thread "
    } else {
        "accessed by thread "
    };
    let was_freed = ["after", "twice", "freed"]
        .iter()
        .any(|word| case.contains(word));
    let there = if case.ends_with("thread") {
        "(releaser):"
    } else {
        "(guard):"
    };
    let freed = said
        .iter()
        .find(|line| line.contains("guard: freed by thread "));
    let is_right = outcome.killed_by(signal)
        && !outcome.stdout.contains("returned")
        && said.iter().all(|line| names_process(line, "guard"))
        && first.contains("guard: ")
        && first.contains(words)
        && first.contains(pointer)
        && has(by)
        && has("guard: allocated by thread ")
        && was_freed == freed.is_some_and(|line| line.ends_with(there));
    match is_right {
        true => Ok(()),
        false => Err(outcome.describe(&format!("{case} should say `… {words}{pointer}`"))),
    }
}

fn are_found(conf: &str) {
    if is_there() {
        for case in CASES {
            judge(&run(case.0, conf), case).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
fn each_mistake_is_reported() {
    are_found(ALL);
}

#[test]
fn in_the_portable_mode() {
    are_found("guard=all,rseq=off");
}

#[test]
fn beside_other_checks_and_the_profile() {
    are_found("guard=all,harden=on");
    are_found("guard=all,profile=1");
}

/// Positive control: without the key, no case ends like this.
#[test]
fn nothing_of_it_is_found_without() {
    if is_there() {
        for case in CASES {
            // Reads and writes behind the end of ordinary memory go on until its end.
            if !case.0.starts_with("behind-") || case.0.ends_with("near") {
                assert!(judge(&run(case.0, ""), case).is_err(), "{}", case.0);
            }
        }
    }
}

/// Objects of more than a page have a slot of another kind.
#[test]
fn larger_objects() {
    if !is_there() {
        return;
    }
    for size in ["4097", "70000", "1048576"] {
        let outcome = run(&format!("after-write {size}"), ALL);
        let words = format!("write at byte 16 of the {size}-byte object");
        assert!(
            outcome.stderr.contains(&words),
            "{}",
            outcome.describe("should say so")
        );
    }
    // Above that, objects are not guarded.
    let outcome = run("after-write 1048577", ALL);
    assert!(
        outcome.stdout.contains("returned"),
        "{}",
        outcome.describe("should go on")
    );
}

/// The places in the report are lines of the program.
#[test]
fn stacks_lead_to_lines() {
    if !is_there() || !ensure_installed("addr2line", "binutils") {
        return;
    }
    let outcome = run("after-write", ALL);
    let program = c_program("guard").canonicalize().expect("a path");
    let name = format!("{}+", program.display());
    let functions = |what: &str| {
        let lines = outcome
            .stderr
            .lines()
            .skip_while(|line| !line.contains(what));
        let frames = lines
            .skip(1)
            .take_while(|line| line.contains("guard:   0x"));
        let places = frames.filter_map(|line| Some(line.split_once(&name)?.1.to_owned()));
        // A return address: the call is before it, except for an access.
        let run = std::process::Command::new("addr2line")
            .arg("-fe")
            .arg(&program)
            .args(places)
            .output();
        String::from_utf8(run.expect("addr2line").stdout).expect("text")
    };
    for (what, function) in [
        ("accessed by", "make\n"),
        ("allocated by", "allocate\n"),
        ("freed by", "release\n"),
    ] {
        let found = functions(what);
        assert!(found.starts_with(function), "{}", outcome.describe(&found));
        assert!(what == "accessed by" || found.contains("make\n"), "{found}");
    }
}

fn sound(program: &str, args: &str, conf: &str) {
    if is_there() {
        Run::new(c_program(program))
            .args(args)
            .conf(conf)
            .timeout(100)
            .ok();
    }
}

#[test]
fn correct_programs_see_no_difference() {
    for more in ["", ",rseq=off", ",harden=on", ",profile=1"] {
        sound("guard", "sound", &format!("{ALL}{more}"));
    }
    sound("guard", "sound", "guard=3");
    for topic in [
        "basic", "too_big", "align", "zero", "mix", "resize", "usable", "errno", "sized",
    ] {
        sound("api", topic, ALL);
    }
}

#[test]
fn threads() {
    sound("stress", "seed=41 threads=6 seconds=2 gens=4 migrate", ALL);
    sound(
        "stress",
        "seed=42 threads=6 seconds=2 gens=4",
        "guard=20,rseq=off",
    );
    sound("signals", "storm", ALL);
    sound(
        "soak",
        "seed=43 threads=4 seconds=3",
        "guard=50,retain_ms=0",
    );
}

/// More live objects than slots: the others are not guarded, and slots that were freed serve again.
#[test]
fn slots_run_out() {
    sound("guard", "full", ALL);
    if is_there() {
        let limit = 512 << 20;
        let run = Run::new(c_program("limits")).args("work 64").conf(ALL);
        run.limit(libc::RLIMIT_AS, limit).ok();
    }
}

/// Control: with one allocation of many guarded, a mistake that is repeated is met.
#[test]
fn some_of_many_allocations() {
    if is_there() {
        for conf in [
            "guard=on",
            "guard=100",
            "guard=100,rseq=off",
            "guard=100,harden=off,profile=64K",
        ] {
            let outcome = run("sampled", conf);
            let is_found = outcome.killed_by(libc::SIGSEGV)
                && outcome
                    .stderr
                    .contains("use after free: write at byte 1 of the 50-byte object");
            assert!(is_found, "{}", outcome.describe("should be found"));
        }
    }
}

#[test]
fn forks() {
    sound("guard", "fork", ALL);
    sound("guard", "vfork", ALL);
    sound("vfork", "4 40 hop", "guard=20");
    for args in [
        "thread 6 20",
        "nested 4 8",
        "exec 4 12",
        "_fork 6 20",
        "clone 6 15",
    ] {
        sound("fork", args, "guard=20");
    }
}

#[test]
fn programs_have_their_own_action() {
    for case in ["flags", "early", "repair", "storm", "ignored", "overflow"] {
        sound("guard_signals", case, ALL);
    }
    // Control: the same without another handler.
    for case in ["flags", "early", "ignored", "overflow"] {
        sound("guard_signals", case, "");
    }
}

fn signals(case: &str) -> Outcome {
    Run::new(c_program("guard_signals"))
        .arg(case)
        .conf(ALL)
        .timeout(20)
        .run()
}

#[test]
fn faults_elsewhere_are_the_programs() {
    if is_there() {
        for case in ["default", "sent"] {
            let outcome = signals(case);
            let is_plain = outcome.killed_by(libc::SIGSEGV) && outcome.stderr.is_empty();
            assert!(
                is_plain,
                "{}",
                outcome.describe("should end as without guard")
            );
        }
    }
}

#[test]
fn reported_faults_reach_the_programs_handler() {
    if is_there() {
        let outcome = signals("handled");
        let is_right = outcome.status.code() == Some(42)
            && outcome.stderr.contains("use after free: write at byte 3");
        assert!(
            is_right,
            "{}",
            outcome.describe("should report and exit with 42")
        );
        let outcome = signals("jump");
        let reports = outcome
            .stderr
            .lines()
            .filter(|line| line.contains("use after free"));
        assert_eq!(
            reports.count(),
            500,
            "{}",
            outcome.describe("a report for each object")
        );
        assert!(outcome.status.success() && outcome.stdout == "ok\n");
    }
}

/// One line says that nothing is guarded.
#[test]
fn where_the_calls_are_refused() {
    if is_there() {
        let outcome = run("filter", "guard=2");
        let is_right = outcome.status.success()
            && outcome.stderr.lines().count() == 1
            && outcome
                .stderr
                .contains("guard: the kernel refuses mprotect");
        assert!(is_right, "{}", outcome.describe("should say one line"));
        let run = Run::new(c_program("guard")).arg("sound");
        let outcome = run.env("EBBTIDE_CONF", "syscalls=basic,guard=all").run();
        let is_right = outcome.status.success()
            && outcome.stderr.lines().count() == 1
            && outcome
                .stderr
                .contains("\"guard\" is ignored: not possible with syscalls=basic");
        assert!(is_right, "{}", outcome.describe("should say one line"));
    }
}

#[test]
fn programs_of_musl() {
    if !is_there()
        || !cfg!(target_arch = "x86_64")
        || !ensure_installed("musl-gcc", "musl-tools linux-libc-dev")
    {
        return;
    }
    let guard = c_program_for_musl("guard");
    let signals = c_program_for_musl("guard_signals");
    for case in CASES {
        let outcome = Run::new(&guard).arg(case.0).conf(ALL).timeout(20).run();
        judge(&outcome, case).unwrap_or_else(|why| panic!("{why}"));
    }
    for case in ["sound", "full", "fork", "vfork"] {
        Run::new(&guard).arg(case).conf(ALL).timeout(100).ok();
    }
    for case in ["flags", "early", "repair", "storm", "ignored", "overflow"] {
        Run::new(&signals).arg(case).conf(ALL).timeout(100).ok();
    }
}

fn script(dir: &Path, text: &str, conf: &str) -> Outcome {
    let text = format!("set -e\n{text}");
    let run = Run::new("sh").arg("-c").arg(text).conf(conf);
    run.dir(dir).timeout(120).ok()
}

#[test]
fn real_programs() {
    let all = [
        ("sqlite3", "sqlite3"),
        ("git", "git"),
        ("gcc", "gcc"),
        ("redis-server", "redis-server"),
        ("redis-cli", "redis-tools"),
    ];
    if !is_there()
        || !all
            .iter()
            .all(|(name, package)| ensure_installed(name, package))
    {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let outcome = script(
        dir.path(),
        r#"
        export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        sqlite3 x.db "with recursive c(x) as (select 1 union all select x+1 from c where x<6000)
            select count(*), count(distinct x % 1000) from c"
        git init -q -b main one
        cd one
        for i in 1 2 3; do seq $((i * 4000)) > file; git add .; git commit -q -m "$i"; done
        git repack -q -a -d -f --threads=2
        git rev-list --count HEAD
        cd ..
        printf '#include <stdio.h>\nint main(void) { printf("%%d\\n", 6 * 7); return 0; }\n' > x.c
        gcc -O2 -g x.c -o x
        ./x
        redis-server --port 0 --unixsocket ./s --save '' --appendonly no > log &
        pid=$!
        for i in $(seq 100); do redis-cli -s ./s ping > /dev/null 2>&1 && break; sleep 0.05; done
        redis-cli -s ./s eval 'for i=1,3000 do redis.call("set","k"..i,string.rep(i%10,i%300)) end return 7' 0
        redis-cli -s ./s bgsave > /dev/null
        redis-cli -s ./s shutdown nosave || true
        wait $pid
        "#,
        ALL,
    );
    assert_eq!(outcome.stdout, "6000|1000\n3\n42\n7\n");
}

/// Java uses SIGSEGV for null pointers and safepoints.
#[test]
fn java() {
    if !is_there() || !ensure_installed("javac", "default-jdk-headless") {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let text = "public class X { static int f(String s) { return s.length(); }
        public static void main(String[] a) { int n = 0;
            for (int i = 0; i < 100000; i++) try { n += f(i % 3 == 0 ? null : \"ab\"); }
                catch (NullPointerException e) { n++; }
            System.gc(); System.out.println(n); } }";
    std::fs::write(dir.path().join("X.java"), text).expect("write");
    for conf in [ALL, "guard=100"] {
        let outcome = script(
            dir.path(),
            "java -version 2> /dev/null; javac X.java; java X",
            conf,
        );
        assert_eq!(outcome.stdout, "166666\n");
    }
}

/// Go turns SIGSEGV into a panic; with cgo it asks libc for the action.
#[test]
fn go() {
    if !is_there() || !ebbtide_tests::have("go") {
        return ebbtide_tests::skip("go");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let text = r#"package main
// #include <stdlib.h>
import "C"
import "fmt"

type node struct { next *node; value int }

func use(n *node) (err any) { defer func() { err = recover() }(); return n.next.value }

func main() {
    for i := 0; i < 1000; i++ { p := C.malloc(100); C.free(p) }
    fmt.Println(use(&node{}))
}
"#;
    std::fs::write(dir.path().join("x.go"), text).expect("write");
    let build = "HOME=$PWD GO111MODULE=off EBBTIDE_CONF= go build -o x x.go; ./x";
    let outcome = script(dir.path(), build, ALL);
    assert_eq!(
        outcome.stdout,
        "runtime error: invalid memory address or nil pointer dereference\n"
    );
}
