//! Runs `c/soak.c`: all kinds of work at once, in configurations that a seed chooses.
//!
//! In `make test` six runs take half a minute. `EBBTIDE_SOAK_MINUTES` goes on for that time, with a line about each run; `make soak` sets it. A run
//! that fails prints its seed and configuration. `EBBTIDE_TEST_SEED` starts with that seed.

use ebbtide_interface::keys;
use ebbtide_tests::{Cgroup, Outcome, Run, c_program, is_root};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Possible values of each item, and how many of eight configurations have the item. Items that the library does not have yet are left out.
const KEYS: [(&str, &[&str], u64); 21] = [
    ("lazyfree=", &["always", "always", "off", "auto"], 7),
    ("retain_ms=", &["0", "0", "1", "5", "20"], 7),
    ("dev=lazy_ms:", &["0", "1", "10", "50"], 6),
    ("thp=", &["on", "off"], 5),
    ("dev=zones:", &["1", "2", "3", "4"], 5),
    ("workers=", &["0", "1", "2", "4"], 6),
    ("dev=gather:", &["inline"], 2),
    ("dev=cluster:", &["off"], 1),
    ("rseq=", &["off"], 2),
    ("dev=depopulate:", &["off"], 1),
    ("dev=threshold:", &["1", "512", "4096"], 2),
    ("limit=", &["0", "1m", "16m"], 2),
    ("dev=retain_max:", &["0", "1m", "16m"], 2),
    ("syscalls=", &["basic"], 1),
    ("exit=", &["detached"], 1),
    ("dev=percpu_units:", &["1", "4", "8"], 2),
    ("pressure=", &["off"], 2),
    ("dev=lockstat:", &["on"], 1),
    ("harden=", &["on"], 2),
    ("profile=", &["on"], 2),
    ("guard=", &["on"], 2),
];

/// The memory cgroup of some runs holds all objects twice, for a forked child, and this much more.
const GROUP_SLACK_MIB: u64 = 512;

/// A random number generator with a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % bound
    }

    fn of<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u64) as usize]
    }
}

fn configuration(numbers: &mut Numbers) -> String {
    let mut conf = Vec::new();
    for (key, values, eighths) in KEYS {
        let item = format!("{key}{}", numbers.of(values));
        if numbers.below(8) < eighths && keys::read(item.as_bytes()).is_ok() {
            conf.push(item);
        }
    }
    // A configuration that excludes workers and a helper prints a message if they are requested.
    if conf.iter().any(|item| item == "syscalls=basic") {
        conf.retain(|item| !item.starts_with("workers=") && !item.starts_with("exit="));
    }
    conf.join(",")
}

/// A file in which the kernel swaps, until it is dropped.
struct Swap(std::path::PathBuf);

impl Swap {
    /// `None`: not root, or it is refused.
    fn on() -> Option<Self> {
        let path = std::env::temp_dir().join(format!("ebbtide-soak-swap-{}", std::process::id()));
        let swap = Self(path);
        let name = swap.0.to_str()?;
        let script =
            r#"umask 077; dd if=/dev/zero of="$0" bs=1M count=1024 && mkswap "$0" && swapon "$0""#;
        (is_root() && quietly("sh", &["-c", script, name])).then_some(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        quietly("swapoff", &[&self.0.to_string_lossy()]);
        let _ = std::fs::remove_file(&self.0);
    }
}

fn quietly(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

/// One run, in words, and its end.
fn soak(seed: u64, seconds: u64, giant_mib: u64) -> (String, Outcome) {
    let mut numbers = Numbers(seed);
    let conf = configuration(&mut numbers);
    let threads = numbers.of(&["1", "2", "4", "8"]);
    let live_mib = [64, 128, 256][numbers.below(3) as usize];
    let changes = numbers.below(2);
    let mut args = format!(
        "seed={seed} threads={threads} live={live_mib} seconds={seconds} giant={giant_mib} changes={changes}"
    );
    let mut run = Run::new(c_program("soak")).timeout(seconds * 2 + 150);
    // The group is removed after the run.
    let group = (is_root() && numbers.below(3) == 0)
        .then(|| {
            let most_mib = live_mib * 2 + GROUP_SLACK_MIB;
            Cgroup::with_memory_max(&format!("soak-{seed}"), most_mib << 20).ok()
        })
        .flatten();
    if let Some(group) = &group {
        run = run.cgroup(group);
        args.push_str(" in a group");
    }
    let words = args.strip_suffix(" in a group").unwrap_or(&args);
    let outcome = run.args(words).conf(&conf).run();
    (format!("{args}, {conf}"), outcome)
}

/// Runs for so long, with swap where that can be had, and says what it did.
fn soak_for(time: Duration, first_seed: u64) {
    const SECONDS: u64 = 30;
    let _swap = Swap::on();
    let start = Instant::now();
    let mut totals = [0u64; 5];
    let mut runs = 0;
    while start.elapsed() < time {
        let left = (time - start.elapsed()).as_secs().clamp(3, SECONDS);
        let (words, outcome) = soak(first_seed + runs, left, 4096);
        outcome.ok();
        runs += 1;
        let counts = outcome.stdout.lines().next().unwrap_or_default();
        let numbers = counts
            .split(", ")
            .map(|part| part.split(' ').next()?.parse().ok());
        let numbers = numbers.map(Option::unwrap_or_default);
        totals
            .iter_mut()
            .zip(numbers)
            .for_each(|(sum, n): (_, u64)| *sum += n);
        let (passed, all) = (start.elapsed().as_secs(), time.as_secs());
        eprintln!("soak: {passed} of {all} s: {words}: {counts}");
    }
    let [operations, forks, callocs, threads, giants] = totals;
    eprintln!(
        "soak total: {runs} runs, {operations} operations, {forks} forks, {callocs} callocs, {threads} short threads, {giants} objects of 1 to 4 GiB"
    );
}

#[test]
fn everything_at_once() {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let first = number("EBBTIDE_TEST_SEED").unwrap_or(1);
    if let Some(minutes) = number("EBBTIDE_SOAK_MINUTES") {
        return soak_for(Duration::from_secs(minutes * 60), first);
    }
    for seed in first..first + 6 {
        soak(seed, 4, 512).1.ok();
    }
}

/// A library that keeps what is freed is found at the end of a run.
#[test]
fn memory_that_stays_is_found() {
    if !ebbtide_tests::only_ebbtide("says what it holds") {
        return;
    }
    let run = Run::new(c_program("soak")).args("seed=1 threads=2 live=64 seconds=2 keep=32");
    let outcome = run.must_fail("memory that stayed resident was not found");
    assert!(
        outcome.stderr.contains("MiB resident"),
        "{}",
        outcome.describe("says")
    );
}
