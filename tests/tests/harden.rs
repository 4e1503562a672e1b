//! Tests `harden=on`: each mistake is found in the call that makes it, or soon after; correct programs run as usual.
//! Only Ebbtide has it: skipped on stand-ins.

use ebbtide_tests::{
    Outcome, Run, c_program, c_program_with, ensure_installed, names_process, only_ebbtide,
};
use std::os::unix::process::ExitStatusExt;

const ON: &str = "harden=on";

fn is_there() -> bool {
    only_ebbtide("has harden=on")
}

fn misuse(case: &str, conf: &str) -> Outcome {
    let program = c_program("misuse_now");
    Run::new(program).arg(case).conf(conf).timeout(20).run()
}

/// Requires SIGABRT before the line "returned", and one line `ebbtide: misuse_now[PID]: … 0x<the pointer> … <words>`.
fn judge(outcome: &Outcome, words: &str) -> Result<(), String> {
    let told: Vec<&str> = outcome.stdout.lines().collect();
    let said: Vec<&str> = outcome.stderr.lines().collect();
    let (&[pointer], &[line]) = (&told[..], &said[..]) else {
        return Err(outcome.describe("should tell one pointer, and then one line"));
    };
    let is_right = outcome.killed_by(libc::SIGABRT)
        && names_process(line, "misuse_now")
        && (line.contains(&format!("{pointer}, size class "))
            || line.contains(&format!("{pointer}, a large allocation, ")))
        && line.contains(words);
    if is_right {
        Ok(())
    } else {
        Err(outcome.describe(&format!("should abort and say `… {pointer} … {words}`")))
    }
}

fn are_found(cases: &[(&str, &str)]) {
    if !is_there() {
        return;
    }
    for mode in ["", ",rseq=off"] {
        for (case, words) in cases {
            judge(&misuse(case, &format!("{ON}{mode}")), words)
                .unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

const TWICE: [(&str, &str); 5] = [
    ("now-twice-16", "double free of "),
    ("now-twice-48", "double free of "),
    ("now-twice-20000", "double free of "),
    ("now-twice-aligned", "double free of "),
    ("now-realloc-to-0-twice", "double free of "),
];

const BEHIND: [(&str, &str); 8] = [
    ("now-behind-16", "write behind the end of "),
    ("now-behind-100", ", byte 100 of 100, found by free"),
    ("now-behind-5000-by-9", ", byte 5008 of 5000, found by free"),
    ("now-behind-realloc", ", byte 100 of 100, found by realloc"),
    ("now-behind-by-32", ", byte 131 of 100, found by free"),
    ("now-before", "write before the start of "),
    ("now-behind-large", ", byte 300000 of 300000, found by free"),
    (
        "now-behind-large-realloc",
        ", byte 5000003 of 5000000, found by realloc",
    ),
];

const WRITTEN: [(&str, &str); 6] = [
    ("now-write-freed", "write after free to "),
    ("now-write-freed-inside", ", byte 999"),
    ("now-write-freed-trim", ", byte 200"),
    ("now-write-freed-idle", ", byte 200"),
    ("now-write-freed-resumed", ", byte 200"),
    ("now-write-freed-end", ", byte 200"),
];

#[test]
fn double_free_at_once() {
    are_found(&TWICE);
    are_found(&[("now-twice-threads", "double free of ")]);
}

#[test]
fn writes_behind_the_end() {
    are_found(&BEHIND);
}

/// Where the kernel has no guard pages, the object has guard bytes instead.
#[test]
fn writes_behind_a_page() {
    if !is_there() {
        return;
    }
    let without = misuse("now-behind-4096", &format!("{ON},dev=guard_pages:off"));
    judge(&without, ", byte 4096 of 4096, found by free").unwrap_or_else(|why| panic!("{why}"));
    let with = misuse("now-behind-4096", ON);
    let is_found = if has_guard_pages() {
        with.killed_by(libc::SIGSEGV)
    } else {
        with.killed_by(libc::SIGABRT)
    };
    assert!(is_found, "{}", with.describe("should be found"));
}

#[test]
fn writes_after_free() {
    are_found(&WRITTEN);
}

/// The range of a freed large allocation is not used again for a while.
#[test]
fn large_allocations_after_free() {
    if !is_there() {
        return;
    }
    for case in ["now-write-freed-large", "now-read-freed-large"] {
        let with = misuse(case, ON);
        let is_found = with.killed_by(libc::SIGSEGV) && !with.stdout.contains("returned");
        assert!(is_found, "{}", with.describe("should end there"));
        let without = misuse(case, "");
        assert!(without.stdout.contains("returned"), "{case}: no control");
    }
    let twice = misuse("now-twice-large-later", ON);
    let is_found = twice.killed_by(libc::SIGABRT) && twice.stderr.contains(": freed already");
    assert!(is_found, "{}", twice.describe("should be found"));
    let without = misuse("now-twice-large-later", "");
    assert!(without.stdout.contains("returned"), "no control");
}

/// Objects in quarantine are checked although no other object pushes them out: by slow calls, and by a worker that
/// ends.
#[test]
fn quarantines_that_are_idle_are_emptied() {
    if !is_there() {
        return;
    }
    for (case, conf) in [
        ("now-write-freed-elsewhere", ",workers=0"),
        ("now-write-freed-asleep", ""),
    ] {
        let outcome = misuse(case, &format!("{ON}{conf}"));
        judge(&outcome, ", byte 200").unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Memory in quarantine counts towards the owner's limit. Above the limit, the quarantine is emptied and checked.
#[test]
fn quarantines_count_towards_the_limit() {
    if !is_there() {
        return;
    }
    let outcome = misuse(
        "now-write-freed-limit",
        &format!("{ON},workers=0,limit=768K"),
    );
    judge(&outcome, ", byte 200").unwrap_or_else(|why| panic!("{why}"));
    let roomy = misuse("now-write-freed-limit", &format!("{ON},workers=0,limit=1G"));
    assert!(roomy.stdout.contains("returned"), "no control");
}

/// A worker finds the mistake. Its stack is too small for the program's handler; the judge would notice if it ran.
#[test]
fn no_handler_runs_on_a_worker() {
    are_found(&[("now-write-freed-idle-handled", ", byte 200")]);
}

/// stderr is a service's socket: it cannot be opened again, and a worker has no descriptors of the program.
#[test]
fn a_workers_line_reaches_a_socket() {
    if is_there() {
        let run = Run::new(c_program("misuse_now")).arg("now-write-freed-idle-handled");
        let outcome = run.conf(ON).timeout(20).stderr_is_socket().run();
        judge(&outcome, ", byte 200").unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn what_is_not_live_is_not_resized_or_asked_of() {
    are_found(&[
        ("now-realloc-freed", "realloc of "),
        ("now-usable-freed", "size asked of "),
    ]);
}

#[test]
fn pointers_into_objects_at_once() {
    are_found(&[
        ("now-inside-16", "into the middle of an object"),
        ("now-inside-4096", "into the middle of an object"),
    ]);
}

#[test]
fn sizes_are_known_to_the_byte() {
    if is_there() {
        let outcome = misuse("now-sized-one-off", ON);
        let is_found = outcome.killed_by(libc::SIGABRT)
            && outcome
                .stderr
                .contains(" with size 49, but it has 50 bytes");
        assert!(is_found, "{}", outcome.describe("should be found"));
    }
}

/// Positive control: without the key, the same mistakes are not found in time, or not at all.
#[test]
fn nothing_of_it_is_found_without() {
    if !is_there() {
        return;
    }
    for (case, words) in TWICE.iter().chain(&BEHIND).chain(&WRITTEN) {
        assert!(judge(&misuse(case, ""), words).is_err(), "{case}");
    }
}

/// Whether the kernel has guard pages (Linux 6.13): `madvise` knows `MADV_GUARD_INSTALL`.
fn has_guard_pages() -> bool {
    const GUARD_INSTALL: i32 = 102;
    // SAFETY: a fresh mapping of this function's own, unmapped again.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ, flags, -1, 0);
        let has = page == 4096 && libc::madvise(at, page, GUARD_INSTALL) == 0;
        libc::munmap(at, page);
        has
    }
}

/// What is known about a kind of misuse before it is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Stopped,
    NotStopped,
    /// It depends on what lies where it goes.
    Either,
}
use Expected::{Either, NotStopped, Stopped};

/// A kind of misuse: the arguments of `misuse_kinds` after the first, and what is expected.
type Kind = (String, Expected);

const FAR: usize = 1 << 20;

/// What is expected of an access `by` bytes beside an object.
fn beside(access: &str, size: usize, by: usize, pages: bool) -> Expected {
    let is_paged = pages && size == 4096;
    let is_large = size >= 256 << 10;
    let unused = size.next_multiple_of(4096) - size;
    let (what, side) = access.split_once('-').expect("an access and a side");
    match (what, side) {
        // A copy has no call behind it: only a page without access stops it.
        ("copy", _) if is_paged && by <= 4096 => Stopped,
        ("copy", "behind") if is_large && pages => Stopped,
        ("copy", _) if is_paged || is_large || by == FAR => Either,
        ("copy", _) => NotStopped,
        _ if is_paged && by <= 4096 => Stopped,
        (_, "behind") if is_large && pages && by > unused && by <= unused + 4096 => Stopped,
        ("write", "behind") if is_large && by <= unused => Stopped,
        ("write", _) if by <= 32 && !is_large => Stopped,
        ("read", "behind") if by <= unused && is_large => NotStopped,
        ("read", "behind") if by <= 32 && !is_large => NotStopped,
        _ => Either,
    }
}

/// The kinds that a public collection of such programs has, with its three sizes and its forms of C++.
fn common_kinds(pages: bool, used: bool) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for size in [8, 4096, 256 << 10] {
        let closed = size > 4096 || pages && size == 4096 && !used;
        let freed = match closed {
            true => Stopped,
            // Only so many are closed at a time, and a used heap has just freed others.
            false if pages && size == 4096 => Either,
            false => NotStopped,
        };
        for side in ["behind", "before"] {
            for by in [1, 32, FAR] {
                for what in ["write", "copy"] {
                    let access = format!("{what}-{side}");
                    let expected = beside(&access, size, by, pages);
                    kinds.push((format!("{access} {size} {by}"), expected));
                }
            }
        }
        for kind in [
            "twice",
            "twice-later",
            "twice-around",
            "twice-reused",
            "twice-taken",
            "execute",
            "huge",
            "wrong-one",
            "wrong-alloca",
            "wrong-stack",
            "wrong-close",
            "wrong-far",
            "wrong-by-1",
            "wrong-by-8",
            "reuse",
            "reuse-half",
            "reuse-moved",
            "zero-read",
            "zero-read-free",
            "zero-write",
            "zero-write-free",
            "freed-write-reused",
        ] {
            kinds.push((format!("{kind} {size}"), Stopped));
        }
        kinds.push((format!("freed-write {size}"), freed));
        kinds.push((format!("freed-read-zero {size}"), freed));
        // Fresh memory reads zero. That is no property of `harden=on`.
        kinds.push((format!("new-content {size}"), Either));
    }
    kinds.push(("form-wrong-size 40".into(), NotStopped));
    kinds.push(("form-many-sized 40".into(), NotStopped));
    kinds.push(("form-one-many 40".into(), NotStopped));
    kinds
}

/// More sizes, distances and ways.
fn more_kinds(pages: bool) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for size in [8, 100, 4096, 5000, 300_000] {
        for access in ["write-behind", "write-before", "read-behind", "read-before"] {
            for by in [1, 8, 16, 32, 64, 128, 4096] {
                let expected = beside(access, size, by, pages);
                kinds.push((format!("{access} {size} {by}"), expected));
            }
        }
        for kind in ["wrong-by-16", "wrong-size", "zero-twice"] {
            kinds.push((format!("{kind} {size}"), Stopped));
        }
        if size < 300_000 {
            // A large allocation grows in place.
            kinds.push((format!("moved-twice {size}"), Stopped));
            kinds.push((format!("moved-write-reused {size}"), Stopped));
        }
    }
    // Within the first 1,024 bytes.
    kinds.push(("freed-read 100".into(), Stopped));
    kinds.push(("form-one-free 40".into(), NotStopped));
    kinds
}

/// Tries all kinds, and returns how many were stopped. Panics over an outcome that was not expected.
fn try_kinds(heap: &str, conf: &str, kinds: &[Kind]) -> usize {
    let flags = ["-ldl", "-Wl,--no-as-needed", "-l:libstdc++.so.6"];
    let program = c_program_with("misuse_kinds", &flags);
    let is_stopped = |(args, expected): &&Kind| {
        let run = Run::new(&program).arg(heap).args(args).conf(conf);
        let outcome = run.timeout(60).run();
        let stopped = !outcome.stdout.contains("returned");
        let ended_well = outcome.status.success() || outcome.status.signal().is_some();
        assert!(
            ended_well && !outcome.timed_out,
            "{}",
            outcome.describe("failed")
        );
        let wanted = if stopped { Stopped } else { NotStopped };
        let is_right = *expected == Either || *expected == wanted;
        assert!(
            is_right,
            "{}",
            outcome.describe(&format!("should be {expected:?}"))
        );
        stopped
    };
    kinds.iter().filter(is_stopped).count()
}

/// The figures of the documentation come from here: run it with `--nocapture`.
#[test]
fn kinds_of_misuse_that_are_stopped() {
    if !is_there() || !ensure_installed("g++", "g++") {
        return;
    }
    for pages in [true, false] {
        if pages && !has_guard_pages() {
            continue;
        }
        let switch = if pages { "on" } else { "off" };
        let conf = format!("{ON},dev=guard_pages:{switch}");
        let common = common_kinds(pages, false);
        let stopped = try_kinds("fresh", &conf, &common);
        println!(
            "guard pages {switch}: {stopped} of {} kinds are stopped",
            common.len()
        );
        let least = if pages { 105 } else { 95 };
        assert!(stopped >= least, "{stopped} of {}", common.len());
        let used = common_kinds(pages, true);
        let stopped = try_kinds("used", &conf, &used);
        println!(
            "guard pages {switch}, used heap: {stopped} of {}",
            used.len()
        );
        let more = more_kinds(pages);
        let stopped = try_kinds("used", &conf, &more);
        println!(
            "guard pages {switch}, more kinds: {stopped} of {}",
            more.len()
        );
    }
    // Positive control.
    let program = c_program_with("misuse_kinds", &[]);
    for kind in [
        "fresh zero-write 8",
        "fresh copy-behind 4096 1",
        "fresh wrong-size 8",
    ] {
        let outcome = Run::new(&program).args(kind).run();
        assert!(outcome.stdout.contains("returned"), "{kind}: no control");
    }
}

/// What C++ programs do with their operators is no misuse.
#[test]
fn right_forms_of_delete() {
    if is_there() && ensure_installed("g++", "g++") {
        let flags = ["-ldl", "-Wl,--no-as-needed", "-l:libstdc++.so.6"];
        let program = c_program_with("misuse_kinds", &flags);
        for conf in ["", ON, "harden=on,rseq=off"] {
            let run = Run::new(&program).args("fresh form-right 40").conf(conf);
            run.run().ok();
        }
    }
}

fn on(program: &str, args: &str, more: &str) {
    if is_there() {
        let run = Run::new(c_program(program)).args(args).timeout(150);
        run.conf(&format!("{ON}{more}")).ok();
    }
}

#[test]
fn freed_memory_is_not_handed_out_at_once() {
    on("harden", "delay", "");
    on("harden", "delay", ",rseq=off");
    if is_there() {
        let without = Run::new(c_program("harden")).arg("delay").run();
        assert!(without.verdict().is_err(), "the control does not reuse");
    }
}

/// Four processes that pause after their work, as those of a server do. Quarantines and free memory go, although too little is
/// free for a worker without `harden=on`.
#[test]
fn idle_processes_keep_little() {
    if !is_there() {
        return;
    }
    let anonymous_bytes = |conf: &str| {
        let run = Run::new(c_program("harden")).arg("idle").conf(conf);
        let outcome = run.timeout(60).ok();
        let first = outcome.stdout.lines().next();
        let bytes = first.and_then(|line| line.parse::<usize>().ok());
        bytes.expect("a number of bytes")
    };
    let plain = anonymous_bytes("");
    for mode in ["", ",rseq=off"] {
        let hardened = anonymous_bytes(&format!("{ON}{mode}"));
        println!("{hardened} bytes with {ON}{mode}, {plain} without");
        assert!(
            hardened <= plain / 2 * 3 + (1 << 20),
            "{hardened} bytes with {ON}{mode}, {plain} without"
        );
    }
}

/// If the kernel refuses in the middle, no allocation gets memory without access.
#[test]
fn what_is_closed_in_part_is_opened_again() {
    on("harden", "part", ",dev=guard_pages:off");
}

#[test]
fn sizes_are_what_was_asked_for() {
    on("harden", "sizes", "");
}

#[test]
fn the_interface_is_the_same() {
    for topic in [
        "basic", "too_big", "align", "zero", "mix", "resize", "usable", "errno", "trim", "sized",
    ] {
        on("api", topic, "");
    }
}

/// Released and lazy pages read zero or old content. That must not be taken for a write.
#[test]
fn no_false_alarm_over_released_pages() {
    for back in [
        "retain_ms=0",
        "retain_ms=0,lazyfree=always,dev=lazy_ms:0",
        "retain_ms=10,workers=0",
        "thp=off,retain_ms=5",
    ] {
        on("harden", "released 2", &format!(",{back}"));
        on(
            "stress",
            "seed=21 threads=4 seconds=2 gens=3 trim back",
            &format!(",{back}"),
        );
    }
}

#[test]
fn threads() {
    on(
        "stress",
        "seed=22 threads=8 seconds=3 gens=6 migrate trim",
        "",
    );
    on("stress", "seed=23 threads=8 seconds=2 gens=20", ",rseq=off");
}

#[test]
fn everything_at_once() {
    for (seed, back) in [
        "",
        ",retain_ms=0,lazyfree=always",
        ",dev=zones:2,thp=off",
        ",syscalls=basic",
    ]
    .iter()
    .enumerate()
    {
        on(
            "soak",
            &format!("seed={} threads=4 seconds=3", 31 + seed),
            back,
        );
    }
}

#[test]
fn forks() {
    for args in [
        "main 6 20",
        "thread 6 20",
        "nested 4 8",
        "exec 4 12",
        "_fork 0 30",
        "_fork 6 20",
        "clone 6 15",
    ] {
        on("fork", args, "");
    }
    on("vfork", "4 40 hop", "");
    on("harden", "forks", "");
}

#[test]
fn small_address_space() {
    if is_there() {
        let limit = 512 << 20;
        let run = Run::new(c_program("limits")).args("work 64").conf(ON);
        run.limit(libc::RLIMIT_AS, limit).ok();
    }
}

/// A pipeline of programs that allocate much. Each checks its own result.
#[test]
fn programs() {
    let all = [
        ("python3", "python3"),
        ("sqlite3", "sqlite3"),
        ("git", "git"),
        ("perl", "perl"),
        ("gcc", "gcc"),
    ];
    if !is_there()
        || !all
            .iter()
            .all(|(name, package)| ensure_installed(name, package))
    {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let script = r#"
        set -e
        export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        PYTHONMALLOC=malloc python3 -c 'import json
words = {"w%d" % i: ["x" * (i % 200)] * 3 for i in range(50000)}
again = json.loads(json.dumps(words))
print(sum(len(v[0]) for v in again.values()), again == words)'
        sqlite3 x.db "with recursive c(x) as (select 1 union all select x+1 from c where x<60000)
            select count(*), count(distinct x % 1000), length(group_concat(hex(x))) from c"
        git init -q -b main one
        cd one
        for i in 1 2 3 4 5 6; do seq $((i * 4000)) > file; git add .; git commit -q -m "$i"; done
        git repack -q -a -d -f --threads=2
        git fsck --strict --full 2> /dev/null
        cd ..
        git clone -q --no-local one two
        git -C two rev-list --count HEAD
        perl -e 'my %h; for my $i (1..60000) { push @{$h{$i % 999}}, "v" x ($i % 70) }
            my $n = 0; $n += length for map { @$_ } values %h; print "$n\n"'
        printf '#include <stdio.h>\nint main(void) { printf("%%d\\n", 6 * 7); return 0; }\n' > x.c
        gcc -O2 -g x.c -o x
        ./x
    "#;
    let run = Run::new("sh").arg("-c").arg(script).conf(ON);
    let outcome = run.dir(dir.path()).timeout(120).ok();
    let lengths: u32 = (1..=60000u32).map(|i| i % 70).sum();
    let hex: u32 = (1..=60000u32)
        .map(|x| 2 * x.to_string().len() as u32 + 1)
        .sum::<u32>()
        - 1;
    let want = format!("4975000 True\n60000|1000|{hex}\n6\n{lengths}\n42\n");
    assert_eq!(outcome.stdout, want);
}

/// The end of a process puts objects back. It must not wait for a lock that a thread of its parent held.
#[test]
fn children_without_handlers_end() {
    if is_there() {
        Run::new(c_program("raw_exit"))
            .args("50")
            .conf(ON)
            .timeout(120)
            .ok();
    }
}
