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
//! The file goes with the process: the process removes it at its end. If it was killed, the next process that makes a page in the directory
//! finds the file without a lock ([`shared_file`]) and removes it.
//!
//! - `INV-STATS-1`: only system calls touch the mapping of the file.

use crate::base::config::Config;
use crate::base::message::Message;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_interface::page::{
    FIRST, LOCKS, MAGIC, MAX_NAME_BYTES, MAX_RANGES, MAX_REQUEST_BYTES, NAME, PLACES, RANGES,
    REQUEST, WORDS,
};
use ebbtide_interface::records::{Owner, Places, RANGE_WORDS};
use ebbtide_interface::{figures, word};
use ebbtide_sys::features::COPY_PAGE;
use ebbtide_sys::{Errno, file, process, shared_file, vm};

/// The page as other processes read it: little-endian words.
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

static LOCAL: Page = Page([const { AtomicU64::new(0) }; WORDS]);
/// Where the file is mapped; 0: there is none.
static SHOWN: AtomicUsize = AtomicUsize::new(0);
/// The number of the last request that a thread of this process took.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// How many mappings of the library were to be recorded.
static NOTED: AtomicUsize = AtomicUsize::new(0);
/// The value of `released_bytes` when the page was last copied.
static RELEASED_SHOWN: AtomicU64 = AtomicU64::new(0);
/// Bytes of a path: `stats_dir` and a name.
const PATH_BYTES: usize = 512;
const SUFFIX: &[u8] = b".ebb";
/// Bounds of a search for abandoned files: a user may fill the directory.
const MOST_NAMES: usize = 4096;
const MOST_LOOKED_AT: usize = 64;
/// Words of a file up to those that tell whose it is.
const FACTS: usize = word!(pid_namespace) + 1;

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

/// Makes the page readable in the process's own memory, for an observer that may read it there.
pub fn begin() {
    set(0, MAGIC);
    set(word!(version), figures::VERSION);
}

/// Records a mapping of the library. What finds no room is not recorded.
pub fn note_range(owner: Owner, address: usize, bytes: usize) {
    let at = NOTED.fetch_add(1, Ordering::Relaxed);
    if at < MAX_RANGES {
        let place = RANGES + at * RANGE_WORDS;
        set(place + 1, address as u64);
        set(place + 2, bytes as u64);
        set(place, owner as u64);
    }
}

/// Stores the address of a part that came later; `offset` is that of its field.
pub fn set_place(offset: usize, address: usize) {
    set(PLACES + offset / 8, address as u64);
}

/// Stores the addresses of the heap's records.
pub fn set_places(places: &Places) {
    let words = places.words().into_iter().enumerate();
    words.for_each(|(at, word)| set(PLACES + at, word));
}

/// Called in a forked child: all counts are cleared, and the parent's file stays the parent's. Mappings and settings are
/// the same in the child.
pub fn forget() {
    let retain_ms = word(word!(retain_ms));
    let counts = LOCAL.0[FIRST..RANGES].iter().chain(&LOCAL.0[LOCKS..]);
    for word in counts {
        word.store(0, Ordering::Relaxed);
    }
    begin();
    set(word!(retain_ms), retain_ms);
    RELEASED_SHOWN.store(0, Ordering::Relaxed);
    TAKEN.store(0, Ordering::Relaxed);
    SHOWN.store(0, Ordering::Release);
}

/// Checks at the start whether the file can be made later, and says once why not.
pub fn check(config: &Config) {
    let mut text = [0; PATH_BYTES];
    let problem = match path_to(config, b"", &mut text).map(shared_file::may_create_in) {
        Some(Err(_)) => "this user may make no files there; choose another directory",
        _ if has_stranger(config) => {
            "it has the page of a process with the same number, of another container; give each its own directory"
        }
        _ => return,
    };
    Message::new()
        .text("no statistics page, stats_dir=")
        .bytes(config.stats_dir.as_bytes())
        .text(": ")
        .text(problem)
        .write();
}

/// Makes the file, and with `may_look` removes those of processes that are gone, except with `dev=pages:all`. If there is no space for the whole
/// file, none is made.
///
/// # Errors
/// The error of [`shared_file::create`].
pub fn open(config: &Config, may_look: bool) -> Result<(), Errno> {
    set(word!(pid), process::id().into());
    set_name(process::program());
    let mut path = [0; PATH_BYTES];
    let Some(path) = own_path(config, &mut path).filter(|_| has_room()) else {
        return Ok(());
    };
    if may_look {
        set(word!(pid_namespace), process::namespace().unwrap_or(0));
        // Such pages are read after the end of their processes.
        if !config.all_pages {
            remove_abandoned(config);
        }
    }
    let create = || shared_file::create(path, &LOCAL.0, may_look);
    // A file of this name is of this process before an execve, or of an earlier process with the same number.
    let made = match create() {
        Err(Errno::EEXIST) if !may_look || !has_stranger(config) => {
            shared_file::remove(path).and_then(|()| create())
        }
        other => other,
    };
    SHOWN.store(made?, Ordering::Release);
    Ok(())
}

/// Stores the start of the program's name.
fn set_name(name: &[u8]) {
    let mut bytes = [0; MAX_NAME_BYTES];
    let len = name.len().min(MAX_NAME_BYTES);
    bytes[..len].copy_from_slice(&name[..len]);
    let (words, _) = bytes.as_chunks();
    for (at, word) in words.iter().enumerate() {
        set(NAME + at, u64::from_le_bytes(*word));
    }
}

/// Whether the file of this name belongs to a process of another process namespace that runs.
fn has_stranger(config: &Config) -> bool {
    let mut path = [0; PATH_BYTES];
    let found = own_path(config, &mut path).and_then(shared_file::peek::<FACTS>);
    found.is_some_and(|(words, is_locked)| {
        // A forked child keeps the lock of a parent that has called execve.
        is_locked && words[word!(pid_namespace)] != process::namespace().unwrap_or(0)
    })
}

/// Removes the files whose processes are gone.
fn remove_abandoned(config: &Config) {
    let mut text = [0; PATH_BYTES];
    let Some(directory) = path_to(config, b"", &mut text) else {
        return;
    };
    let mut left = MOST_LOOKED_AT;
    let _ = shared_file::each_name(directory, MOST_NAMES, |name| {
        let mut path = [0; PATH_BYTES];
        let is_page = name.to_bytes().ends_with(SUFFIX);
        let of = file::parse_number(name.to_bytes()).filter(|_| is_page);
        let is_gone = left > 0 && of.is_some_and(|pid| !process::exists(pid as u32));
        left -= usize::from(is_gone);
        if is_gone && let Some(path) = path_to(config, name.to_bytes(), &mut path) {
            let found = shared_file::peek::<1>(path);
            if found.is_some_and(|([magic], is_locked)| magic == MAGIC && !is_locked) {
                let _ = shared_file::remove(path);
            }
        }
    });
}

/// Whether the limit on file sizes allows the file. A write beyond the limit would raise a signal.
fn has_room() -> bool {
    process::soft_limit(libc::RLIMIT_FSIZE).is_none_or(|limit| limit >= size_of::<Page>())
}

/// `stats_dir/PID.ebb`.
fn own_path<'a>(config: &Config, path: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let number = file::Digits::of(process::id() as usize);
    let mut name = [0; 24];
    let (digits, behind) = name.split_at_mut(number.len());
    digits.copy_from_slice(&number);
    behind[..SUFFIX.len()].copy_from_slice(SUFFIX);
    path_to(config, &name[..number.len() + SUFFIX.len()], path)
}

/// `stats_dir/NAME`.
fn path_to<'a>(config: &Config, name: &[u8], path: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let mut len = 0;
    for part in [config.stats_dir.as_bytes(), b"/", name, b"\0"] {
        path.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    CStr::from_bytes_until_nul(path).ok()
}

/// Copies the page to the file.
pub fn publish(config: &Config) {
    if is_open() && !copy(0, REQUEST) && file::has_own_descriptors() {
        rewrite(config);
    }
}

/// Copies the page if memory was released since the last copy: all threads may be idle from now on.
pub fn publish_released(config: &Config) {
    if is_open() && word(word!(released_bytes)) != RELEASED_SHOWN.load(Ordering::Relaxed) {
        publish(config);
    }
}

/// The end of the process, when a descriptor may be opened and closed: copies the page for those who have it open. With `may_remove`, removes
/// the file.
pub fn end(config: &Config, may_remove: bool) {
    if !is_open() {
        return;
    }
    if !copy(0, REQUEST) {
        rewrite(config);
    }
    let mut path = [0; PATH_BYTES];
    if may_remove
        && !config.all_pages
        && !config.basic_syscalls
        && let Some(path) = own_path(config, &mut path)
    {
        let _ = shared_file::remove(path);
    }
}

/// Stores a word, and copies it at once.
pub fn tell(place: usize, value: u64) {
    set(place, value);
    if is_open() {
        copy(place, 1);
    }
}

/// A request of an observer.
pub struct Request {
    number: u64,
    /// The request that was taken last, when this one was read.
    before: u64,
    text: [u8; MAX_REQUEST_BYTES],
}

impl Request {
    /// Its text.
    pub fn text(&self) -> &[u8] {
        let end = self.text.iter().position(|&byte| byte == 0);
        &self.text[..end.unwrap_or(self.text.len())]
    }

    /// Takes it. `false`: another thread has it.
    pub fn take(&self) -> bool {
        TAKEN
            .compare_exchange(
                self.before,
                self.number,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Tells the observer the result.
    pub fn answer(self, result: u64) {
        tell(word!(request_result), result);
        tell(word!(request_done), self.number);
    }
}

/// The observer's request, if no thread has taken it. One system call.
pub fn request() -> Option<Request> {
    if !is_open() || !COPY_PAGE.may_work() {
        return None;
    }
    let before = TAKEN.load(Ordering::Relaxed);
    let mut words = [0u8; 8 + MAX_REQUEST_BYTES];
    let from = (SHOWN.load(Ordering::Acquire) + REQUEST * 8) as *const u8;
    // SAFETY: the buffer can be written to for its size. The kernel reads the file's mapping, and returns an error if it
    // cannot (INV-STATS-1).
    unsafe { vm::copy(words.as_mut_ptr() as usize, from, words.len()) }.ok()?;
    let (number, text) = words.split_first_chunk()?;
    let number = u64::from_le_bytes(*number);
    let is_new = number != 0 && number != before;
    let text = *text.first_chunk()?;
    is_new.then_some(Request {
        number,
        before,
        text,
    })
}

/// `false`: the kernel has no such call, or a filter refuses it.
fn copy(first: usize, count: usize) -> bool {
    if !COPY_PAGE.may_work() {
        return false;
    }
    if count == REQUEST {
        RELEASED_SHOWN.store(word(word!(released_bytes)), Ordering::Relaxed);
    }
    let shown = SHOWN.load(Ordering::Acquire);
    debug_assert!(shown != 0, "the caller has a page");
    let to = shown + first * 8;
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
        && let Some(path) = own_path(config, &mut path)
    {
        shared_file::rewrite(path, &LOCAL.0[..REQUEST]);
    }
}
