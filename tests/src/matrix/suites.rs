//! Fetches and unpacks kernels, C libraries and programs of Debian's suites. It never installs them.
//!
//! They are kept in `$EBBTIDE_CACHE/debian/SUITE` (default: `~/.cache/ebbtide`), so that `cargo clean` does not
//! remove them:
//!
//! ```text
//!   apt/             lists and packages of this suite; apt continues an interrupted download
//!   kernel/          vmlinuz, version
//!   root/            root.cpio, sysroot (bullseye only), version
//! ```
//!
//! Files older than a week are fetched again (`EBBTIDE_REFRESH=1`: all files). Without a network, the old ones are
//! used. A file lock for each suite keeps two runs apart.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use super::apt::{Suite, keep, unpack, version};
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
const LEFT_OUT: [&str; 13] = [
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
    "/usr/lib/x86_64-linux-gnu/gconv",
    "/usr/lib/x86_64-linux-gnu/perl",
];

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
    /// Major and minor number of the C library.
    pub libc: String,
}

/// `major.minor` of a version.
pub(super) fn short(version: &str) -> String {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().unwrap_or_default();
    format!("{}.{}", next(), next())
}

/// Debian's cloud kernel: everything that a machine needs is built into it.
pub(super) fn kernel(suite: &str) -> Result<Kernel, String> {
    let suite = Suite::open(suite)?;
    let dir = suite.kept("kernel", |apt, dir| {
        let newest = apt.dependency("linux-image-cloud-amd64", "linux-image-")?;
        // From 7.0 on, the image has a package of its own.
        let package = apt.dependency(&newest, "linux-binary-").unwrap_or(newest);
        apt.unpack(&package, dir)?;
        let (image, release) = image_in(dir).ok_or(format!("{package} has no kernel"))?;
        keep(&dir.join("version"), release)?;
        fs::rename(&image, dir.join("vmlinuz")).map_err(|e| e.to_string())?;
        let _ = fs::remove_dir_all(dir.join("boot"));
        let _ = fs::remove_dir_all(dir.join("lib"));
        let _ = fs::remove_dir_all(dir.join("usr"));
        Ok(())
    })?;
    Ok(Kernel {
        image: dir.join("vmlinuz"),
        release: version(&dir)?,
    })
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

/// The file system with all programs.
pub(super) fn root(suite: &str) -> Result<Root, String> {
    let suite = Suite::open(suite)?;
    let dir = suite.kept("root", |apt, dir| {
        let packages = apt.with_dependencies(&PROGRAMS)?;
        let tree = dir.join("tree");
        for package in packages {
            unpack(&package, &tree)?;
        }
        // The package cannot be installed beside busybox, but it can be unpacked.
        let only = dir.join("static");
        apt.unpack("busybox-static", &only)?;
        let mut archive = Archive::default();
        archive.init();
        let busybox = ["usr/bin/busybox", "bin/busybox"].map(|name| only.join(name));
        let busybox = busybox.iter().find(|path| path.exists());
        let busybox = fs::read(busybox.ok_or("busybox-static is empty")?);
        archive.file(
            Path::new("/box/busybox"),
            &busybox.map_err(|e| e.to_string())?,
        );
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
        add(&mut archive, &tree, &tree)?;
        keep(&dir.join("root.cpio"), archive.end())?;
        keep(&dir.join("version"), apt.version("libc6")?)?;
        let _ = fs::remove_dir_all(tree);
        let _ = fs::remove_dir_all(only);
        Ok(())
    })?;
    Ok(Root {
        archive: dir.join("root.cpio"),
        libc: short(&version(&dir)?),
    })
}

/// Headers and libraries to compile with. Programs linked this way run with every newer C library.
pub(super) fn sysroot(suite: &str) -> Result<PathBuf, String> {
    let suite = Suite::open(suite)?;
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

/// Adds the files below `dir` of an unpacked tree.
fn add(archive: &mut Archive, tree: &Path, dir: &Path) -> Result<(), String> {
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
        if LEFT_OUT.iter().any(|left| name.starts_with(left)) {
            continue;
        }
        if kind.is_dir() {
            archive.directory(&name);
            add(archive, tree, &path)?;
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
