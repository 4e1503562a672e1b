//! Makes the boot files of an emulated machine: a Debian kernel, and an initial file system. The file system holds
//! busybox, the library under test, the C programs, and the shared libraries that these need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::archive::Archive;
use crate::{build, ensure_installed, library, run::target_dir};

/// The programs of `tests/c` that are copied into the machine.
const PROGRAMS: [&str; 15] = [
    "api",
    "fork",
    "give_back",
    "limits",
    "near_limit",
    "percpu",
    "pressure_events",
    "pressure_group",
    "processors",
    "reaper",
    "reaper_beside",
    "registers",
    "stress",
    "vfork",
    "vfork_rules",
];

/// The package whose newest dependency is the kernel. Everything that a machine needs is built into that kernel.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// The directory of kernel, file system and console logs.
pub fn directory() -> PathBuf {
    let dir = target_dir().join("guest");
    fs::create_dir_all(&dir).expect("target directory");
    dir.canonicalize().expect("target directory")
}

/// A kernel to boot: `EBBTIDE_KERNEL`, else the one that was fetched before, else Debian's. It is fetched into the
/// target directory, never installed.
pub fn kernel() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("EBBTIDE_KERNEL") {
        return Ok(path.into());
    }
    let kept = directory().join("vmlinuz");
    if !kept.exists() {
        let room = tempfile::tempdir_in(directory()).expect("temporary directory");
        // Package lists may be missing, or too old to find the files that they name.
        let script = r#"fetch() {
                   package=$(apt-cache depends "$0" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
                   [ -n "$package" ] && apt-get download -qq "$package"
               }
               { fetch || { apt-get update -qq && fetch; } } && dpkg -x ./*.deb . && mv boot/vmlinuz-* vmlinuz"#;
        let fetched = Command::new("timeout")
            .args(["100", "sh", "-c", script, KERNEL_PACKAGE])
            .current_dir(room.path())
            .stdin(Stdio::null())
            .output();
        if !fetched.is_ok_and(|run| run.status.success()) {
            return Err(format!("no kernel to boot ({KERNEL_PACKAGE})"));
        }
        fs::rename(room.path().join("vmlinuz"), &kept).expect("rename");
    }
    Ok(kept)
}

/// Makes the initial file system, in the cpio format that kernels read ("newc").
pub fn file_system() -> Result<PathBuf, String> {
    let mut archive = Archive::default();
    archive.init();
    for (name, source) in files()? {
        let content = fs::read(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        archive.file(&name, &content);
    }
    let path = directory().join("initrd");
    let draft = directory().join(format!("initrd{}", std::process::id()));
    fs::write(&draft, archive.end()).expect("initrd");
    fs::rename(draft, &path).expect("rename");
    Ok(path)
}

/// Files by their names inside: busybox, the programs, and the library with the command-line program of this build.
fn files() -> Result<BTreeMap<PathBuf, PathBuf>, String> {
    if !ensure_installed("busybox", "busybox-static") {
        return Err("busybox".into());
    }
    let mut files = BTreeMap::new();
    let busybox = found("busybox");
    if !libraries(&busybox).is_empty() {
        return Err("a static busybox (busybox-static)".into());
    }
    files.insert(PathBuf::from("/box/busybox"), busybox);
    let mut programs: Vec<PathBuf> = PROGRAMS.iter().map(|name| build::c_program(name)).collect();
    let command_line = target_dir().join("release/ebbtide");
    programs.extend(command_line.exists().then_some(command_line));
    for program in programs.into_iter().chain(library()) {
        files.extend(
            libraries(&program)
                .into_iter()
                .map(|path| (path.clone(), path)),
        );
        files.insert(inside(&program), program);
    }
    Ok(files)
}

/// The path of a program or of the library inside the machine.
pub fn inside(path: &Path) -> PathBuf {
    Path::new("/programs").join(path.file_name().expect("a file's name"))
}

fn found(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .expect("a program that is installed")
}

/// The loader and the shared libraries that a file needs, under the names by which the file finds them.
fn libraries(file: &Path) -> Vec<PathBuf> {
    let run = Command::new("ldd")
        .arg(file)
        .env_remove("LD_PRELOAD")
        .output()
        .expect("ldd comes with libc");
    String::from_utf8_lossy(&run.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}
