//! Builds a small kernel with pages of 64 KiB for aarch64, which Debian does not ship, from Debian's sources.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread};

use super::apt::{Apt, keep};
use crate::machine::ensure_installed;

/// Programs that the build needs, and the packages with them.
const TOOLS: [(&str, &str); 6] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("bc", "bc"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("make", "make"),
    ("xz", "xz-utils"),
];

const ANSWERS: &str = include_str!("64k.config");

/// The name of the kernel that these answers give.
pub(super) fn name() -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(ANSWERS.as_bytes());
    format!("kernel-64k-{:016x}", hasher.finish())
}

/// Puts the kernel of the suite's newest sources into `dir`. It compiles for about 15 minutes.
pub(super) fn build(apt: &Apt, dir: &Path) -> Result<(), String> {
    for (tool, package) in TOOLS {
        if !ensure_installed(tool, package) {
            return Err(format!("no {tool} to build a kernel with pages of 64 KiB"));
        }
    }
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    let package = apt.dependency("linux-source", "linux-source-")?;
    eprintln!("building a kernel with pages of 64 KiB from {package}, for about 15 minutes");
    let (unpacked, source) = (dir.join("package"), dir.join("source"));
    apt.unpack(&package, &unpacked)?;
    fs::create_dir(&source).map_err(told)?;
    let archive = unpacked.join(format!("usr/src/{package}.tar.xz"));
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .args(["--strip-components=1", "-C"])
        .arg(&source))?;
    fs::remove_dir_all(unpacked).map_err(told)?;
    let answers = dir.join("config");
    keep(&answers, ANSWERS)?;
    let jobs = thread::available_parallelism().map_or(1, |n| n.get());
    for goal in ["allnoconfig", "Image.gz"] {
        let mut make = Command::new("nice");
        make.args(["make", "-s", "ARCH=arm64"])
            .arg("CROSS_COMPILE=aarch64-linux-gnu-")
            .arg(format!("-j{jobs}"))
            .arg("-C")
            .arg(&source)
            .env("KCONFIG_ALLCONFIG", &answers);
        run(make.arg(goal))?;
    }
    let release = fs::read_to_string(source.join("include/config/kernel.release")).map_err(told)?;
    fs::rename(source.join("arch/arm64/boot/Image.gz"), dir.join("vmlinuz")).map_err(told)?;
    fs::remove_dir_all(source).map_err(told)?;
    keep(&dir.join("version"), release)
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let line = errors.lines().find(|line| line.contains("rror"));
    let line = line.or(errors.lines().last()).unwrap_or("no answer");
    Err(format!("the kernel does not build: {line}"))
}
