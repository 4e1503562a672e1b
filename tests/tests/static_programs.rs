//! Tests static programs of glibc and of musl that are linked with `libebbtide.a` (`make static`).

use std::path::{Path, PathBuf};
use std::process::Command;

use ebbtide_tests::{
    Run, c_static_program, c_static_program_for_musl, ensure_installed, have, is_ebbtide, library,
    skip,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Libc {
    Glibc,
    Musl,
}

use Libc::{Glibc, Musl};

/// The archive, beside the library under test.
fn archive() -> Option<PathBuf> {
    let archive = library().filter(|_| is_ebbtide())?.with_extension("a");
    if !cfg!(target_arch = "x86_64") || !archive.exists() {
        skip("libebbtide.a: make static");
        return None;
    }
    Some(archive)
}

fn program(name: &str, libc: Libc) -> Option<PathBuf> {
    let archive = archive()?;
    if libc == Musl {
        return ensure_installed("musl-gcc", "musl-tools linux-libc-dev")
            .then(|| c_static_program_for_musl(name, &archive));
    }
    Some(c_static_program(name, &archive))
}

/// glibc's own registration of rseq is off where the library should make one.
fn run(name: &str, args: &str, libc: Libc, by_library: bool) {
    let Some(program) = program(name, libc) else {
        return;
    };
    let run = Run::new(program).args(args).plain().timeout(100);
    if by_library {
        run.without_libc_rseq()
    } else {
        run
    }
    .ok();
}

fn in_both(name: &str, args: &str) {
    run(name, args, Glibc, false);
    run(name, args, Glibc, true);
    run(name, args, Musl, true);
}

/// No function of libc's own malloc is linked in, and no symbol of Rust is global in the archive.
#[test]
fn only_one_malloc() {
    let (Some(program), true) = (program("fork", Glibc), have("nm")) else {
        return;
    };
    let symbols = |path: &Path| {
        let out = Command::new("nm").arg(path).output().expect("nm");
        String::from_utf8(out.stdout).expect("text")
    };
    let text = symbols(&program);
    assert!(text.contains(" T malloc\n"), "no malloc");
    assert!(!text.contains("_int_malloc"), "libc's malloc is there, too");
    let text = symbols(&archive().expect("an archive"));
    assert!(text.contains(" T ebb_release\n") && text.contains(" T ebb_percpu_alloc\n"));
    let foreign = |line: &&str| {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        "TDBRVW".contains(kind) && kind.len() == 1 && (name.contains("_R") || name.contains("_Z"))
    };
    assert_eq!(text.lines().find(foreign), None);
}

#[test]
fn threads_register() {
    run("registers", "threads", Glibc, true);
    run("registers", "exits 3", Glibc, true);
    run("registers", "threads", Musl, true);
    run("registers", "exits 3", Musl, true);
}

#[test]
fn children() {
    in_both("fork", "main 4 20");
    in_both("fork", "nested 3 5");
    for libc in [Glibc, Musl] {
        for topic in ["vfork", "clone", "fork"] {
            run("registers", topic, libc, true);
        }
    }
    in_both("vfork", "2 20 hop");
}

#[test]
fn stress() {
    in_both("stress", "seed=51 threads=6 seconds=2 gens=3 migrate trim");
}

#[test]
fn interface_and_ends() {
    run("api", "basic", Glibc, false);
    run("api", "resize", Glibc, false);
    in_both("life", "ends");
}

#[test]
fn memory_goes_back() {
    in_both("give_back", "large");
}

/// A Rust program for musl is static. It has Ebbtide as a crate, so no archive and no shared library.
#[test]
fn rust_programs_for_musl() {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.expect("rustc").stdout).expect("text");
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET);
    if !cfg!(target_arch = "x86_64") || !is_ebbtide() || !library.exists() {
        return skip("no standard library: rustup target add x86_64-unknown-linux-musl");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let built = Command::new("cargo")
        .args(["build", "--quiet", "-p", "ebbtide-example-global"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(dir.path())
        .status();
    assert!(built.expect("cargo").success());
    let program = dir.path().join(TARGET).join("debug/ebbtide-example-global");
    let said = Run::new(program).plain().timeout(100).ok().stdout;
    assert!(said.ends_with("per-CPU caches: yes\n"), "{said}");
}
