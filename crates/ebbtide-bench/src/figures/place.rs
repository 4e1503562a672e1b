//! Where pages and kept results are written: files that are replaced as a whole, or a device or pipe.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// More than a page, or a family's results, take with all peers.
const ROOM_BYTES: usize = 8 << 20;

/// The file behind links, and whether it can be replaced: a device or a pipe is written to instead.
fn place(file: &Path) -> (PathBuf, bool) {
    let file = file.canonicalize().unwrap_or_else(|_| file.into());
    let is_special = fs::metadata(&file).is_ok_and(|meta| !meta.is_file());
    (file, !is_special)
}

/// Whether a file can be written, and there is room for it; the one that is there stays as it is. The flag chooses
/// another place.
pub fn check(file: &Path, flag: &str) -> Result<()> {
    let told = || {
        format!(
            "cannot write {}; choose another place with {flag}",
            file.display()
        )
    };
    match place(file) {
        (file, true) => beside(&file)
            .and_then(|mut new| new.write_all(&vec![0; ROOM_BYTES]))
            .with_context(told),
        (file, false) => {
            let opened = File::options().write(true).open(file);
            opened.map(drop).with_context(told)
        }
    }
}

/// A file in the same directory.
fn beside(file: &Path) -> io::Result<NamedTempFile> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir.unwrap_or(Path::new(".")))
}

/// Replaces the file as a whole.
pub fn write(file: &Path, text: &str) -> Result<()> {
    let told = || format!("cannot write {}", file.display());
    match place(file) {
        (file, true) => {
            let mut new = beside(&file).with_context(told)?;
            new.write_all(text.as_bytes()).with_context(told)?;
            let placed = new.persist(file).map_err(|error| error.error);
            placed.map(drop).with_context(told)
        }
        (file, false) => fs::write(file, text).with_context(told),
    }
}
