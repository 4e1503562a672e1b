//! The statistics page: words in this process's memory, and the file in `stats_dir` that other processes read.
//!
//! ```text
//!   counters ──store──▶ LOCAL ──process_vm_writev──▶ the file's shared mapping ◀── ebbtide top, ebbtide run
//! ```
//!
//! The file may be truncated at any time, or its file system may be full. A store to its mapping would then end the
//! process with SIGBUS. A system call that copies returns an error instead. No descriptor stays open.
//!
//! If the kernel refuses this call, the file is opened for each copy. Only threads with a descriptor table of their own
//! do this, and the end of the process.
//!
//! - `INV-STATS-1`: only system calls touch the mapping of the file.

use crate::base::config::Config;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_interface::page::{MAGIC, WORDS};
use ebbtide_interface::{figures, word};
use ebbtide_sys::features::COPY_PAGE;
use ebbtide_sys::{Errno, file, process, vm};

/// The page as other processes read it: little-endian words.
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

static LOCAL: Page = Page([const { AtomicU64::new(0) }; WORDS]);
/// Where the file is mapped; 0: there is none.
static SHOWN: AtomicUsize = AtomicUsize::new(0);
/// The value of `released_bytes` when the page was last copied.
static RELEASED_SHOWN: AtomicU64 = AtomicU64::new(0);
/// Bytes of a path: `stats_dir` and a number.
const PATH_BYTES: usize = 240;

/// A word of the page.
pub fn word(place: usize) -> u64 {
    at(place).load(Ordering::Relaxed)
}

/// The word itself, for counting.
pub fn at(place: usize) -> &'static AtomicU64 {
    &LOCAL.0[place]
}

/// Stores a word.
pub fn set(place: usize, value: u64) {
    at(place).store(value, Ordering::Relaxed);
}

/// Whether other processes can see the page.
pub fn is_open() -> bool {
    SHOWN.load(Ordering::Relaxed) != 0
}

/// Called in a forked child: all counts are cleared, and the parent's file stays the parent's.
pub fn forget() {
    for word in &LOCAL.0 {
        word.store(0, Ordering::Relaxed);
    }
    RELEASED_SHOWN.store(0, Ordering::Relaxed);
    SHOWN.store(0, Ordering::Release);
}

/// Makes the file. If there is no space for the whole file, none is made.
pub fn open(config: &Config) {
    set(0, MAGIC);
    set(word!(version), figures::VERSION);
    set(word!(pid), process::id().into());
    let mut path = [0; PATH_BYTES];
    if has_room()
        && let Some(path) = path_of(config, &mut path)
        && let Ok(mapped) = file::create_shared(path, &LOCAL.0)
    {
        SHOWN.store(mapped, Ordering::Release);
    }
}

/// Whether the limit on file sizes allows the file. A write beyond the limit would raise a signal.
fn has_room() -> bool {
    process::soft_limit(libc::RLIMIT_FSIZE).is_none_or(|limit| limit >= size_of::<Page>())
}

/// `stats_dir/PID.ebb`.
fn path_of<'a>(config: &Config, path: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut rest = process::id();
    while rest > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut len = 0;
    for part in [
        config.stats_dir.as_bytes(),
        b"/",
        &digits[first..],
        b".ebb\0",
    ] {
        path.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    CStr::from_bytes_until_nul(path).ok()
}

/// Copies the page to the file.
pub fn publish(config: &Config) {
    if is_open() && !copy(0, WORDS) && file::has_own_descriptors() {
        rewrite(config);
    }
}

/// Copies the page if memory was released since the last copy: all threads may be idle from now on.
pub fn publish_released(config: &Config) {
    if is_open() && word(word!(released_bytes)) != RELEASED_SHOWN.load(Ordering::Relaxed) {
        publish(config);
    }
}

/// Copies the page at the end of the process, when a descriptor may be opened and closed.
pub fn publish_last(config: &Config) {
    if is_open() && !copy(0, WORDS) {
        rewrite(config);
    }
}

/// Stores a word, and copies it at once.
pub fn tell(place: usize, value: u64) {
    set(place, value);
    if is_open() {
        copy(place, 1);
    }
}

/// `false`: the kernel has no such call, or a filter refuses it.
fn copy(first: usize, count: usize) -> bool {
    if !COPY_PAGE.may_work() {
        return false;
    }
    if count == WORDS {
        RELEASED_SHOWN.store(word(word!(released_bytes)), Ordering::Relaxed);
    }
    let to = SHOWN.load(Ordering::Acquire) + first * 8;
    // SAFETY: words of the file's mapping, which are written only in this way (INV-STATS-1). If the program has
    // unmapped it, the call returns an error.
    match unsafe { vm::copy(to, at(first).as_ptr().cast(), count * 8) } {
        Err(error @ (Errno::EPERM | Errno::ENOSYS | Errno::EACCES)) => {
            let _ = COPY_PAGE.latch(Err::<(), _>(error));
            // The page records that it is now written in another way.
            super::write_features();
            false
        }
        // The file was cut, or its file system is full: that may pass.
        Err(_) => true,
        done => COPY_PAGE.latch(done).is_ok(),
    }
}

#[cold]
fn rewrite(config: &Config) {
    let mut path = [0; PATH_BYTES];
    if has_room()
        && let Some(path) = path_of(config, &mut path)
    {
        file::rewrite(path, &LOCAL.0);
    }
}
