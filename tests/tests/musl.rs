//! Tests programs that use the musl C library. The same `libebbtide.so` serves them: it needs no library and no
//! versioned symbol. musl registers no rseq, so these are tests of the library's own registration too.

use std::process::Command;

use ebbtide_tests::{
    Run, c_library_for_musl, c_program_for_musl, ensure_installed, is_ebbtide, library, skip,
};

/// Whether musl programs can be made and run here.
fn has_musl() -> bool {
    if !cfg!(target_arch = "x86_64") || !is_ebbtide() {
        skip("only on x86-64, for Ebbtide");
        return false;
    }
    ensure_installed("musl-gcc", "musl-tools linux-libc-dev")
}

fn run(program: &str, args: &str, conf: &str) {
    if has_musl() {
        Run::new(c_program_for_musl(program))
            .args(args)
            .conf(conf)
            .timeout(100)
            .ok();
    }
}

/// A symbol that musl lacks must be weak: its loader refuses a library otherwise.
#[test]
fn all_needed_symbols_exist() {
    if !has_musl() {
        return;
    }
    let symbols = |path: &str| {
        let out = Command::new("readelf")
            .args(["--dyn-syms", "-W", path])
            .output();
        let out = String::from_utf8(out.expect("readelf").stdout).expect("text");
        let rows = out
            .lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect());
        rows.filter(|row: &Vec<String>| row.len() == 8)
            .collect::<Vec<_>>()
    };
    let defined: Vec<String> = symbols("/lib/ld-musl-x86_64.so.1")
        .into_iter()
        .filter(|row| row[6] != "UND")
        .map(|row| row[7].clone())
        .collect();
    assert!(defined.iter().any(|name| name == "malloc"));
    let library = library().expect("a library");
    let needed = symbols(&library.display().to_string());
    let missing: Vec<&String> = needed
        .iter()
        .filter(|row| row[6] == "UND" && row[4] == "GLOBAL")
        .map(|row| &row[7])
        .filter(|name| !defined.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_thread_registers() {
    run("registers", "threads", "");
}

/// Detached threads unmap their own stack, with the registered area in it.
#[test]
fn threads_that_end() {
    run("registers", "exits 4", "");
}

#[test]
fn children_stay_out() {
    run("registers", "vfork", "");
    run("registers", "clone", "");
}

#[test]
fn forked_children() {
    run("registers", "fork", "");
    run("fork", "main 4 20", "");
    run("fork", "nested 3 10", "");
    run("forkers", "2 10", "");
}

#[test]
fn filters() {
    run("registers", "filter", "");
    run("registers", "refused", "");
}

#[test]
fn other_owners_and_handlers() {
    run("registers", "other", "");
    run("registers", "handler 3", "");
    run("registers", "none", "rseq=off");
}

#[test]
fn vfork() {
    for args in ["exec 60", "nested", "threads 10", "handler", "jump"] {
        run("vfork_rules", &format!("guarded own {args}"), "");
    }
    run("vfork", "2 20 hop", "");
}

#[test]
fn stress() {
    run(
        "stress",
        "seed=41 threads=8 seconds=3 gens=4 migrate trim",
        "",
    );
    let portable = "seed=42 threads=8 seconds=2 gens=4 migrate trim";
    run("stress", portable, "rseq=off");
    run("stress", portable, "harden=on");
}

#[test]
fn signals() {
    for case in ["storm", "usr", "step"] {
        run("signals", case, "");
    }
}

#[test]
fn keys_and_constructors() {
    run("life", "ends", "");
}

#[test]
fn libraries_that_are_opened() {
    if has_musl() {
        Run::new(c_program_for_musl("life"))
            .arg("dlopen")
            .arg(c_library_for_musl("plugin"))
            .timeout(30)
            .ok();
    }
}

#[test]
fn per_cpu_data() {
    run("percpu", "1 move", "");
}

/// The configuration may be the last of many variables.
#[test]
fn a_large_environment() {
    if has_musl() {
        Run::new(c_program_for_musl("registers"))
            .arg("none")
            .env("A_LARGE_ONE", "x".repeat(60_000))
            .conf("rseq=off")
            .ok();
    }
}

/// The time itself is no test: machines are busy.
#[test]
fn pairs() {
    run("pair", "100000", "");
}

#[test]
fn memory_goes_back() {
    run("give_back", "large", "retain_ms=300");
}
