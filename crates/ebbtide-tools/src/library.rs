//! Finds the library `libebbtide.so`.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The flag for the place of the library.
#[cfg(feature = "arguments")]
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LibArgs {
    /// Path of libebbtide.so (default: EBBTIDE_LIB, then beside this program,
    /// then the usual library directories)
    #[arg(long, value_name = "PATH")]
    pub lib: Option<PathBuf>,
}

/// File name of the library. A version may follow it.
pub const FILE_NAME: &str = "libebbtide.so";

/// The name that programs linked with the library ask for. It is also accepted, if only this file is installed.
pub const SONAME: &str = "libebbtide.so.0";

/// Whether a file of this name is the library, in any version.
pub fn is_named(name: &str) -> bool {
    name.strip_prefix(FILE_NAME)
        .is_some_and(|version| version.is_empty() || version.starts_with('.'))
}

/// Environment variable that names the library.
pub const ENV: &str = "EBBTIDE_LIB";

/// The library's absolute path: `given`, else `EBBTIDE_LIB`, else the first that exists beside this program or in the
/// usual library directories.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return checked(path).with_context(|| format!("--lib {}", path.display()));
    }
    if let Some(path) = env::var_os(ENV).filter(|v| !v.is_empty()) {
        let path = PathBuf::from(path);
        return checked(&path).with_context(|| format!("{ENV}={}", path.display()));
    }
    let exe = env::current_exe().ok();
    let places = candidates(exe.as_deref());
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return checked(place);
    }
    let places = places
        .iter()
        .map(|place| format!("\n  {}", place.display()));
    let list: String = places.collect();
    bail!(
        "{FILE_NAME} not found; install the package libebbtide0, or build it with 'make' in a checkout, \
         or give its path with --lib PATH or {ENV}=PATH. Searched:{list}"
    )
}

/// The library's path in a system whose root is the directory `root`: `given`, else the first in the usual directories.
pub fn find_under(root: &Path, given: Option<&Path>) -> Result<PathBuf> {
    let places = match given {
        Some(path) => vec![path.to_owned()],
        None => candidates(None),
    };
    let is_there = |place: &&PathBuf| {
        root.join(place.strip_prefix("/").unwrap_or(place))
            .is_file()
    };
    let Some(place) = places.iter().find(is_there) else {
        let list: String = places
            .iter()
            .map(|place| format!(" {}", place.display()))
            .collect();
        bail!(
            "{FILE_NAME} not found under {}; install it there, or give its path there with --lib PATH. Searched:{list}",
            root.display()
        );
    };
    carried(place)?;
    Ok(place.clone())
}

/// The possible places of the library, best first, for a program at `exe`.
fn candidates(exe: Option<&Path>) -> Vec<PathBuf> {
    let beside = exe.and_then(Path::parent);
    let above = beside.and_then(Path::parent);
    // Programs of debug builds and of tests find the optimised library.
    let near = ["release", "lib", "lib64"].map(|dir| Some(above?.join(dir)));
    let here = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let usual = [
        "/usr/local/lib",
        "/usr/local/lib64",
        "/usr/lib",
        "/usr/lib64",
        &here,
    ];
    let mut dirs: Vec<PathBuf> = beside.map(Path::to_owned).into_iter().collect();
    dirs.extend(near.into_iter().flatten());
    dirs.extend(usual.map(PathBuf::from));
    dirs.dedup();
    dirs.iter()
        .flat_map(|dir| [FILE_NAME, SONAME].map(|name| dir.join(name)))
        .collect()
}

fn checked(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().context(
        "cannot find this library; check the path, or leave it out to search the usual directories",
    )?;
    if !path.is_file() {
        bail!(
            "this is not a file; give the path of the library, such as target/release/{FILE_NAME}"
        );
    }
    carried(&path)?;
    Ok(path)
}

/// Whether `LD_PRELOAD` can carry the path: the loader splits it at these characters, and they cannot be escaped.
fn carried(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    if text.contains([' ', ':', '\t', '\n']) {
        bail!(
            "the library's path '{text}' holds a space or a colon, which LD_PRELOAD cannot carry; \
             link or copy the library to a path without these characters"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_beside_the_program_first() {
        let c = candidates(Some(Path::new("/opt/e/bin/ebbtide")));
        assert_eq!(c[0], Path::new("/opt/e/bin/libebbtide.so"));
        assert!(c.contains(&PathBuf::from("/opt/e/lib/libebbtide.so")));
        assert!(c.contains(&PathBuf::from("/opt/e/lib64/libebbtide.so")));
        assert!(c.contains(&PathBuf::from("/usr/local/lib/libebbtide.so")));
    }

    #[test]
    fn knows_its_own_names() {
        for name in ["libebbtide.so", "libebbtide.so.0", "libebbtide.so.0.1.0"] {
            assert!(is_named(name), "{name}");
        }
        for name in ["libebbtide.sour", "libebbtide", "liblibebbtide.so"] {
            assert!(!is_named(name), "{name}");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebbtide-preload/build.rs");
        if let Ok(source) = std::fs::read_to_string(path) {
            assert!(source.contains(&format!("-soname,{SONAME}\"")));
        }
    }

    #[test]
    fn refuses_what_the_loader_cannot_carry() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b.so");
        std::fs::write(&path, "").unwrap();
        assert!(format!("{:#}", find(Some(&path)).unwrap_err()).contains("space"));
        assert!(find(Some(dir.path())).is_err());
        assert!(find(Some(&dir.path().join("none.so"))).is_err());
    }
}
