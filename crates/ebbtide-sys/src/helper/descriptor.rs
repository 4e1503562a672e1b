//! A helper's descriptors: files of the kernel's, processes, and files for locks.

use super::timespec;
use crate::call::{Errno, Sysno, syscall};
use crate::file::{Digits, PathText};
use core::ffi::CStr;

pub(super) const F_OFD_SETLK: i32 = 37;
pub(super) const F_OFD_SETLKW: i32 = 38;

/// A descriptor of its own, never closed but by its end.
#[derive(Clone, Copy)]
pub struct Descriptor(usize);

impl Descriptor {
    /// Opens a file of the kernel's for reading.
    ///
    /// # Errors
    /// What openat(2) says.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: `path` ends with a NUL.
        unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.map(Self)
    }

    /// A process.
    ///
    /// # Errors
    /// What pidfd_open(2) says.
    pub fn process(id: u32) -> Result<Self, Errno> {
        // SAFETY: no pointers.
        unsafe { syscall!(Sysno::pidfd_open, id, 0) }.map(Self)
    }

    /// Reads from the beginning, with one call.
    pub fn read_start<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // SAFETY: `buffer` can be written to for its length.
        let len = unsafe { syscall!(Sysno::pread64, self.0, buffer.as_mut_ptr(), buffer.len(), 0) };
        buffer.get(..len.ok()?)
    }

    /// Reads on; 0 at the end.
    ///
    /// # Errors
    /// What read(2) says.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: `buffer` can be written to for its length.
        unsafe { syscall!(Sysno::read, self.0, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Goes back to the beginning.
    pub fn rewind(&self) {
        // SAFETY: no pointers.
        let _ = unsafe { syscall!(Sysno::lseek, self.0, 0, libc::SEEK_SET) };
    }

    /// Of a process: waits until all its threads are gone. `false`: it cannot wait, because a filter of the
    /// program's refuses the call.
    pub fn wait_for_end(&self) -> bool {
        loop {
            match self.poll(libc::POLLIN, None) {
                Ok(events) if events & libc::POLLIN != 0 => return true,
                Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) => {}
                _ => return false,
            }
        }
    }

    /// Of a process that has ended: waits until its parent knows, or for `us`. Whether it knows: kernels before 6.15
    /// do not tell.
    pub fn wait_for_parent(&self, us: u64) -> bool {
        self.poll(0, Some(us)).is_ok_and(|events| events != 0)
    }

    fn poll(&self, events: i16, us: Option<u64>) -> Result<i16, Errno> {
        let mut one = libc::pollfd {
            fd: self.0 as i32,
            events,
            revents: 0,
        };
        let time = us.map(timespec);
        let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: one entry, and a time or none.
        unsafe { syscall!(Sysno::ppoll, &raw mut one, 1, time, 0, 0) }?;
        Ok(one.revents)
    }

    /// Locks byte `at` of a file against other processes; waits for it if `wait`. `false`: not now, or refused.
    pub fn lock_byte(&self, at: u64, wait: bool) -> bool {
        // SAFETY: zero is a valid flock.
        let mut lock: libc::flock64 = unsafe { core::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = at as i64;
        lock.l_len = 1;
        let command = if wait { F_OFD_SETLKW } else { F_OFD_SETLK };
        // SAFETY: `lock` is readable.
        unsafe { syscall!(Sysno::fcntl, self.0, command, &raw const lock) }.is_ok()
    }
}

/// Opens, and makes where it is missing, a file for locks in a directory that is this user's alone. `make`: the
/// directory too. What is made is the owner's to use whatever the umask, and so is what an umask has spoilt before.
///
/// # Errors
/// What the calls say; `EPERM` when somebody else could be behind the directory or the file.
pub fn open_private(directory: &CStr, name: &CStr, make: bool) -> Result<Descriptor, Errno> {
    // Without a right to read it: an umask may have taken that.
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL; the descriptor is this process's own.
    unsafe {
        if make {
            let _ = syscall!(Sysno::mkdirat, libc::AT_FDCWD, directory.as_ptr(), 0o700);
        }
        let dir = syscall!(Sysno::openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0)?;
        let file = open_in(dir, name, make);
        let _ = syscall!(Sysno::close, dir);
        file
    }
}

fn open_in(dir: usize, name: &CStr, make: bool) -> Result<Descriptor, Errno> {
    let rights = owned(dir, libc::S_IFDIR)?;
    if make && rights & 0o700 != 0o700 {
        let _ = set_mode(dir, 0o700);
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name ends with a NUL.
    let open = || unsafe { syscall!(Sysno::openat, dir, name.as_ptr(), flags, 0o600) };
    let file = match open() {
        Err(Errno::EACCES) if allow_owner(dir, name).is_ok() => open(),
        other => other,
    }?;
    let rights = owned(file, libc::S_IFREG);
    if let Err(error) = rights {
        // SAFETY: this process's own.
        let _ = unsafe { syscall!(Sysno::close, file) };
        return Err(error);
    }
    // Others who may read it could lock it, too.
    if rights != Ok(0o600) {
        let _ = set_mode(file, 0o600);
    }
    Ok(Descriptor(file))
}

/// Gives this user's rights to its own file back to it.
fn allow_owner(dir: usize, name: &CStr) -> Result<(), Errno> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name ends with a NUL; the descriptor is this process's own.
    unsafe {
        let file = syscall!(Sysno::openat, dir, name.as_ptr(), flags, 0)?;
        let done = owned(file, libc::S_IFREG).and_then(|_| set_mode(file, 0o600));
        let _ = syscall!(Sysno::close, file);
        done
    }
}

/// Sets the mode of what is open, if only with `O_PATH`: fchmod(2) refuses that.
fn set_mode(fd: usize, mode: u32) -> Result<(), Errno> {
    let path = PathText::join(&[b"/proc/self/fd/", &Digits::of(fd)]).ok_or(Errno::ENAMETOOLONG)?;
    let path = path.as_c_str().as_ptr();
    // SAFETY: the path ends with a NUL.
    unsafe { syscall!(Sysno::fchmodat, libc::AT_FDCWD, path, mode) }.map(drop)
}

/// The rights to what is open, if it is of this kind, this user's, and nobody else may write to it.
fn owned(fd: usize, kind: u32) -> Result<u32, Errno> {
    // SAFETY: zero is a valid stat, a place to write to.
    let (about, user) = unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        syscall!(Sysno::fstat, fd, &raw mut about)?;
        (about, syscall!(Sysno::geteuid)? as u32)
    };
    let private =
        about.st_mode & libc::S_IFMT == kind && about.st_uid == user && about.st_mode & 0o022 == 0;
    if private {
        Ok(about.st_mode & 0o7777)
    } else {
        Err(Errno::EPERM)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, File, Permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::path::{Path, PathBuf};

    const NAME: &CStr = c"locks";
    const NOBODY: u32 = 65534;

    /// A new directory of mode 0700, gone with its owner.
    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Self {
            let name = std::format!("ebbtide-private-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            set(&path, 0o700);
            Self(path)
        }

        fn lock(&self) -> PathBuf {
            self.0.join("locks")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            set(&self.0, 0o700);
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn rights(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    /// `Ok`: the number of the file that was opened.
    fn open(path: &Path, make: bool) -> Result<u64, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let fd = open_private(&path, NAME, make)?.0;
        let number = fs::metadata(std::format!("/proc/self/fd/{fd}"))
            .unwrap()
            .ino();
        // SAFETY: the test's own.
        unsafe { syscall!(Sysno::close, fd) }.unwrap();
        Ok(number)
    }

    /// Runs in a process without privileges, in this directory: what `test` says is `true`.
    fn as_nobody(place: &Place, test: impl FnOnce() -> bool) {
        let path = CString::new(place.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: the child calls what may be called after a fork in a process with threads: system calls.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let moved = libc::chdir(path.as_ptr()) == 0;
                let left = libc::geteuid() != 0
                    || syscall!(Sysno::setresgid, NOBODY, NOBODY, NOBODY).is_ok()
                        && syscall!(Sysno::setresuid, NOBODY, NOBODY, NOBODY).is_ok();
                libc::_exit(if moved && left && test() { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }

    /// Gives it to the user of [`as_nobody`].
    fn give(path: &Path) {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } == 0 {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    #[test]
    fn a_private_file() {
        let place = Place::new("plain");
        let first = open(&place.0, false).unwrap();
        assert_eq!(open(&place.0, false), Ok(first), "the same file");
        assert_eq!(rights(&place.lock()), 0o600);
        let inner = place.0.join("made");
        assert_eq!(open(&inner, false), Err(Errno::ENOENT));
        open(&inner, true).unwrap();
        assert_eq!(rights(&inner), 0o700);
    }

    #[test]
    fn a_directory_that_others_could_be_behind() {
        let place = Place::new("others");
        for make in [false, true] {
            for mode in [0o777, 0o1777, 0o770, 0o720, 0o702] {
                set(&place.0, mode);
                assert_eq!(open(&place.0, make), Err(Errno::EPERM), "{mode:o}");
                assert_eq!(rights(&place.0), mode, "left as it is");
            }
            assert!(!place.lock().exists());
        }
        set(&place.0, 0o755);
        open(&place.0, false).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_directory() {
        let place = Place::new("link");
        let (real, link) = (place.0.join("real"), place.0.join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        for make in [false, true] {
            assert_eq!(open(&link, make), Err(Errno::ENOTDIR));
        }
        assert!(!real.join("locks").exists());
        assert_eq!(open(&place.0.join("real/.."), false).map(drop), Ok(()));
    }

    #[test]
    fn something_else_in_place_of_the_file() {
        let place = Place::new("file");
        let target = place.0.join("target");
        File::create(&target).unwrap();
        symlink(&target, place.lock()).unwrap();
        assert_eq!(open(&place.0, false), Err(Errno::ELOOP));
        fs::remove_file(place.lock()).unwrap();
        set(&target, 0o666);
        fs::rename(&target, place.lock()).unwrap();
        assert_eq!(open(&place.0, false), Err(Errno::EPERM), "for all");
        fs::remove_file(place.lock()).unwrap();
        fs::create_dir(place.lock()).unwrap();
        assert_eq!(open(&place.0, false), Err(Errno::EISDIR));
        fs::remove_dir(place.lock()).unwrap();
        let fifo = CString::new(place.lock().as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(open(&place.0, false), Err(Errno::EPERM), "a FIFO");
    }

    #[test]
    fn what_is_somebody_elses() {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            std::eprintln!("skipped: only root makes files of others");
            return;
        }
        let place = Place::new("foreign");
        File::create(place.lock()).unwrap();
        chown(place.lock(), Some(NOBODY), None).unwrap();
        assert_eq!(open(&place.0, false), Err(Errno::EPERM));
        fs::remove_file(place.lock()).unwrap();
        chown(&place.0, Some(NOBODY), None).unwrap();
        for mode in [0o700, 0] {
            set(&place.0, mode);
            assert_eq!(open(&place.0, true), Err(Errno::EPERM));
            assert_eq!(rights(&place.0), mode);
        }
        assert!(!place.lock().exists());
    }

    #[test]
    fn a_file_that_others_may_read() {
        let place = Place::new("read");
        File::create(place.lock()).unwrap();
        set(&place.lock(), 0o644);
        open(&place.0, false).unwrap();
        assert_eq!(rights(&place.lock()), 0o600);
    }

    /// What root may read and write is another matter, so this is somebody else.
    #[test]
    fn a_directory_that_cannot_be_written_to() {
        let place = Place::new("closed");
        set(&place.0, 0o500);
        give(&place.0);
        as_nobody(&place, || {
            open_private(c".", NAME, false).err() == Some(Errno::EACCES)
        });
        assert_eq!(rights(&place.0), 0o500, "not ours to change");
    }

    #[test]
    fn what_an_umask_has_spoilt() {
        let place = Place::new("spoilt");
        give(&place.0);
        let inner = place.0.join("made");
        as_nobody(&place, || {
            // SAFETY: this process's own.
            unsafe { libc::umask(0o777) };
            // Made, and opened again.
            (0..2).all(|_| open_private(c"made", NAME, true).is_ok())
        });
        assert_eq!(
            (rights(&inner), rights(&inner.join("locks"))),
            (0o700, 0o600)
        );
        set(&inner.join("locks"), 0);
        set(&inner, 0);
        as_nobody(&place, || open_private(c"made", NAME, true).is_ok());
        assert_eq!(
            (rights(&inner), rights(&inner.join("locks"))),
            (0o700, 0o600)
        );
    }

    #[test]
    fn modes_by_number() {
        let place = Place::new("number");
        let mut files: std::vec::Vec<File> = std::vec::Vec::new();
        // One, two and three digits.
        while files.last().is_none_or(|file| file.as_raw_fd() < 101) {
            files.push(File::create(place.0.join(std::format!("{}", files.len()))).unwrap());
        }
        for (at, file) in files.iter().enumerate() {
            let mode = 0o400 + at as u32 % 0o400;
            set_mode(file.as_raw_fd() as usize, mode).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode);
        }
    }
}
