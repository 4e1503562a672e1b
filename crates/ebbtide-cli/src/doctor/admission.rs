//! Finds the directory where exit helpers of this user wait for admission. It searches as the helpers do
//! (`admission.rs` of the crate `ebbtide-exit`, and `open_private` below that), and creates what they would create.

use std::env;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Check;

const NAME: &str = "ebbtide-exit.lock";
/// A longer `XDG_RUNTIME_DIR` is ignored.
const MAX_BYTES: usize = 255;

/// Reports the directory, or that there is none.
pub fn check() -> Check {
    match places()
        .into_iter()
        .find(|(path, make)| open(path, *make).is_ok())
    {
        Some((path, _)) => Check::ok("exit_admission", path.display().to_string()),
        None => Check::limited("exit_admission", "no private directory"),
    }
}

/// All possible directories, and whether each may be created.
fn places() -> Vec<(PathBuf, bool)> {
    let given = env::var_os("XDG_RUNTIME_DIR").filter(|path| {
        let bytes = path.as_bytes();
        bytes.first() == Some(&b'/') && bytes.len() <= MAX_BYTES
    });
    let user = user();
    given
        .map(|path| (path.into(), false))
        .into_iter()
        .chain([
            (format!("/run/user/{user}").into(), false),
            (format!("/dev/shm/ebbtide-{user}").into(), true),
            (format!("/tmp/ebbtide-{user}").into(), true),
        ])
        .collect()
}

/// Opens the lock file in this directory.
fn open(directory: &Path, make: bool) -> io::Result<File> {
    if make {
        let _ = fs::DirBuilder::new().mode(0o700).create(directory);
    }
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(directory)?;
    let about = dir.metadata()?;
    owned(&about, about.is_dir())?;
    let here = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    if make && about.mode() & 0o700 != 0o700 {
        let _ = fs::set_permissions(&here, Permissions::from_mode(0o700));
    }
    let path = here.join(NAME);
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
    };
    let file = open().or_else(|error| {
        // An umask may have removed the owner's rights.
        let about = fs::symlink_metadata(&path)?;
        owned(&about, about.is_file())?;
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        open()
    })?;
    let about = file.metadata()?;
    owned(&about, about.is_file())?;
    if about.mode() & 0o7777 != 0o600 {
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Fails unless the file is of the wanted kind, belongs to this user, and no other user may write to it.
fn owned(about: &Metadata, is_kind: bool) -> io::Result<()> {
    if is_kind && about.uid() == user() && about.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn as_the_helper_does_it() {
        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join("real"), root.path().join("link"));
        assert!(open(&real, false).is_err());
        open(&real, true).unwrap();
        open(&real, false).unwrap();
        symlink(&real, &link).unwrap();
        assert!(open(&link, false).is_err() && open(&link, true).is_err());
        for mode in [0o777, 0o770, 0o702] {
            set(&real, mode);
            assert!(open(&real, false).is_err() && open(&real, true).is_err());
        }
        set(&real, 0o700);
        let file = real.join(NAME);
        set(&file, 0);
        set(&real, 0);
        open(&real, true).unwrap();
        let rights = |path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((rights(&real), rights(&file)), (0o700, 0o600));
        fs::rename(&file, root.path().join("target")).unwrap();
        symlink(root.path().join("target"), &file).unwrap();
        assert!(open(&real, false).is_err(), "a link in place of the file");
        fs::remove_file(&file).unwrap();
        set(&real, 0o500);
        // Root may write there anyway, and so may a helper of root.
        assert_eq!(open(&real, false).is_ok(), user() == 0);
        set(&real, 0o700);
    }
}
