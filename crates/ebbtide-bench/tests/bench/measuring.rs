//! `bench` itself: measuring, comparing, refusing. And what the other tests of it share.

use std::fs;
use std::process::Command;

use assert_cmd::prelude::*;

use super::{program, says};

/// A system allocator stands in for the library, so that the harness is tested
/// without it; skipped where there is none.
pub(super) fn stand_in() -> Option<&'static str> {
    [
        "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2",
    ]
    .into_iter()
    .find(|p| fs::metadata(p).is_ok())
}

/// Runs a family with a stand-in at a tiny size; its JSON.
pub(super) fn tiny(family: &str, more: &[&str]) -> Option<serde_json::Value> {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return None;
    };
    let output = program(&[family, "--quick", "--json", "--rounds", "1"])
        .args(["--lib", lib, "--against", "glibc"])
        .args(["--size", "8M", "--wait", "0.1"])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Values of one metric of one case, by allocator.
pub(super) fn values<'a>(
    v: &'a serde_json::Value,
    case: &str,
    metric: &str,
) -> Vec<(&'a str, Option<f64>)> {
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

#[test]
fn bench_measures_and_compares() {
    let Some(lib) = stand_in() else {
        eprintln!("skipped: libjemalloc.so.2 is not installed");
        return;
    };
    let output = program(&["micro", "--quick", "--json", "--rounds", "2"])
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
    program(&["micro", "--quick", "--lib", empty, "--against", "glibc"])
        .assert()
        .code(125)
        .stderr(says("does not define malloc"));
    program(&["micro", "--quick", "--rounds", "1", "--only", "start"])
        .args(["--lib", lib, "--against", empty])
        .assert()
        .code(1)
        .stderr(says("e.so is left out"));
    program(&["micro", "--lib", lib, "--against", "nonesuch"])
        .assert()
        .code(125)
        .stderr(says("glibc"));
}

#[test]
fn bench_families_refuse_what_does_not_fit() {
    for family in ["free", "return"] {
        for (size, why) in [("900000G", "40 %"), ("1", "at least 1M")] {
            program(&[family, "--size", size])
                .assert()
                .code(125)
                .stderr(says(why));
        }
    }
    program(&["return", "--html", "/no/such/place.html"])
        .args(["--quick", "--size", "1M"])
        .assert()
        .code(125)
        .stderr(says("place.html"));
    program(&["micro", "--plots", "/dev/null/plots"])
        .assert()
        .code(125)
        .stderr(says("/dev/null/plots"));
}
