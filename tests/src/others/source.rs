//! Fetches the sources of suites: Debian's source packages and crates, kept in `~/.cache/ebbtide/suites`. Those of Rust's own
//! libraries are a component of a toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::matrix::apt::{self, Suite};

/// A source that was fetched.
pub(super) struct Source {
    pub dir: PathBuf,
    /// Name and version.
    pub label: String,
}

/// Fetches what `source` of an entry names, unless it is there.
pub(super) fn fetch(source: &str) -> Result<Source, String> {
    match source.split_whitespace().collect::<Vec<_>>()[..] {
        [] => Ok(Source {
            dir: PathBuf::from("/nonexistent"),
            label: "this repository".into(),
        }),
        ["debian", package] => of_debian(package),
        ["crate", name, version] => of_crates_io(name, version),
        ["rust", toolchain] => of_toolchain(toolchain),
        _ => Err(format!("unknown source {source}")),
    }
}

/// The source package of the Debian release that runs here: its tests fit this machine's C library.
fn of_debian(package: &str) -> Result<Source, String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = release.lines();
    let suite = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.ok_or("this is no release of Debian")?;
    let dir = Suite::of_sources(suite)?.kept(package, |apt, dir| {
        let version = apt.unpack_source(package, dir)?;
        apt::keep(&dir.join("version"), version)
    })?;
    let label = format!("{package} {} of Debian", apt::version(&dir)?);
    Ok(Source {
        dir: dir.join("tree"),
        label,
    })
}

fn of_crates_io(name: &str, version: &str) -> Result<Source, String> {
    let cache = apt::cache()?.join("suites/crates");
    let made = cache.join(format!("{name}-{version}"));
    if !made.exists() {
        fetch_crate(name, version, &cache, &made)?;
    }
    Ok(Source {
        dir: made.join("vendor").join(name),
        label: format!("{name} {version} of crates.io"),
    })
}

/// Rust's own libraries, as they lie beside a toolchain of rustup.
fn of_toolchain(toolchain: &str) -> Result<Source, String> {
    let missing = || {
        format!(
            "no rust-src for {toolchain}: rustup toolchain install {toolchain} --component rust-src"
        )
    };
    let said = |option: &[&str]| {
        let run = Command::new("rustc")
            .arg(format!("+{toolchain}"))
            .args(option)
            .output()
            .ok()
            .filter(|run| run.status.success())?;
        Some(String::from_utf8_lossy(&run.stdout).trim().to_owned())
    };
    let root = said(&["--print", "sysroot"]).ok_or_else(missing)?;
    let dir = Path::new(&root).join("lib/rustlib/src/rust/library");
    match said(&["--version"]) {
        Some(label) if dir.is_dir() => Ok(Source { dir, label }),
        _ => Err(missing()),
    }
}

/// Lets cargo fetch a crate as the dependency of an empty one.
fn fetch_crate(name: &str, version: &str, cache: &Path, made: &Path) -> Result<(), String> {
    eprintln!("fetching {name} {version} from crates.io");
    let told = |e: std::io::Error| format!("{}: {e}", cache.display());
    fs::create_dir_all(cache).map_err(told)?;
    let draft = tempfile::tempdir_in(cache).map_err(told)?;
    fs::create_dir(draft.path().join("src")).map_err(told)?;
    fs::write(draft.path().join("src/lib.rs"), "").map_err(told)?;
    let manifest = format!(
        "[package]\nname = \"fetched\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{name} = \"={version}\"\n"
    );
    fs::write(draft.path().join("Cargo.toml"), manifest).map_err(told)?;
    let run = Command::new("cargo")
        .args(["vendor", "--quiet"])
        .current_dir(draft.path())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !run.status.success() {
        let text = String::from_utf8_lossy(&run.stderr);
        return Err(format!("cargo vendor: {}", super::last_line(&text)));
    }
    fs::rename(draft.keep(), made).map_err(told)
}
