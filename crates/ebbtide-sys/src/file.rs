//! Reads and writes small kernel files (`/proc`, `/sys`) with raw calls. It works before libc is ready, allocates
//! nothing and never touches `errno`.

use crate::call::{Errno, Sysno, syscall};
use core::ffi::{CStr, c_int};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether any thread ever called [`crate::thread::leave_descriptors`].
pub(crate) static SOME_LEFT_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// An open descriptor, closed when dropped.
pub struct Descriptor(usize);

impl Descriptor {
    /// Opens `path` with these flags of open(2) and `O_CLOEXEC`.
    ///
    /// # Errors
    /// The error of openat(2).
    pub fn open(path: &CStr, flags: c_int) -> Result<Self, Errno> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: `path` ends with a NUL.
        unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.map(Self)
    }

    /// A descriptor that the caller owns from now on.
    pub(crate) fn own(fd: usize) -> Self {
        Self(fd)
    }

    /// Its number.
    pub(crate) fn number(&self) -> usize {
        self.0
    }

    /// Reads from the current offset until the buffer is full or the file ends.
    pub(crate) fn fill(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: `rest` is a valid place for `rest.len()` bytes.
        fill_by(buffer, |rest, _| unsafe {
            syscall!(Sysno::read, self.0, rest.as_mut_ptr(), rest.len())
        })
    }

    /// The same, from byte `at` of the file on.
    fn fill_from(&self, buffer: &mut [u8], at: usize) -> Result<usize, Errno> {
        // SAFETY: as above.
        fill_by(buffer, |rest, done| unsafe {
            let at = at + done;
            syscall!(Sysno::pread64, self.0, rest.as_mut_ptr(), rest.len(), at)
        })
    }
}

/// Calls `read` until the buffer is full or the file ends. `read` gets the rest of the buffer and the number of bytes
/// read so far.
fn fill_by(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut len = 0;
    while len < buffer.len() {
        match read(&mut buffer[len..], len) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: ours, closed once.
        let _ = unsafe { syscall!(Sysno::close, self.0) };
    }
}

/// Reads at most `buffer.len()` bytes of `path`.
///
/// # Errors
/// The error of openat(2) or read(2).
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let len = Descriptor::open(path, libc::O_RDONLY)?.fill(buffer)?;
    Ok(&buffer[..len])
}

/// A reader of [`Text`] gets at most this many bytes of a line.
pub(crate) const LINE_BYTES: usize = 1024;

/// Text that can be read again and again.
pub trait Text {
    /// Calls `each` for every line from the first on, until `each` returns `false` or the text ends. Of a longer
    /// line, `each` gets the first 1,024 bytes. Returns `false` if the text cannot be read.
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool;

    /// The first decimal number.
    fn number(&self) -> Option<u64> {
        let mut number = None;
        self.lines(|line| {
            number = parse_number(line);
            false
        });
        number
    }
}

/// A path kept without allocating.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathText {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl PathText {
    const MOST: usize = 512;

    /// Joins the parts into one path. `None`: too long.
    pub fn join(parts: &[&[u8]]) -> Option<Self> {
        let mut path = Self {
            bytes: [0; Self::MOST],
            len: 0,
        };
        for part in parts {
            let end = path.len + part.len();
            path.bytes.get_mut(path.len..end)?.copy_from_slice(part);
            path.len = end;
        }
        // One byte is left for the NUL.
        (path.len < Self::MOST).then_some(path)
    }

    /// The path without its NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The path with its NUL, for system calls.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Text for PathText {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        self.as_c_str().lines(each)
    }
}

/// A number as decimal text.
pub struct Digits {
    bytes: [u8; 20],
    first: usize,
}

impl Digits {
    /// The digits of `number`.
    pub fn of(number: usize) -> Self {
        let mut digits = Self {
            bytes: [0; 20],
            first: 20,
        };
        let mut rest = number;
        while rest > 0 || digits.first == 20 {
            digits.first -= 1;
            digits.bytes[digits.first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        digits
    }
}

impl Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

/// A file that is opened for each reading. Reading never waits, not even for a writer of a FIFO.
impl Text for &CStr {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        Descriptor::open(self, libc::O_RDONLY | libc::O_NONBLOCK)
            .is_ok_and(|file| each_line(&mut [0; LINE_BYTES], |rest| file.fill(rest), each))
    }
}

/// A file that is open already. Each reading starts at its beginning.
impl Text for &Descriptor {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        let mut at = 0;
        let more = |buffer: &mut [u8]| {
            let filled = self.fill_from(buffer, at)?;
            at += filled;
            Ok(filled)
        };
        each_line(&mut [0; LINE_BYTES], more, each)
    }
}

/// The lines of `path`: see [`Text::lines`].
pub fn lines(path: &CStr, each: impl FnMut(&[u8]) -> bool) -> bool {
    path.lines(each)
}

/// Calls `each` for every line of the data that `fill` reads, until `each` returns `false` or `fill` returns 0. Of a
/// line longer than the buffer, `each` gets the first part. Returns `false` if reading fails; a line that was begun
/// is then not reported.
pub fn each_line(
    buffer: &mut [u8],
    mut fill: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(&[u8]) -> bool,
) -> bool {
    let mut len = 0;
    // The current bytes belong to the rest of a line that was too long.
    let mut skipping = false;
    loop {
        let Ok(more) = fill(&mut buffer[len..]) else {
            return false;
        };
        len += more;
        let mut start = 0;
        while let Some(end) = buffer[start..len].iter().position(|&byte| byte == b'\n') {
            let line = &buffer[start..start + end];
            start += end + 1;
            if !core::mem::take(&mut skipping) && !each(line) {
                return true;
            }
        }
        if start == 0 && len == buffer.len() {
            if !skipping && !each(buffer) {
                return true;
            }
            (skipping, len) = (true, 0);
        } else {
            buffer.copy_within(start..len, 0);
            len -= start;
        }
        if more == 0 {
            if len > 0 && !skipping {
                each(&buffer[..len]);
            }
            return true;
        }
    }
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

/// Writes `text` to the program's standard error. A short write is resumed; an error ends it.
pub fn write_stderr(text: &[u8]) {
    if !has_own_descriptors() {
        return write(2, text);
    }
    // A worker has its own descriptor table, so its descriptor 2 is another file or none. The program's is found
    // through its first thread.
    let path = c"/proc/self/fd/2";
    let stderr = take_stderr().or_else(|_| Descriptor::open(path, libc::O_WRONLY | libc::O_APPEND));
    if let Ok(stderr) = stderr {
        write(stderr.number() as i32, text);
    }
}

/// Copies the first thread's descriptor for standard error. Opening its path can fail: it may be a socket, or a file
/// of another user. Linux 5.6.
fn take_stderr() -> Result<Descriptor, Errno> {
    // SAFETY: numbers only; both descriptors are this thread's.
    unsafe {
        let process = Descriptor(syscall!(Sysno::pidfd_open, crate::identity::id(), 0)?);
        syscall!(Sysno::pidfd_getfd, process.0, 2, 0).map(Descriptor)
    }
}

/// Whether this thread has a descriptor table of its own, as workers have. If the kernel does not say, the answer is
/// no.
pub fn has_own_descriptors() -> bool {
    const KCMP_FILES: usize = 2;
    if !SOME_LEFT_DESCRIPTORS.load(Ordering::Relaxed) {
        return false;
    }
    let (first, this) = (crate::identity::id(), crate::identity::thread_id());
    // SAFETY: numbers only.
    first != this
        && unsafe { syscall!(Sysno::kcmp, first, this, KCMP_FILES, 0, 0) }
            .is_ok_and(|order| order != 0)
}

/// Writes `text` to a descriptor and resumes short writes. An error ends it.
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

/// Writes a file that only its owner may read, in place of what it has had.
///
/// # Errors
/// The error of openat(2) or write(2). Beyond `RLIMIT_FSIZE` a write raises a signal: the caller has looked.
pub fn write_new(path: &CStr, content: &[u8]) -> Result<(), Errno> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `path` ends with a NUL.
    let file = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) };
    let file = Descriptor(file?);
    let mut rest = content;
    while !rest.is_empty() {
        // SAFETY: `rest` is readable for its length.
        match unsafe { syscall!(Sysno::write, file.0, rest.as_ptr(), rest.len()) } {
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(written) => rest = &rest[written..],
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
    use std::vec::Vec;

    #[test]
    fn lines_of_any_length() {
        let dir = std::env::temp_dir();
        let path = dir.join(std::format!("ebbtide-lines-{}", std::process::id()));
        let long = "x".repeat(5000);
        std::fs::write(&path, std::format!("a\n\n{long}\nbc\n{}\nd", &long[..1020])).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut lengths = Vec::new();
        assert!(lines(&name, |line| {
            lengths.push(line.len());
            true
        }));
        assert_eq!(lengths, [1, 0, 1024, 2, 1020, 1]);
        let mut count = 0;
        assert!(lines(&name, |_| {
            count += 1;
            count < 2
        }));
        assert_eq!(count, 2);
        // The same by a descriptor that stays, as often as one likes.
        let kept = Descriptor::open(&name, libc::O_RDONLY).unwrap();
        for _ in 0..2 {
            let mut again = Vec::new();
            assert!((&kept).lines(|line| {
                again.push(line.len());
                true
            }));
            assert_eq!(again, lengths);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!lines(&name, |_| true));
    }

    #[test]
    fn numbers() {
        assert_eq!(parse_number(b" 42 kB"), Some(42));
        assert_eq!(parse_number(b"max\n"), None);
        assert!(read_number(c"/proc/sys/vm/max_map_count").unwrap() > 0);
        assert_eq!(read_number(c"/no/such/file"), None);
        for number in [0, 7, 10, 4_194_304, usize::MAX] {
            assert_eq!(&*Digits::of(number), std::format!("{number}").as_bytes());
        }
    }
}
