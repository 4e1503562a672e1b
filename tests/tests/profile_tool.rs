//! `ebbtide profile`: places that are known get their bytes, in every form; errors name the remedy.
//!
//! The program `profile_sites` keeps objects of 1 KiB in `keep`, makes 99 % of its calls in `burst`, where it frees at once, and loses 8 MiB in
//! `lose`. An estimate from `n` samples is wrong by more than six times its standard deviation less often than once in 10^8 runs.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use ebbtide_tests::{
    c_program, command_line, ensure_installed, known, library, needs_root, only_ebbtide, skip,
};

/// Bytes between samples in most tests: 16 MiB of small objects are 256 samples.
const RATE: f64 = 65536.0;
const MIB: f64 = 1048576.0;

fn ebbtide(words: &[&str]) -> Option<Command> {
    if !only_ebbtide("takes samples") {
        return None;
    }
    let mut command = Command::new(command_line()?);
    command.arg("profile").args(words);
    command.env_remove("EBBTIDE_CONF").env_remove("LD_PRELOAD");
    command.env("EBBTIDE_LIB", library().expect("the library"));
    Some(command)
}

fn run(words: &[&str]) -> Option<Output> {
    Some(ebbtide(words)?.output().expect("ebbtide"))
}

/// What it prints if it succeeds.
fn printed(words: &[&str]) -> Option<String> {
    let output = run(words)?;
    assert!(output.status.success(), "{words:?}: {output:?}");
    Some(String::from_utf8(output.stdout).expect("text"))
}

/// What it says if it fails.
fn said(words: &[&str]) -> Option<String> {
    let output = run(words)?;
    assert!(!output.status.success(), "{words:?}: {output:?}");
    Some(String::from_utf8(output.stderr).expect("text"))
}

fn sites() -> String {
    c_program("profile_sites").display().to_string()
}

/// The bytes of a place in the table, with their sign; 0 if it is not there.
fn bytes_of(text: &str, place: &str) -> f64 {
    let (table, _) = text.split_once("\nCalls,").unwrap_or((text, ""));
    let place = format!("{place} (profile_sites.c:");
    let row = table.lines().find(|line| line.contains(&place));
    let Some(row) = row else { return 0.0 };
    let words: Vec<&str> = row.split_whitespace().collect();
    let unit = ["B", "KiB", "MiB", "GiB"];
    let unit = unit.iter().position(|unit| *unit == words[1]);
    let number: f64 = words[0].parse().unwrap_or_else(|_| panic!("{row}"));
    number * 1024f64.powi(unit.unwrap_or_else(|| panic!("{row}")) as i32)
}

/// Whether an estimate is within six standard deviations of the truth.
#[track_caller]
fn assert_near(estimate: f64, truth: f64, object: f64) {
    // What objects of this size stand for: the rate and half their size, about.
    let samples = truth / (RATE + object / 2.0);
    // The text has three digits.
    let allowed = truth * (6.0 / samples.sqrt() + 0.01);
    assert!(
        (estimate - truth).abs() <= allowed,
        "{estimate} is not {truth} ± {allowed}"
    );
}

/// The program, which waits with these MiB.
struct Waiting {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _dir: tempfile::TempDir,
}

impl Waiting {
    fn start(mib: u32, conf: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let conf = conf.replace("DIR", &dir.path().display().to_string());
        let mut child = Command::new(sites())
            .args([&mib.to_string(), "wait"])
            .env("LD_PRELOAD", library().expect("the library"))
            .env("EBBTIDE_CONF", known(&conf))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut waiting = Self {
            child,
            stdin,
            stdout,
            _dir: dir,
        };
        waiting.read_line("ready");
        waiting
    }

    fn read_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), expected);
    }

    /// Lets it keep as much again.
    fn more(&mut self) {
        self.ask("x\n");
    }

    fn ask(&mut self, line: &str) {
        self.stdin.write_all(line.as_bytes()).expect("a pipe");
        self.read_line("more");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn temporary(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    (dir, path)
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn the_places_of_a_command_have_their_bytes() {
    let command = ["--rate", "64K", "--", &sites(), "64"];
    let Some(peak) = printed(&command) else {
        return;
    };
    assert!(peak.contains(": heap at its peak, "), "{peak}");
    assert_near(bytes_of(&peak, "keep"), 64.0 * MIB, 1024.0);
    assert_near(bytes_of(&peak, "lose"), 8.0 * MIB, 65536.0);
    // At most one object of it is live.
    assert!(bytes_of(&peak, "burst") < 4.0 * RATE, "{peak}");
    assert!(
        peak.contains("Calls, the outermost first:") && peak.contains("main"),
        "{peak}"
    );
    let all = printed(&[&["--allocated"][..], &command].concat()).expect("text");
    assert_near(bytes_of(&all, "keep"), 64.0 * MIB, 1024.0);
    assert_near(bytes_of(&all, "burst"), 99.0 * 64.0 * MIB, 1024.0);
    assert_near(bytes_of(&all, "lose"), 8.0 * MIB, 65536.0);
}

#[test]
fn a_picture_has_the_same_bytes() {
    let (_dir, svg) = temporary("x.svg");
    if printed(&["--rate", "64K", "-o", text_of(&svg), "--", &sites(), "16"]).is_none() {
        return;
    }
    let svg = fs::read_to_string(svg).expect("written");
    let document = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(&svg, document).expect("XML");
    let titles = document
        .descendants()
        .filter(|node| node.has_tag_name("title"));
    let titles: Vec<&str> = titles.filter_map(|node| node.text()).collect();
    let bytes = |name: &str| -> f64 {
        let begin = format!("{name} (");
        let title = titles.iter().find_map(|title| title.strip_prefix(&begin));
        let title = title.unwrap_or_else(|| panic!("{name}: {titles:?}"));
        let number = title
            .split(" bytes")
            .next()
            .expect("a number")
            .replace(',', "");
        number.parse().expect("a number")
    };
    assert_near(bytes("keep"), 16.0 * MIB, 1024.0);
    assert_near(bytes("main"), 24.0 * MIB, 1024.0);
    assert!(svg.contains("prefers-color-scheme: dark"));
}

/// The bytes of a function as `go tool pprof -top` prints them.
fn top_bytes(top: &str, function: &str) -> f64 {
    let row = top
        .lines()
        .find(|line| line.trim().ends_with(&format!(" {function}")));
    let row = row.unwrap_or_else(|| panic!("no {function}: {top}"));
    let flat = row.split_whitespace().next().expect("a number");
    let at = flat.find(|c: char| c.is_alphabetic()).expect("a unit");
    let scale = match &flat[at..] {
        "kB" => 1024.0,
        "MB" => MIB,
        "GB" => 1024.0 * MIB,
        unit => panic!("{unit}"),
    };
    flat[..at].parse::<f64>().expect("a number") * scale
}

#[test]
fn pprof_reads_its_file() {
    let (_dir, file) = temporary("x.pb.gz");
    let written = printed(&["--rate", "64K", "-o", text_of(&file), "--", &sites(), "16"]);
    if written.is_none() {
        return;
    }
    // Debian's package, or another one that is in use here.
    if !ensure_installed("go", "golang-go") {
        return;
    }
    let pprof = |flags: &[&str]| {
        let output = Command::new("go")
            .args(["tool", "pprof"])
            .args(flags)
            .arg(&file)
            .output()
            .expect("go");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let top = pprof(&["-top"]);
    assert!(top.contains("Type: peak_space"), "{top}");
    assert_near(top_bytes(&top, "keep"), 16.0 * MIB, 1024.0);
    let leaks = pprof(&["-top", "-sample_index=inuse_space"]);
    assert_near(top_bytes(&leaks, "lose"), 8.0 * MIB, 65536.0);
    let all = pprof(&["-top", "-sample_index=alloc_space"]);
    assert_near(top_bytes(&all, "burst"), 99.0 * 16.0 * MIB, 1024.0);
    let raw = pprof(&["-raw"]);
    for part in [
        "PeriodType: space bytes",
        "Period: 65536",
        "inuse_objects/count inuse_space/bytes alloc_objects/count alloc_space/bytes",
        "thread:[profile_sites]",
        "bytes:[1024 bytes]",
        "profile_sites.c:",
    ] {
        assert!(raw.contains(part), "{part}: {raw}");
    }
    // The program's mapping has its build id, as the linker wrote it.
    let notes = Command::new("readelf")
        .args(["-n", &sites()])
        .output()
        .expect("readelf");
    let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    if let Some(id) = id {
        assert!(raw.contains(id), "{id}: {raw}");
    }
}

#[test]
fn leaks_are_what_a_command_did_not_free() {
    let words = ["--leaks", "--rate", "64K", "--", &sites(), "16", "end", "3"];
    let Some(output) = run(&words) else { return };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(": live at the end, "), "{text}");
    assert_near(bytes_of(&text, "lose"), 8.0 * MIB, 65536.0);
    assert_eq!(bytes_of(&text, "keep"), 0.0, "{text}");
    assert_eq!(bytes_of(&text, "burst"), 0.0, "{text}");
}

#[test]
fn lifetimes_tell_short_lives_from_long_ones() {
    let words = ["--lifetimes", "--rate", "64K", "--", &sites(), "16"];
    let Some(text) = printed(&words) else { return };
    let row = |place: &str| -> Vec<String> {
        let place = format!("{place} (profile_sites.c:");
        let row = text.lines().find(|line| line.contains(&place));
        let row = row.unwrap_or_else(|| panic!("{place}: {text}"));
        row.split("  ")
            .map(|it| it.trim().to_owned())
            .filter(|it| !it.is_empty())
            .collect()
    };
    let ([burst, keep], lose) = (["burst", "keep"].map(row), row("lose"));
    assert_eq!(
        (burst[2].as_str(), keep[2].as_str()),
        ("100.0 %", "100.0 %"),
        "{text}"
    );
    assert_eq!(
        (lose[2].as_str(), lose[4].as_str()),
        ("0.0 %", "-"),
        "{text}"
    );
    // Freed at once, even on a busy machine, and at the end.
    assert!(burst[4].ends_with("µs"), "{text}");
    assert!(keep[4].ends_with(" s") || keep[4].ends_with("ms"), "{text}");
}

#[test]
fn a_running_process_is_read_and_compared() {
    if !only_ebbtide("takes samples") || command_line().is_none() {
        return;
    }
    let mut waiting = Waiting::start(16, "profile=64K");
    let (_dir, old) = temporary("old.pb.gz");
    let Some(live) = printed(&[&waiting.pid()]) else {
        return;
    };
    assert!(live.contains(": live heap, "), "{live}");
    assert_near(bytes_of(&live, "keep"), 16.0 * MIB, 1024.0);
    printed(&[&waiting.pid(), "-o", text_of(&old)]);
    waiting.more();
    let change = printed(&[&waiting.pid(), "--against", text_of(&old)]).expect("text");
    assert!(change.contains(": change of the live heap, "), "{change}");
    // Another place in `main`, so the old one has not changed and is not shown.
    assert_near(bytes_of(&change, "keep"), 16.0 * MIB, 1024.0);
    assert_eq!(bytes_of(&change, "lose"), 0.0, "{change}");
    let (_dir, new) = temporary("new.pb.gz");
    printed(&[&waiting.pid(), "-o", text_of(&new)]);
    let files = printed(&[text_of(&old), "--against", text_of(&new)]).expect("text");
    assert_near(-bytes_of(&files, "keep"), 16.0 * MIB, 1024.0);
    // A time in which nothing is allocated.
    let nothing = printed(&[&waiting.pid(), "--allocated", "--seconds", "0.2"]).expect("text");
    assert!(nothing.contains("No samples."), "{nothing}");
}

#[test]
fn samples_are_switched_on_for_a_time() {
    if !only_ebbtide("takes samples") || command_line().is_none() {
        return;
    }
    let mut waiting = Waiting::start(16, "stats_dir=DIR,dev=pages:all");
    let Some(mut command) = ebbtide(&[&waiting.pid(), "--seconds", "30", "--rate", "64K"]) else {
        return;
    };
    let profile = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut profile = profile.expect("ebbtide");
    let stderr = BufReader::new(profile.stderr.take().expect("a pipe"));
    // An idle process begins at its next slow call, and the tool says so first.
    let mut lines = stderr.lines().map(|line| line.expect("a line"));
    let told = lines.any(|line| line.contains("took no samples: it does for 30 s; Ctrl-C"));
    assert!(told);
    // The process begins somewhere in the first part, and has begun before the second.
    waiting.more();
    std::thread::sleep(Duration::from_secs(1));
    waiting.more();
    // Ends early, and writes.
    // SAFETY: kill has no memory effects; the child was not reaped.
    unsafe { libc::kill(profile.id() as i32, libc::SIGINT) };
    let output = profile.wait_with_output().expect("ebbtide");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let sampled = bytes_of(&text, "keep");
    assert!((10.0 * MIB..42.0 * MIB).contains(&sampled), "{text}");
    assert_eq!(bytes_of(&text, "lose"), 0.0, "{text}");
    // It stops somewhere in the first part, and has stopped before the others.
    waiting.more();
    std::thread::sleep(Duration::from_secs(1));
    (0..3).for_each(|_| waiting.more());
    let again = run(&[&waiting.pid(), "--seconds", "0.1"]).expect("built");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("took no samples"), "{said}");
    let text = String::from_utf8(again.stdout).expect("text");
    let more = bytes_of(&text, "keep") - sampled;
    assert!((0.0..34.0 * MIB).contains(&more), "{text}");
}

/// `ebbtide explain` names the place whose objects are left in sparse pages.
#[test]
fn sparse_pages_are_pinned_by_a_place() {
    if !only_ebbtide("takes samples") || !needs_root("reads the memory of a process") {
        return;
    }
    let Some(program) = command_line() else {
        return;
    };
    for (conf, is_known) in [("profile=64K", true), ("profile=off", false)] {
        let mut waiting = Waiting::start(64, conf);
        waiting.ask("f\n");
        let explained = |flags: &[&str]| {
            let pid = waiting.pid();
            let output = Command::new(&program)
                .args(["explain", &pid])
                .args(flags)
                .output();
            let output = output.expect("ebbtide");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let json: serde_json::Value = serde_json::from_str(&explained(&["--json"])).expect("JSON");
        let classes = json["classes"].as_array().expect("classes");
        let class = classes.iter().find(|class| class["object_bytes"] == 1024);
        let place = class.expect("a class")["pinned_by"].as_str();
        let is_named = |place: &str| place.starts_with("keep (profile_sites.c:");
        assert_eq!(place.map(is_named), is_known.then_some(true), "{json:#}");
        let text = explained(&[]);
        assert_eq!(
            text.contains("pinned by") && text.contains("keep ("),
            is_known,
            "{text}"
        );
    }
}

#[test]
fn a_dump_is_read() {
    if !only_ebbtide("takes samples") || command_line().is_none() {
        return;
    }
    let (dir, dump) = temporary("dump");
    let conf = format!("profile=64K,profile_dump={}", dump.display());
    let status = Command::new(sites())
        .arg("16")
        .env("LD_PRELOAD", library().expect("the library"))
        .env("EBBTIDE_CONF", known(&conf))
        .status();
    assert!(status.expect("the program").success());
    let Some(text) = printed(&[text_of(&dump), "--allocated"]) else {
        return;
    };
    assert_near(bytes_of(&text, "keep"), 16.0 * MIB, 1024.0);
    assert_near(bytes_of(&text, "burst"), 99.0 * 16.0 * MIB, 1024.0);
    // As a pprof file it is the same.
    let file = dir.path().join("x.pprof");
    printed(&[text_of(&dump), "--allocated", "-o", text_of(&file)]);
    let again = printed(&[text_of(&file), "--allocated"]).expect("text");
    for place in ["keep", "burst", "lose"] {
        assert_eq!(bytes_of(&again, place), bytes_of(&text, place), "{again}");
    }
    let said = said(&[text_of(&file), "--lifetimes"]).expect("text");
    assert!(
        said.contains("no lifetimes") && said.contains("profile_dump=PATH"),
        "{said}"
    );
    fs::write(&dump, &fs::read(&dump).expect("a file")[..5000]).expect("written");
    let said = run(&[text_of(&dump)]).expect("built").stderr;
    assert!(String::from_utf8_lossy(&said).contains("is cut short"));
}

#[test]
fn a_killed_command_leaves_a_snapshot() {
    let (_dir, text) = temporary("x.txt");
    let Some(mut command) = ebbtide(&[
        "--rate",
        "64K",
        "-o",
        text_of(&text),
        "--",
        &sites(),
        "16",
        "wait",
    ]) else {
        return;
    };
    let profile = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut profile = profile.expect("ebbtide");
    let mut line = String::new();
    let mut stdout = BufReader::new(profile.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("a line");
    std::thread::sleep(Duration::from_millis(2500));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", profile.id()));
    let child: i32 = children
        .expect("a process")
        .trim()
        .parse()
        .expect("a child");
    // SAFETY: kill has no memory effects; the parent reaps the child only after this.
    unsafe { libc::kill(child, libc::SIGKILL) };
    drop(profile.stdin.take());
    let output = profile.wait_with_output().expect("ebbtide");
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("did not end in order"), "{said}");
    let text = fs::read_to_string(text).expect("written");
    assert_near(bytes_of(&text, "keep"), 16.0 * MIB, 1024.0);
}

#[test]
fn errors_name_the_remedy() {
    let Some(none) = said(&["4194305"]) else {
        return;
    };
    assert!(none.contains("there is no process 4194305"), "{none}");
    let missing = said(&["./no-such-file"]).expect("text");
    assert!(
        missing.contains("give a process number, or a file"),
        "{missing}"
    );
    let other = said(&[&sites()]).expect("text");
    assert!(
        other.contains("neither a dump (profile_dump=PATH"),
        "{other}"
    );
    let nowhere = said(&["-o", "/no/such/dir/x.svg", "--", "true"]).expect("text");
    assert!(
        nowhere.contains("cannot write /no/such/dir/x.svg"),
        "{nowhere}"
    );
    let form = said(&["--lifetimes", "-o", "x.svg", "--", "true"]).expect("text");
    assert!(form.contains("lifetimes are text only"), "{form}");
    let mut sleep = Command::new("sleep")
        .arg("60")
        .env_remove("LD_PRELOAD")
        .spawn()
        .expect("sleep");
    let stranger = said(&[&sleep.id().to_string()]).expect("text");
    let _ = sleep.kill();
    let _ = sleep.wait();
    assert!(
        stranger.contains("does not run under Ebbtide: start it with 'ebbtide profile -- "),
        "{stranger}"
    );
    let waiting = Waiting::start(1, "profile=off");
    let off = said(&[&waiting.pid()]).expect("text");
    assert!(
        off.contains("takes no samples, and keeps no statistics page")
            && off.contains("EBBTIDE_CONF=profile=512K"),
        "{off}"
    );
    let idle = Waiting::start(1, "stats_dir=DIR,dev=pages:all,workers=0");
    let late = said(&[&idle.pid(), "--seconds", "0.1"]).expect("text");
    assert!(
        late.contains("has taken no samples yet") && late.contains("profile=off' takes that back"),
        "{late}"
    );
    let failed = said(&["--", "sh", "-c", "kill -9 $$"]).expect("text");
    assert!(
        failed.contains("no process of the command wrote a profile"),
        "{failed}"
    );
}

#[test]
fn a_process_that_ends_leaves_a_snapshot() {
    if !only_ebbtide("takes samples") || command_line().is_none() {
        return;
    }
    let mut waiting = Waiting::start(16, "profile=64K");
    let Some(mut command) = ebbtide(&[&waiting.pid(), "--seconds", "60"]) else {
        return;
    };
    let profile = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ebbtide");
    std::thread::sleep(Duration::from_millis(3000));
    waiting.child.kill().expect("killed");
    waiting.child.wait().expect("ended");
    let output = profile.wait_with_output().expect("ebbtide");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has ended; this is its profile"));
    let text = String::from_utf8(output.stdout).expect("text");
    assert_near(bytes_of(&text, "keep"), 16.0 * MIB, 1024.0);
}

#[test]
fn another_users_process_is_refused() {
    if !only_ebbtide("takes samples") || !needs_root("runs as another user") {
        return;
    }
    let Some(program) = command_line() else {
        return;
    };
    if !ensure_installed("setpriv", "util-linux") {
        skip("no setpriv");
        return;
    }
    // The other user may not be able to reach the build directory.
    let (dir, copy) = temporary("ebbtide");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("a mode");
    fs::copy(program, &copy).expect("a copy");
    let waiting = Waiting::start(1, "profile=64K");
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["profile", &waiting.pid()])
        .output()
        .expect("setpriv");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said.contains("belongs to user 0") && said.contains("as root"),
        "{said}"
    );
}

#[test]
fn a_program_that_was_replaced_has_a_note() {
    if !only_ebbtide("takes samples") || command_line().is_none() {
        return;
    }
    let (dir, copy) = temporary("profile_sites");
    fs::copy(sites(), &copy).expect("a copy");
    let dump = dir.path().join("dump");
    let conf = format!("profile=64K,profile_dump={}", dump.display());
    let status = Command::new(&copy)
        .arg("1")
        .env("LD_PRELOAD", library().expect("the library"))
        .env("EBBTIDE_CONF", known(&conf))
        .status();
    assert!(status.expect("the program").success());
    fs::remove_file(&copy).expect("removed");
    let Some(output) = run(&[text_of(&dump)]) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("No such file") && said.contains("shown as addresses"),
        "{said}"
    );
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(" profile_sites+0x"), "{text}");
}
