//! `dlopen` and `dlmopen`: flags, callers, namespaces, and whose `malloc` a library has that was opened so.

use std::path::{Path, PathBuf};

use ebbtide_tests::{Run, c_library, c_program_with, compile, library, only_ebbtide, skip};

fn program() -> PathBuf {
    c_program_with("loader", &["-rdynamic", "-ldl"])
}

fn loader(case: &str) -> Run {
    Run::new(program()).arg(case).timeout(30)
}

fn with_plugin(case: &str) -> Run {
    loader(case).arg(c_library("loader_plugin"))
}

#[test]
fn memory_goes_both_ways() {
    with_plugin("mixed").ok();
    with_plugin("mixed").conf("rseq=off").ok();
    with_plugin("mixed").conf("harden=on").ok();
}

#[test]
fn opened_before_main() {
    loader("early")
        .env("LOADER_EARLY", c_library("loader_plugin"))
        .ok();
}

#[test]
fn opened_by_many_threads_at_once() {
    for _ in 0..20 {
        with_plugin("threads").ok();
    }
}

/// A child never waits for the loader's list, which another thread of its parent's may have held.
#[test]
fn opened_by_forked_children() {
    loader("forked").timeout(60).ok();
}

/// The program's function comes first, as without the flag; with `deepbind=keep` the plugin's own.
#[test]
fn whose_symbols_a_plugin_sees() {
    if !only_ebbtide("has deepbind=") {
        return;
    }
    with_plugin("whose").arg("plugin").plain().ok();
    with_plugin("whose").arg("program").ok();
    with_plugin("whose")
        .arg("program")
        .conf("deepbind=drop")
        .ok();
    with_plugin("whose")
        .arg("plugin")
        .conf("deepbind=keep")
        .ok();
}

/// And then memory must not cross, as under any other malloc that is preloaded.
#[test]
fn keeping_the_flag_keeps_the_mistake() {
    if !only_ebbtide("has deepbind=") {
        return;
    }
    let outcome = with_plugin("mixed").conf("deepbind=keep").run();
    assert!(
        outcome.verdict().is_err() && !outcome.timed_out,
        "{}",
        outcome.describe("mixes two allocators unseen")
    );
}

/// A directory with `a/libopener.so`, whose RUNPATH leads to `a/sub/libinner.so`.
fn libraries(dir: &Path) -> PathBuf {
    let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    let sub = dir.join("a/sub");
    std::fs::create_dir_all(&sub).expect("directory");
    compile(
        &source("loader_plugin"),
        &sub.join("libinner.so"),
        &["-shared", "-fPIC"],
    );
    let flags = [
        "-shared",
        "-fPIC",
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN/sub",
        "-ldl",
    ];
    compile(
        &source("loader_opener"),
        &dir.join("a/libopener.so"),
        &flags,
    )
}

#[test]
fn the_loader_sees_the_caller() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let opener = libraries(dir.path());
    loader("origin").arg(&opener).ok();
    loader("origin").arg(&opener).conf("deepbind=keep").ok();
}

/// Positive control: a wrapper that calls is found out.
#[test]
fn a_wrapper_that_calls_is_seen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let outcome = loader("origin")
        .arg(libraries(dir.path()))
        .preload(&c_library("faulty/dlopen_call"))
        .run();
    assert!(
        outcome.stderr.contains("FAIL") && outcome.stderr.contains("libinner.so"),
        "{}",
        outcome.describe("should not find what lies beside its caller")
    );
}

/// Another wrapper that is preloaded still gets every call, before ours or behind it: this one calls, which is seen.
#[test]
fn other_wrappers_are_called_too() {
    let Some(library) = library() else {
        return skip("libc has no wrapper");
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let (opener, wrapper) = (libraries(dir.path()), c_library("faulty/dlopen_call"));
    for (first, second) in [(&library, &wrapper), (&wrapper, &library)] {
        let both = format!("{}:{}", first.display(), second.display());
        with_plugin("mixed").env("LD_PRELOAD", &both).ok();
        let outcome = loader("origin").arg(&opener).env("LD_PRELOAD", &both).run();
        assert!(
            outcome.stderr.contains("libinner.so"),
            "{}",
            outcome.describe("passes the other wrapper by")
        );
    }
}

/// Handles, flags and the texts of errors are those without the library.
#[test]
fn answers_are_the_loaders() {
    let ask = || with_plugin("flags").arg(c_library("loader_lazy"));
    let (with, without) = (ask().ok(), ask().plain().ok());
    assert_eq!(with.stdout, without.stdout);
    for text in [
        "no such file",
        "invalid mode",
        "undefined symbol",
        "file too short",
    ] {
        let is_there = with.stdout.to_lowercase().contains(text);
        assert!(is_there, "{}", with.describe(&format!("lacks '{text}'")));
    }
}

/// A namespace of its own has its own libc, and that its own malloc: such memory must stay there.
#[test]
fn other_namespaces_have_another_malloc() {
    if !only_ebbtide("is preloaded") {
        return;
    }
    with_plugin("namespace").ok();
    let outcome = with_plugin("across").run();
    assert!(
        outcome.killed_by(libc::SIGABRT) && outcome.stderr.contains("not from this allocator"),
        "{}",
        outcome.describe("frees memory of another namespace")
    );
}
