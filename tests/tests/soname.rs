//! Tests the names of the library: its soname, the links to it, the installed files, and that a program loads one
//! copy whichever names it uses.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ebbtide_tests::{
    Run, c_program_with, command_line, compile, have, is_ebbtide, library, only_ebbtide, skip,
};

const SONAME: &str = "libebbtide.so.0";

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// A copy of the library as it is installed: a file and two links. `None`, with a line, for another library.
fn installed(dir: &Path) -> Option<()> {
    if !only_ebbtide("has these names") {
        return None;
    }
    std::fs::create_dir_all(dir).expect("directory");
    let file = dir.join("libebbtide.so.0.9.9");
    std::fs::copy(library()?, &file).expect("copy");
    symlink("libebbtide.so.0.9.9", dir.join(SONAME)).expect("link");
    symlink(SONAME, dir.join("libebbtide.so")).expect("link");
    Some(())
}

/// `tests/c/copies.c`, not linked with the library.
fn plain_program() -> PathBuf {
    c_program_with("copies", &["-ldl"])
}

/// The same program, linked with the library in `from`, and finding it there.
fn linked_program(from: &Path, output: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/copies.c");
    let at = |option: &str| format!("{option}{}", from.display());
    compile(
        &source,
        output,
        &[
            "-Wl,--no-as-needed",
            &at("-L"),
            "-lebbtide",
            &at("-Wl,-rpath,"),
            "-ldl",
        ],
    )
}

/// Runs the program with `LD_PRELOAD` set to `preload`. It must load `copies` copies, and its malloc must come from
/// `file`.
fn loads(program: PathBuf, preload: &str, copies: usize, file: &Path) -> Run {
    Run::new(program)
        .plain()
        .env("LD_PRELOAD", preload)
        .arg(copies.to_string())
        .arg(file)
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[test]
fn preloaded_by_any_name_it_is_one_copy() {
    let dir = scratch();
    let dir = dir.path();
    let Some(()) = installed(dir) else { return };
    let file = dir.join("libebbtide.so.0.9.9");
    for name in ["libebbtide.so", SONAME, "libebbtide.so.0.9.9"] {
        loads(plain_program(), &path(dir, name), 1, &file).ok();
        // The library is found by a name without a directory.
        loads(plain_program(), name, 1, &file)
            .env("LD_LIBRARY_PATH", dir)
            .ok();
        // The library is opened once more while the program runs.
        loads(plain_program(), &path(dir, name), 1, &file)
            .arg(SONAME)
            .ok();
    }
    let both = format!("{} {}", path(dir, "libebbtide.so"), path(dir, SONAME));
    loads(plain_program(), &both, 1, &file).ok();
}

#[test]
fn linked_and_preloaded_it_is_one_copy() {
    let dir = scratch();
    let (dir, other) = (dir.path().join("linked"), dir.path().join("other"));
    let (Some(()), Some(())) = (installed(&dir), installed(&other)) else {
        return;
    };
    let file = dir.join("libebbtide.so.0.9.9");
    let program = linked_program(&dir, &dir.join("linked"));
    loads(program.clone(), "", 1, &file).ok();
    for name in ["libebbtide.so", SONAME, "libebbtide.so.0.9.9"] {
        loads(program.clone(), &path(&dir, name), 1, &file).ok();
    }
    // Another file with the same soname replaces the one that the program was linked with.
    let file = other.join("libebbtide.so.0.9.9");
    loads(program.clone(), &path(&other, "libebbtide.so"), 1, &file).ok();
    loads(program, &path(&other, "libebbtide.so"), 1, &file)
        .arg(SONAME)
        .ok();
}

/// If a path is given, the loader compares files, not sonames: both are mapped, and only the first is used.
#[test]
fn of_two_files_the_first_serves() {
    let dir = scratch();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let (Some(()), Some(())) = (installed(&first), installed(&second)) else {
        return;
    };
    let both = format!(
        "{}:{}",
        path(&first, SONAME),
        path(&second, "libebbtide.so")
    );
    let file = first.join("libebbtide.so.0.9.9");
    loads(plain_program(), &both, 2, &file).ok();
    loads(plain_program(), &both, 2, &file).arg(SONAME).ok();
    loads(
        linked_program(&second, &second.join("linked")),
        &both,
        2,
        &file,
    )
    .ok();
}

/// Positive control: the test detects a program with two copies, and finds which malloc is used.
#[test]
fn copies_are_counted() {
    let dir = scratch();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let (Some(()), Some(())) = (installed(&first), installed(&second)) else {
        return;
    };
    let both = format!("{}:{}", path(&first, SONAME), path(&second, SONAME));
    for (copies, file) in [(1, &first), (2, &second)] {
        let outcome = loads(plain_program(), &both, copies, &file.join(SONAME)).run();
        assert!(
            outcome.stderr.contains("FAIL"),
            "{}",
            outcome.describe("counts wrong")
        );
    }
}

/// `make` leaves a link with the soname beside the library, so that programs linked with it start.
#[test]
fn the_build_has_a_link() {
    let (true, Some(library)) = (is_ebbtide(), library()) else {
        return skip("the names are Ebbtide's");
    };
    if std::env::var_os("EBBTIDE_LIB").is_some() {
        return skip("EBBTIDE_LIB need not be what make built");
    }
    let link = library.with_file_name(SONAME);
    assert_eq!(
        link.canonicalize().ok(),
        Some(library),
        "{}: run `make` first",
        link.display()
    );
    let dir = scratch();
    let from = link.parent().expect("a directory");
    let program = linked_program(from, &dir.path().join("linked"));
    loads(program, "", 1, &link).ok();
}

fn make(target: &str, prefix: &Path) {
    let run = ebbtide_tests::make(target)
        .arg(format!("PREFIX={}", prefix.display()))
        .output()
        .expect("make");
    assert!(
        run.status.success(),
        "make {target}:\n{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("directory").flatten() {
        match entry.file_type().expect("its kind").is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

#[test]
fn installed_and_removed() {
    if !is_ebbtide() || std::env::var_os("EBBTIDE_LIB").is_some() {
        return skip("make install takes what make built");
    }
    let (Some(_), true) = (command_line(), have("make")) else {
        return;
    };
    let prefix = scratch();
    let lib = prefix.path().join("lib");
    // An older one is replaced, both as a plain file and as another version.
    std::fs::create_dir_all(&lib).expect("directory");
    for old in ["libebbtide.so", "libebbtide.so.0.0.1"] {
        std::fs::write(lib.join(old), "old").expect("write");
    }
    make("install", prefix.path());
    let links = || {
        let read = |name: &str| std::fs::read_link(lib.join(name)).expect(name);
        [read("libebbtide.so"), read(SONAME)]
    };
    let [development, by_soname] = links();
    assert_eq!(development, Path::new(SONAME));
    let file = lib.join(&by_soname);
    assert!(file.symlink_metadata().expect("installed").is_file());
    let by_soname = by_soname.display().to_string();
    assert!(by_soname.starts_with("libebbtide.so.0."), "{by_soname}");
    assert!(!lib.join("libebbtide.so.0.0.1").exists());

    if have("ldconfig") || Path::new("/sbin/ldconfig").exists() {
        let run = Command::new("sh")
            .arg("-c")
            .arg("PATH=$PATH:/sbin:/usr/sbin ldconfig -n \"$0\"")
            .arg(&lib)
            .status();
        assert!(run.is_ok_and(|status| status.success()));
        assert_eq!(links()[1], Path::new(&by_soname), "as ldconfig has it");
    }
    let flags = std::fs::read_to_string(lib.join("pkgconfig/ebbtide.pc")).expect("ebbtide.pc");
    assert!(flags.contains("-L${libdir} -lebbtide"), "{flags}");
    let elsewhere = scratch();
    let program = linked_program(&lib, &elsewhere.path().join("linked"));
    loads(program, "", 1, &file).ok();
    Run::new(prefix.path().join("bin/ebbtide"))
        .args("run --")
        .arg(plain_program())
        .arg("1")
        .arg(&file)
        .plain()
        .ok();

    make("install-bench", prefix.path());
    let bench = prefix.path().join("bin/ebbtide-bench");
    Run::new(bench).args("--version").plain().ok();
    make("uninstall", prefix.path());
    assert_eq!(files_below(prefix.path()), Vec::<PathBuf>::new());
}
