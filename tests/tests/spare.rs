//! The last run that each CPU freed is kept for its next request of the same size: `c/spare.c`.

use ebbtide_tests::{Run, c_program, needs_root, only_ebbtide, skip};

const PROMISE: &str = "says what its caches hold";

fn spare(mode: &str, conf: &str) {
    let run = Run::new(c_program("spare")).args(mode).conf(conf);
    run.timeout(120).ok_with_ebbtide(PROMISE);
}

#[test]
fn a_freed_run_serves_the_next_request_of_its_size() {
    spare("again", "");
    spare("again", "rseq=off,workers=0");
}

#[test]
fn a_spare_run_goes_when_it_is_not_wanted() {
    spare("trim", "");
    spare("idle", "");
    spare("idle", "workers=0");
}

#[test]
fn no_run_is_kept_where_nothing_shall_stay() {
    for conf in ["retain_ms=0", "limit=64M", "dev=retain_max:1M", "harden=on"] {
        spare("never", conf);
    }
}

#[test]
fn forked_children_get_each_spare_run_once() {
    spare("fork", "");
}

/// Beyond four CPUs spare runs may add up, and are counted.
#[test]
fn spare_runs_of_a_machine_of_64_cpus() {
    if !only_ebbtide(PROMISE) || !needs_root("a mount") {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(&file, "0-63\n").expect("temporary file");
    let mount = format!(
        "mount --bind {} /sys/devices/system/cpu/possible",
        file.path().display()
    );
    let apart = |then: &str| {
        let script = format!("{mount} && {then}");
        Run::new("unshare")
            .args("-m sh -c")
            .arg(script)
            .timeout(120)
    };
    if !apart("true").plain().run().status.success() {
        return skip("mounts are refused");
    }
    let program = c_program("spare").display().to_string();
    for mode in ["again", "trim", "idle", "fork"] {
        apart(&format!("exec {program} {mode}")).ok();
    }
}
