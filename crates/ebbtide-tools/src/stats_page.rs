//! Reads the statistics page that each process under Ebbtide keeps in `stats_dir`.
//!
//! A page is a file `PID.ebb` in the layout of [`ebbtide_interface::page`].

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, DirEntry, Permissions};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use ebbtide_interface::figures::{self, FIGURES, Kind};
use ebbtide_interface::records::{Owner, RANGE_WORDS};
use ebbtide_interface::{Figures, page};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::ser::{Serialize, SerializeMap, Serializer};
use tempfile::TempDir;

use crate::conf::Conf;
use crate::lock_figures::{self, RankFigures};
use crate::proc::numbers_in;

/// Maximum length of the base directory: a configuration can then carry the name of a directory below it.
const MAX_BASE_BYTES: usize = 150;

/// One process's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsPage {
    /// The figures of the process.
    pub figures: Figures,
    /// The lock cost of each rank; empty without `lockstat`.
    pub locks: Vec<RankFigures>,
    /// What the library's own mappings are for.
    pub mappings: Vec<Owner>,
}

impl Deref for StatsPage {
    type Target = Figures;

    fn deref(&self) -> &Figures {
        &self.figures
    }
}

impl Serialize for StatsPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = FIGURES.iter().zip(self.figures.values());
        let mut map = serializer.serialize_map(None)?;
        for (figure, value) in values {
            // The page has no figures that the kernel counts, and a sum of several processes has no facts.
            if !figure.name.starts_with("rss") && (figure.kind != Kind::Fact || self.pid != 0) {
                map.serialize_entry(figure.name, &value)?;
            }
        }
        map.serialize_entry("locks", &self.locks)?;
        map.end()
    }
}

impl StatsPage {
    /// The sum of several processes.
    pub fn sum(pages: &[StatsPage]) -> Self {
        let mut sum = StatsPage::default();
        pages.iter().for_each(|page| sum.figures.add(&page.figures));
        sum.locks = lock_figures::sum(pages.iter().map(|page| page.locks.as_slice()));
        sum
    }

    /// Reads the words of a page; `None` if it is no statistics page, or one of another version.
    pub fn parse(page: &[u8]) -> Option<Self> {
        let words: Vec<u64> = page
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            .collect();
        if words.len() < page::LOCKS || words[0] != page::MAGIC {
            return None;
        }
        let figures = Figures::from_values(|at| words[page::FIRST + at]);
        let locks = lock_figures::parse(&words[page::LOCKS..]);
        let ranges = words[page::RANGES..page::PLACES].chunks_exact(RANGE_WORDS);
        let mappings = ranges.filter_map(|range| Owner::of(range[0])).collect();
        (figures.version == figures::VERSION).then_some(StatsPage {
            figures,
            locks,
            mappings,
        })
    }
}

/// The names of the bits that are set in a figure.
pub fn named<'a>(mask: u64, names: &[&'a str]) -> Vec<&'a str> {
    let set = names
        .iter()
        .enumerate()
        .filter(|(bit, _)| mask >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect()
}

/// Creates a private directory for pages, which is removed on drop. A configuration can carry its path: absolute,
/// short, without a comma.
pub fn private_dir() -> anyhow::Result<TempDir> {
    let base = env::temp_dir().canonicalize().ok();
    let base = base
        .filter(|b| Conf::parse(&format!("stats_dir={}", b.display())).is_ok())
        .filter(|b| !b.as_os_str().as_encoded_bytes().contains(&b','))
        .filter(|b| b.as_os_str().len() <= MAX_BASE_BYTES)
        .unwrap_or_else(|| "/tmp".into());
    let made = tempfile::Builder::new()
        .prefix("ebbtide-")
        .tempdir_in(&base)
        .and_then(|dir| {
            // Sets the mode, whatever the umask is.
            fs::set_permissions(dir.path(), Permissions::from_mode(0o700))?;
            Ok(dir)
        });
    made.with_context(|| {
        format!(
            "cannot make a directory in {}; set TMPDIR to one that is writable",
            base.display()
        )
    })
}

/// Lets each process keep its page in `dir` from its start on, and leave it there for [`read_all`].
pub fn keep_all_in(dir: &Path, conf: &mut Conf) {
    conf.set("stats_dir", &dir.to_string_lossy());
    conf.set("pages", "all");
}

/// Removes the pages of processes that are gone, however they ended. A page whose process is in another process namespace is locked while it
/// runs.
pub fn remove_abandoned(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
        if path.extension().is_some_and(|x| x == "ebb")
            && stem.and_then(Pid::from_raw).is_some_and(is_gone)
            && is_abandoned(&path)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether a file is a page, and no process has it mapped.
fn is_abandoned(path: &Path) -> bool {
    let mut magic = [0; 8];
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).is_ok_and(|file| {
        rustix::io::read(&file, &mut magic) == Ok(magic.len())
            && u64::from_le_bytes(magic) == page::MAGIC
            && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// The programs' names on all pages in `dir`, by process number.
pub fn names(dir: &Path) -> BTreeMap<u32, String> {
    let named = |pid: u32| {
        let page = fs::read(dir.join(format!("{pid}.ebb"))).ok()?;
        let from = page::NAME * 8;
        let name = page.get(from..from + page::MAX_NAME_BYTES)?;
        let name = name.split(|&byte| byte == 0).next()?;
        let name = String::from_utf8_lossy(name).replace(char::is_control, "?");
        (!name.is_empty()).then_some((pid, name))
    };
    let pids = numbers_in(dir, ".ebb").into_iter();
    pids.filter_map(named).collect()
}

/// Every page in `dir` that was written at `since` or later.
pub fn read_all(dir: &Path, since: SystemTime) -> Vec<StatsPage> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_page = |entry: &DirEntry| entry.path().extension().is_some_and(|x| x == "ebb");
    let is_new = |entry: &DirEntry| {
        let written = entry.metadata().and_then(|about| about.modified());
        written.is_ok_and(|time| time >= since)
    };
    entries
        .filter(|entry| is_page(entry) && is_new(entry))
        .filter_map(|entry| StatsPage::parse(&fs::read(entry.path()).ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with these figures.
    fn page(figures: &Figures) -> Vec<u8> {
        let mut words = vec![page::MAGIC];
        words.extend(figures.values());
        words.resize(page::WORDS, 0);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn reads_the_figures() {
        let figures = Figures {
            version: figures::VERSION,
            pid: 42,
            written_ms: 9,
            ..Figures::default()
        };
        let read = StatsPage::parse(&page(&figures)).unwrap();
        assert_eq!(read.figures, figures);
        let json = serde_json::to_value(&read).unwrap();
        assert_eq!((&json["pid"], &json["written_ms"]), (&42.into(), &9.into()));
        assert!(json["locks"].as_array().unwrap().is_empty() && json.get("rss_bytes").is_none());
    }

    #[test]
    fn refuses_other_files() {
        let other = Figures {
            version: figures::VERSION + 1,
            ..Figures::default()
        };
        assert_eq!(StatsPage::parse(&page(&other)), None);
        assert_eq!(StatsPage::parse(&[0; 8192]), None);
        assert_eq!(StatsPage::parse(&[0; 100]), None);
    }

    /// Another process writes the page.
    #[test]
    fn sums_of_any_numbers() {
        let mut all = vec![0xff; page::WORDS * 8];
        all[..8].copy_from_slice(&page::MAGIC.to_le_bytes());
        all[8..16].copy_from_slice(&figures::VERSION.to_le_bytes());
        let read = StatsPage::parse(&all).unwrap();
        let sum = StatsPage::sum(&[read.clone(), read.clone()]);
        assert_eq!((sum.live_bytes, sum.locks[0].taken), (u64::MAX, u64::MAX));
        assert_eq!(sum.locks[0].waits.quantile_ns(0.5), 32);
    }

    #[test]
    fn private_directory_fits_a_configuration() {
        let dir = private_dir().unwrap();
        let text = format!("stats_dir={}", dir.path().display());
        assert_eq!(
            Conf::parse(&text).unwrap().get("stats_dir"),
            dir.path().to_str()
        );
    }

    #[test]
    fn reads_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let since = SystemTime::now() - std::time::Duration::from_secs(10);
        let with = |released_bytes| {
            page(&Figures {
                version: figures::VERSION,
                released_bytes,
                ..Figures::default()
            })
        };
        fs::write(dir.path().join("7.ebb"), with(100)).unwrap();
        let mut named = with(50);
        named[page::NAME * 8..][..4].copy_from_slice(b"cat\n");
        fs::write(dir.path().join("8.ebb"), named).unwrap();
        fs::write(dir.path().join("junk"), with(50)).unwrap();
        fs::write(dir.path().join("9.ebb"), b"short").unwrap();
        let total: u64 = read_all(dir.path(), since)
            .iter()
            .map(|p| p.released_bytes)
            .sum();
        assert_eq!(total, 150);
        assert_eq!(names(dir.path()), BTreeMap::from([(8, "cat?".into())]));
    }
}
