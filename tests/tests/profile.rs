//! Tests of the profile: what `c/profile.c` allocates, and what its dump says.

use std::fs;
use std::path::Path;

use ebbtide_interface::profile::{
    Area, FILE_BYTES, FILE_MAGIC, FRAMES_AT, File, LIFETIMES, LIFETIMES_AT, MAGIC, MAX_STACKS,
    STACK_BYTES, STACKS_BYTES, Stack, Unwinder, VERSION, used_bytes,
};
use ebbtide_interface::records::class_bytes;
use ebbtide_tests::{Outcome, Run, c_program, c_program_for_musl, ensure_installed, only_ebbtide};

const PROMISE: &str = "samples allocations";

/// A dump.
struct Profile {
    file: File,
    area: Area,
    stacks: Vec<Sampled>,
    maps: String,
}

struct Sampled {
    stack: Stack,
    lifetimes: Vec<u64>,
    frames: Vec<u64>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
}

impl Profile {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = File::from_words(|at| word(&bytes, at));
        assert_eq!((file.magic, file.version), (FILE_MAGIC, VERSION));
        let (area_bytes, maps_bytes) = (file.area_bytes as usize, file.maps_bytes as usize);
        assert_eq!(bytes.len(), FILE_BYTES + area_bytes + maps_bytes);
        let used = &bytes[FILE_BYTES..][..area_bytes];
        let area = Area::from_words(|at| word(used, at));
        assert_eq!((area.magic, area.version), (MAGIC, VERSION));
        assert_eq!(area_bytes, used_bytes(area.stacks as usize));
        let stacks = used[STACKS_BYTES..].chunks_exact(STACK_BYTES).map(|bytes| {
            let words = |at: usize, count| (0..count).map(move |n| word(&bytes[at..], n)).collect();
            let stack = Stack::from_words(|at| word(bytes, at));
            Sampled {
                lifetimes: words(LIFETIMES_AT, LIFETIMES),
                frames: words(FRAMES_AT, stack.frames as usize),
                stack,
            }
        });
        Self {
            file,
            area,
            stacks: stacks.collect(),
            maps: String::from_utf8(bytes[FILE_BYTES + area_bytes..].to_vec()).expect("text"),
        }
    }

    /// The stacks whose innermost frame is in a function.
    fn at(&self, site: (u64, u64)) -> impl Iterator<Item = &Sampled> {
        let stacks = self.stacks.iter();
        stacks.filter(move |sampled| sampled.is_in(0, site))
    }
}

impl Sampled {
    fn is_in(&self, frame: usize, site: (u64, u64)) -> bool {
        let found = self.frames.get(frame);
        found.is_some_and(|&frame| (site.0..site.1).contains(&(frame - 1)))
    }
}

/// The addresses of a function, which the program prints.
fn site(outcome: &Outcome, name: &str) -> (u64, u64) {
    let line = format!("site {name} 0x");
    let found = outcome
        .stdout
        .lines()
        .find_map(|row| row.strip_prefix(&line));
    let (start, end) = found.and_then(|row| row.split_once(" 0x")).expect("a site");
    let number = |text| u64::from_str_radix(text, 16).expect("an address");
    (number(start), number(end))
}

fn run(mode: &str, conf: &str) -> (Outcome, Profile) {
    let (outcome, mut profiles) = run_program(c_program("profile"), mode, conf);
    assert_eq!(profiles.len(), 1, "{mode}");
    (outcome, profiles.remove(0))
}

/// Runs it and reads the dumps of all its processes.
fn run_program(program: impl AsRef<Path>, mode: &str, conf: &str) -> (Outcome, Vec<Profile>) {
    let dir = tempfile::tempdir().expect("a directory");
    let conf = format!("profile_dump={}/%p,{conf}", dir.path().display());
    let run = Run::new(program.as_ref()).args(mode).conf(&conf);
    let outcome = run.timeout(150).ok();
    let entries = fs::read_dir(dir.path()).expect("a directory");
    let profiles = entries.map(|entry| Profile::read(&entry.expect("an entry").path()));
    (outcome, profiles.collect())
}

/// The probability that an object is sampled.
fn probability(size: f64, rate: f64) -> f64 {
    1.0 - (-size / rate).exp()
}

/// One function has all the memory, another one makes 99 of 100 calls.
#[test]
fn live_memory_is_that_of_the_function_that_keeps_it() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", ",rseq=off", ",harden=on", ",guard=100000"] {
        let (outcome, profile) = run("sites 20000", &format!("profile=8k{mode}"));
        let bytes = |name, of: fn(&Stack) -> (u64, u64)| {
            let all = profile.at(site(&outcome, name)).map(|sampled| {
                let (bytes, objects) = of(&sampled.stack);
                bytes as f64 / probability(bytes as f64 / objects.max(1) as f64, 8192.0)
            });
            all.filter(|bytes| bytes.is_finite()).sum::<f64>()
        };
        let live = |stack: &Stack| (stack.live_bytes, stack.live_objects);
        let total = |stack: &Stack| (stack.total_bytes, stack.total_objects);
        // 2,300 samples are expected, within 2 %: six times that, and more for the rest.
        let is_near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.15;
        assert!(
            is_near(bytes("keep", live), 20e6),
            "{}",
            bytes("keep", live)
        );
        assert_eq!(bytes("spend", live), 0.0);
        let spent = bytes("spend", total);
        assert!(is_near(spent, 99.0 * 20e6), "{spent}");
        // Each of both is sampled as often as chance says: chi-square of 2 degrees, more is as likely as 1e-9.
        let p = probability(1000.0, 8192.0);
        let off = |name, objects: f64| {
            let all = profile.at(site(&outcome, name));
            let found: u64 = all.map(|one| one.stack.total_objects).sum();
            (found as f64 - p * objects).powi(2) / (p * (1.0 - p) * objects)
        };
        let chi_square = off("keep", 20e3) + off("spend", 99.0 * 20e3);
        assert!(chi_square < 42.0, "{chi_square}{mode}");
        let lives: u64 = profile
            .at(site(&outcome, "spend"))
            .flat_map(|sampled| &sampled.lifetimes)
            .sum();
        assert!(lives > 200_000, "{lives}: each has a lifetime");
    }
}

/// The numbers of samples are those of independent choices, byte by byte.
#[test]
fn each_size_is_sampled_by_its_probability() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", ",rseq=off"] {
        let (outcome, profile) = run("sizes 100 4", &format!("profile=64k{mode}"));
        let many = site(&outcome, "many");
        let rows = outcome
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("size "));
        let (mut chi_square, mut count) = (0.0, 0);
        for row in rows {
            let (size, objects) = row.split_once(' ').expect("two numbers");
            let (size, objects): (f64, f64) = (size.parse().unwrap(), objects.parse().unwrap());
            let in_class = |class: usize| {
                class_bytes(class) as f64 >= size && (class_bytes(class - 1) as f64) < size
            };
            let of_size = profile
                .at(many)
                .filter(|one| in_class(one.stack.class as usize));
            let found: u64 = of_size.map(|one| one.stack.total_objects).sum();
            let p = probability(size, 65536.0);
            let off = found as f64 - p * objects;
            // Of the largest, nearly all are sampled.
            chi_square += off * off / (objects * p * (1.0 - p)).max(1.0);
            count += 1;
        }
        assert_eq!(count, 10);
        // Of 10 degrees: more is as likely as 1e-9.
        assert!(chi_square < 65.0, "{chi_square}{mode}");
        assert_eq!((profile.area.missed, profile.area.dropped), (0, 0));
    }
}

/// With rate 1, each object is sampled and leaves the profile when it is freed, however it was made, resized and freed.
#[test]
fn every_object_comes_and_goes() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", ",rseq=off", ",harden=on", ",syscalls=basic"] {
        let conf = format!("profile=1{mode}");
        if mode.contains("basic") {
            let run = Run::new(c_program("profile")).args("balance 4");
            run.conf(&conf).timeout(150).ok();
            continue;
        }
        let (outcome, profile) = run("balance 4", &conf);
        let balance = site(&outcome, "balance");
        let made = outcome
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("made "));
        let made: u64 = made.expect("a number").parse().expect("a number");
        let live: u64 = profile.at(balance).map(|one| one.stack.live_objects).sum();
        let live_bytes: u64 = profile.at(balance).map(|one| one.stack.live_bytes).sum();
        let total: u64 = profile.at(balance).map(|one| one.stack.total_objects).sum();
        assert_eq!((live, live_bytes), (0, 0), "{mode}");
        assert!(
            total >= made,
            "{total} {made}{mode}: resized objects count again"
        );
        assert_eq!(
            (profile.area.missed, profile.area.dropped),
            (0, 0),
            "{mode}"
        );
        let names = |one: &Sampled| one.stack.name_low == u64::from_le_bytes(*b"profile\0");
        assert!(profile.at(balance).all(names));
    }
}

#[test]
fn sampling_changes_beside_busy_threads() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", "rseq=off", "harden=on"] {
        let (outcome, profile) = run("switch", mode);
        let balance = site(&outcome, "balance");
        let live: u64 = profile.at(balance).map(|one| one.stack.live_objects).sum();
        assert_eq!((live, profile.area.rate), (0, 0), "{mode}");
        assert!(profile.area.total_objects > 0);
    }
}

#[test]
fn a_full_table_drops_samples() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let (outcome, profile) = run("full", "profile=1");
    assert_eq!(profile.area.stacks as usize, MAX_STACKS);
    assert!(profile.area.dropped > 3000, "{}", profile.area.dropped);
    let keep = site(&outcome, "keep");
    let live: u64 = profile.at(keep).map(|one| one.stack.live_objects).sum();
    assert_eq!(live, 0);
    let peak: u64 = profile
        .at(keep)
        .map(|one| match one.stack.peak == profile.area.peak {
            true => one.stack.peak_objects,
            false => one.stack.live_objects,
        })
        .sum();
    assert!((60..=64).contains(&peak), "{peak}");
}

#[test]
fn a_file_that_cannot_be_written_is_one_line() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let run = Run::new(c_program("profile")).arg("files").arg(dir.path());
    let outcome = run.run();
    assert!(outcome.status.success(), "{}", outcome.describe("failed"));
    for line in [
        "ebbtide: no profile in /dev/full: sampling was never on; set profile=on",
        "ebbtide: no profile in /dev/full: -28 ENOSPC (No space left on device)",
        "ebbtide: no profile in /no/such/directory/x: -2 ENOENT (No such file or directory)",
    ] {
        assert!(outcome.stderr.contains(line), "{line}: {}", outcome.stderr);
    }
    let keep = site(&outcome, "keep");
    let dumped = Profile::read(&dir.path().join("dumped"));
    let by_key = Profile::read(&dir.path().join(format!("by_key.{}", dumped.file.pid)));
    let live = |profile: &Profile| {
        profile
            .at(keep)
            .map(|one| one.stack.live_bytes)
            .sum::<u64>()
    };
    assert_eq!((live(&by_key), live(&dumped)), (5000, 0));
    assert_eq!(dumped.file.name_low, u64::from_le_bytes(*b"profile\0"));
    assert!(dumped.maps.lines().any(|line| line.ends_with("/profile")));
    let outcome = Run::new(c_program("profile"))
        .args("sites 10")
        .conf("profile=1,profile_dump=/no/such/directory/x")
        .run();
    assert!(outcome.status.success(), "{}", outcome.describe("failed"));
    assert_eq!(outcome.stderr.matches("no profile in").count(), 1);
}

/// A signal of the user's choice writes the profile; a worker does it, or the next request.
#[test]
fn a_signal_asks_for_a_dump() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", ",workers=0", ",rseq=off", ",harden=on"] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("dump");
        let conf = format!("profile=1,profile_dump={}@USR2{mode}", path.display());
        let run = Run::new(c_program("profile")).arg("asked").arg(&path);
        let outcome = run.conf(&conf).timeout(150).ok();
        let keep = site(&outcome, "keep");
        let live = |name: &str| {
            let profile = Profile::read(&dir.path().join(name));
            profile
                .at(keep)
                .map(|one| one.stack.live_bytes)
                .sum::<u64>()
        };
        assert_eq!(
            ["dump.0", "dump.1", "dump"].map(live),
            [5000, 0, 0],
            "{mode}"
        );
    }
}

/// The signal is the program's where the program wants it, and stays ignored where it is ignored.
#[test]
fn a_signal_in_use_asks_for_nothing() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("dump");
    let conf = format!("profile=1,profile_dump={}@USR2", path.display());
    let run = Run::new(c_program("profile")).arg("handles").conf(&conf);
    let outcome = run.run();
    assert!(outcome.status.success(), "{}", outcome.describe("failed"));
    let line = "profile_dump: the program now handles signal 12 itself";
    assert_eq!(
        outcome.stderr.matches(line).count(),
        1,
        "{}",
        outcome.stderr
    );

    let _ = fs::remove_file(&path);
    let program = c_program("profile");
    let script = format!(
        "trap '' USR2; exec {} ignores {}",
        program.display(),
        path.display()
    );
    let outcome = Run::new("sh").arg("-c").arg(&script).conf(&conf).run();
    assert!(outcome.status.success(), "{}", outcome.describe("failed"));
    let line = "nothing is written at signal 12, which this process ignores since its start";
    assert_eq!(
        outcome.stderr.matches(line).count(),
        1,
        "{}",
        outcome.stderr
    );
}

/// The stack of the object of this size: the site of each frame, the innermost first.
fn sites_of<'a>(
    profile: &Profile,
    outcome: &Outcome,
    size: u64,
    names: &[&'a str],
) -> Vec<&'a str> {
    let mut stacks = profile
        .stacks
        .iter()
        .filter(|one| one.stack.total_bytes == size);
    let sampled = stacks.next().expect("a stack");
    let of = |frame: usize| {
        let is_there = |name: &&&str| sampled.is_in(frame, site(outcome, name));
        names.iter().find(is_there).copied()
    };
    (0..sampled.frames.len()).filter_map(of).collect()
}

const DEEP: [&str; 5] = ["keep", "recurse", "compare", "handler", "deep"];

#[test]
fn stacks_go_through_libraries_and_signals() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let (outcome, profile) = run("deep", "profile=1");
    if profile.area.unwinder != Unwinder::Tables as u64 {
        return ebbtide_tests::skip("this C library does not tell where tables are");
    }
    let mut short = profile
        .at(site(&outcome, "keep"))
        .filter(|one| one.stack.total_bytes == 700);
    let (first, second) = (short.next().unwrap(), short.next().unwrap());
    let deepest = first.frames.len().max(second.frames.len());
    assert_eq!(deepest, 64, "100 calls are cut off");
    let of = |size| sites_of(&profile, &outcome, size, &DEEP);
    assert!(
        of(800).starts_with(&["keep", "compare", "deep"]),
        "{:?}",
        of(800)
    );
    assert_eq!(of(900), ["keep", "handler", "deep"]);
}

/// Where the system call that reads the stack is refused, only the caller is known.
#[test]
fn a_filter_refuses_to_read_stacks() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    let (outcome, profile) = run("refused", "profile=1");
    let keep: Vec<_> = profile.at(site(&outcome, "keep")).collect();
    assert_eq!(
        keep.iter().map(|one| one.stack.live_objects).sum::<u64>(),
        100
    );
    assert!(keep.iter().all(|one| one.frames.len() == 1));
    assert_eq!(profile.area.unwinder, Unwinder::None as u64);
}

#[test]
fn forked_children_go_on_with_their_copy() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for mode in ["", ",rseq=off"] {
        let conf = format!("profile=1{mode}");
        let (outcome, profiles) = run_program(c_program("profile"), "forks", &conf);
        assert_eq!(profiles.len(), 21, "{mode}");
        let keep = site(&outcome, "keep");
        let live = |profile: &Profile| {
            profile
                .at(keep)
                .map(|one| one.stack.live_bytes)
                .sum::<u64>()
        };
        let mut all: Vec<u64> = profiles.iter().map(live).collect();
        all.sort_unstable();
        assert_eq!(all[0], 2000, "the parent has what it had");
        assert!(all[1..].iter().all(|&live| live == 7 * 2000), "{all:?}");
    }
}

/// Programs that know nothing of it, with each allocation sampled.
#[test]
fn programs_run_while_everything_is_sampled() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for conf in ["profile=1", "profile=1,rseq=off", "profile=1,harden=on"] {
        for (program, args) in [
            ("stress", "seed=5 threads=4 seconds=2 gens=3"),
            ("fork", "main 4 20"),
            ("fork", "clone 4 10"),
            ("api", "basic"),
            ("api", "align"),
            ("api", "zero"),
            ("api", "resize"),
            ("api", "usable"),
            ("api", "errno"),
            ("api", "sized"),
            ("few_calls", ""),
        ] {
            let conf = match program {
                "few_calls" => "profile=1,syscalls=basic",
                _ => conf,
            };
            let run = Run::new(c_program(program)).args(args).conf(conf);
            run.timeout(150).ok();
        }
    }
}

/// Programs of musl, and static ones: their own tables, or frame pointers.
#[test]
fn other_c_libraries() {
    if !cfg!(target_arch = "x86_64") || !only_ebbtide(PROMISE) {
        return;
    }
    if ensure_installed("musl-gcc", "musl-tools linux-libc-dev") {
        let program = c_program_for_musl("profile");
        for mode in ["sites 500", "balance 4", "forks", "switch"] {
            run_program(&program, mode, "profile=1");
        }
        let (outcome, profiles) = run_program(&program, "sites 500", "profile=1");
        let keep: u64 = profiles[0]
            .at(site(&outcome, "keep"))
            .map(|one| one.stack.live_bytes)
            .sum();
        assert_eq!(keep, 500 * 1000);
    }
}
