//! Compiles the C programs of `tests/c`, once per change.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// Warnings about code that the programs contain on purpose.
const INTENDED: [&str; 4] = [
    "-Wno-deprecated-declarations",
    "-Wno-alloc-size-larger-than",
    "-Wno-use-after-free",
    "-Wno-free-nonheap-object",
];

/// Libraries that held functions of the programs before glibc 2.34.
const LIBRARIES: [&str; 3] = ["-Wl,--as-needed", "-ldl", "-lrt"];

static BUILD: Mutex<()> = Mutex::new(());

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// The directory of the outputs, beside the test binaries: `target/<profile>/ebbtide-c`.
fn outputs() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    // Tests lie one directory lower than programs.
    let mut above = exe.ancestors().skip(1);
    let profile = above.find(|dir| !dir.ends_with("deps"));
    let profile = profile.expect("target directory");
    let dir = profile.join("ebbtide-c");
    std::fs::create_dir_all(&dir).expect("build directory");
    dir
}

/// The program made from `tests/c/<name>.c`.
pub fn c_program(name: &str) -> PathBuf {
    compile(
        &sources().join(format!("{name}.c")),
        &outputs().join(name),
        &["-ldl"],
    )
}

/// A C compiler, and the C library for which it compiles.
pub(crate) struct Toolchain {
    pub compiler: &'static str,
    /// The directory of its programs below the outputs: an empty name where they are the same as everywhere.
    pub directory: &'static str,
    pub flags: Vec<String>,
}

/// The program made from this source file; it runs with every newer C library of the same kind.
pub(crate) fn c_program_for(source: &Path, toolchain: &Toolchain) -> Result<PathBuf, String> {
    let directory = outputs().join(toolchain.directory);
    std::fs::create_dir_all(&directory).expect("build directory");
    let output = directory.join(source.file_stem().expect("a source file"));
    let flags = toolchain.flags.iter().map(String::as_str);
    let flags: Vec<&str> = flags.chain(LIBRARIES).collect();
    try_compile(toolchain.compiler, source, &output, &flags)
}

/// The program made from `tests/c/<name>.c` for musl. Where musl lacks a function, the library under test has it.
pub fn c_program_for_musl(name: &str) -> PathBuf {
    let library = crate::library().expect("a library");
    let rpath = library.parent().expect("a directory").display();
    musl(
        name,
        name,
        &[
            &library.display().to_string(),
            &format!("-Wl,-rpath,{rpath}"),
        ],
    )
}

/// The shared library made from `tests/c/<name>.c` for musl.
pub fn c_library_for_musl(name: &str) -> PathBuf {
    musl(name, &format!("lib{name}.so"), &["-shared", "-fPIC"])
}

/// The static program made from `tests/c/<name>.c` and this archive, for the C library of this machine.
pub fn c_static_program(name: &str, archive: &Path) -> PathBuf {
    remove_older(&outputs().join(format!("{name}-static")), archive);
    let archive = archive.display().to_string();
    c_variant(name, "static", &["-static", &archive])
}

/// The same for musl.
pub fn c_static_program_for_musl(name: &str, archive: &Path) -> PathBuf {
    let output = format!("{name}-static");
    remove_older(&outputs().join("musl").join(&output), archive);
    let archive = archive.display().to_string();
    musl(name, &output, &["-static", &archive])
}

/// Removes a program that was linked with an older archive.
fn remove_older(program: &Path, archive: &Path) {
    if modified(program) < modified(archive) {
        let _ = std::fs::remove_file(program);
    }
}

fn musl(name: &str, output: &str, flags: &[&str]) -> PathBuf {
    let headers = kernel_headers().display().to_string();
    let flags: Vec<&str> = ["-idirafter", &headers, "-Wno-error"]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    let source = sources().join(format!("{name}.c"));
    compile_with(
        "musl-gcc",
        &source,
        &outputs().join("musl").join(output),
        &flags,
    )
}

/// A directory with the kernel's headers, which musl-gcc does not search.
pub(crate) fn kernel_headers() -> PathBuf {
    let headers = outputs().join("musl/include");
    std::fs::create_dir_all(&headers).expect("build directory");
    for (name, place) in [
        ("linux", "/usr/include/linux"),
        ("asm-generic", "/usr/include/asm-generic"),
        ("asm", "/usr/include/x86_64-linux-gnu/asm"),
    ] {
        let _ = std::os::unix::fs::symlink(place, headers.join(name));
    }
    headers
}

/// The program made from `tests/c/<name>.c` with more flags.
pub fn c_program_with(name: &str, flags: &[&str]) -> PathBuf {
    compile(
        &sources().join(format!("{name}.c")),
        &outputs().join(name),
        flags,
    )
}

/// The same under another name, so that one source makes several.
pub fn c_variant(name: &str, variant: &str, flags: &[&str]) -> PathBuf {
    compile(
        &sources().join(format!("{name}.c")),
        &outputs().join(format!("{name}-{variant}")),
        flags,
    )
}

/// The program made from `tests/c/<name>.cc` by this compiler, under another name.
pub fn cxx_variant(compiler: &str, name: &str, variant: &str, flags: &[&str]) -> PathBuf {
    let output = outputs().join(format!("{name}-{compiler}-{variant}"));
    let source = sources().join(format!("{name}.cc"));
    // The first is on by default in gcc only; the second is for clang, which does not know all warnings of gcc.
    let flags = [
        &["-fsized-deallocation", "-Wno-unknown-warning-option"],
        flags,
    ]
    .concat();
    compile_with(compiler, &source, &output, &flags)
}

/// The shared library made from `tests/c/<name>.c`.
pub fn c_library(name: &str) -> PathBuf {
    let output = outputs().join(format!("lib{}.so", name.replace('/', "-")));
    compile(
        &sources().join(format!("{name}.c")),
        &output,
        &["-shared", "-fPIC"],
    )
}

/// Compiles `source` to `output` unless that is newer than the source and every header.
///
/// # Panics
/// When there is no C compiler or the source has an error or a warning.
pub fn compile(source: &Path, output: &Path, flags: &[&str]) -> PathBuf {
    compile_with("cc", source, output, flags)
}

fn compile_with(compiler: &str, source: &Path, output: &Path, flags: &[&str]) -> PathBuf {
    try_compile(compiler, source, output, flags).unwrap_or_else(|why| panic!("{why}"))
}

fn try_compile(
    compiler: &str,
    source: &Path,
    output: &Path,
    flags: &[&str],
) -> Result<PathBuf, String> {
    let _one = BUILD
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let public_header = sources().join("../../include/ebbtide.h");
    let newest = std::fs::read_dir(sources())
        .expect("tests/c")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "h"))
        .chain([source.to_owned(), public_header])
        .map(|path| modified(&path))
        .max()
        .flatten();
    if modified(output).is_some_and(|built| Some(built) > newest) {
        return Ok(output.to_owned());
    }
    let draft = output.with_extension(format!("draft{}", std::process::id()));
    let is_cxx = source.extension().is_some_and(|ext| ext == "cc");
    let run = Command::new(compiler)
        .arg(if is_cxx { "-std=gnu++17" } else { "-std=gnu11" })
        .args(["-O1", "-g", "-pthread", "-fno-builtin", "-Wall", "-Werror"])
        .args(INTENDED)
        .arg("-D_GNU_SOURCE")
        .arg("-I")
        .arg(sources())
        .arg(source)
        .arg("-o")
        .arg(&draft)
        .args(flags)
        .env_remove("LD_PRELOAD")
        .output()
        .expect("no C compiler: install `cc`");
    if !run.status.success() {
        let errors = String::from_utf8_lossy(&run.stderr);
        return Err(format!("cannot compile {}:\n{errors}", source.display()));
    }
    std::fs::rename(&draft, output).expect("rename");
    Ok(output.to_owned())
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}
