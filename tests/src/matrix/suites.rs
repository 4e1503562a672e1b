//! Fetches and unpacks kernels, C libraries and programs of Debian's suites. It never installs them.
//!
//! They are kept in `$EBBTIDE_CACHE/debian/SUITE`, for aarch64 in `SUITE-arm64` (default: `~/.cache/ebbtide`), so that
//! `cargo clean` does not remove them:
//!
//! ```text
//!   apt/             lists and packages of this suite; apt continues an interrupted download
//!   kernel/          vmlinuz, version; also kernel-16k and kernel-64k
//!   root/            root.cpio, version; also root-musl
//!   sysroot/         of the oldest suite only
//! ```
//!
//! Files older than a week are fetched again (`EBBTIDE_REFRESH=1`: all files). Without a network, the old ones are
//! used. A file lock for each suite keeps two runs apart.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::apt::{Apt, Suite, keep, unpack, version};
use super::cells::{Cell, Libc, Pages};
use super::kernel_64k;
use crate::Processor;
use crate::archive::Archive;

/// Packages of each distribution that go into the machine, with their dependencies.
const PROGRAMS: [&str; 9] = [
    "bash",
    "busybox",
    "dash",
    "git",
    "libc6",
    "make",
    "perl-base",
    "php-cli",
    "python3",
];
/// Headers and libraries to compile for the oldest C library.
const DEVELOPMENT: [&str; 4] = ["libc6", "libc6-dev", "libcrypt-dev", "linux-libc-dev"];
/// Directories that no machine reads.
const LEFT_OUT: [&str; 11] = [
    "/usr/share/bash-completion",
    "/usr/share/bug",
    "/usr/share/doc",
    "/usr/share/doc-base",
    "/usr/share/info",
    "/usr/share/lintian",
    "/usr/share/locale",
    "/usr/share/man",
    "/usr/share/zoneinfo",
    "/usr/share/perl",
    "/usr/share/zsh",
];
/// The same below the directory of libraries.
const LIBRARIES_LEFT_OUT: [&str; 2] = ["gconv", "perl"];

/// A kernel to boot.
#[derive(Clone)]
pub(super) struct Kernel {
    pub image: PathBuf,
    /// The release, as `uname -r` prints it.
    pub release: String,
}

/// The file system of a distribution.
#[derive(Clone)]
pub(super) struct Root {
    pub archive: PathBuf,
    /// Version of the C library: of glibc major and minor number.
    pub libc: String,
}

/// `major.minor` of a version.
pub(super) fn short(version: &str) -> String {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().unwrap_or_default();
    format!("{}.{}", next(), next())
}

/// The kernel of a suite. Everything that a machine needs is built into it.
pub(super) fn kernel(suite: &str, processor: Processor, pages: Pages) -> Result<Kernel, String> {
    let suite = Suite::open(suite, processor)?;
    let dir = match pages {
        Pages::K4 => {
            let package = format!("linux-image-cloud-{}", processor.debian());
            suite.kept("kernel", |apt, dir| unpack_kernel(apt, &package, dir))?
        }
        Pages::K16 => {
            let package = format!("linux-image-{}-16k", processor.debian());
            suite.kept("kernel-16k", |apt, dir| unpack_kernel(apt, &package, dir))?
        }
        // Built once: that takes long.
        Pages::K64 => suite.kept_for(Duration::MAX, &kernel_64k::name(), kernel_64k::build)?,
    };
    Ok(Kernel {
        image: dir.join("vmlinuz"),
        release: version(&dir)?,
    })
}

/// Puts Debian's newest kernel of this kind into `dir`.
fn unpack_kernel(apt: &Apt, package: &str, dir: &Path) -> Result<(), String> {
    let newest = apt.dependency(package, "linux-image-")?;
    // From 7.0 on, the image has a package of its own.
    let package = apt.dependency(&newest, "linux-binary-").unwrap_or(newest);
    apt.unpack(&package, dir)?;
    let (image, release) = image_in(dir).ok_or(format!("{package} has no kernel"))?;
    keep(&dir.join("version"), release)?;
    fs::rename(&image, dir.join("vmlinuz")).map_err(|e| e.to_string())?;
    for rest in ["boot", "lib", "usr"] {
        let _ = fs::remove_dir_all(dir.join(rest));
    }
    Ok(())
}

/// The kernel of an unpacked package, and its release: `boot/vmlinuz-RELEASE` or `usr/lib/modules/RELEASE/vmlinuz`.
fn image_in(dir: &Path) -> Option<(PathBuf, String)> {
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let old = names(dir.join("boot")).find_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((path, name.strip_prefix("vmlinuz-")?.to_owned()))
    });
    old.or_else(|| {
        names(dir.join("usr/lib/modules")).find_map(|modules| {
            let image = modules.join("vmlinuz");
            let release = modules.file_name()?.to_str()?.to_owned();
            image.exists().then_some((image, release))
        })
    })
}

/// The file system of a cell.
pub(super) fn root(cell: &Cell) -> Result<Root, String> {
    match cell.libc {
        Libc::Glibc(suite) => root_of_programs(suite, cell.processor),
        Libc::Musl(suite) => root_of_musl(suite, cell.processor),
    }
}

/// The file system with glibc and all programs.
fn root_of_programs(suite: &str, processor: Processor) -> Result<Root, String> {
    let suite = Suite::open(suite, processor)?;
    let dir = suite.kept("root", |apt, dir| {
        let packages = apt.with_dependencies(&PROGRAMS)?;
        let tree = dir.join("tree");
        for package in packages {
            unpack(&package, &tree)?;
        }
        let mut archive = archive_with_busybox(apt, dir)?;
        for (old, new) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            archive.directory(&Path::new("/").join(new));
            archive.link(&Path::new("/").join(old), Path::new(new));
        }
        if !tree.join("usr/bin/sh").exists() && !tree.join("bin/sh").exists() {
            archive.link(Path::new("/usr/bin/sh"), Path::new("dash"));
        }
        let libraries = Path::new("/usr/lib").join(processor.libraries());
        let left_out = LIBRARIES_LEFT_OUT.map(|dir| libraries.join(dir));
        let left_out = LEFT_OUT.iter().map(PathBuf::from).chain(left_out);
        add(&mut archive, &tree, &tree, &left_out.collect::<Vec<_>>())?;
        keep(&dir.join("root.cpio"), archive.end())?;
        keep(&dir.join("version"), apt.version("libc6")?)?;
        let _ = fs::remove_dir_all(tree);
        Ok(())
    })?;
    Ok(Root {
        archive: dir.join("root.cpio"),
        libc: short(&version(&dir)?),
    })
}

/// The file system with musl, which has none of Debian's programs: these need glibc.
fn root_of_musl(suite: &str, processor: Processor) -> Result<Root, String> {
    let suite = Suite::open(suite, processor)?;
    let dir = suite.kept("root-musl", |apt, dir| {
        let tree = dir.join("tree");
        apt.unpack("musl", &tree)?;
        let mut archive = archive_with_busybox(apt, dir)?;
        add(&mut archive, &tree, &tree, &LEFT_OUT.map(PathBuf::from))?;
        // Before they were merged, the loader was in /lib.
        archive.directory(Path::new("/usr/lib"));
        archive.link(Path::new("/lib"), Path::new("usr/lib"));
        keep(&dir.join("root.cpio"), archive.end())?;
        keep(&dir.join("version"), apt.version("musl")?)?;
        let _ = fs::remove_dir_all(tree);
        Ok(())
    })?;
    let version = version(&dir)?;
    Ok(Root {
        archive: dir.join("root.cpio"),
        libc: version.split('-').next().unwrap_or_default().to_owned(),
    })
}

/// An archive with the first process and the busybox that it needs.
fn archive_with_busybox(apt: &Apt, dir: &Path) -> Result<Archive, String> {
    // The package cannot be installed beside busybox, but it can be unpacked.
    let only = dir.join("static");
    apt.unpack("busybox-static", &only)?;
    let busybox = ["usr/bin/busybox", "bin/busybox"].map(|name| only.join(name));
    let busybox = busybox.iter().find(|path| path.exists());
    let busybox = fs::read(busybox.ok_or("busybox-static is empty")?);
    let mut archive = Archive::default();
    archive.init();
    archive.file(
        Path::new("/box/busybox"),
        &busybox.map_err(|e| e.to_string())?,
    );
    let _ = fs::remove_dir_all(only);
    Ok(archive)
}

/// Headers and libraries to compile with. Programs linked this way run with every newer C library.
pub(super) fn sysroot(suite: &str) -> Result<PathBuf, String> {
    let suite = Suite::open(suite, Processor::X86_64)?;
    suite.kept("sysroot", |apt, dir| {
        for package in DEVELOPMENT {
            apt.unpack(package, dir)?;
        }
        // Its final place: `dir` is a draft.
        let place = dir.with_extension("");
        for part in ["lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
            lead_inside(&dir.join(part), &place)?;
        }
        keep(&dir.join("version"), apt.version("libc6")?)
    })
}

/// Makes absolute links point into `place`. Otherwise the linker would take libraries of this machine.
fn lead_inside(dir: &Path, place: &Path) -> Result<(), String> {
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    for entry in fs::read_dir(dir).map_err(told)? {
        let path = entry.map_err(told)?.path();
        let target = fs::read_link(&path).ok();
        if let Some(within) = target.as_ref().and_then(|t| t.strip_prefix("/").ok()) {
            fs::remove_file(&path).map_err(told)?;
            symlink(place.join(within), &path).map_err(told)?;
        }
    }
    Ok(())
}

/// The name of a file in the machine, where `/bin`, `/sbin`, `/lib` and `/lib64` are links to those of `/usr`.
fn merged(name: &Path) -> PathBuf {
    let first = name.components().nth(1);
    let old = ["bin", "sbin", "lib", "lib64"].map(|name| Component::Normal(name.as_ref()));
    if first.is_some_and(|first| old.contains(&first)) {
        Path::new("/usr").join(name.strip_prefix("/").expect("absolute"))
    } else {
        name.to_owned()
    }
}

/// Adds the files below `dir` of an unpacked tree, but not those below `left_out`.
fn add(archive: &mut Archive, tree: &Path, dir: &Path, left_out: &[PathBuf]) -> Result<(), String> {
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).map_err(told)? {
        entries.push(entry.map_err(told)?.path());
    }
    entries.sort();
    for path in entries {
        let within = Path::new("/").join(path.strip_prefix(tree).expect("below the tree"));
        let name = merged(&within);
        let kind = fs::symlink_metadata(&path).map_err(told)?;
        if left_out.iter().any(|left| name.starts_with(left)) {
            continue;
        }
        if kind.is_dir() {
            archive.directory(&name);
            add(archive, tree, &path, left_out)?;
        } else if kind.is_symlink() && name != within && dir == tree {
            // `/bin` itself, which some distributions ship.
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(told)?;
            // Relative to its place before the directories were merged.
            let target = if target.is_absolute() || name == within {
                target
            } else {
                within.parent().expect("below the root").join(target)
            };
            archive.link(&name, &target);
        } else if kind.is_file() && kind.size() > 0 {
            archive.file(&name, &fs::read(&path).map_err(told)?);
        } else if kind.is_file() && kind.permissions().mode() & 0o111 == 0 {
            // An empty `__init__.py` is needed too.
            archive.file(&name, b"");
        }
    }
    Ok(())
}
