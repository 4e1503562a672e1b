//! A file that a process maps for its observers: made, read by others, and recognised when its process is gone.
//!
//! The maker locks the file (flock(2)) and never unlocks it. The lock belongs to the open file. The mapping keeps the file open after the
//! descriptor was closed, so the lock ends with the last process that has the mapping, however that ends. A lock tells the same in every process
//! namespace. Two cases need care: a forked child holds the lock of its parent's file, and on overlayfs a mapping does not keep the lock.

use crate::call::{Errno, Sysno, syscall};
use crate::file::Descriptor;
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

/// Makes `path` with `content` and maps it shared. No descriptor stays open.
///
/// The content is written by write(2), not by the first store, so that a full file system is reported as an error. With `lock` the file is
/// locked before anything is written to it.
///
/// # Errors
/// `EEXIST`: there is a file of that name. Otherwise the error of openat(2), write(2) or mmap(2); no file stays then.
pub fn create(path: &CStr, content: &[AtomicU64], lock: bool) -> Result<usize, Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` ends with a NUL.
    let file = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) }?;
    let file = Descriptor::own(file);
    if lock {
        // A file system without locks: then the file cannot be recognised as abandoned, or too early.
        let _ = try_lock(&file);
    }
    let mapped = write_words(&file, content).and_then(|()| {
        let (len, prot) = (size_of_val(content), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping.
        unsafe {
            syscall!(
                Sysno::mmap,
                0,
                len,
                prot,
                libc::MAP_SHARED,
                file.number(),
                0
            )
        }
    });
    if mapped.is_err() {
        let _ = remove(path);
    }
    mapped
}

/// Overwrites the start of `path` with `content`, if the file exists.
pub fn rewrite(path: &CStr, content: &[AtomicU64]) {
    let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    if let Ok(file) = Descriptor::open(path, flags) {
        let _ = write_words(&file, content);
    }
}

/// Removes the name; follows no link.
///
/// # Errors
/// The error of unlinkat(2).
pub fn remove(path: &CStr) -> Result<(), Errno> {
    // SAFETY: `path` ends with a NUL.
    unsafe { syscall!(Sysno::unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) }.map(drop)
}

/// Whether this user may make files in a directory.
///
/// # Errors
/// The error of faccessat(2).
pub fn may_create_in(directory: &CStr) -> Result<(), Errno> {
    let wanted = libc::W_OK | libc::X_OK;
    // SAFETY: `directory` ends with a NUL.
    unsafe { syscall!(Sysno::faccessat, libc::AT_FDCWD, directory.as_ptr(), wanted) }.map(drop)
}

/// Reads the first words of a file, and says whether a process holds its lock, or nobody can tell. `None`: it cannot be read, or is shorter.
///
/// The words are read before the lock is tried: who sees the words of a file knows that its maker has locked it.
pub fn peek<const N: usize>(path: &CStr) -> Option<([u64; N], bool)> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = Descriptor::open(path, flags).ok()?;
    let mut words = [[0; 8]; N];
    let len = file.fill(words.as_flattened_mut()).ok()?;
    let words = words.map(u64::from_le_bytes);
    (len == size_of::<[u64; N]>()).then(|| (words, try_lock(&file).is_err()))
}

/// Calls `each` with the names in a directory, at most `most`, but for those that begin with a dot.
///
/// # Errors
/// The error of openat(2) or getdents64(2).
pub fn each_name(
    directory: &CStr,
    mut most: usize,
    mut each: impl FnMut(&CStr),
) -> Result<(), Errno> {
    /// Where the name stands in an entry: behind inode, offset, length and type.
    const NAME: usize = 19;
    #[repr(align(8))]
    struct Entries([u8; 2048]);
    let directory = Descriptor::open(directory, libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut entries = Entries([0; 2048]);
    loop {
        let (at, size) = (entries.0.as_mut_ptr(), entries.0.len());
        // SAFETY: the buffer can be written to for its size.
        let len = unsafe { syscall!(Sysno::getdents64, directory.number(), at, size) }?;
        if len == 0 {
            return Ok(());
        }
        let mut rest = &entries.0[..len];
        while let Some(length) = rest.get(16..18) {
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            let Some((entry, behind)) = rest.split_at_checked(length.max(NAME)) else {
                break;
            };
            if most == 0 {
                return Ok(());
            }
            most -= 1;
            match CStr::from_bytes_until_nul(&entry[NAME..]) {
                Ok(name) if !name.to_bytes().starts_with(b".") => each(name),
                _ => {}
            }
            rest = behind;
        }
    }
}

fn try_lock(file: &Descriptor) -> Result<(), Errno> {
    let how = libc::LOCK_EX | libc::LOCK_NB;
    // SAFETY: numbers only.
    unsafe { syscall!(Sysno::flock, file.number(), how) }.map(drop)
}

/// Writes all words at the current offset, each as it is at that moment.
fn write_words(file: &Descriptor, words: &[AtomicU64]) -> Result<(), Errno> {
    let (start, len) = (words.as_ptr() as usize, size_of_val(words));
    let mut done = 0;
    while done < len {
        // SAFETY: the words are readable; other threads may store to them, each as a whole.
        match unsafe { syscall!(Sysno::write, file.number(), start + done, len - done) } {
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::thread::tests::comes;
    use core::sync::atomic::Ordering;
    use std::ffi::CString;
    use std::path::PathBuf;
    use std::string::String;
    use std::vec::Vec;

    fn place(name: &str) -> (PathBuf, CString) {
        let own = std::process::id();
        let path = std::env::temp_dir().join(std::format!("ebbtide-{name}-{own}"));
        let name = CString::new(path.to_str().unwrap()).unwrap();
        (path, name)
    }

    #[test]
    fn a_file_is_shared_and_never_followed() {
        let (path, name) = place("shared");
        let target = path.with_extension("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let content = [const { AtomicU64::new(0) }; 512];
        assert_eq!(create(&name, &content, true), Err(Errno::EEXIST));
        assert_eq!(peek::<2>(&name), None);
        remove(&name).unwrap();
        content[1].store(1, Ordering::Relaxed);
        let page = create(&name, &content, true).unwrap();
        assert_eq!(
            peek::<2>(&name),
            Some(([0, 1], true)),
            "the mapping locks it"
        );
        // SAFETY: a word of the new mapping.
        unsafe { crate::vm::copy(page + 8, content.as_ptr().cast(), 8).unwrap() };
        assert_eq!(peek(&name), Some(([0, 0], true)));
        rewrite(&name, &content);
        assert_eq!(peek(&name), Some(([0, 1], true)));
        // The file is cut off: an error, not a signal.
        std::fs::File::create(&path).unwrap();
        // SAFETY: as above.
        let copied = unsafe { crate::vm::copy(page, content.as_ptr().cast(), 4096) };
        assert_eq!(copied, Err(Errno::EFAULT));
        assert_eq!(peek::<2>(&name), None);
        rewrite(&name, &content);
        // SAFETY: the mapping of this test.
        assert_eq!(unsafe { libc::munmap(page as *mut _, 4096) }, 0);
        // A child that another test has forked meanwhile has the mapping until it ends.
        let is_unlocked = || peek(&name) == Some(([0, 1], false));
        assert!(comes(is_unlocked), "nobody has it mapped");
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&target).unwrap();
    }

    #[test]
    fn all_names_of_a_directory() {
        let (path, name) = place("names");
        std::fs::create_dir(&path).unwrap();
        may_create_in(&name).unwrap();
        let mut names: Vec<_> = (0..300).map(|i| std::format!("{i:0>90}")).collect();
        for name in &names {
            std::fs::write(path.join(name), "").unwrap();
        }
        let mut found: Vec<String> = Vec::new();
        each_name(&name, usize::MAX, |name| {
            found.push(name.to_str().unwrap().into())
        })
        .unwrap();
        found.sort();
        names.sort();
        assert_eq!(found, names);
        let mut few = 0;
        each_name(&name, 50, |_| few += 1).unwrap();
        assert!((48..=50).contains(&few), "dots count too");
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(may_create_in(&name), Err(Errno::ENOENT));
        assert!(each_name(&name, 1, |_| {}).is_err());
    }
}
