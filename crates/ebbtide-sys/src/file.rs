//! Small kernel files (`/proc`, `/sys`), read and written with raw calls: usable before libc is
//! ready, without allocating and without touching `errno`.

use crate::call::{Errno, Sysno, syscall};
use core::ffi::CStr;

/// Reads at most `buffer.len()` bytes of `path`.
///
/// # Errors
/// What openat(2) or read(2) says.
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: `path` ends with a NUL.
    let fd = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }?;
    let mut len = 0;
    let result = loop {
        let rest = &mut buffer[len..];
        // SAFETY: `rest` is a valid place for `rest.len()` bytes.
        match unsafe { syscall!(Sysno::read, fd, rest.as_mut_ptr(), rest.len()) } {
            Ok(0) => break Ok(()),
            Ok(n) => len += n,
            Err(Errno::EINTR) => {}
            Err(error) => break Err(error),
        }
        if len == buffer.len() {
            break Ok(());
        }
    };
    // SAFETY: `fd` was opened above and is closed once.
    let _ = unsafe { syscall!(Sysno::close, fd) };
    result.map(|()| &buffer[..len])
}

/// Reads the first decimal number of `path`.
pub fn read_number(path: &CStr) -> Option<u64> {
    let mut buffer = [0; 64];
    let text = read(path, &mut buffer).ok()?;
    parse_number(text)
}

/// The decimal number at the start of `text`, after blanks.
pub fn parse_number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Writes `text` to standard error in one call, as far as that goes.
pub fn write_stderr(text: &[u8]) {
    write(2, text);
}

/// Writes `text` to a descriptor, resuming short writes; errors end it.
pub fn write(fd: i32, mut text: &[u8]) {
    while !text.is_empty() {
        // SAFETY: `text` is readable for its length.
        match unsafe { syscall!(Sysno::write, fd, text.as_ptr(), text.len()) } {
            Ok(n) if n > 0 => text = &text[n..],
            Err(Errno::EINTR) => {}
            _ => return,
        }
    }
}

/// Creates `path` (must not exist), makes it `len` bytes and maps it shared. No descriptor stays.
///
/// # Errors
/// What openat(2), ftruncate(2) or mmap(2) says.
pub fn create_shared(path: &CStr, len: usize) -> Result<usize, Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` ends with a NUL.
    let fd = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) }?;
    // SAFETY: `fd` is ours; the mapping is new.
    let mapped = unsafe { syscall!(Sysno::ftruncate, fd, len) }.and_then(|_| {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as above.
        unsafe { syscall!(Sysno::mmap, 0, len, prot, libc::MAP_SHARED, fd, 0) }
    });
    // SAFETY: `fd` was opened above and is closed once.
    let _ = unsafe { syscall!(Sysno::close, fd) };
    mapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(parse_number(b" 42 kB"), Some(42));
        assert_eq!(parse_number(b"max\n"), None);
        assert!(read_number(c"/proc/sys/vm/max_map_count").unwrap() > 0);
        assert_eq!(read_number(c"/no/such/file"), None);
    }
}
