//! Finds the directory where exit helpers of this user wait for admission. It searches as the helpers do
//! (`admission.rs` of the crate `ebbtide-exit`, and `open_private` below that), and creates what they would create.

use std::env;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::fs::{chmod, chmodat, fchmod, fstat, mkdir, openat, statat};
use rustix::io::Errno;

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
        bytes.starts_with(b"/") && bytes.len() <= MAX_BYTES
    });
    let user = user();
    let usual = [
        (format!("/run/user/{user}").into(), false),
        (format!("/dev/shm/ebbtide-{user}").into(), true),
        (format!("/tmp/ebbtide-{user}").into(), true),
    ];
    let given = given.map(|path| (path.into(), false));
    given.into_iter().chain(usual).collect()
}

/// Opens the lock file in this directory.
fn open(directory: &Path, make: bool) -> Result<OwnedFd, Errno> {
    if make {
        let _ = mkdir(directory, Mode::RWXU);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(directory, flags, Mode::empty())?;
    let about = owned(&fstat(&dir)?, FileType::Directory)?;
    if make && !about.contains(Mode::RWXU) {
        let _ = chmod(format!("/proc/self/fd/{}", dir.as_raw_fd()), Mode::RWXU);
    }
    let rights = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(&dir, NAME, flags, rights);
    let file = open().or_else(|error| {
        // An umask may have removed the owner's rights.
        let about = statat(&dir, NAME, AtFlags::SYMLINK_NOFOLLOW)?;
        owned(&about, FileType::RegularFile)?;
        if error != Errno::ACCESS {
            return Err(error);
        }
        chmodat(&dir, NAME, rights, AtFlags::empty())?;
        open()
    })?;
    if owned(&fstat(&file)?, FileType::RegularFile)? != rights {
        let _ = fchmod(&file, rights);
    }
    Ok(file)
}

/// The file's rights. Fails unless it is of this kind, belongs to this user, and no other user may write to it.
fn owned(about: &Stat, kind: FileType) -> Result<Mode, Errno> {
    let rights = Mode::from_raw_mode(about.st_mode);
    let is_shared = rights.intersects(Mode::WGRP | Mode::WOTH);
    match FileType::from_raw_mode(about.st_mode) == kind && about.st_uid == user() && !is_shared {
        true => Ok(rights),
        false => Err(Errno::ACCESS),
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
