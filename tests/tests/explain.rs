//! Tests `ebbtide explain` on real programs: the parts are what the kernel counts, and they are named rightly.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ebbtide_tests::{
    c_program, command_line, ensure_installed, is_root, library, needs_root, only_ebbtide, skip,
};
use serde_json::Value;
use tempfile::TempDir;

/// A program that waits for more on stdin, and is killed when the test ends.
struct Waiting {
    child: Child,
    _directory: TempDir,
}

impl Waiting {
    /// Starts a command of a shell under Ebbtide, and writes to its stdin.
    fn start(command: &str, stdin: &str, conf: Option<&str>) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        if let Some(conf) = conf {
            shell.env("LD_PRELOAD", library().expect("the library"));
            shell.env("EBBTIDE_CONF", conf);
        }
        let directory = tempfile::tempdir().expect("a directory");
        let child = shell
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("sh");
        let pipe = child.stdin.as_mut().expect("a pipe");
        pipe.write_all(stdin.as_bytes()).expect("written");
        Self {
            child,
            _directory: directory,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process, or its newest descendant if it only waits for others.
    fn worker(&self) -> u32 {
        let mut pid = self.pid();
        loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            match children.split_whitespace().last() {
                Some(child) => pid = child.parse().expect("a number"),
                None => return pid,
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let worker = self.worker();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if worker != self.pid() {
            let _ = Command::new("kill").arg(worker.to_string()).output();
        }
    }
}

/// What the kernel counts as resident; 0 for a process that has just ended.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Waits until a process has at least this much memory, and no more comes.
fn settle(pid: impl Fn() -> u32, least_mib: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut before = 0;
    loop {
        let now = resident(pid());
        if now > 0 && now >= least_mib << 20 && now.abs_diff(before) <= now / 200 {
            return;
        }
        assert!(Instant::now() < end, "{} MiB", now >> 20);
        before = now;
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn explain(args: &[&str]) -> Option<Output> {
    let mut command = Command::new(command_line()?);
    command.arg("explain").args(args);
    command.env_remove("EBBTIDE_CONF").env_remove("LD_PRELOAD");
    Some(command.output().expect("ebbtide"))
}

/// The JSON object for a process, whose parts are what the kernel counts within 2 %.
fn explained(pid: u32) -> Option<Value> {
    let number = pid.to_string();
    let mut tries = 0;
    loop {
        let before = resident(pid);
        let output = explain(&[&number, "--json"])?;
        let after = resident(pid);
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let parts = json["parts"].as_array().expect("parts");
        let sum: u64 = parts.iter().map(|part| bytes(&part["bytes"])).sum();
        assert_eq!(sum, bytes(&json["rss_bytes"]), "{json:#}");
        for part in parts {
            let text = |name: &str| part[name].as_str().is_some_and(|text| !text.is_empty());
            assert!(text("name") && text("about"), "{part}");
        }
        for advice in json["advice"].as_array().expect("advice") {
            assert!(bytes(&advice["frees_bytes"]) <= sum, "{advice}");
        }
        let margin = before.max(after) / 50;
        let (low, high) = (before.min(after), before.max(after));
        if (low - margin..=high + margin).contains(&sum) {
            return Some(json);
        }
        tries += 1;
        assert!(tries < 5, "{sum} of {before} to {after}: {json:#}");
    }
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The MiB of a part.
fn mib(json: &Value, name: &str) -> u64 {
    let parts = json["parts"].as_array().expect("parts");
    let part = parts.iter().find(|part| part["name"] == name);
    part.map_or(0, |part| bytes(&part["bytes"]) >> 20)
}

/// A program, its packages, a command that waits, its stdin, and the least MiB that it has then.
type Program = (&'static str, &'static str, &'static str, String, u64);

fn programs() -> Vec<Program> {
    let lines: String = (0..300_000u64)
        .map(|n| format!("line {}\n", n * 7919 % 300_000))
        .collect();
    let functions: String = (0..20_000)
        .map(|n| format!("int f{n}(int a){{return a*{n};}}\n"))
        .collect();
    let rows = "create table t(a,b); with recursive n(i) as (select 1 union all select i+1 from n where i<200000) \
                insert into t select i, hex(randomblob(20)) from n;\n";
    let shell = "i=0; while [ $i -lt 20000 ]; do eval \"v$i=value$i\"; i=$((i+1)); done; read x\n";
    vec![
        (
            "python3",
            "python3",
            "python3 -c 'd = {i: str(i) * 9 for i in range(300000)}; del d[5]; input()'",
            String::new(),
            40,
        ),
        (
            "perl",
            "perl",
            "perl -e '$h{$_} = \"x$_\" for 1..200000; delete $h{$_ * 2} for 1..90000; <STDIN>'",
            String::new(),
            20,
        ),
        (
            "redis-server",
            "redis-server",
            "redis-server --port 0 --unixsocket ./s --save '' --appendonly no",
            String::new(),
            4,
        ),
        ("sqlite3", "sqlite3", "sqlite3", rows.into(), 12),
        (
            "node",
            "nodejs",
            "node -e 'let a=[]; for(let i=0;i<3e5;i++) a.push({i, s: \"x\" + i}); process.stdin.resume()'",
            String::new(),
            50,
        ),
        (
            "gcc",
            "gcc",
            "gcc -x c -O1 -c -o /dev/null -",
            functions,
            10,
        ),
        (
            "git",
            "git",
            "git init -q . && git cat-file --batch",
            String::new(),
            2,
        ),
        ("sort", "coreutils", "sort", lines, 4),
        ("busybox", "busybox-static", "busybox sh", shell.into(), 1),
        ("dash", "dash", "dash", shell.into(), 1),
    ]
}

#[test]
fn parts_of_real_programs_are_what_the_kernel_counts() {
    if !only_ebbtide("has records") {
        return;
    }
    for (program, packages, command, stdin, least_mib) in programs() {
        if !ensure_installed(program, packages) {
            continue;
        }
        let waiting = Waiting::start(command, &stdin, Some(""));
        settle(|| waiting.worker(), least_mib);
        let Some(json) = explained(waiting.worker()) else {
            return;
        };
        // A statically linked program has libc's malloc.
        let source = json["source"].as_str().expect("a source");
        if is_root() && program != "busybox" {
            assert_eq!(source, "records", "{program}: {json:#}");
            assert!(json["parts"][0]["name"] == "live", "{program}: {json:#}");
        }
        println!(
            "{program}: {source}, {} of the parts",
            json["parts"].as_array().expect("parts").len()
        );
    }
}

/// Each allocation is guarded as long as there are slots, and some of the others are sampled.
#[test]
fn guarded_and_sampled_objects_are_parts() {
    if !only_ebbtide("has records") || !ensure_installed("perl", "perl") {
        return;
    }
    let command = "perl -e '$h{$_} = \"x$_\" for 1..200000; <STDIN>'";
    let waiting = Waiting::start(command, "", Some("guard=all,profile=64K"));
    settle(|| waiting.worker(), 40);
    let Some(json) = explained(waiting.worker()) else {
        return;
    };
    // 6,144 slots of a page are in use.
    assert!(mib(&json, "guarded") >= 20, "{json:#}");
    let parts = json["parts"].as_array().expect("parts");
    assert!(parts.iter().any(|it| it["name"] == "profile"), "{json:#}");
    let conclusion = json["conclusion"].as_str().expect("a line");
    assert!(conclusion.ends_with("guard=off"), "{conclusion}");
}

#[test]
fn the_heap_of_java_is_not_from_malloc() {
    if !only_ebbtide("has records") || !ensure_installed("javac", "default-jdk-headless") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("Wait.java");
    let text = "public class Wait { public static void main(String[] a) throws Exception { \
                byte[] x = new byte[100 << 20]; java.util.Arrays.fill(x, (byte) 1); \
                System.in.read(); System.out.print(x[5]); } }";
    fs::write(&source, text).expect("written");
    let command = format!("java -Xmx400m {}", source.display());
    let waiting = Waiting::start(&command, "", Some(""));
    settle(|| waiting.worker(), 130);
    let Some(json) = explained(waiting.worker()) else {
        return;
    };
    assert!(mib(&json, "other_heaps") >= 100, "{json:#}");
    let conclusion = json["conclusion"].as_str().expect("a line");
    assert!(conclusion.contains("-Xmx"), "{conclusion}");
}

/// A program without a page that holds a gibibyte of free memory.
#[test]
fn kept_memory_is_named_and_its_setting_too() {
    if !only_ebbtide("keeps memory") || !needs_root("reads the memory of a process") {
        return;
    }
    for (conf, action) in [
        ("", "EBBTIDE_CONF=retain_ms=0"),
        (",thp=off", "EBBTIDE_CONF=retain_ms=0"),
    ] {
        let conf = format!("retain_ms=3600000,workers=0{conf}");
        let waiting = Waiting::start(
            &format!("{} waits", c_program("control").display()),
            "",
            Some(&conf),
        );
        settle(|| waiting.worker(), 900);
        let Some(json) = explained(waiting.worker()) else {
            return;
        };
        assert!(mib(&json, "dirty") > 900, "{json:#}");
        assert!(mib(&json, "live") < 50, "{json:#}");
        let conclusion = json["conclusion"].as_str().expect("a line");
        assert!(conclusion.ends_with(action), "{conclusion}");
        let text = explain(&[&waiting.worker().to_string()])
            .expect("built")
            .stdout;
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.contains("3600000 ms") && text.contains(conclusion),
            "{text}"
        );
    }
}

/// With a page, the process takes requests, and the same parts come from its records.
#[test]
fn a_process_with_a_page_can_be_asked() {
    if !only_ebbtide("keeps memory") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let conf = format!("retain_ms=3600000,stats_dir={}", directory.path().display());
    let waiting = Waiting::start(
        &format!("{} waits", c_program("control").display()),
        "",
        Some(&conf),
    );
    settle(|| waiting.worker(), 900);
    let Some(json) = explained(waiting.worker()) else {
        return;
    };
    assert!(mib(&json, "dirty") > 900, "{json:#}");
    let action = json["advice"][0]["action"].as_str().expect("an action");
    assert_eq!(action, format!("ebbtide release {}", waiting.worker()));
    assert!(
        bytes(&json["advice"][0]["frees_bytes"]) > 900 << 20,
        "{json:#}"
    );
}

#[test]
fn a_program_without_ebbtide_has_the_kernels_parts() {
    let waiting = Waiting::start("sort", "a\nb\n", None);
    settle(|| waiting.worker(), 0);
    let Some(json) = explained(waiting.worker()) else {
        return;
    };
    assert_eq!(json["source"], "kernel");
    let names: Vec<&str> = json["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .filter_map(|part| part["name"].as_str())
        .collect();
    assert!(
        names.contains(&"files") && names.contains(&"stacks"),
        "{names:?}"
    );
    assert!(
        !names.contains(&"live") && !names.contains(&"ebbtide"),
        "{names:?}"
    );
}

/// Without the right to read the memory, the figures of the page are estimates; without a page, the heap is one part.
#[test]
fn without_the_memory_there_are_estimates() {
    if !only_ebbtide("has figures") || !needs_root("mounts an empty file over a process's memory") {
        return;
    }
    let Some(program) = command_line() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let empty = directory.path().join("empty");
    fs::write(&empty, "").expect("written");
    let pages = format!(",stats_dir={}", directory.path().display());
    for (conf, source, part) in [
        (pages.as_str(), "figures", "dirty"),
        ("", "kernel", "ebbtide"),
    ] {
        let conf = format!("retain_ms=3600000{conf}");
        let command = format!("{} waits", c_program("control").display());
        let waiting = Waiting::start(&command, "", Some(&conf));
        settle(|| waiting.worker(), 900);
        let pid = waiting.worker();
        let script = format!(
            "mount --bind {} /proc/{pid}/mem || exit 99; {} explain {pid} --json",
            empty.display(),
            program.display()
        );
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .output();
        let output = output.expect("unshare");
        if output.status.code() == Some(99) {
            return skip("mounts over files in /proc are refused");
        }
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(json["source"], source, "{json:#}");
        assert!(mib(&json, part) > 900, "{json:#}");
        let notes = json["notes"].as_array().expect("notes");
        assert!(!notes.is_empty(), "{json:#}");
        let parts = json["parts"].as_array().expect("parts");
        let sum: u64 = parts.iter().map(|part| bytes(&part["bytes"])).sum();
        assert_eq!(sum, bytes(&json["rss_bytes"]), "{json:#}");
    }
}

#[test]
fn another_users_process_is_refused() {
    if !needs_root("runs as another user") {
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
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("a mode");
    let copy = directory.path().join("ebbtide");
    fs::copy(program, &copy).expect("a copy");
    let waiting = Waiting::start("sleep 60", "", None);
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["explain", &waiting.worker().to_string()])
        .output()
        .expect("setpriv");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("belongs to user 0"),
        "{output:?}"
    );
    assert!(said.contains("as root"), "{said}");
}

#[test]
fn what_is_no_process_is_an_error() {
    let Some(output) = explain(&["4194305"]) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no process"),
        "{said}"
    );
    // A thread of the kernel, where it is visible.
    let name = fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if is_root() && name.trim() == "kthreadd" {
        let output = explain(&["2"]).expect("built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("thread of the kernel"),
            "{said}"
        );
    }
}
