//! What is built for a cell: the library, the programs of `tests/c`, and the unit tests of the crates. Nothing here builds
//! the library (`make`, `scripts/aarch64`, `make musl` do).

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cells::{Cell, Libc};
use super::checks::{self, Check};
use super::{entries, suites};
use crate::build::{self, Toolchain};
use crate::machine::ensure_installed;
use crate::run::target_dir;
use crate::{Processor, library};

/// The C library for which the programs of x86-64 are compiled: these run with all others.
const OLDEST: &str = "bullseye";

/// What cells share that differ in kernel, pages and version of the C library only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Native,
    Musl,
    Aarch64,
}

/// Programs by name, or the reason why one cannot be compiled.
pub(super) type Programs = BTreeMap<String, Result<PathBuf, String>>;

pub(super) struct Built {
    pub library: PathBuf,
    pub programs: Programs,
    /// Unit tests of the crates, stripped.
    pub units: Vec<PathBuf>,
    /// The version of glibc for which the programs are compiled, if they are for glibc.
    pub glibc: Option<(u32, u32)>,
    /// The results of its cells, kept under a key that is computed from all of this.
    pub results: PathBuf,
}

impl Kind {
    pub fn of(cell: &Cell) -> Kind {
        match (cell.processor, cell.libc) {
            (Processor::Aarch64, _) => Kind::Aarch64,
            (Processor::X86_64, Libc::Glibc(_)) => Kind::Native,
            (Processor::X86_64, Libc::Musl(_)) => Kind::Musl,
        }
    }

    /// Finds the library, and compiles the programs of the checks: for all versions of the C library, or with less
    /// effort for those from this machine's own on.
    pub fn build(self, checks: &[Check], for_all: bool) -> Result<Built, String> {
        let oldest = if self == Kind::Native && for_all {
            suites::sysroot(OLDEST).ok()
        } else {
            None
        };
        let (library, compiler, package) = match self {
            Kind::Native => {
                let library = library().ok_or("EBBTIDE_LIB=none: nothing to test")?;
                (library, "cc", "gcc")
            }
            Kind::Musl => {
                let library = cross("x86_64-unknown-linux-musl", "make musl")?;
                (library, "musl-gcc", "musl-tools")
            }
            Kind::Aarch64 => {
                let library = cross("aarch64-unknown-linux-gnu", "scripts/aarch64")?;
                (library, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
            }
        };
        if !ensure_installed(compiler, package) {
            return Err(format!("no {compiler} ({package})"));
        }
        let toolchain = Toolchain {
            compiler,
            sysroot: oldest.map(|dir| (dir, Processor::X86_64.libraries())),
        };
        let units = match self {
            Kind::Aarch64 => entries(&library.with_file_name("units"))?,
            _ => Vec::new(),
        };
        let results = target_dir()
            .join("matrix")
            .join(key(&library, &units, checks)?);
        fs::create_dir_all(&results).map_err(|e| e.to_string())?;
        Ok(Built {
            programs: checks::compile(checks, &toolchain),
            glibc: glibc(&toolchain),
            library,
            units,
            results,
        })
    }
}

/// The library that cargo has built for another target.
fn cross(target: &str, remedy: &str) -> Result<PathBuf, String> {
    let path = target_dir().join(target).join("release/libebbtide.so");
    path.canonicalize()
        .map_err(|_| format!("no library for {target} ({remedy})"))
}

/// The version of glibc that the compiler has, if it has glibc.
fn glibc(toolchain: &Toolchain) -> Option<(u32, u32)> {
    let mut compiler = Command::new(toolchain.compiler);
    if let Some((sysroot, _)) = &toolchain.sysroot {
        compiler.arg(format!("--sysroot={}", sysroot.display()));
    }
    let run = compiler
        .args([
            "-E",
            "-dM",
            "-include",
            "features.h",
            "-x",
            "c",
            "/dev/null",
        ])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&run.stdout);
    let number = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(&format!("#define {name} "))?.parse().ok())
    };
    Some((number("__GLIBC__")?, number("__GLIBC_MINOR__")?))
}

/// Computes the key of the library and of everything that runs with it.
fn key(library: &Path, units: &[PathBuf], checks: &[Check]) -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    let mut files = vec![library.to_owned()];
    files.extend_from_slice(units);
    files.extend(checks::sources(checks));
    files.push(build::sources().join("check.h"));
    files.extend(entries(&checks::directory())?);
    for path in files {
        let content = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        content.hash(&mut hasher);
    }
    include_bytes!("../../guest/init").hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}
