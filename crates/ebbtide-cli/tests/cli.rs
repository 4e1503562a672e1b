//! The other commands from outside: help, completions, manual pages, doctor, bench.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use assert_cmd::prelude::*;
use predicates::prelude::*;

fn ebbtide(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ebbtide").unwrap();
    command
        .args(args)
        .env_remove("EBBTIDE_LIB")
        .env_remove("EBBTIDE_CONF");
    command
}

fn says(text: &str) -> impl Predicate<str> + '_ {
    predicate::str::contains(text)
}

#[test]
fn version_help_and_usage_errors() {
    ebbtide(&["--version"])
        .assert()
        .success()
        .stdout(says("ebbtide 0."));
    ebbtide(&["run", "--help"])
        .assert()
        .success()
        .stdout(says("retain_max=SIZE"));
    ebbtide(&["frobnicate"])
        .assert()
        .code(125)
        .stderr(says("frobnicate"));
    ebbtide(&["--help"])
        .assert()
        .success()
        .stdout(says("bench-worker").not());
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        ebbtide(&["completions", shell])
            .assert()
            .success()
            .stdout(says("doctor"));
    }
}

#[test]
fn manual_pages() {
    ebbtide(&["man"]).assert().success().stdout(says(".TH"));
    let dir = tempfile::tempdir().unwrap();
    ebbtide(&["man", "--dir", dir.path().to_str().unwrap()])
        .assert()
        .success();
    let run = fs::read_to_string(dir.path().join("ebbtide-run.1")).unwrap();
    assert!(run.contains("retain") && run.contains("summary"));
    assert!(dir.path().join("ebbtide.1").exists());
    assert!(!dir.path().join("ebbtide-bench-worker.1").exists());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for args in [
        &["man"][..],
        &["--help"],
        &["doctor", "--json"],
        &["completions", "bash"],
    ] {
        let mut child = ebbtide(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        child.wait().unwrap();
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn doctor_without_a_library_says_what_to_do() {
    let output = ebbtide(&["doctor", "--json", "--lib", "/no/lib.so"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(v["works"], false);
    assert!(
        v["sections"][0]["checks"][0]["remedy"]
            .as_str()
            .unwrap()
            .contains("/no/lib.so")
    );
    let kernel = v["sections"][1]["checks"].as_array().unwrap();
    assert!(kernel.iter().any(|c| c["id"] == "process_madvise"));
}

/// A system allocator stands in for the library, so that the harness is tested
/// without it; skipped where there is none.
fn stand_in() -> Option<&'static str> {
    [
        "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2",
    ]
    .into_iter()
    .find(|p| fs::metadata(p).is_ok())
}

#[test]
fn bench_measures_and_compares() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let output = ebbtide(&["bench", "micro", "--quick", "--json", "--rounds", "2"])
        .args([
            "--lib", lib, "--only", "pair16", "--only", "start", "--only", "hello",
        ])
        .args(["--against", "glibc"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(v["family"], "micro");
    let measurements = v["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 4);
    for m in measurements {
        assert!(m["noise"].as_f64().is_some());
        let rows = m["results"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            assert!(row["spread"]["median"].as_f64().unwrap() > 0.0);
            assert_eq!(row["values"].as_array().unwrap().len(), 2);
        }
    }
}

#[test]
fn bench_refuses_a_library_without_malloc() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, empty) = (dir.path().join("e.c"), dir.path().join("e.so"));
    fs::write(&source, "int e;\n").unwrap();
    let cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&empty)
        .arg(&source)
        .status();
    assert!(cc.is_ok_and(|s| s.success()), "the tests need a C compiler");
    let empty = empty.to_str().unwrap();
    ebbtide(&[
        "bench",
        "micro",
        "--quick",
        "--lib",
        empty,
        "--against",
        "glibc",
    ])
    .assert()
    .code(125)
    .stderr(says("does not define malloc"));
    ebbtide(&[
        "bench", "micro", "--quick", "--rounds", "1", "--only", "start",
    ])
    .args(["--lib", lib, "--against", empty])
    .assert()
    .code(1)
    .stderr(says("e.so is left out"));
    ebbtide(&["bench", "micro", "--lib", lib, "--against", "nonesuch"])
        .assert()
        .code(125)
        .stderr(says("glibc"));
}

/// Runs a family with a stand-in at a tiny size; its JSON.
fn tiny(family: &str, more: &[&str]) -> Option<serde_json::Value> {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return None;
    };
    let output = ebbtide(&["bench", family, "--quick", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc"])
        .args(["--size", "8M", "--wait", "0.1"])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Values of one metric of one case, by allocator.
fn values<'a>(v: &'a serde_json::Value, case: &str, metric: &str) -> Vec<(&'a str, Option<f64>)> {
    let measurements = v["measurements"].as_array().unwrap();
    let m = measurements
        .iter()
        .find(|m| m["case"] == case && m["metric"] == metric)
        .unwrap_or_else(|| panic!("no {metric} of {case} in {v}"));
    let rows = m["results"].as_array().unwrap();
    rows.iter()
        .map(|r| {
            let values = r["values"].as_array().unwrap();
            assert_eq!(values.len(), 1, "{case} {metric} {r}");
            // Null where it was not reached, or others disturbed the system.
            (r["allocator"].as_str().unwrap(), values[0].as_f64())
        })
        .collect()
}

/// The stand-in keeps no figures of locks, so those cases say so; the others are measured.
#[test]
fn bench_cluster_measures_threads_and_real_programs() {
    let Some(lib) = stand_in() else { return };
    let output = ebbtide(&["bench", "cluster", "--quick", "--json", "--size", "1M"])
        .args(["--lib", lib, "--against", "glibc"])
        .args(["--only", "take_2", "--only", "hold_64", "--only", "python"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("hold_64") && said.contains("ebb_stats"),
        "{said}"
    );
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (case, metric) in [("take_2_touched", "cpu_ns"), ("python", "cpu_s")] {
        let found = values(&v, case, metric);
        for name in ["ebbtide", "ebbtide, cluster=off", "glibc"] {
            let one = found.iter().find(|(n, _)| *n == name);
            assert!(one.unwrap().1.unwrap() > 0.0, "{name} {found:?}");
        }
    }
}

#[test]
fn bench_free_has_figures_variants_and_references() {
    let Some(v) = tiny("free", &[]) else { return };
    for case in ["block_thp", "block_4k"] {
        let free = values(&v, case, "free_ms");
        for name in [
            "ebbtide",
            "ebbtide, workers=0",
            "munmap",
            "madvise",
            "glibc",
        ] {
            let found = free.iter().find(|(n, _)| *n == name);
            assert!(found.unwrap().1.unwrap() > 0.0, "{name} {free:?}");
        }
        // The kernel gives it back at once, whoever looks.
        let back = values(&v, case, "back_rss_ms");
        let munmap = back.iter().find(|(n, _)| *n == "munmap").unwrap();
        assert!(munmap.1.is_some(), "{back:?}");
        values(&v, case, "back_system_ms");
    }
    let both = values(&v, "block_now", "both_ms");
    assert!(both.iter().any(|(n, _)| *n == "ebbtide, workers=32"));
    assert!(both.iter().all(|(n, v)| *n != "munmap" && v.is_some()));
    assert!(v["notes"].to_string().contains("touched once beforehand"));
}

#[test]
fn bench_return_has_curves_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    // All but `victim_later`, which sleeps.
    let plots = dir.path().join("plots");
    let mut flags = vec!["--html", page.to_str().unwrap()];
    flags.extend(["--plots", plots.to_str().unwrap()]);
    for case in ["random", "oldest", "temporaries", "victim_now"] {
        flags.extend(["--only", case]);
    }
    let Some(v) = tiny("return", &flags) else {
        return;
    };
    for case in ["small_random", "medium_oldest", "mix_random"] {
        for (name, ratio) in values(&v, case, "final_ratio") {
            assert!(ratio.unwrap() > 0.5, "{case} {name} {ratio:?}");
        }
        values(&v, case, "t90_ms");
    }
    // A round touches 4 MiB; the first one has to fault.
    for (name, faults) in values(&v, "temporaries", "faults_first") {
        assert!(faults.unwrap() > 0.0, "{name}");
    }
    for metric in ["quiet_p50_ns", "during_p999_ns", "during_max_ns"] {
        for (name, ns) in values(&v, "victim_now", metric) {
            assert!(ns.unwrap() > 0.0, "{name} {metric}");
        }
    }
    let curves = v["curves"].as_array().unwrap();
    let own: Vec<_> = curves
        .iter()
        .filter(|c| c["allocator"] == "ebbtide" && c["case"] == "small_random")
        .collect();
    assert_eq!(own.len(), 1);
    let points = own[0]["rss_mib"].as_array().unwrap().len();
    assert!(points >= 2, "{own:?}");
    assert_eq!(own[0]["system_mib"].as_array().unwrap().len(), points);
    assert!(own[0]["live_mib"].as_f64().unwrap() > 0.0);
    let html = fs::read_to_string(page).unwrap();
    assert!(html.matches("<svg").count() >= 12 && html.contains("must stay"));
    assert!(!html.contains("http"), "nothing is loaded from elsewhere");
    let plot = fs::read_to_string(plots.join("return-mix_random-rss.svg")).unwrap();
    assert!(plot.contains("http://www.w3.org/2000/svg") && plot.contains("must stay"));
}

/// Positive control of the check of live objects: an allocator whose `free` writes
/// to the newest one is named and not measured.
/// The stand-in has no helper: that is noticed, and everything else is measured.
#[test]
fn bench_exit_has_figures_and_misses_a_helper() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let output = ebbtide(&["bench", "exit", "--quick", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc"])
        .args(["--size", "8M", "--wait", "0.1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failures = v["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 30, "{failures:?}");
    for failure in failures {
        let text = failure.as_str().unwrap();
        assert!(text.contains("exit=detached") && text.contains("no helper was made"));
    }
    for case in [
        "exit_4k", "exit_thp", "kill_4k", "kill_thp", "segv_4k", "segv_thp",
    ] {
        for metric in ["seen_ms", "gone_ms"] {
            let measurements = v["measurements"].as_array().unwrap();
            let m = measurements
                .iter()
                .find(|m| m["case"] == case && m["metric"] == metric)
                .unwrap();
            for row in m["results"].as_array().unwrap() {
                let measured = row["values"].as_array().unwrap().len();
                let name = row["allocator"].as_str().unwrap();
                assert_eq!(measured, usize::from(!name.contains("detached")), "{name}");
                if measured == 1 {
                    assert!(row["values"][0].as_f64().unwrap() > 0.0);
                }
            }
        }
    }
}

/// Held by tests that count the machine's swap areas.
static SWAPS: Mutex<()> = Mutex::new(());

/// Sets up swap for a moment, as root; refused otherwise. The stand-in has no helper.
#[test]
fn bench_swap_exit_sets_up_swap_and_removes_it() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let _swaps = SWAPS.lock();
    let swaps = || fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = swaps();
    let output = ebbtide(&["bench", "swap-exit", "--quick", "--json", "--only", "calm"])
        .args(["--lib", lib, "--size", "16M", "--processes", "2"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(125) {
        assert!(errors.contains("needs root") || errors.contains("no swap can be set up"));
        eprintln!("skipped: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(swaps(), before);
    assert!(errors.contains("no helper was made"), "{errors}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for m in v["measurements"].as_array().unwrap() {
        for row in m["results"].as_array().unwrap() {
            let measured = row["values"].as_array().unwrap().len();
            let name = row["allocator"].as_str().unwrap();
            assert_eq!(measured, usize::from(!name.contains("detached")), "{name}");
        }
    }
}

#[test]
fn bench_lazyfree_has_figures_and_variants() {
    let Some(lib) = stand_in() else { return };
    let output = ebbtide(&["bench", "lazyfree", "--quick", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc", "--only", "1x4"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Without root there is no cgroup: the case is left out, and it is said.
    let said = String::from_utf8_lossy(&output.stderr);
    let cases = v["measurements"].as_array().unwrap().len();
    assert!(
        cases == 2 || cases == 1 && said.contains("without a limit only"),
        "{said}"
    );
    for case in v["measurements"].as_array().unwrap() {
        let rows = values(&v, case["case"].as_str().unwrap(), "us_per_search");
        assert_eq!(rows.len(), 6);
        assert!(rows[2].0.ends_with("retain_ms=0,lazyfree=off"));
        assert!(rows.iter().all(|(_, value)| value.unwrap() > 0.0));
    }
}

#[test]
fn bench_reuse_has_times_and_what_is_held() {
    let Some(v) = tiny("reuse", &["--only", "100ms"]) else {
        return;
    };
    for metric in ["again_ms", "held_mib", "held_without_lazy_mib"] {
        assert_eq!(values(&v, "reuse_100ms", metric).len(), 7);
    }
    let again = values(&v, "reuse_100ms", "again_ms");
    assert!(again.iter().all(|(_, value)| value.unwrap() > 0.0));
}

/// Sets up cgroups and swap for moments, as root; refused otherwise.
#[test]
fn bench_neighbour_counts_kills_and_leaves_nothing_behind() {
    let Some(lib) = stand_in() else { return };
    let _swaps = SWAPS.lock();
    let swaps = || fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = swaps();
    let output = ebbtide(&["bench", "neighbour", "--quick", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc"])
        .args(["--size", "96M", "--pause", "0.1"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(125) {
        assert!(errors.contains("needs root") || errors.contains("no memory cgroup"));
        eprintln!("skipped: {errors}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    assert_eq!(swaps(), before);
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let has_swap = !errors.contains("without swap only");
    for (case, is_run, is_swapping) in [
        ("pause", true, false),
        ("at_once", true, false),
        ("pause_swap", has_swap, true),
        ("at_once_swap", has_swap, true),
    ] {
        if !is_run {
            continue;
        }
        let alone = values(&v, case, "alone_s");
        assert_eq!(alone.len(), 4);
        assert!(alone.iter().all(|(_, s)| s.unwrap() > 0.0));
        // The C library's allocator keeps what lies between live objects: there is no room for both.
        let glibc = |metric| values(&v, case, metric)[3].1.unwrap_or(f64::INFINITY);
        assert_eq!(alone[3].0, "glibc");
        if is_swapping {
            assert!(glibc("swapped_mib") > 8.0, "{v}");
        } else {
            assert!(glibc("kills") >= 1.0, "{v}");
        }
    }
}

#[test]
fn bench_return_notices_a_changed_object() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, bad) = (dir.path().join("bad.c"), dir.path().join("bad.so"));
    let code = "#include <stddef.h>
        extern void *__libc_malloc(size_t);
        extern void __libc_free(void *);
        static char *newest;
        void *malloc(size_t n) {
            char *p = __libc_malloc(n);
            if (n > 5000 && n < 70000) newest = p;
            return p;
        }
        void free(void *p) { if (newest && p != newest) newest[4100] = ~newest[0]; __libc_free(p); }
        ";
    fs::write(&source, code).unwrap();
    let cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&bad, &source])
        .status();
    assert!(cc.is_ok_and(|s| s.success()), "the tests need a C compiler");
    ebbtide(&["bench", "return", "--quick", "--rounds", "1", "--lib", lib])
        .args(["--size", "8M", "--wait", "0.01", "--only", "medium_oldest"])
        .args(["--against", bad.to_str().unwrap()])
        .assert()
        .code(1)
        .stdout(says("failed"))
        .stderr(says("medium_oldest in bad.so").and(says("has changed")));
}

#[test]
fn bench_families_refuse_what_does_not_fit() {
    for family in ["free", "return"] {
        for (size, why) in [("900000G", "40 %"), ("1", "at least 1M")] {
            ebbtide(&["bench", family, "--size", size])
                .assert()
                .code(125)
                .stderr(says(why));
        }
    }
    ebbtide(&["bench", "return", "--html", "/no/such/place.html"])
        .args(["--quick", "--size", "1M"])
        .assert()
        .code(125)
        .stderr(says("place.html"));
    ebbtide(&["bench", "micro", "--plots", "/dev/null/plots"])
        .assert()
        .code(125)
        .stderr(says("/dev/null/plots"));
}
