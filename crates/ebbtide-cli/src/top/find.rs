//! Finds the processes that run under Ebbtide, by their mappings in `/proc`.
//!
//! A process with a statistics page has a file `PID.ebb` mapped and shared, in any directory. A process without one
//! has the library mapped. If the library is linked in and there is no statistics page, the process cannot be
//! recognised from outside.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ebbtide_tools::complete::{CompletionCandidate, PathCompleter, ValueCompleter, candidate};
use ebbtide_tools::proc::{self, HELPER, Stat, numbers_in};
use ebbtide_tools::stats_page::StatsPage;
use ebbtide_tools::{conf, library};

use ebbtide_interface::{keys, page};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use serde::Serialize;

/// The open statistics page of a process. The last figures can be read after the process has ended.
#[derive(Debug)]
pub struct OpenPage(File);

impl OpenPage {
    /// Reads the figures.
    pub fn read(&self) -> Option<StatsPage> {
        StatsPage::parse(&self.bytes()?)
    }

    /// Reads all words, if it is a page with figures.
    pub fn words(&self) -> Option<Vec<u64>> {
        let bytes = self.bytes()?;
        StatsPage::parse(&bytes)?;
        let words = bytes.chunks_exact(8);
        let words = words.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        Some(words.collect()).filter(|words: &Vec<u64>| words.len() == page::WORDS)
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let mut page = Vec::new();
        let mut file = &self.0;
        file.rewind().ok()?;
        let mut words = file.take(page::WORDS as u64 * 8);
        words.read_to_end(&mut page).ok()?;
        Some(page)
    }

    /// Writes a request of an observer. Returns its number, and the file: as long as that is open, no other observer writes one. The process does
    /// the request and then shows the number.
    ///
    /// # Errors
    /// `PermissionDenied`: the file is another user's. `ResourceBusy`: the last request was not done yet.
    pub fn request(&self, text: &str) -> io::Result<(u64, File)> {
        const NUMBER: u64 = page::REQUEST as u64 * 8;
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        // The process's own lock is of another kind (flock), and does not meet this one.
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| ErrorKind::ResourceBusy)?;
        let mut word = [0; 8];
        file.read_exact_at(&mut word, NUMBER)?;
        let last = u64::from_le_bytes(word);
        let done = self.read().map_or(0, |page| page.request_done);
        if last != done {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let mut bytes = [0; page::MAX_REQUEST_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        file.write_all_at(&bytes, NUMBER + 8)?;
        file.write_all_at(&(last + 1).to_le_bytes(), NUMBER)?;
        Ok((last + 1, file))
    }

    fn is_in(&self, dir: &Path, pid: u32) -> bool {
        let there = fs::metadata(dir.join(format!("{pid}.ebb")));
        let here = self.0.metadata();
        matches!((there, here), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
}

/// A process under Ebbtide.
#[derive(Debug)]
pub struct Found {
    /// The process number.
    pub pid: u32,
    /// Name, state and start time.
    pub stat: Stat,
    /// Its figures, or the reason why it has none.
    pub page: Result<OpenPage, Why>,
}

/// The reason why a process under Ebbtide has no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It was forked, and has its parent's page until its first slow call.
    Forked,
    /// It was told `stats_dir`: it is young and small, or idle.
    Young,
    /// It was not told to keep any.
    NotTold,
}

impl Why {
    /// A sentence about one process.
    pub fn sentence(self, pid: u32) -> String {
        match self {
            Why::Forked => format!(
                "process {pid} was forked; it gets figures of its own when it allocates more"
            ),
            Why::Young => {
                format!("process {pid} was told stats_dir, and has no figures yet; {YOUNG}")
            }
            Why::NotTold => format!(
                "process {pid} keeps no statistics page; start it with EBBTIDE_CONF=stats_dir=/DIRECTORY"
            ),
        }
    }
}

/// When a process that was told `stats_dir` has figures.
pub const YOUNG: &str = "figures come with 16 MiB, or with the first slow call of malloc or free after one second; an idle process has none. \
                         If it is neither small nor idle, it cannot make files in that directory";

/// The result of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// Processes under Ebbtide, by number.
    pub found: Vec<Found>,
    /// Number of processes whose mappings this user may not read, most of them of other users.
    pub hidden: usize,
}

/// The processes that are searched.
#[derive(Clone, Debug, Default)]
pub enum Scope {
    /// All processes.
    #[default]
    All,
    /// The processes with these numbers.
    Pids(Vec<u32>),
    /// The processes with a statistics page in this directory.
    Dir(PathBuf),
}

/// Checks every process in scope.
pub fn search(scope: &Scope) -> Search {
    let mut search = Search::default();
    let mut pids = match scope {
        Scope::All => numbers_in("/proc", ""),
        Scope::Pids(pids) => pids.clone(),
        Scope::Dir(dir) => numbers_in(dir, ".ebb"),
    };
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        match look_at(pid) {
            Ok(Some(found)) => search.found.push(found),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => search.hidden += 1,
            // The process has ended meanwhile.
            Err(_) => {}
        }
    }
    if let Scope::Dir(dir) = scope {
        search.found.retain(|found| {
            let in_dir = |page: &OpenPage| page.is_in(dir, found.pid);
            found.page.as_ref().is_ok_and(in_dir)
        });
    }
    search
}

/// The processes under Ebbtide whose numbers begin like this, for completions.
pub fn candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let found = search(&Scope::All).found.into_iter();
    found
        .map(|found| (found.pid.to_string(), found.stat.name))
        .filter(|(number, _)| number.starts_with(&*text))
        .map(|(number, name)| candidate(number, name))
        .collect()
}

/// The same, then files.
pub fn candidates_or_files(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = candidates(current);
    all.extend(PathCompleter::any().complete(current));
    all
}

/// What to do about a process that does not exist.
pub fn gone(pid: u32) -> String {
    format!(
        "there is no process {pid}; 'ebbtide top' lists those under Ebbtide, 'pgrep NAME' finds others"
    )
}

/// Why a process was not found.
pub fn absent(pid: u32) -> String {
    if Stat::read(pid).is_none() {
        return gone(pid);
    }
    match is_open(pid) {
        true => format!("process {pid} does not run under Ebbtide; start it with 'ebbtide run'"),
        false => format!(
            "process {pid} cannot be read: it belongs to another user (root can read it), or no user may read it"
        ),
    }
}

/// Why each of these processes has no figures, if it has none.
pub fn without_figures(pids: &[u32], found: &[Found]) -> Vec<String> {
    let reason = |&pid: &u32| match found.iter().find(|found| found.pid == pid) {
        Some(found) => found.page.as_ref().err().map(|why| why.sentence(pid)),
        None => Some(absent(pid)),
    };
    pids.iter().filter_map(reason).collect()
}

/// Whether this user may read the mappings of a process.
fn is_open(pid: u32) -> bool {
    let read = File::open(format!("/proc/{pid}/maps")).and_then(|mut maps| maps.read(&mut [0]));
    !read.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Checks one process. `None`: it does not visibly run under Ebbtide.
fn look_at(pid: u32) -> io::Result<Option<Found>> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    let mapped = Mapped::read(maps)?;
    if mapped.pages.is_empty() && !mapped.has_library {
        return Ok(None);
    }
    let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_over() && stat.name != HELPER) else {
        return Ok(None);
    };
    let own = inner_pid(pid);
    let page = mapped.pages.iter().filter(|page| page.number == own);
    Ok(Some(Found {
        pid,
        stat,
        page: page
            .filter_map(|page| page.open(pid))
            .next_back()
            .ok_or_else(|| match mapped.pages.is_empty() {
                false => Why::Forked,
                true if is_told(&configuration(pid)) => Why::Young,
                true => Why::NotTold,
            }),
    }))
}

/// The configuration that a process was started with, made printable.
pub fn configuration(pid: u32) -> String {
    let prefix = format!("{}=", conf::ENV);
    let environ = proc::words(pid, "environ");
    let conf = environ.iter().find_map(|word| word.strip_prefix(&prefix));
    conf.unwrap_or_default().into()
}

/// Whether a configuration has a directory for pages.
fn is_told(conf: &str) -> bool {
    keys::items(conf.as_bytes()).any(|item| item.starts_with(b"stats_dir=/"))
}

/// The process's number in its own process namespace; inside a container it is another one.
fn inner_pid(pid: u32) -> u32 {
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last());
    inner.and_then(|pid| pid.parse().ok()).unwrap_or(pid)
}

/// The needed facts from a process's mappings.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    pages: Vec<MappedPage>,
    has_library: bool,
}

/// A mapped file that may be a statistics page.
#[derive(Debug, PartialEq, Eq)]
struct MappedPage {
    /// The number in the file's name.
    number: u32,
    range: String,
    inode: u64,
    path: String,
}

impl Mapped {
    fn read(maps: impl BufRead) -> io::Result<Self> {
        let mut mapped = Mapped::default();
        for line in maps.split(b'\n') {
            mapped.add(&String::from_utf8_lossy(&line?));
        }
        Ok(mapped)
    }

    /// Parses `RANGE PERMISSIONS OFFSET DEVICE INODE PATH`; ` (deleted)` may follow the path.
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [range, permissions, _, _, inode, path] = fields[..] else {
            return;
        };
        let path = path.trim_start();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let name = path.rsplit('/').next().unwrap_or_default();
        self.has_library |= library::is_named(name);
        let number = name.strip_suffix(".ebb").and_then(|n| n.parse().ok());
        if let (Some(number), true, Ok(inode)) = (number, permissions.ends_with('s'), inode.parse())
        {
            self.pages.push(MappedPage {
                number,
                range: range.into(),
                inode,
                path: path.into(),
            });
        }
    }
}

impl MappedPage {
    /// Opens the page by its path as the process sees it. If the path is gone, opens it by its range in memory (needs
    /// root).
    fn open(&self, pid: u32) -> Option<OpenPage> {
        let places = [
            format!("/proc/{pid}/root{}", self.path),
            format!("/proc/{pid}/map_files/{}", self.range),
        ];
        places.iter().find_map(|place| {
            let page = OpenPage(open_regular(place, self.inode)?);
            page.read().is_some().then_some(page)
        })
    }
}

/// Opens the regular file with this inode number. Another program may have put a link, a pipe or a device in its place: opening those may wait, or
/// have effects.
fn open_regular(path: &str, inode: u64) -> Option<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The kernel's own links in `map_files` are followed.
    let flags = match path.contains("/map_files/") {
        true => flags - OFlags::NOFOLLOW,
        false => flags,
    };
    let place = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let known = rustix::fs::fstat(&place).ok()?;
    let is_it = known.st_ino == inode && FileType::from_raw_mode(known.st_mode).is_file();
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    is_it.then(|| File::open(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebbtide_interface::{figures, word};

    const MAPS: &str = "\
55e0 r-xp 00000000 08:01 11 /usr/bin/python3
7f00-7f01 rw-s 00000000 00:1a 42                         /tmp/a dir/812.ebb (deleted)
7f02-7f03 rw-p 00000000 00:1a 43 /tmp/813.ebb
7f04-7f05 rw-p 00000000 00:00 0 
7f06-7f07 rw-s 00000000 00:1a 44 /tmp/notes.ebb
";

    #[test]
    fn mappings_tell_pages_and_the_library() {
        let mapped = Mapped::read(MAPS.as_bytes()).unwrap();
        let page = MappedPage {
            number: 812,
            range: "7f00-7f01".into(),
            inode: 42,
            path: "/tmp/a dir/812.ebb".into(),
        };
        assert_eq!(mapped.pages, [page], "shared, and named by a number");
        assert!(!mapped.has_library);
        let with = "7f-80 r-xp 0 08:01 9 /usr/lib/libebbtide.so.0 (deleted)\n";
        assert!(Mapped::read(with.as_bytes()).unwrap().has_library);
        let other = "7f-80 r-xp 0 08:01 9 /usr/lib/libebb.so\n";
        assert_eq!(Mapped::read(other.as_bytes()).unwrap(), Mapped::default());
    }

    #[test]
    fn a_configuration_tells_the_directory() {
        assert!(is_told("retain_ms=5,stats_dir=/dev/shm") && is_told("stats_dir=/x,"));
        assert!(!is_told("") && !is_told("stats_dir=") && !is_told("xstats_dir=/x"));
        assert!(
            Why::Young
                .sentence(7)
                .starts_with("process 7 was told stats_dir")
        );
    }

    /// This test process plays a process under Ebbtide: it maps a statistics page, at first its parent's.
    #[test]
    fn a_mapped_page_is_found_without_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let map = |number: u32| {
            let path = dir.path().join(format!("{number}.ebb"));
            let mut words = vec![0u64; 1024];
            words[0] = page::MAGIC;
            words[word!(version)] = figures::VERSION;
            words[word!(released_bytes)] = 99;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            fs::write(&path, bytes).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            // SAFETY: a new shared mapping of a file of that length; it stays.
            let at = unsafe {
                let prot = libc::PROT_READ | libc::PROT_WRITE;
                let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
                libc::mmap(std::ptr::null_mut(), 8192, prot, libc::MAP_SHARED, fd, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            path
        };
        let only = Scope::Pids(vec![own]);
        assert!(search(&only).found.is_empty());
        map(1);
        let found = search(&only).found;
        assert_eq!(found[0].page.as_ref().err(), Some(&Why::Forked));
        let path = map(own);
        let all = search(&Scope::All).found;
        let this = all.iter().find(|found| found.pid == own).unwrap();
        assert_eq!(
            this.page.as_ref().unwrap().read().unwrap().released_bytes,
            99
        );
        assert_eq!(search(&Scope::Dir(dir.path().into())).found.len(), 1);
        assert!(search(&Scope::Dir("/proc".into())).found.is_empty());
        // Another file of the same name is not accepted. A deleted page can be opened by root only.
        fs::remove_file(&path).unwrap();
        fs::write(&path, [0; 8192]).unwrap();
        let page = search(&only).found.remove(0).page;
        assert_eq!(
            page.is_ok(),
            File::open("/proc/self/map_files").is_ok() && is_root()
        );
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }
}
