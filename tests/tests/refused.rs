//! Tests combinations that cannot work: the library and `ebbtide run` refuse them at the start with one line, and
//! `ebbtide doctor` names them.

use std::ffi::OsString;

use ebbtide_tests::{
    Outcome, Run, c_library, c_program, command_line, is_ebbtide, library, only_ebbtide, skip,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Too little memory for the library, enough for the program.
const TOO_LITTLE: u64 = 20 * MIB;

/// Requires that the library ended the program with one line, before the program did anything.
fn assert_refused(outcome: &Outcome, why: &str) {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let told = lines.len() == 1 && lines[0].starts_with("ebbtide: ") && lines[0].contains(why);
    assert!(
        outcome.status.code() == Some(127) && outcome.stdout.is_empty() && told,
        "{}",
        outcome.describe(&format!("was not refused for {why}"))
    );
}

/// The library behind another one that pretends that pages are large.
fn with_large_pages() -> OsString {
    let mut list = c_library("large_pages").into_os_string();
    list.push(":");
    list.push(library().expect("a library"));
    list
}

/// `ebbtide` with the library under test.
fn ebbtide(args: &str) -> Option<Run> {
    let program = command_line()?;
    let run = Run::new(program).plain().args(args);
    Some(run.env("EBBTIDE_LIB", library()?))
}

/// The checks of doctor's report by id, and whether it says that the library works.
fn doctor(run: Run) -> (impl Fn(&str) -> Value, bool) {
    let outcome = run.args("doctor --json").run();
    let report: Value = serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{}", outcome.describe(&error.to_string())));
    let works = report["works"] == true;
    let code = i32::from(!works);
    assert_eq!(outcome.status.code(), Some(code), "{}", outcome.stderr);
    let check = move |id: &str| {
        let sections = report["sections"].as_array().expect("sections").iter();
        let mut checks = sections.flat_map(|s| s["checks"].as_array().expect("checks"));
        checks.find(|c| c["id"] == id).expect(id).clone()
    };
    (check, works)
}

#[test]
fn too_little_address_space() {
    if !only_ebbtide("needs so much") {
        return;
    }
    for conf in ["", "harden=on", "rseq=off"] {
        let run = Run::new(c_program("limits")).args("work 1").conf(conf);
        let outcome = run.limit(libc::RLIMIT_AS, TOO_LITTLE).run();
        assert_refused(&outcome, "address space");
    }
    // The value that the message recommends is enough.
    for conf in ["", "harden=on", "rseq=off"] {
        let run = Run::new(c_program("limits")).args("work 1").conf(conf);
        run.limit(libc::RLIMIT_AS, 64 * MIB).ok();
    }
}

#[test]
fn large_pages() {
    if !only_ebbtide("needs small pages") {
        return;
    }
    let run = Run::new(c_program("limits")).args("work 1").plain();
    let outcome = run.env("LD_PRELOAD", with_large_pages()).run();
    assert_refused(&outcome, "pages");
}

#[test]
fn doctor_names_large_pages_and_run_starts_nothing() {
    if !only_ebbtide("needs small pages") {
        return;
    }
    let shim = c_library("large_pages");
    let Some(run) = ebbtide("run -- echo started") else {
        return;
    };
    let outcome = run.env("LD_PRELOAD", &shim).run();
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.stderr);
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.lines().count()),
        ("", 1)
    );
    assert!(outcome.stderr.contains("65536 B"), "{}", outcome.stderr);
    // Without the library, because the library would end the program.
    let forced = ebbtide("run --force -- echo started").unwrap();
    let outcome = forced.env("LD_PRELOAD", &shim).run();
    assert_eq!(
        (outcome.status.code(), outcome.stdout.as_str()),
        (Some(0), "started\n")
    );

    let (check, works) = doctor(ebbtide("").unwrap().env("LD_PRELOAD", &shim));
    assert!(!works);
    for id in ["pages", "page_size"] {
        let check = check(id);
        assert_eq!(check["state"], "missing", "{check}");
        assert!(check["remedy"].as_str().unwrap().contains("4 KiB"));
    }
    assert_eq!(check("address_space")["state"], "ok");
}

#[test]
fn doctor_names_what_the_library_refuses() {
    if !only_ebbtide("needs so much") {
        return;
    }
    let Some(run) = ebbtide("") else { return };
    // The program itself is larger than the library, and it has to start.
    let (check, works) = doctor(run.limit(libc::RLIMIT_AS, 30 * MIB));
    assert!(!works);
    let refused = check("address_space");
    assert_eq!(refused["state"], "missing");
    assert_eq!(check("trial")["remedy"], refused["remedy"]);
    assert_eq!(check("pages")["state"], "ok");
}

#[test]
fn doctor_names_an_allocator_in_front() {
    if !only_ebbtide("is looked for") {
        return;
    }
    let Some(run) = ebbtide("") else { return };
    let first = c_library("first_malloc").into_os_string();
    let ours = library().unwrap().into_os_string();
    let list = |names: [&OsString; 2]| names.map(|n| n.to_str().unwrap()).join(":");
    let (check, works) = doctor(run.env("LD_PRELOAD", list([&first, &ours])));
    assert!(works, "it is idle, not broken");
    assert_eq!(check("other_first")["state"], "limited");
    let run = ebbtide("").unwrap();
    let (check, _) = doctor(run.env("LD_PRELOAD", list([&ours, &first])));
    assert_eq!(check("other_first")["state"], "ok");
}

#[test]
fn run_starts_no_program_with_a_malloc_of_its_own() {
    let Some(run) = ebbtide("run") else { return };
    let program = c_program("own_malloc");
    let outcome = run.arg(&program).run();
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("defines malloc itself"));
    let forced = ebbtide("run --force").unwrap().arg(&program).run();
    assert_eq!(
        (forced.status.code(), forced.stdout.as_str()),
        (Some(0), "ok\n")
    );
}

#[test]
fn doctor_says_who_registered_rseq() {
    let Some(run) = ebbtide("") else { return };
    let (check, _) = doctor(run);
    let rseq = check("rseq");
    if rseq["state"] != "ok" {
        return skip("the C library has registered nothing here");
    }
    let value = rseq["value"].as_str().unwrap();
    assert!(value.contains("registered by glibc: 3"), "{value}");
    let off = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let (check, works) = doctor(ebbtide("").unwrap().env(off.0, off.1));
    assert!(works || !is_ebbtide());
    let rseq = check("rseq");
    assert_eq!(rseq["state"], "ok", "{rseq}");
    let value = rseq["value"].as_str().unwrap();
    assert!(
        value.contains("by Ebbtide") && value.contains(off.1),
        "{value}"
    );
    assert_eq!(check("no_rseq")["state"], "ok");
}

#[test]
fn doctor_sees_another_registration() {
    let Some(run) = ebbtide("") else { return };
    let off = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let (check, _) = doctor(run.env(off.0, off.1));
    if !check("rseq")["value"].as_str().unwrap().contains(off.1) {
        return skip("no rseq, or glibc does not register it");
    }
    let run = ebbtide("").unwrap().env(off.0, off.1);
    let (check, _) = doctor(run.env("LD_PRELOAD", c_library("own_rseq")));
    assert_eq!(check("rseq")["value"], "registered by another library");
    assert_eq!(check("other_rseq")["state"], "limited");
    assert_eq!(check("no_rseq")["state"], "ok");
}
