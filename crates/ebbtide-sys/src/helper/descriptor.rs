//! A helper's descriptors: files of the kernel's, processes, and files for locks.

use super::timespec;
use crate::call::{Errno, Sysno, syscall};
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

    /// Reads on; 0 at the end and after errors.
    pub fn read(&self, buffer: &mut [u8]) -> usize {
        // SAFETY: `buffer` can be written to for its length.
        unsafe { syscall!(Sysno::read, self.0, buffer.as_mut_ptr(), buffer.len()) }.unwrap_or(0)
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
/// directory too.
///
/// # Errors
/// What the calls say; `EPERM` when somebody else could be behind the directory or the file.
pub fn open_private(directory: &CStr, name: &CStr, make: bool) -> Result<Descriptor, Errno> {
    // SAFETY: paths end with a NUL; `about` is a valid place to write to; descriptors are this process's own.
    unsafe {
        if make {
            let _ = syscall!(Sysno::mkdirat, libc::AT_FDCWD, directory.as_ptr(), 0o700);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let dir = syscall!(Sysno::openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = owned(dir, libc::S_IFDIR)
            .and_then(|()| syscall!(Sysno::openat, dir, name.as_ptr(), flags, 0o600));
        let _ = syscall!(Sysno::close, dir);
        let file = file?;
        if let Err(error) = owned(file, libc::S_IFREG) {
            let _ = syscall!(Sysno::close, file);
            return Err(error);
        }
        Ok(Descriptor(file))
    }
}

/// Whether a descriptor is of this kind, this user's, and nobody else may write to it.
fn owned(fd: usize, kind: u32) -> Result<(), Errno> {
    // SAFETY: zero is a valid stat, a place to write to.
    let (about, user) = unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        syscall!(Sysno::fstat, fd, &raw mut about)?;
        (about, syscall!(Sysno::geteuid)? as u32)
    };
    let private =
        about.st_mode & libc::S_IFMT == kind && about.st_uid == user && about.st_mode & 0o022 == 0;
    if private { Ok(()) } else { Err(Errno::EPERM) }
}
