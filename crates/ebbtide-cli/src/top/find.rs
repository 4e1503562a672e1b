//! Finds the processes that run under Ebbtide, by what `/proc` says of each.
//!
//! A process that keeps a page of figures has a file `PID.ebb` mapped and shared, wherever it lies. One without has
//! the library mapped, unless it is linked in: nothing tells of such a process from outside.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ebbtide_tools::stats_page::StatsPage;
use ebbtide_tools::{library, proc};

use crate::run::end::HELPER_NAME;
use ebbtide_interface::page;

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The program's short name.
    pub name: String,
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// When it began; with the number, this is one process and no other.
    pub began: u64,
}

impl Stat {
    /// Of a process; none if there is no such.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&proc::text(format!("/proc/{pid}/stat"))?)
    }

    /// `PID (name) state …`; the name may hold anything.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(") ")?;
        let (_, name) = head.split_once(" (")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Stat {
            name: name.replace(char::is_control, "?"),
            state: fields.first()?.chars().next()?,
            began: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it has come to its end, waited for or not.
    pub fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The page of a process, open: what was written last can be read after its end, too.
#[derive(Debug)]
pub struct OpenPage(File);

impl OpenPage {
    /// The figures as they are.
    pub fn read(&self) -> Option<StatsPage> {
        let mut page = [0; page::WORDS * 8];
        let len = read_all(&self.0, &mut page)?;
        StatsPage::parse(&page[..len])
    }
}

fn read_all(file: &File, page: &mut [u8]) -> Option<usize> {
    let mut len = 0;
    while len < page.len() {
        match file.read_at(&mut page[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(len)
}

/// Why a process under Ebbtide has no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// It was not told to keep a page.
    NotTold,
    /// It has its parent's until its first slow call after the fork.
    NotYet,
}

/// A process under Ebbtide.
#[derive(Debug)]
pub struct Found {
    /// Its number.
    pub pid: u32,
    /// What it is.
    pub stat: Stat,
    /// Its figures, or why there are none.
    pub page: Result<OpenPage, Without>,
}

/// What a search gave.
#[derive(Debug, Default)]
pub struct Search {
    /// By number.
    pub found: Vec<Found>,
    /// Processes whose mappings may not be read, most of them other users'.
    pub hidden: usize,
}

/// Which processes count.
#[derive(Clone, Debug)]
pub enum Scope {
    /// All.
    All,
    /// These.
    Pids(Vec<u32>),
    /// Those with a page in this directory.
    Dir(PathBuf),
}

/// Looks at every process in scope.
pub fn search(scope: &Scope) -> Search {
    let mut search = Search::default();
    let mut pids = match scope {
        Scope::All => numbers_in(Path::new("/proc"), ""),
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
            // It has ended meanwhile.
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

impl OpenPage {
    fn is_in(&self, dir: &Path, pid: u32) -> bool {
        let there = fs::metadata(dir.join(format!("{pid}.ebb")));
        let here = self.0.metadata();
        matches!((there, here), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
}

/// Of the names that are a number and `suffix`.
fn numbers_in(dir: &Path, suffix: &str) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_suffix(suffix)?.parse().ok();
    entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect()
}

/// Whether the mappings of a process may be read.
pub fn is_open(pid: u32) -> bool {
    let read = File::open(format!("/proc/{pid}/maps")).and_then(|mut maps| maps.read(&mut [0]));
    !read.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// None: not under Ebbtide, as far as can be seen.
fn look_at(pid: u32) -> io::Result<Option<Found>> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    let mapped = Mapped::read(maps)?;
    if mapped.pages.is_empty() && !mapped.has_library {
        return Ok(None);
    }
    let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_over() && stat.name != HELPER_NAME)
    else {
        return Ok(None);
    };
    let own = inner_pid(pid);
    let page = mapped.pages.iter().filter(|page| page.number == own);
    let opened = page.filter_map(|page| page.open(pid)).next_back();
    let without = match mapped.pages.is_empty() {
        true => Without::NotTold,
        false => Without::NotYet,
    };
    Ok(Some(Found {
        pid,
        stat,
        page: opened.ok_or(without),
    }))
}

/// The number by which a process knows itself: another one inside a container.
fn inner_pid(pid: u32) -> u32 {
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last());
    inner.and_then(|pid| pid.parse().ok()).unwrap_or(pid)
}

/// What of the mappings matters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    pages: Vec<MappedPage>,
    has_library: bool,
}

/// A file that may be a page.
#[derive(Debug, PartialEq, Eq)]
struct MappedPage {
    /// In its name.
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

    /// `RANGE PERMISSIONS OFFSET DEVICE INODE PATH`, the path perhaps with ` (deleted)` behind it.
    fn add(&mut self, line: &str) {
        let mut rest = line;
        let mut field = || {
            let (field, behind) = rest.trim_start().split_once(' ')?;
            rest = behind;
            Some(field)
        };
        let (Some(range), Some(permissions), Some(_), Some(_), Some(inode)) =
            (field(), field(), field(), field(), field())
        else {
            return;
        };
        let path = rest.trim_start();
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
    /// By its path as the process sees it; where it has none any more, by its place in the memory (as root).
    fn open(&self, pid: u32) -> Option<OpenPage> {
        let places = [
            format!("/proc/{pid}/root{}", self.path),
            format!("/proc/{pid}/map_files/{}", self.range),
        ];
        // A pipe that somebody has put into its place is not waited for.
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        places.iter().find_map(|place| {
            let page = OpenPage(options.open(place).ok()?);
            let is_it = page.0.metadata().is_ok_and(|it| it.ino() == self.inode);
            (is_it && page.read().is_some()).then_some(page)
        })
    }
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
    fn names_may_hold_anything() {
        let numbers: Vec<String> = (4..30).map(|n| n.to_string()).collect();
        let text = format!("12 (a) (b) R) S {}\n", numbers.join(" "));
        let stat = Stat::parse(&text).unwrap();
        assert_eq!((stat.name.as_str(), stat.state), ("a) (b) R", 'S'));
        assert_eq!(stat.began, 22);
        assert!(!stat.is_over() && Stat::parse("12 (x").is_none());
    }

    /// This process stands for one under Ebbtide: it has a page mapped, at first its parent's.
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
        assert_eq!(found[0].page.as_ref().unwrap_err(), &Without::NotYet);
        let path = map(own);
        let all = search(&Scope::All).found;
        let this = all.iter().find(|found| found.pid == own).unwrap();
        assert_eq!(
            this.page.as_ref().unwrap().read().unwrap().released_bytes,
            99
        );
        assert_eq!(search(&Scope::Dir(dir.path().into())).found.len(), 1);
        assert!(search(&Scope::Dir("/proc".into())).found.is_empty());
        // Another file of that name is not it, and one that is gone can be had as root only.
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
