//! Sources of pressure one by one, in groups whose files are made up.

use ebbtide_tests::{Cgroup, Run, c_program, ensure_installed, needs_root, only_ebbtide, skip};

use super::{MIB, PROMISE};

const EVENTS: &str = "pressure_events";
const LIMIT: &str = "near_limit";

/// Groups of version 2 whose files are ours: one of 1 GiB in one of 8 GiB, and the machine's memory beside them.
struct Fake {
    group: Cgroup,
    dir: tempfile::TempDir,
}

impl Fake {
    fn new(name: &str) -> Option<Self> {
        if !only_ebbtide(PROMISE) || !needs_root("a mount namespace") {
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
    fn run(&self, conf: &str, program: &str, mode: &str) -> Run {
        let own = self.group.dir().join("own");
        let _ = std::fs::create_dir(&own);
        let script = "echo 0 > $1/own/cgroup.procs; mount --bind $FAKE $1; \
            mount --bind $FAKE/meminfo /proc/meminfo; shift; exec \"$@\"";
        let mut words = mode.split(' ');
        let run = Run::new("unshare")
            .conf(conf)
            .args("-m sh -ec")
            .arg(script)
            .arg("sh")
            .arg(self.group.dir())
            .env("FAKE", self.dir.path())
            .arg(c_program(program))
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
        let run = fake.run("retain_ms=60000", EVENTS, mode);
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
        let run = fake.run("retain_ms=60000", EVENTS, mode);
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
        let conf = format!("limit=5%,{with},retain_ms=60000");
        fake.run(&conf, LIMIT, "limit 52").ok();
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
        fake.run("limit=1%,workers=0,retain_ms=60000", LIMIT, &mode)
            .ok();
        fake.run("limit=1%,retain_ms=60000", LIMIT, &mode).ok();
    }
    let run = fake.run("limit=50%,retain_ms=60000", LIMIT, "limit 52");
    run.must_fail("obeys");
}
