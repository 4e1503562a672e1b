//! Writes the profile to a file: a copy of the area, and the list of the process's mappings.
//!
//! The copy is made under the table's lock, the file is written without it, by one thread at a time. Nothing is allocated, and the profile stays as it is whatever
//! happens to the file.

use crate::base::message::Message;
use crate::pages::Pages;
use core::ffi::CStr;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};
use ebbtide_interface::keys::MAX_PATH_BYTES;
use ebbtide_interface::profile::{
    AREA_BYTES, FILE_BYTES, FILE_MAGIC, File, NAME_BYTES, VERSION, used_bytes,
};
use ebbtide_sys::file::{self, Digits};
use ebbtide_sys::{Errno, clock, helper, process, vm};

/// Room for the list of mappings. A longer one is cut.
const MAPS_BYTES: usize = 16 << 20;
const COPY_BYTES: usize = FILE_BYTES + AREA_BYTES + MAPS_BYTES;
/// In a path: the number of the process.
const PID: &[u8] = b"%p";
/// A path with that number, and a NUL.
const PATH_BYTES: usize = MAX_PATH_BYTES + 20 + 1;
/// How long a dump waits for another one.
const PATIENCE_MS: u64 = 2000;

impl Pages {
    /// Writes the profile to `path`. If that fails, one line on stderr says why.
    ///
    /// # Errors
    /// `ENODATA`: sampling was never on. `EPERM`: `syscalls=basic`. `EBUSY`: another thread writes a dump all the time. Otherwise the error of
    /// a system call.
    pub fn dump_profile(&self, path: &[u8]) -> Result<(), Errno> {
        let mut writer = self.begin_dump();
        for _ in 0..PATIENCE_MS {
            if writer.is_some() {
                break;
            }
            helper::pause(1000);
            writer = self.begin_dump();
        }
        let done = writer.map_or(Err(Errno::EBUSY), |_writer| self.dump(path));
        tell(path, done);
        done
    }

    /// The end of the process: writes the profile if the user wants that, and if there is one.
    pub fn dump_at_end(&self) {
        let path = self.config.profile_dump.path;
        if !path.as_bytes().is_empty() && self.samples.table.lock().address().is_some() {
            let _ = self.dump_profile(path.as_bytes());
        }
    }

    /// Writes the profile if a signal has asked for it. While another thread writes one, the request stays. Returns whether this call wrote it.
    pub fn dump_if_asked(&self) -> bool {
        if !self.is_dump_asked() {
            return false;
        }
        let Some(_writer) = self.begin_dump() else {
            return false;
        };
        let is_ours = self.samples.asked.swap(false, Ordering::Relaxed);
        if is_ours {
            let path = self.config.profile_dump.path.as_bytes();
            tell(path, self.dump(path));
        }
        is_ours
    }

    /// `None`: another thread writes a dump.
    fn begin_dump(&self) -> Option<Writer<'_>> {
        let is_writing = &self.samples.is_writing;
        (!is_writing.swap(true, Ordering::Acquire)).then(|| Writer(is_writing))
    }

    /// Whether a signal has asked for a dump.
    #[inline]
    pub fn is_dump_asked(&self) -> bool {
        self.samples.asked.load(Ordering::Relaxed)
    }

    fn dump(&self, path: &[u8]) -> Result<(), Errno> {
        if self.config.basic_syscalls {
            return Err(Errno::EPERM);
        }
        let mut text = [0; PATH_BYTES];
        let path = path_of(path, &mut text).ok_or(Errno::ENAMETOOLONG)?;
        let copy = Copy(vm::map(COPY_BYTES)?);
        let area_bytes = {
            let mut table = self.samples.table.lock();
            let from = table.address().ok_or(Errno::ENODATA)?;
            let bytes = used_bytes(table.area().stacks as usize);
            let to = copy.0 + FILE_BYTES;
            // SAFETY: both are mapped, for more bytes than that.
            unsafe { (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes) };
            bytes
        };
        // SAFETY: this mapping is the caller's alone.
        let copy = unsafe { slice::from_raw_parts_mut(copy.0 as *mut u8, COPY_BYTES) };
        let (head, rest) = copy.split_at_mut(FILE_BYTES + area_bytes);
        // That of the process reads empty when the first thread has ended.
        let maps = file::read(c"/proc/thread-self/maps", &mut rest[..MAPS_BYTES]);
        let maps_bytes = maps.map_or(0, <[u8]>::len);
        let [name_low, name_high] = name();
        let words = File {
            magic: FILE_MAGIC,
            version: VERSION,
            area_bytes: area_bytes as u64,
            maps_bytes: maps_bytes as u64,
            pid: process::id().into(),
            name_low,
            name_high,
            time_ns: clock::precise_ns(),
            unix_ns: clock::unix_ns(),
        };
        for (bytes, word) in head.chunks_exact_mut(8).zip(words.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let content = &copy[..FILE_BYTES + area_bytes + maps_bytes];
        let limit = process::soft_limit(process::Resource::FileSize);
        if limit.is_some_and(|limit| limit < content.len()) {
            return Err(Errno::EFBIG);
        }
        file::write_new(path, content)
    }
}

/// One line on stderr if a dump has failed.
fn tell(path: &[u8], done: Result<(), Errno>) {
    let Err(error) = done else { return };
    let error: &dyn core::fmt::Display = match error {
        Errno::ENODATA => &"sampling was never on; set profile=on",
        ref error => error,
    };
    Message::new()
        .text("no profile in ")
        .bytes(path)
        .text(": ")
        .display(error)
        .write();
}

/// The thread that writes a dump.
struct Writer<'a>(&'a AtomicBool);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A mapping for the copy, until it is dropped.
struct Copy(usize);

impl Drop for Copy {
    fn drop(&mut self) {
        vm::unmap(self.0, vm::whole_pages(COPY_BYTES));
    }
}

/// The path with the number of the process in place of the first [`PID`].
fn path_of<'a>(path: &[u8], text: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let number = Digits::of(process::id() as usize);
    let at = path.windows(PID.len()).position(|part| part == PID);
    let parts = match at {
        Some(at) => [&path[..at], &number, &path[at + PID.len()..], b"\0"],
        None => [path, b"", b"", b"\0"],
    };
    let mut len = 0;
    for part in parts {
        text.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    CStr::from_bytes_with_nul(&text[..len]).ok()
}

/// The start of the name of the program's file.
fn name() -> [u64; 2] {
    let mut name = [0; NAME_BYTES];
    let program = process::program();
    let len = program.len().min(NAME_BYTES);
    name[..len].copy_from_slice(&program[..len]);
    let (words, _) = name.as_chunks();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::alone::alone;

    #[test]
    fn one_thread_writes_and_a_request_stays_meanwhile() {
        alone("profile_dump=/dev/null@USR2", |heap| {
            heap.samples.asked.store(true, Ordering::Relaxed);
            let writer = heap.begin_dump().expect("nobody writes");
            assert!(heap.begin_dump().is_none());
            assert!(!heap.dump_if_asked() && heap.is_dump_asked());
            drop(writer);
            assert!(heap.dump_if_asked() && !heap.is_dump_asked());
            assert!(!heap.dump_if_asked());
        });
    }

    #[test]
    fn a_path_has_the_number_once() {
        let mut text = [0; PATH_BYTES];
        let id = std::process::id();
        let mut path = |from: &str| {
            let path = path_of(from.as_bytes(), &mut text);
            path.map(|path| std::string::String::from_utf8_lossy(path.to_bytes()).into_owned())
        };
        assert_eq!(path("/a"), Some("/a".into()));
        assert_eq!(path("/a.%p.%p"), Some(std::format!("/a.{id}.%p")));
        assert_eq!(path(&"x".repeat(PATH_BYTES)), None);
        assert_eq!(path("/a\0b"), None);
    }
}
