//! What is built for a cell: the library, the programs of `tests/c`, and the unit tests of the crates. Nothing here builds
//! the library (`make` and `scripts/aarch64` do).

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
        let (library, toolchain) = match self {
            Kind::Native => {
                let oldest = for_all.then(|| suites::sysroot(OLDEST).ok()).flatten();
                let toolchain = oldest.map_or_else(native, |dir| native_for(&dir));
                (here()?, toolchain)
            }
            // The library is the same.
            Kind::Musl => (here()?, musl()?),
            Kind::Aarch64 => (for_aarch64()?, aarch64()?),
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

/// The compiler for the C library of this machine.
fn native() -> Toolchain {
    Toolchain {
        compiler: "cc",
        directory: "",
        flags: Vec::new(),
    }
}

/// The compiler for the C library that is unpacked there.
fn native_for(sysroot: &Path) -> Toolchain {
    // The sysroot flag alone is enough for headers only: compilers search their own directories first for libraries.
    let places = ["usr/lib", "lib"].map(|dir| sysroot.join(dir).join("x86_64-linux-gnu"));
    Toolchain {
        compiler: "cc",
        directory: "sysroot",
        flags: vec![
            format!("--sysroot={}", sysroot.display()),
            format!("-B{}", places[0].display()),
            format!("-L{}", places[0].display()),
            format!("-L{}", places[1].display()),
            format!("-include{}", checks::directory().join("old.h").display()),
        ],
    }
}

fn aarch64() -> Result<Toolchain, String> {
    Ok(Toolchain {
        compiler: installed("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")?,
        directory: "aarch64",
        flags: Vec::new(),
    })
}

fn musl() -> Result<Toolchain, String> {
    let compiler = installed("musl-gcc", "musl-tools")?;
    Ok(Toolchain {
        compiler,
        directory: "matrix-musl",
        flags: vec![
            format!("-idirafter{}", build::kernel_headers().display()),
            format!("-include{}", checks::directory().join("musl.h").display()),
        ],
    })
}

/// A compiler that is installed, if possible.
fn installed(compiler: &'static str, package: &str) -> Result<&'static str, String> {
    if ensure_installed(compiler, package) {
        Ok(compiler)
    } else {
        Err(format!("no {compiler} ({package})"))
    }
}

fn here() -> Result<PathBuf, String> {
    library().ok_or("EBBTIDE_LIB=none: nothing to test".into())
}

fn for_aarch64() -> Result<PathBuf, String> {
    let path = target_dir().join("aarch64-unknown-linux-gnu/release/libebbtide.so");
    path.canonicalize()
        .map_err(|_| "no library for aarch64 (scripts/aarch64)".into())
}

/// The version of glibc that the compiler has, if it has glibc.
fn glibc(toolchain: &Toolchain) -> Option<(u32, u32)> {
    let run = Command::new(toolchain.compiler)
        .args(["-E", "-dM", "-include", "features.h", "-x", "c"])
        .args(&toolchain.flags)
        .arg("/dev/null")
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
    let is_header = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "h");
    files.extend(entries(&build::sources())?.into_iter().filter(is_header));
    files.extend(entries(&checks::directory())?);
    for path in files {
        let content = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        content.hash(&mut hasher);
    }
    include_bytes!("../../guest/init").hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}
