//! `ebbtide run` from outside: exit status, signals, errors, summaries.
//!
//! A stand-in serves as the library: what is tested is the way programs are
//! started and measured, not the memory manager.

mod terminal;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::prelude::*;
use predicates::prelude::*;
use tempfile::TempDir;
use terminal::{in_terminal, status_within};

/// A library that keeps a statistics page and does nothing else.
struct Fixture {
    dir: TempDir,
    lib: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("libebbtide.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/pages.c");
        let built = cc(&["-shared", "-fPIC", "-o"], &lib, &source);
        assert!(built, "the tests need a C compiler");
        Fixture { dir, lib }
    }

    fn run(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("ebbtide").unwrap();
        command.arg("run").args(args);
        command.env("EBBTIDE_LIB", &self.lib);
        command.env_remove("EBBTIDE_CONF").env_remove("LD_PRELOAD");
        // SAFETY: signal is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // Ignored where the tests were started by nohup or in the background.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        command
    }

    fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

fn cc(flags: &[&str], out: &Path, source: &Path) -> bool {
    Command::new("cc")
        .args(flags)
        .arg(out)
        .arg(source)
        .status()
        .is_ok_and(|s| s.success())
}

fn says(text: &str) -> impl Predicate<str> + '_ {
    predicate::str::contains(text)
}

#[test]
fn exit_status_passes_through() {
    let f = Fixture::new();
    for extra in [&[][..], &["--summary"], &["--summary=json"]] {
        for code in [0, 1, 42, 255] {
            let mut args = extra.to_vec();
            let script = format!("exit {code}");
            args.extend(["--", "sh", "-c", &script]);
            f.run(&args).assert().code(code);
        }
    }
}

#[test]
fn death_by_signal_is_128_and_the_signal() {
    let f = Fixture::new();
    f.run(&["--summary", "--", "sh", "-c", "kill -KILL $$"])
        .assert()
        .code(137)
        .stderr(says("signal 9"));
}

#[test]
fn standard_streams_pass_through() {
    let f = Fixture::new();
    f.run(&["--summary", "--", "echo", "hello"])
        .assert()
        .stdout("hello\n")
        .stderr(says("peak RSS").and(says("worker time").not()));
    f.run(&["-v", "--", "echo", "hello"])
        .assert()
        .stdout("hello\n")
        .stderr(says("peak RSS").and(says("worker time")));
    f.run(&["echo", "--summary"])
        .assert()
        .stdout("--summary\n")
        .stderr("");
}

#[test]
fn environment_has_library_and_configuration() {
    let f = Fixture::new();
    let show = ["--", "sh", "-c", "echo $LD_PRELOAD $EBBTIDE_CONF"];
    let mut args = vec!["--conf", "dev=zones:2", "--conf=rseq=off"];
    args.extend(show);
    let lib = f.lib.canonicalize().unwrap().display().to_string();
    f.run(&args)
        .env("EBBTIDE_CONF", "dev=zones:1,thp=off")
        .env("LD_PRELOAD", &lib)
        .assert()
        .stdout(format!("{lib} thp=off,dev=zones:2,rseq=off\n"));
}

#[test]
fn own_errors_name_the_remedy() {
    let f = Fixture::new();
    f.run(&["--", "no-such-program-x"])
        .assert()
        .code(127)
        .stderr(says("PATH"));
    f.run(&["--", "/no/such"]).assert().code(127);
    let plain = f.file("plain", "#!/bin/sh\n", 0o644);
    f.run(&["--", plain.to_str().unwrap()])
        .assert()
        .code(126)
        .stderr(says("chmod +x"));
    let bad = f.file("bad", "#!/no/such\n", 0o755);
    f.run(&["--", bad.to_str().unwrap()])
        .assert()
        .code(126)
        .stderr(says("/no/such"));
    f.run(&["--conf", "retian_ms=5", "--", "true"])
        .assert()
        .code(125)
        .stderr(says("retain_ms"));
    f.run(&["--conf", "rseq=2", "--", "true"])
        .assert()
        .code(125)
        .stderr(says("on|off"));
    f.run(&["--lib", "/no/lib.so", "--", "true"])
        .assert()
        .code(125)
        .stderr(says("--lib"));
    f.run(&["true"])
        .env("EBBTIDE_CONF", "nonsense")
        .assert()
        .code(125)
        .stderr(says("EBBTIDE_CONF"));
    f.run(&["--no-such-flag", "--", "true"]).assert().code(125);
}

#[test]
fn static_program_needs_force() {
    let f = Fixture::new();
    let source = f.file("s.c", "int main(void) { return 7; }\n", 0o644);
    let program = f.dir.path().join("s");
    if !cc(&["-static", "-no-pie", "-o"], &program, &source) {
        eprintln!("skipped: no static C library");
        return;
    }
    let program = program.to_str().unwrap();
    f.run(&["--", program])
        .assert()
        .code(125)
        .stderr(says("statically linked"));
    f.run(&["--force", "--", program])
        .assert()
        .code(7)
        .stderr(says("statically linked"));
}

#[test]
fn json_summary_goes_to_a_file() {
    let f = Fixture::new();
    let path = f.dir.path().join("s.json");
    let to = path.to_str().unwrap();
    f.run(&[
        "--summary=json",
        "--compare",
        "--rounds=2",
        "--summary-file",
        to,
        "--",
        "sleep",
        "0.05",
    ])
    .assert()
    .success();
    let v: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for run in ["with_ebbtide", "without_ebbtide"] {
        let run = &v[run];
        assert_eq!(run["exit_status"], 0);
        assert!(run["wall_ns"].as_u64().unwrap() >= 50_000_000);
        assert!(run["rss_peak_bytes"].as_u64().unwrap() > 100_000);
        assert!(run["rss_end_bytes"].as_u64().unwrap() > 100_000);
        assert!(run["faults_minor"].as_u64().unwrap() > 10);
    }
    assert!(v["ratio"]["wall"].as_f64().unwrap() > 0.1);
    let library = &v["with_ebbtide"]["ebbtide"];
    assert_eq!(library["processes"], 1);
    assert_eq!(library["processes_rseq"], 1);
    assert_eq!(library["released_bytes"], 1000);
    assert!(v["without_ebbtide"]["ebbtide"].is_null());
    let rounds = v["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        assert_eq!(round["with_ebbtide"]["ebbtide"]["processes"], 1);
        assert!(round["without_ebbtide"]["ebbtide"].is_null());
    }
    assert!(v["comparison"]["wall"]["with"]["min"].as_u64().unwrap() >= 50_000_000);
    assert_eq!(v["output"]["stdout"], "none");
}

#[test]
fn rounds_get_the_same_input_and_show_the_output_once() {
    let f = Fixture::new();
    let log = f.dir.path().join("log");
    let script = format!("cat; echo \"${{EBBTIDE_CONF:+with}}\" >> {}", log.display());
    let args = ["--compare", "--rounds=2", "--", "sh", "-c", &script];
    let file = f.file("input", "skipped and read\n", 0o644);
    let mut pipe = Command::new("sh");
    let words = ["head -c 8 >/dev/null; exec \"$@\" ", "sh"];
    let program = Command::cargo_bin("ebbtide").unwrap();
    pipe.arg("-c")
        .args(words)
        .arg(program.get_program())
        .arg("run")
        .args(args);
    pipe.env("EBBTIDE_LIB", &f.lib).env_remove("LD_PRELOAD");
    // A shell shares its place in the file with its child.
    let said = pipe
        .stdin(fs::File::open(file).unwrap())
        .assert()
        .success()
        .stdout("and read\n")
        .stderr(says("times the").or(says("≈")).and(says("(2 rounds each)")))
        .get_output()
        .stderr
        .clone();
    let said = String::from_utf8(said).unwrap();
    assert!(!said.contains("warning"), "{said}");
    let kinds = fs::read_to_string(&log).unwrap();
    assert_eq!(kinds, "with\nwith\n\nwith\n\n", "warm-up, then in turn");
    let mut child = f
        .run(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"piped\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.stdout, b"piped\n", "{said}");
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn a_terminal_as_input_of_rounds_is_refused() {
    let f = Fixture::new();
    let mut command = f.run(&["--compare", "--", "true"]);
    let (mut main, mut child) = in_terminal(&mut command);
    let mut said = String::new();
    // The terminal's last line ends with an error, as its other side is closed.
    let _ = main.read_to_string(&mut said);
    assert_eq!(status_within(&mut child, 10), Some(125));
    assert!(
        said.contains("terminal") && said.contains("< /dev/null"),
        "{said}"
    );
    f.run(&["--compare", "--", "true"])
        .stdin(fs::File::open("/dev/zero").unwrap())
        .assert()
        .code(125)
        .stderr(says("endless"));
}

#[test]
fn rounds_tell_of_differences() {
    let f = Fixture::new();
    let run = |script: &str| {
        let args = ["--compare", "--rounds=2", "--", "sh", "-c", script];
        f.run(&args).assert()
    };
    run("echo \"${EBBTIDE_CONF:+with}\"")
        .success()
        .stdout("with\n")
        .stderr(says("stdout with Ebbtide differs"));
    run("echo $$ >&2")
        .success()
        .stderr(says("stderr differs from round to round"));
    run("exit ${EBBTIDE_CONF:+3}")
        .code(3)
        .stderr(says("different exit statuses").and(says("[3]")));
}

/// The signal ends the round that runs and no other begins; the rounds before it are reported.
#[test]
fn a_signal_ends_all_rounds() {
    let f = Fixture::new();
    for (last, said) in [
        (1, "nothing to compare"),
        (2, "nothing to compare"),
        (5, "(1 round each)"),
    ] {
        let log = f.dir.path().join(format!("log{last}"));
        let script = format!(
            "echo >> {0}; [ $(wc -l < {0}) -lt {last} ] || exec sleep 20",
            log.display()
        );
        let mut command = f.run(&["--compare", "--", "sh", "-c", &script]);
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = || fs::read_to_string(&log).unwrap_or_default().len();
        let end = Instant::now() + Duration::from_secs(20);
        while lines() < last {
            assert!(Instant::now() < end, "round {last} begins");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100));
        kill(&child, libc::SIGTERM);
        assert_eq!(status_within(&mut child, 15), Some(143), "round {last}");
        let mut text = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(
            text.contains(said) && text.contains("interrupted"),
            "{text}"
        );
        assert_eq!(lines(), last);
    }
}

#[test]
fn a_closed_stderr_does_not_change_the_status() {
    let f = Fixture::new();
    let mut child = f
        .run(&["--summary", "--", "sh", "-c", "sleep 0.1; exit 3"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// Starts a supervised shell script that prints a line when it is ready.
fn ready(f: &Fixture, script: &str) -> Child {
    let mut child = f
        .run(&["--summary", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // In a group whose parents have all gone nobody stops (started in the background, this may run in one).
        .process_group(0)
        .spawn()
        .unwrap();
    let mut byte = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    child
}

fn kill(child: &Child, signal: i32) {
    // SAFETY: the child was started here and is not reaped.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn signals_are_passed_on() {
    let f = Fixture::new();
    let script = "
        trap 'exit 11' TERM; trap 'exit 12' INT; trap 'exit 13' HUP
        trap 'exit 14' USR1; trap 'exit 15' USR2; trap 'exit 16' QUIT; trap 'exit 17' WINCH
        echo; while :; do sleep 0.01; done";
    for (signal, code) in [
        (libc::SIGTERM, 11),
        (libc::SIGINT, 12),
        (libc::SIGHUP, 13),
        (libc::SIGUSR1, 14),
        (libc::SIGUSR2, 15),
        (libc::SIGQUIT, 16),
        (libc::SIGWINCH, 17),
    ] {
        let mut child = ready(&f, script);
        kill(&child, signal);
        assert_eq!(status_within(&mut child, 10), Some(code), "signal {signal}");
    }
}

#[test]
fn untrapped_signal_ends_both() {
    let f = Fixture::new();
    let mut child = ready(&f, "echo; exec sleep 20");
    kill(&child, libc::SIGTERM);
    assert_eq!(status_within(&mut child, 10), Some(143));
}

#[test]
fn stop_and_continue() {
    let f = Fixture::new();
    let script = "trap 'exit 5' CONT; echo; while :; do sleep 0.05; done";
    let mut child = ready(&f, script);
    kill(&child, libc::SIGTSTP);
    let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while !stat().contains(") T ") {
        assert!(Instant::now() < end, "the supervisor stops with its child");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(&child, libc::SIGCONT);
    assert_eq!(status_within(&mut child, 10), Some(5));
}

#[test]
fn ignored_signals_stay_ignored() {
    let f = Fixture::new();
    let lib = f.lib.display();
    let exe = Command::cargo_bin("ebbtide").unwrap();
    let exe = Path::new(exe.get_program()).display().to_string();
    let script =
        format!("trap '' HUP; {exe} run --summary --lib {lib} -- sh -c 'kill -HUP $$; exit 9'");
    Command::new("sh").args(["-c", &script]).assert().code(9);
}

#[test]
fn figures_are_summed_over_processes() {
    let f = Fixture::new();
    let path = f.dir.path().join("s.json");
    let to = path.to_str().unwrap();
    f.run(&[
        "--summary=json",
        "--summary-file",
        to,
        "--",
        "sh",
        "-c",
        "/bin/true; /bin/true; :",
    ])
    .assert()
    .success()
    .stderr("");
    let v: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let library = &v["with_ebbtide"]["ebbtide"];
    assert_eq!(library["processes"], 3);
    assert_eq!(library["released_bytes"], 3000);
    assert_eq!(library["release_calls"], 9);
}

/// Others on the machine do not keep the sampler from looking; a name is no reason not to.
#[test]
fn a_tree_is_watched_beside_many_processes() {
    const OTHERS: usize = 300;
    const FILLED_BYTES: u64 = 64 << 20;
    let f = Fixture::new();
    let (path, name) = (f.dir.path().join("s.json"), f.dir.path().join("абвгдежзик"));
    std::os::unix::fs::symlink("/bin/sh", &name).unwrap();
    let mut others: Vec<Child> = (0..OTHERS)
        .map(|_| Command::new("sleep").arg("60").spawn().unwrap())
        .collect();
    // `dd` holds its block until the pipe is closed: each of the two is a grandchild.
    let fill = "dd if=/dev/zero bs=64M count=1 2>/dev/null | sleep 0.6";
    let script = format!("sh -c '{fill}; :' & sh -c '{fill}; :' & wait");
    let (to, name) = (path.to_str().unwrap(), name.to_str().unwrap());
    let mut run = f.run(&["--summary=json", "--summary-file", to, "--", name, "-c"]);
    let status = run.arg(script).status();
    for other in &mut others {
        let _ = other.kill();
        let _ = other.wait();
    }
    assert_eq!(status.unwrap().code(), Some(0));
    let v: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let figures = &v["with_ebbtide"];
    let number = |name: &str| figures[name].as_u64().unwrap();
    assert!(number("samples") >= 6, "{figures}");
    assert!(
        number("tree_rss_peak_bytes") > 2 * FILLED_BYTES,
        "{figures}"
    );
}

/// Only a signal that this process got too tells when the end began.
#[test]
fn the_end_by_a_signal_is_counted_from_it() {
    let f = Fixture::new();
    let path = f.dir.path().join("s.json");
    let to = path.to_str().unwrap();
    let end = |script: &str| {
        let arguments = ["--summary=json", "--summary-file", to, "--", "sh", "-c"];
        f.run(&[&arguments[..], &[script]].concat())
            .assert()
            .code(143);
        let text = fs::read_to_string(&path).unwrap();
        let v: serde_json::Value = serde_json::from_str(&text).unwrap();
        let figures = &v["with_ebbtide"];
        (
            figures["end_seen_since"].clone(),
            figures["end_seen_ns"].as_u64(),
        )
    };
    let (since, ns) = end("(sleep 0.1; kill -TERM $PPID) & exec sleep 5");
    assert_eq!(since, "signal");
    assert!(ns.is_some_and(|ns| ns < 2_000_000_000));
    let (since, ns) = end("kill -TERM $$");
    assert!(since.is_null() && ns.is_none());
}

#[test]
fn the_private_directory_goes_and_a_named_one_stays_empty() {
    let f = Fixture::new();
    let temp = f.dir.path().join("tmp");
    let named = f.dir.path().join("named");
    fs::create_dir(&temp).unwrap();
    fs::create_dir(&named).unwrap();
    f.run(&["--summary", "--", "true"])
        .env("TMPDIR", &temp)
        .assert()
        .success();
    assert_eq!(fs::read_dir(&temp).unwrap().count(), 0);
    let conf = format!("stats_dir={}", named.display());
    f.run(&["--summary", "--conf", &conf, "--", "true"])
        .assert()
        .success()
        .stderr(says("1000 B"));
    assert_eq!(fs::read_dir(&named).unwrap().count(), 0);
}

#[test]
fn a_process_without_the_library_is_warned_about() {
    let f = Fixture::new();
    f.run(&["--summary", "--", "env", "-u", "EBBTIDE_CONF", "true"])
        .assert()
        .success()
        .stderr(says("warning").not());
    let other = f.dir.path().join("other.so");
    let known = "int ebb_version(void) { return 0; }\nint ebb_stats(void) { return 0; }\n";
    let source = f.file("other.c", known, 0o644);
    assert!(cc(&["-shared", "-fPIC", "-o"], &other, &source));
    f.run(&["--summary", "--lib", other.to_str().unwrap(), "--", "true"])
        .assert()
        .success()
        .stderr(says("Ebbtide was NOT loaded: "));
}

#[test]
fn another_library_is_refused() {
    let f = Fixture::new();
    let other = f.dir.path().join("libebbtide.so.0");
    let source = f.file("other.c", "int other;\n", 0o644);
    assert!(cc(&["-shared", "-fPIC", "-o"], &other, &source));
    let other = other.to_str().unwrap();
    for lib in [other, source.to_str().unwrap()] {
        f.run(&["--lib", lib, "--", "true"])
            .assert()
            .code(125)
            .stderr(says("give the path of libebbtide.so with --lib PATH"));
    }
    let renamed = f.dir.path().join("renamed.so");
    fs::copy(&f.lib, &renamed).unwrap();
    let renamed = renamed.to_str().unwrap();
    f.run(&["--lib", renamed, "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", &f.lib)
        .assert()
        .success()
        .stdout(says("renamed.so").and(says("libebbtide").not()));
}

#[test]
fn doctor_tries_the_library() {
    let f = Fixture::new();
    let mut doctor = Command::cargo_bin("ebbtide").unwrap();
    doctor
        .arg("doctor")
        .env("EBBTIDE_LIB", &f.lib)
        .env_remove("LD_PRELOAD");
    doctor
        .assert()
        .success()
        .stdout(says("mode rseq").and(says("Ebbtide works here")));
}

/// One key press in a terminal reaches the program once, not twice.
#[test]
fn a_terminal_signal_arrives_once() {
    let f = Fixture::new();
    let script = "n=0; trap 'n=$((n+1))' INT; echo ready; i=0
        while [ $i -lt 40 ]; do sleep 0.02; i=$((i+1)); done; exit $((40+n))";
    let mut command = f.run(&["--summary", "--", "sh", "-c", script]);
    let (mut main, mut child) = in_terminal(&mut command);
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"ready") {
        main.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(50));
    main.write_all(b"\x03").unwrap();
    assert_eq!(status_within(&mut child, 10), Some(41));
}
