//! Families of `bench` that need nothing of the system's: their figures and variants.

use std::fs;
use std::process::Command;

use assert_cmd::prelude::*;
use predicates::prelude::*;

use super::measuring::{stand_in, tiny, values};
use super::{program, says};

/// The stand-in keeps no figures of locks, so those cases say so; the others are measured.
#[test]
fn bench_cluster_measures_threads_and_real_programs() {
    let Some(lib) = stand_in() else { return };
    let output = program(&["cluster", "--quick", "--json", "--size", "1M"])
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
        for name in ["ebbtide", "ebbtide, dev=cluster:off", "glibc"] {
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
    program(&["return", "--quick", "--rounds", "1", "--lib", lib])
        .args(["--size", "8M", "--wait", "0.01", "--only", "medium_oldest"])
        .args(["--against", bad.to_str().unwrap()])
        .assert()
        .code(1)
        .stdout(says("failed"))
        .stderr(says("medium_oldest in bad.so").and(says("has changed")));
}

#[test]
fn bench_lazyfree_has_figures_and_variants() {
    let Some(lib) = stand_in() else { return };
    let output = program(&["lazyfree", "--quick", "--json", "--rounds", "1"])
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

/// A program and a shape, each with all figures; what is sealed stays closed.
#[test]
fn bench_apps_watches_programs_and_shapes() {
    let Some(lib) = stand_in() else { return };
    let measure = |cases: &[&str]| {
        let mut command = program(&["apps", "--quick", "--json", "--rounds", "1"]);
        command.args(["--lib", lib, "--against", "glibc"]);
        for case in cases {
            command.args(["--only", case]);
        }
        command
    };
    let output = measure(&["sort", "large", "churn"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        v["notes"]
            .to_string()
            .contains("sealed, measured with --sealed: churn"),
        "{v}"
    );
    assert!(!v["measurements"].to_string().contains("\"churn\""));
    for case in ["sort", "large"] {
        for metric in ["wall_s", "cpu_s", "peak_mib", "mib_s"] {
            for (name, value) in values(&v, case, metric) {
                assert!(value.unwrap() > 0.0, "{case} {metric} {name}");
            }
        }
    }
    // 20 blocks of 5 to 25 MB, of which two stay.
    for (name, peak) in values(&v, "large", "peak_mib") {
        let rest = values(&v, "large", "rest_mib");
        let rest = rest.iter().find(|(n, _)| *n == name).unwrap().1.unwrap();
        assert!(
            peak.unwrap() > 200.0 && rest >= 10.0,
            "{name} {peak:?} {rest}"
        );
    }
    measure(&["churn"])
        .assert()
        .code(125)
        .stderr(says("--sealed"));
}

/// A workload with three copies for a few seconds: all figures, the same again for the noise, and a picture.
#[test]
fn bench_fleet_compares_copies_that_are_busy_in_turn() {
    let Some(lib) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let measure = |more: &[&str]| {
        let mut command = program(&["fleet", "--quick"]);
        command.args([
            "--lib",
            lib,
            "--against",
            "glibc",
            "--only",
            "sidecars,nonesuch",
        ]);
        command.args(more);
        command
    };
    let plots = dir.path().to_str().unwrap();
    let output = measure(&["--minutes", "0.1", "--json", "--plots", plots]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(v["base"], "glibc");
    for metric in ["mib_h", "peak_mib", "p50_ms", "p99_ms"] {
        let found = values(&v, "sidecars", metric);
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["ebbtide", "glibc", "glibc (again)"]);
        assert!(
            found.iter().all(|(_, value)| value.unwrap() > 0.0),
            "{found:?}"
        );
    }
    // Four servers of python need more than 10 MiB, and all copies did the same.
    let peaks = values(&v, "sidecars", "peak_mib");
    assert!(
        peaks.iter().all(|(_, mib)| mib.unwrap() > 10.0),
        "{peaks:?}"
    );
    assert_eq!(v["curves"].as_array().unwrap().len(), 3);
    let plot = fs::read_to_string(dir.path().join("fleet.svg")).unwrap();
    assert!(plot.contains("sidecars") && !plot.contains("again"));
    measure(&["--minutes", "0.05"])
        .assert()
        .success()
        .stdout(says("mib_h").and(says("glibc (again)")));
    measure(&["--minutes", "0"])
        .assert()
        .code(125)
        .stderr(says("minutes"));
}
