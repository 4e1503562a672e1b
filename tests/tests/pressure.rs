//! Memory that is short: limits, events, the owner's limit. `c/pressure.c` works inside them.

use ebbtide_tests::{
    Cgroup, Outcome, Run, c_program, command_line, ensure_installed, is_ebbtide, is_root, library,
    skip,
};

const MIB: u64 = 1 << 20;

fn pressure(mode: &str, conf: &str) -> Run {
    Run::new(c_program("pressure")).args(mode).conf(conf)
}

/// Runs it in a group of 256 MiB.
fn in_group(mode: &str, conf: &str) -> Option<Outcome> {
    in_group_of(256 * MIB, mode, conf)
}

/// Runs it in a group with this limit, whose directory it is told.
fn in_group_of(bytes: u64, mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    if !is_root() {
        skip("a memory cgroup needs root");
        return None;
    }
    let name = format!("{mode}-{conf}").replace(['=', ',', ' ', '/'], "-");
    match Cgroup::with_memory_max(&name, bytes) {
        Err(why) => {
            skip(&why);
            None
        }
        Ok(group) => {
            let run = pressure(mode, conf).env("GROUP", group.dir());
            Some(run.cgroup(&group).run())
        }
    }
}

#[test]
fn garbage_in_spans_goes_before_the_limit() {
    if let Some(outcome) = in_group("grow", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: the same without is killed.
    if let Some(outcome) = in_group("grow", "retain_ms=60000,pressure=off") {
        assert!(outcome.killed_by(9), "{}", outcome.describe("lives"));
    }
}

#[test]
fn free_blocks_go_before_the_limit() {
    if let Some(outcome) = in_group("blocks", "pressure=on") {
        outcome.ok();
    }
}

#[test]
fn calls_of_a_child_with_its_parents_huge_pages_are_short() {
    for mode in ["fork", "reclone"] {
        if let Some(outcome) = in_group(mode, "pressure=on") {
            outcome.ok();
        }
    }
}

/// "some 150000 2000000".
const TRIGGER: &str = "c29tZSAxNTAwMDAgMjAwMDAwMA==";

fn told_by_a_fifo(mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().expect("path")).expect("path");
    // SAFETY: a NUL-ended path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let run = pressure(mode, conf)
        .env("MEMORY_PRESSURE_WATCH", &fifo)
        .env("MEMORY_PRESSURE_WRITE", TRIGGER);
    Some(run.run())
}

#[test]
fn an_event_empties_what_is_kept() {
    for mode in ["watch", "overwritten"] {
        if let Some(outcome) = told_by_a_fifo(mode, "retain_ms=60000") {
            outcome.ok();
        }
    }
    if let Some(outcome) = told_by_a_fifo("stay", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: nobody listens.
    if let Some(outcome) = told_by_a_fifo("watch", "retain_ms=60000,pressure=off") {
        assert!(!outcome.status.success(), "{}", outcome.describe("obeys"));
    }
}

#[test]
fn events_that_are_not_wanted() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for path in ["/dev/null", "/no/such/file", "/etc/passwd"] {
        pressure("stay", "retain_ms=60000")
            .env("MEMORY_PRESSURE_WATCH", path)
            .ok();
    }
}

#[test]
fn the_owners_limit() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for conf in [
        "limit=16m",
        "limit=16m,workers=0",
        "limit=16m,pressure=off",
        "limit=16m,rseq=off",
        "limit=0%",
    ] {
        pressure("limit 16", &format!("{conf},retain_ms=60000")).ok();
    }
    let without = pressure("limit 16", "pressure=off,retain_ms=60000").run();
    assert!(!without.status.success(), "{}", without.describe("obeys"));
}

#[test]
fn nobody_watches_when_there_is_nothing_to_give() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    pressure("idle", "pressure=on").ok();
}

#[test]
fn nobody_stays_after_an_event() {
    if let Some(outcome) = told_by_a_fifo("gone", "retain_ms=60000") {
        outcome.ok();
    }
}

/// A program that does nothing has 150 MiB to give, and another one needs all but a tenth of the limit.
#[test]
fn another_process_gets_what_is_free() {
    let mode = "beside 150 460";
    if let Some(outcome) = in_group_of(512 * MIB, mode, "retain_ms=60000") {
        outcome.ok();
    }
    // The control: one of the two is killed.
    if let Some(outcome) = in_group_of(512 * MIB, mode, "retain_ms=60000,pressure=off") {
        assert!(!outcome.status.success(), "{}", outcome.describe("lives"));
    }
}

/// Pages of files fill the group: the kernel reclaims from it and says so, far from where anybody is killed.
#[test]
fn a_group_that_is_reclaimed_from() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file()
        .set_len(700 * MIB)
        .expect("a file with holes");
    let mode = format!("cache 64 {}", file.path().display());
    if let Some(outcome) = in_group_of(512 * MIB, &mode, "retain_ms=60000") {
        outcome.ok();
    }
}

/// The limit changes while the program runs and does nothing.
#[test]
fn a_limit_that_is_lowered_and_raised() {
    if let Some(outcome) = in_group_of(512 * MIB, "lowered 64", "retain_ms=60000") {
        outcome.ok();
    }
    let control = in_group_of(512 * MIB, "lowered 64", "retain_ms=60000,pressure=off");
    if let Some(outcome) = control {
        assert!(!outcome.status.success(), "{}", outcome.describe("follows"));
    }
}

/// Lazy and dirty memory share one bound.
#[test]
fn lazy_and_dirty_memory_together_stay_below_half_of_what_is_left() {
    let conf = "retain_ms=6000,lazy_ms=60000,lazyfree=always";
    if let Some(outcome) = in_group_of(1024 * MIB, "both 64", conf) {
        outcome.ok();
    }
}

#[test]
fn a_limit_where_there_was_none() {
    if let Some(outcome) = in_group_of(1 << 62, "appears 64", "retain_ms=60000") {
        outcome.ok();
    }
}

/// What the manager sees of memory, and says so, when `before` has been run in a mount namespace of its own.
fn sources_after(before: &str) -> Option<Vec<String>> {
    if !is_ebbtide() {
        skip("only Ebbtide looks");
        return None;
    }
    if !is_root() {
        skip("a mount namespace needs root");
        return None;
    }
    let (cli, tools) = (command_line()?, ensure_installed("unshare", "util-linux"));
    let dir = tempfile::tempdir().expect("temporary directory");
    let group = Cgroup::with_memory_max(&format!("sources-{}", before.len()), 512 * MIB);
    let (Ok(group), true) = (group, tools) else {
        skip("no memory cgroup");
        return None;
    };
    let summary = dir.path().join("summary");
    std::fs::write(&summary, "").expect("summary");
    for path in [dir.path(), &summary] {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, all).expect("permissions");
    }
    let script = format!(
        "{before} exec \"$@\" {} run --lib {} --conf retain_ms=60000 --summary=json --summary-file {} -- {} end",
        cli.display(),
        library()?.display(),
        summary.display(),
        c_program("pressure").display(),
    );
    let outcome = Run::new("unshare")
        .plain()
        .args("-m sh -ec")
        .arg(script)
        .env("HOME", dir.path())
        .cgroup(&group)
        .run();
    outcome.ok();
    let said = std::fs::read_to_string(&summary).expect("summary");
    let list = said
        .split_once("\"pressure_sources\":[")
        .expect("sources")
        .1;
    let list = list.split_once(']').expect("a list").0;
    let names = list.split(',').filter(|name| !name.is_empty());
    Some(
        names
            .map(|name| name.trim_matches('"').to_owned())
            .collect(),
    )
}

/// Whatever is missing, the program works, what is left is watched, and `ebbtide run --summary` names it.
#[test]
fn what_cannot_be_seen_is_not_there() {
    let Some(all) = sources_after("") else {
        return;
    };
    assert!(all[0] == "machine" && all[1] == "cgroup limit", "{all:?}");
    let without =
        |name: &str| -> Vec<String> { all.iter().filter(|one| *one != name).cloned().collect() };
    if all.iter().any(|name| name == "PSI") {
        let hidden = sources_after("mount -t tmpfs none /proc/pressure;");
        assert_eq!(hidden, Some(without("PSI")));
        // Nobody may read it, nor write to the group's files.
        let closed = "umask 777; : > $HOME/closed; umask 022; \
            mount --bind $HOME/closed /proc/pressure/memory; \
            set -- setpriv --reuid=65534 --clear-groups;";
        let allowed = all[..2].to_vec();
        assert_eq!(sources_after(closed), Some(allowed));
    }
    let no_group = "mount -t tmpfs none /sys/fs/cgroup;";
    let left = sources_after(no_group).expect("as before");
    assert!(left[0] == "machine" && !left.contains(&all[1]), "{left:?}");
    let nothing = format!(
        "{no_group} mount --bind /dev/null /proc/meminfo; \
         for file in /proc/pressure/memory; do mount --bind /dev/null $file || :; done;"
    );
    assert_eq!(sources_after(&nothing), Some(vec![]));
}

/// Groups of version 2 whose files are ours: one of 1 GiB in one of 8 GiB, and the machine's memory beside them.
struct Fake {
    group: Cgroup,
    dir: tempfile::TempDir,
}

impl Fake {
    fn new(name: &str) -> Option<Self> {
        if !is_ebbtide() {
            skip("only Ebbtide promises this");
            return None;
        }
        if !is_root() {
            skip("a mount namespace needs root");
            return None;
        }
        if !ensure_installed("unshare", "util-linux") {
            skip("no unshare");
            return None;
        }
        let group = match Cgroup::unified(name) {
            Ok(group) => group,
            Err(why) => {
                skip(&why);
                return None;
            }
        };
        let above = group.dir().parent().expect("a mount point");
        if above.join("memory.max").exists() {
            skip("the group of these tests has a limit");
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let fake = Fake { group, dir };
        std::fs::create_dir(fake.dir.path().join("own")).expect("directory");
        for (place, limit) in [("", 8192), ("own/", 1024)] {
            for (name, text) in [
                ("cgroup.controllers", "memory\n".to_owned()),
                ("cgroup.events", "populated 1\n".to_owned()),
                ("memory.max", format!("{}\n", limit * MIB)),
                ("memory.high", "max\n".to_owned()),
                ("memory.current", used(50)),
                ("memory.stat", "anon 0\n".to_owned()),
                ("memory.events", hits(0, 0)),
                ("memory.events.local", hits(0, 0)),
                ("memory.pressure", stalled(0)),
            ] {
                fake.write(&format!("{place}{name}"), &text);
            }
        }
        fake.write("meminfo", &available(20_000));
        Some(fake)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).expect("a file of the kernel's");
    }

    /// The program in the inner one.
    fn run(&self, conf: &str, mode: &str) -> Run {
        let own = self.group.dir().join("own");
        let _ = std::fs::create_dir(&own);
        let script = "echo 0 > $1/own/cgroup.procs; mount --bind $FAKE $1; \
            mount --bind $FAKE/meminfo /proc/meminfo; shift; exec \"$@\"";
        let mut words = mode.split(' ');
        let run = pressure_in("unshare", conf)
            .args("-m sh -ec")
            .arg(script)
            .arg("sh")
            .arg(self.group.dir())
            .env("FAKE", self.dir.path())
            .arg(c_program("pressure"))
            .arg(words.next().expect("a mode"));
        words.fold(run, Run::arg)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for _ in 0..100 {
            match std::fs::remove_dir(self.group.dir().join("own")) {
                Err(why) if why.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}

fn pressure_in(program: &str, conf: &str) -> Run {
    Run::new(program).conf(conf)
}

// All of one length, so that one write changes them.

fn used(mib: u64) -> String {
    format!("{:012}\n", mib * MIB)
}

fn hits(high: u64, max: u64) -> String {
    format!("low 0\nhigh {high:06}\nmax {max:06}\noom 0\n")
}

fn stalled(us: u64) -> String {
    format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={us:09}\nfull avg10=0.00 total=0\n")
}

fn available(mib: u64) -> String {
    format!(
        "MemTotal: 24000000 kB\nMemAvailable: {:09} kB\n",
        mib * 1024
    )
}

/// Each source alone, and what says nothing about this process.
#[test]
fn each_source_is_heard_for_itself() {
    let cases = [
        ("bumped", "own/memory.events.local", hits(1, 0)),
        ("bumped", "own/memory.events.local", hits(0, 1)),
        ("bumped", "memory.events.local", hits(0, 1)),
        ("bumped", "own/memory.pressure", stalled(300_000)),
        ("bumped", "own/memory.current", used(1000)),
        // More than is left of the inner group, and less than has to be of this one.
        ("bumped", "memory.current", used(8192 - 400)),
        ("bumped", "meminfo", available(300)),
        // Another group below the same parent has met its own limit, or stalls.
        ("ignored", "memory.events", hits(7, 7)),
        ("ignored", "memory.pressure", stalled(900_000)),
        ("ignored", "own/memory.current", used(600)),
    ];
    for (number, (mode, file, text)) in cases.iter().enumerate() {
        let Some(fake) = Fake::new(&format!("source-{number}")) else {
            return;
        };
        fake.write("own/memory.current", &used(1024 - 300));
        let run = fake.run("retain_ms=60000", mode);
        run.arg(file).arg(text).ok();
    }
}

/// Whoever is watched for the program: its limits are its own.
#[test]
fn events_that_are_not_wanted_do_not_count_but_distance_does() {
    let Some(fake) = Fake::new("unwanted") else {
        return;
    };
    for (mode, file, text) in [
        ("ignored", "own/memory.events.local", hits(1, 1)),
        ("ignored", "own/memory.pressure", stalled(900_000)),
        ("bumped", "own/memory.current", used(1000)),
    ] {
        let run = fake.run("retain_ms=60000", mode);
        run.arg(file)
            .arg(text)
            .env("MEMORY_PRESSURE_WATCH", "/dev/null")
            .ok();
    }
}

/// A percentage is of the smallest limit, however near another one is, and whoever looks.
#[test]
fn a_part_of_the_groups_limit() {
    let Some(fake) = Fake::new("percent") else {
        return;
    };
    fake.write("memory.current", &used(8192 - 900));
    for with in ["workers=2", "pressure=off", "workers=0", "syscalls=basic"] {
        fake.run(&format!("limit=5%,{with},retain_ms=60000"), "limit 52")
            .ok();
    }
    // No more than of what the machine has.
    for place in ["", "own/"] {
        fake.write(&format!("{place}memory.max"), &format!("{}\n", MIB << 20));
        fake.write(&format!("{place}memory.current"), &used(50));
    }
    let total = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let total = total.split_whitespace().nth(1).expect("a number");
    let most = total.parse::<u64>().expect("KiB") / 1024 / 100;
    if most < 1000 {
        let mode = format!("limit {most} {}", most + 200);
        fake.run("limit=1%,workers=0,retain_ms=60000", &mode).ok();
        fake.run("limit=1%,retain_ms=60000", &mode).ok();
    }
    let run = fake.run("limit=50%,retain_ms=60000", "limit 52").run();
    assert!(!run.status.success(), "{}", run.describe("obeys"));
}

/// In a namespace of cgroups the own group looks like the root; its PSI is its own.
#[test]
fn a_group_that_looks_like_the_root() {
    let Ok(group) = Cgroup::unified("looks-like-root") else {
        return skip("no cgroup of version 2");
    };
    if group.read("memory.pressure").is_none() {
        return skip("the group has no PSI");
    }
    let mount = group.dir().parent().expect("a mount point").display();
    let before = format!(
        "echo 0 > {}/cgroup.procs; mount -t tmpfs none /proc/pressure; \
         set -- unshare -C sh -ec 'umount {mount}; mount -t cgroup2 none {mount}; exec \"$@\"' sh;",
        group.dir().display(),
    );
    if let Some(sources) = sources_after(&before) {
        assert!(sources.iter().any(|name| name == "PSI"), "{sources:?}");
    }
}
