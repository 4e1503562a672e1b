//! `report` from outside, with a stand-in for the library and sizes that are no measurement.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use assert_cmd::prelude::*;
use predicates::prelude::*;

use super::measuring::stand_in;
use super::partial::signal_once_measured;
use super::{program, says};

/// One family is measured, one in part (the stand-in has no helper); all of it is in one page.
#[test]
fn report_keeps_what_could_be_measured() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let families = ["--only", "free", "--only", "exit"];
    let output = program(&["report", "--size", "8M", "--wait", "0.1", "--rounds", "1"])
        .args(families)
        .args(["--lib", lib, "--out", page.to_str().unwrap()])
        .arg("--keep")
        .arg(dir.path().join("kept"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("1 of 2") && said.contains("in part"),
        "{said}"
    );
    let html = fs::read_to_string(&page).unwrap();
    for text in [
        "five designs",
        "block_4k back_rss_ms",
        "exit_4k",
        "no helper was made",
        "PARTIAL",
        "not measured",
        "ebbtide bench free --size 8M --wait 0.1 --rounds 1",
        "The machine",
    ] {
        assert!(html.contains(text), "no {text}: {said}");
    }
    assert!(html.matches("<svg").count() > 20, "{}", html.len());
    assert!(!html.contains("http") && !html.contains("<script") && !html.contains("not yet"));
    let left = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(left(dir.path()), 2, "no half-written page stays");
    // The same page, of what was kept.
    assert_eq!(left(&dir.path().join("kept")), 2);
    let again = dir.path().join("again.html");
    program(&["report", "--from"])
        .args(["exit", "free"].map(|f| dir.path().join(format!("kept/{f}.json"))))
        .arg("--out")
        .arg(&again)
        .assert()
        .code(1);
    assert!(fs::read_to_string(again).unwrap() == html);
}

/// It is warned of, and the next family is measured all the same.
#[test]
fn results_that_can_no_longer_be_kept_stop_nothing() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (page, kept) = (dir.path().join("page.html"), dir.path().join("kept"));
    let mut child = program(&["report", "--size", "8M", "--wait", "0.1", "--rounds", "1"])
        .args(["--only", "free", "--only", "exit", "--lib", lib, "--out"])
        .arg(&page)
        .arg("--keep")
        .arg(&kept)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("1 of 2") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    fs::remove_dir(&kept).unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(
        said.contains("2 of 2") && said.matches("warning: cannot write").count() == 2,
        "{said}"
    );
    assert!(said.contains("kept/free.json") && said.contains("kept/exit.json"));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("block_4k back_rss_ms") && html.contains("exit_4k"));
}

#[test]
fn report_is_made_from_saved_results() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let measured = program(&["free", "--quick", "--json", "--rounds", "1", "--lib", lib])
        .args(["--against", "glibc", "--size", "8M", "--wait", "0.1"])
        .output()
        .unwrap();
    fs::write(path("free.json"), &measured.stdout).unwrap();
    program(&[
        "report",
        "--out",
        &path("page.html"),
        "--from",
        &path("free.json"),
    ])
    .assert()
    .success()
    .stdout(says("page.html"));
    let html = fs::read_to_string(path("page.html")).unwrap();
    assert!(
        html.contains("ebbtide bench free --quick --json") && html.contains("block_now_4k both_ms")
    );
    assert!(html.contains("ebbtide, workers=0") && html.contains("percpu: groups_any after_mib"));
    // What cannot be written is printed, and a device stays one.
    program(&["report", "--out", "/dev/full", "--from"])
        .arg(path("free.json"))
        .assert()
        .code(125)
        .stdout(says("block_now_4k"))
        .stderr(says("/dev/full").and(says("on stdout")));
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
    let twice = [path("free.json"), path("free.json")];
    program(&["report", "--out", &path("x.html"), "--from"])
        .args(twice)
        .assert()
        .code(125)
        .stderr(says("results of 'free', too"));
    fs::write(path("bad.json"), "{}").unwrap();
    program(&[
        "report",
        "--out",
        &path("x.html"),
        "--from",
        &path("bad.json"),
    ])
    .assert()
    .code(125)
    .stderr(says("bad.json").and(says("--json")));
    program(&["report", "--out", "/no/such/place.html", "--only", "free"])
        .assert()
        .code(125)
        .stderr(says("place.html"));
    for (dir, more) in [("/dev/null", ["--only", "free"]), ("kept", ["--from", "x"])] {
        program(&["report", "--out", &path("x.html"), "--keep", dir])
            .args(more)
            .assert()
            .code(125)
            .stderr(says("--keep").and(says(" of 1").not()));
    }
    program(&["report", "--only", "nonesuch"])
        .assert()
        .code(125)
        .stderr(says("swap-exit"));
}

/// What was measured is kept, and the page says of each family what became of it.
#[test]
fn a_page_that_is_broken_off_tells_what_is_missing() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let mut child = program(&["report", "--only", "micro", "--only", "free"])
        .args(["--rounds", "1000", "--lib", lib, "--out"])
        .arg(&page)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut errors, mut said) = signal_once_measured(&mut child, "-INT");
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(
        said.contains("1 of 2, about ") && said.contains("has what was measured"),
        "{said}"
    );
    let html = fs::read_to_string(&page).unwrap();
    for text in [
        "micro: <a href=\"#micro\">measured in part",
        "broken off by SIGINT in round",
        "free: skipped: broken off by SIGINT",
    ] {
        assert!(html.contains(text), "no {text}: {said}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn families_for_which_no_time_is_left_are_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    program(&["report", "--only", "reuse", "--time-limit", "2m", "--out"])
        .arg(&page)
        .assert()
        .code(1)
        .stderr(says("about 7 min").and(says("--time-limit leaves 120 s")));
    assert!(!page.exists());
    program(&["report", "--time-limit", "soon"])
        .assert()
        .code(125)
        .stderr(says("--time-limit").and(says("5m")));
}

/// Better known before anything is measured.
#[test]
fn a_full_disk_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let script = "mount -t tmpfs -o size=1M none \"$1\" || exit 77
        \"$2\" report --only free --out \"$1/page.html\"; code=$?; ls \"$1\"; exit $code";
    let output = Command::new("unshare")
        .args([
            "-m",
            "sh",
            "-c",
            script,
            "sh",
            dir,
            env!("CARGO_BIN_EXE_ebbtide-bench"),
        ])
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: no unshare");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if matches!(output.status.code(), Some(77 | 1)) && !said.contains("ebbtide") {
        eprintln!("skipped: nothing can be mounted: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("No space left") && said.contains("--out") && !said.contains("1 of 1"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "nothing stays: {output:?}");
}

#[test]
fn a_page_is_not_replaced_by_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let kept = dir.path().join("free.json");
    for file in [&page, &kept] {
        fs::write(file, "measured before").unwrap();
    }
    program(&["report", "--only", "free", "--lib", "/no/such.so", "--out"])
        .arg(&page)
        .arg("--keep")
        .arg(dir.path())
        .assert()
        .code(1)
        .stderr(says("such.so").and(says("left as it was")));
    for file in [&page, &kept] {
        assert_eq!(fs::read_to_string(file).unwrap(), "measured before");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}
