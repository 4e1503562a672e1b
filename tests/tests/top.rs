//! Tests `ebbtide top` with real processes under the library: which it finds, and whether their figures are right.

use std::path::Path;
use std::process::{Command, Output};

use ebbtide_tests::{Run, c_program, command_line, library, only_ebbtide};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn top(args: &[&str]) -> Option<Output> {
    let (ebbtide, library) = (command_line()?, library()?);
    if !only_ebbtide("keeps a page") {
        return None;
    }
    let mut command = Command::new(ebbtide);
    command.arg("top").args(args).env("EBBTIDE_LIB", library);
    command.env_remove("EBBTIDE_CONF").env_remove("LD_PRELOAD");
    Some(command.output().unwrap())
}

/// The first process in the output of `top --once --json`, and the whole output.
fn first(output: &Output) -> (Value, Value) {
    let said = String::from_utf8_lossy(&output.stderr);
    let all: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    (all["processes"][0].clone(), all)
}

fn mib(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
        / MIB
}

/// 200 MiB are touched and 100 MiB of them freed again. The samples are taken in between, and after that.
const HALF_FREED: &str = "\
import sys, time
x = bytearray(b'x') * (100 << 20)
y = bytearray(b'y') * (100 << 20)
del y
time.sleep(float(sys.argv[1]))
print('said')
sys.exit(7)
";

/// The output of `top --once` for that command. Its last sample comes at a fixed time. On a busy machine, the command
/// may not be far enough by then; then it is started again, with more time.
fn half_freed(conf: &str, is_there: impl Fn(&Value) -> bool) -> Option<(Output, Value, Value)> {
    let mut turn = 1.0;
    loop {
        let (interval, stays) = (format!("{}", 2.0 * turn), format!("{}", 2.5 * turn));
        let args = ["--conf", conf, "--once", "--json", "--interval", &interval];
        let command = [
            "--",
            "env",
            "A=1",
            "/usr/bin/python3",
            "-c",
            HALF_FREED,
            &stays,
        ];
        let output = top(&[&args[..], &command].concat())?;
        let (process, all) = first(&output);
        if is_there(&process) || turn >= 3.0 {
            return Some((output, process, all));
        }
        turn += 1.0;
    }
}

/// 0 if there is no such figure.
fn mib_if_any(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0) / MIB
}

#[test]
fn figures_are_those_of_the_command() {
    let kept = |process: &Value| {
        let figures = &process["figures"];
        mib_if_any(&figures["dirty_bytes"]) + mib_if_any(&figures["lazy_bytes"])
    };
    let is_there = |process: &Value| kept(process) >= 95 && process["ended"] == false;
    let Some((output, process, all)) = half_freed("retain_ms=60000", is_there) else {
        return;
    };
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("said"),
        "{output:?}"
    );
    assert_eq!(all["processes"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(process["name"], "python3");
    assert!(
        process["conf"]
            .as_str()
            .unwrap()
            .contains("retain_ms=60000"),
        "{all}"
    );
    let figures = &process["figures"];
    assert!((100..130).contains(&mib(&figures["live_bytes"])), "{all}");
    assert!((95..110).contains(&kept(&process)), "{all}");
    let rss = mib(&process["rss_bytes"]);
    assert!((200..240).contains(&rss), "{all}");
    assert!(mib(&process["rss_without_lazy_bytes"]) <= rss, "{all}");
    assert_eq!(process["ended"], false);
}

#[test]
fn what_is_given_back_is_seen_to_go() {
    let released = |process: &Value| mib_if_any(&process["figures"]["released_bytes"]);
    let is_there = |process: &Value| {
        let rss = mib_if_any(&process["rss_bytes"]);
        released(process) >= 95 && rss < 140 && process["ended"] == false
    };
    let Some((_, process, all)) = half_freed("retain_ms=100", is_there) else {
        return;
    };
    assert!(released(&process) >= 95, "{all}");
    assert!((100..140).contains(&mib(&process["rss_bytes"])), "{all}");
    assert!(mib(&process["figures"]["dirty_bytes"]) < 10, "{all}");
}

/// A process that ends before the first sample leaves its page. Its last figures are those at its end.
#[test]
fn a_short_command_is_told_of_too() {
    let Some(output) = top(&["--once", "--json", "--", "sh", "-c", "exit 3"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let (process, all) = first(&output);
    assert!(process["ended"] == true && process["name"] != "?", "{all}");
    assert!(
        process["figures"]["opened_bytes"].as_u64().unwrap() > 0,
        "{all}"
    );
}

/// A process is found without a given directory. One without a statistics page is named, with the remedy.
#[test]
fn processes_are_found_by_their_pages_and_by_the_library() {
    let Some(library) = library() else { return };
    let dir = tempfile::tempdir().unwrap();
    let start = |conf: &str| {
        let mut sleep = Command::new("sleep");
        sleep.arg("60").env("LD_PRELOAD", &library);
        sleep.env("EBBTIDE_CONF", conf).spawn().unwrap()
    };
    let told = start(&format!("dev=pages:all,stats_dir={}", dir.path().display()));
    let untold = start("");
    // Small and idle, so it makes no page.
    let young = start(&format!("stats_dir={}", dir.path().display()));
    let mut children = [told, untold, young];
    let page = dir.path().join(format!("{}.ebb", children[0].id()));
    wait_for(&page);
    let outputs = [
        top(&["--once", "--json"]),
        top(&["--once", &children[1].id().to_string()]),
        top(&["--once", &children[2].id().to_string()]),
    ];
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let [Some(all), Some(one), Some(early)] = outputs else {
        return;
    };
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    let has = |list: &str, pid: u32| {
        let list = all[list].as_array().unwrap();
        list.iter().any(|process| process["pid"] == pid)
    };
    assert!(has("processes", children[0].id()), "{all}");
    assert!(has("without_figures", children[1].id()), "{all}");
    assert!(!has("processes", children[1].id()), "{all}");
    let said = String::from_utf8_lossy(&one.stderr).into_owned();
    assert!(
        one.status.code() == Some(125) && said.contains("stats_dir="),
        "{said}"
    );
    let said = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(
        early.status.code() == Some(125) && said.contains("was told stats_dir"),
        "{said}"
    );
    let list = all["without_figures"].as_array().unwrap();
    let early = list.iter().find(|one| one["pid"] == children[2].id());
    assert_eq!(early.unwrap()["why"], "young", "{all}");
}

/// Processes that were too short to be found have the names on their pages.
#[test]
fn short_processes_have_names() {
    let script = "/bin/ls >/dev/null; /bin/ls >/dev/null; :";
    let args = [
        "--once",
        "--json",
        "--interval",
        "1h",
        "--",
        "/bin/sh",
        "-c",
        script,
    ];
    let Some(output) = top(&args) else { return };
    let (_, all) = first(&output);
    let processes = all["processes"].as_array().unwrap();
    let mut names: Vec<&str> = processes
        .iter()
        .map(|p| p["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["ls", "ls", "sh"], "{all}");
}

fn wait_for(path: &Path) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !path.exists() {
        assert!(std::time::Instant::now() < end, "no {}", path.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // It is reported once the library is mapped; after that, the program does nothing more.
    std::thread::sleep(std::time::Duration::from_millis(200));
}

/// Checks the page after large allocations and frees without other calls. The page is not written as a whole for each
/// of them.
#[test]
fn the_page_follows_large_allocations_cheaply() {
    if !only_ebbtide("keeps a page") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().display();
    Run::new(c_program("page"))
        .arg(dir.path())
        .conf(&format!(
            "workers=0,retain_ms=60000,dev=lockstat:on,dev=pages:all,stats_dir={page}"
        ))
        .ok();
}
