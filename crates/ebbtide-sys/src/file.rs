//! Small kernel files (`/proc`, `/sys`), read and written with raw calls: usable before libc is
//! ready, without allocating and without touching `errno`.

use crate::call::{Errno, Sysno, syscall};
use core::ffi::{CStr, c_int};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether [`crate::thread::leave_descriptors`] was ever called, by whatever thread.
pub(crate) static SOME_LEFT_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// An open descriptor, closed when dropped.
pub struct Descriptor(usize);

impl Descriptor {
    /// Opens `path` with flags of open(2) beside `O_CLOEXEC`.
    ///
    /// # Errors
    /// What openat(2) says.
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

    /// Fills the buffer from where the descriptor stands, to its end or the file's.
    pub(crate) fn fill(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: `rest` is a valid place for `rest.len()` bytes.
        fill_by(buffer, |rest, _| unsafe {
            syscall!(Sysno::read, self.0, rest.as_mut_ptr(), rest.len())
        })
    }

    /// The same from byte `at` of the file on.
    fn fill_from(&self, buffer: &mut [u8], at: usize) -> Result<usize, Errno> {
        // SAFETY: as above.
        fill_by(buffer, |rest, done| unsafe {
            let at = at + done;
            syscall!(Sysno::pread64, self.0, rest.as_mut_ptr(), rest.len(), at)
        })
    }
}

/// Reads until the buffer is full or the file ends. `read` is told how much there is.
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
/// What openat(2) or read(2) says.
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let len = Descriptor::open(path, libc::O_RDONLY)?.fill(buffer)?;
    Ok(&buffer[..len])
}

/// Of a line of [`Text`] as many are told of.
const LINE_BYTES: usize = 1024;

/// Text that can be read again and again.
pub trait Text {
    /// Calls `each` for its lines from the first on, until it says `false` or the end. Of a line above 1,024 bytes it
    /// gets as many. `false`: the text cannot be read.
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

    /// The parts one behind the other. `None`: too long.
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
        // Room for the end.
        (path.len < Self::MOST).then_some(path)
    }

    /// Without its end.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// For the kernel.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Text for PathText {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        self.as_c_str().lines(each)
    }
}

/// A number as text, decimal.
pub struct Digits {
    bytes: [u8; 20],
    first: usize,
}

impl Digits {
    /// Of a number.
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

/// A file that is opened for each reading. Never waits, not for the writer of a FIFO either.
impl Text for &CStr {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        Descriptor::open(self, libc::O_RDONLY | libc::O_NONBLOCK)
            .is_ok_and(|file| each_line(&mut [0; LINE_BYTES], |rest| file.fill(rest), each))
    }
}

/// A file that was opened before.
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

/// The lines of what `fill` reads, until `each` says `false` or `fill` 0. Of a line that does not fit into the buffer `each`
/// gets as much as does. `false`: it cannot be read, and a line that was begun is not told of.
pub fn each_line(
    buffer: &mut [u8],
    mut fill: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(&[u8]) -> bool,
) -> bool {
    let mut len = 0;
    // In the rest of a line that was too long.
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

/// Writes `text` to the program's standard error in one call, as far as that goes.
pub fn write_stderr(text: &[u8]) {
    if !has_own_descriptors() {
        return write(2, text);
    }
    // A worker's 2 is something else, if anything: the program's is found through its first thread.
    let path = c"/proc/self/fd/2";
    let stderr = take_stderr().or_else(|_| Descriptor::open(path, libc::O_WRONLY | libc::O_APPEND));
    if let Ok(stderr) = stderr {
        write(stderr.number() as i32, text);
    }
}

/// The first thread's standard error itself, which may be nothing that can be opened: a socket, or a file of another
/// user's. Linux 5.6.
fn take_stderr() -> Result<Descriptor, Errno> {
    // SAFETY: numbers only; both descriptors are this thread's.
    unsafe {
        let process = Descriptor(syscall!(Sysno::pidfd_open, crate::identity::id(), 0)?);
        syscall!(Sysno::pidfd_getfd, process.0, 2, 0).map(Descriptor)
    }
}

/// Whether this thread has a table of descriptors that is not the program's, as workers do. Where the kernel does not
/// say, it has not.
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

/// Creates `path` with `content` and maps it shared. No descriptor stays. A file of that name is not written
/// to but replaced: the program may have become another one (execve), or an earlier process had its number.
///
/// The content is written and not left to the first store: where the file system has no room, the write says so.
///
/// # Errors
/// What openat(2), unlinkat(2), write(2) or mmap(2) says; no file stays then.
pub fn create_shared(path: &CStr, content: &[AtomicU64]) -> Result<usize, Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` ends with a NUL.
    let open = || unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) };
    // SAFETY: as above. Nothing is followed: the name goes, whatever it leads to.
    let remove = || unsafe { syscall!(Sysno::unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
    let file = match open() {
        Err(Errno::EEXIST) => {
            remove()?;
            open()?
        }
        other => other?,
    };
    let file = Descriptor(file);
    let mapped = write_words(&file, content).and_then(|()| {
        let (len, prot) = (size_of_val(content), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping.
        unsafe { syscall!(Sysno::mmap, 0, len, prot, libc::MAP_SHARED, file.0, 0) }
    });
    if mapped.is_err() {
        let _ = remove();
    }
    mapped
}

/// Writes `content` to the start of `path`, if there is such a file.
pub fn rewrite(path: &CStr, content: &[AtomicU64]) {
    let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    if let Ok(file) = Descriptor::open(path, flags) {
        let _ = write_words(&file, content);
    }
}

/// Writes all words from where the descriptor stands, as they are at that moment.
fn write_words(file: &Descriptor, words: &[AtomicU64]) -> Result<(), Errno> {
    let (start, len) = (words.as_ptr() as usize, size_of_val(words));
    let mut done = 0;
    while done < len {
        // SAFETY: the words are readable; other threads may store to them, each as a whole.
        match unsafe { syscall!(Sysno::write, file.0, start + done, len - done) } {
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

    #[test]
    fn a_shared_file_is_replaced_and_never_followed() {
        let dir = std::env::temp_dir();
        let path = dir.join(std::format!("ebbtide-shared-{}", std::process::id()));
        let target = path.with_extension("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        for value in [1u64, 2] {
            let content = [const { AtomicU64::new(0) }; 512];
            content[1].store(value, Ordering::Relaxed);
            let page = create_shared(&name, &content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap()[8], value as u8);
            // SAFETY: a word of the new mapping.
            unsafe { crate::vm::copy(page + 8, content.as_ptr().cast(), 8).unwrap() };
            assert_eq!(std::fs::read(&path).unwrap()[8], 0);
            rewrite(&name, &content);
            assert_eq!(std::fs::read(&path).unwrap()[8], value as u8);
            // The file is cut off: an error, not a signal.
            std::fs::File::create(&path).unwrap();
            // SAFETY: as above.
            let copied = unsafe { crate::vm::copy(page, content.as_ptr().cast(), 4096) };
            assert_eq!(copied, Err(Errno::EFAULT));
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&target).unwrap();
    }
}
