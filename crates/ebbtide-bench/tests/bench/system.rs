//! Families of `bench` that watch the ends of processes, and set up swap and cgroups for a moment.

use std::fs;
use std::sync::Mutex;

use super::measuring::{stand_in, values};
use super::program;

/// Held by tests that count the machine's swap areas.
static SWAPS: Mutex<()> = Mutex::new(());

/// The stand-in has no helper: that is noticed, and everything else is measured.
#[test]
fn bench_exit_has_figures_and_misses_a_helper() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let output = program(&["exit", "--quick", "--json", "--rounds", "1"])
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
    let output = program(&["swap-exit", "--quick", "--json", "--only", "calm"])
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

/// Sets up cgroups and swap for moments, as root; refused otherwise.
#[test]
fn bench_neighbour_counts_kills_and_leaves_nothing_behind() {
    let Some(lib) = stand_in() else { return };
    let _swaps = SWAPS.lock();
    let swaps = || fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = swaps();
    let output = program(&["neighbour", "--quick", "--json", "--rounds", "1"])
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
        if case.starts_with("pause") {
            let pauses = values(&v, case, "pause_s");
            assert!(pauses.iter().all(|(_, s)| s.unwrap() > 0.1), "{pauses:?}");
        }
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
