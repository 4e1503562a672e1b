//! The page of figures that each process under Ebbtide keeps in `stats_dir`.
//!
//! A file `PID.ebb` of 8,192 bytes, little-endian 64-bit words, which the process
//! writes every now and then. The words are read one by one, without a
//! lock: each is exact, two of them need not be from the same instant.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::Serialize;
use tempfile::TempDir;

use crate::conf::Conf;
use crate::lock_figures::{self, RankFigures};

/// Leaves room for a name of its own below what a configuration carries.
const MAX_BASE_BYTES: usize = 150;

/// First word of the page: "EBBSTAT1".
pub const MAGIC: u64 = 0x3154_4154_5342_4245;

/// Length of the single figures; those of locks follow.
pub const LEN_BYTES: usize = 4096;

/// One process's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatsPage {
    /// The process.
    pub pid: u64,
    /// Bytes given back to the kernel so far.
    pub released_bytes: u64,
    /// Bytes the program holds.
    pub live_bytes: u64,
    /// Freed bytes that are still resident.
    pub dirty_bytes: u64,
    /// Address space opened in the region.
    pub region_opened_bytes: u64,
    /// 1: per-CPU caches by restartable sequences; 0: the portable model.
    pub rseq_mode: u64,
    /// Calls that gave memory back.
    pub release_calls: u64,
    /// Bytes in per-CPU caches, and of spare runs.
    pub cached_bytes: u64,
    /// Bytes of the manager's own records.
    pub metadata_bytes: u64,
    /// Free bytes that the kernel may take.
    pub lazy_bytes: u64,
    /// Bytes on their way to the kernel.
    pub pending_bytes: u64,
    /// Time that workers spent releasing.
    pub worker_ns: u64,
    /// The longest that one call of the program spent releasing.
    pub longest_inline_stall_ns: u64,
    /// Bytes that were given back and then used again.
    pub refaulted_bytes: u64,
    /// Bytes in huge pages that could not be split.
    pub held_bytes: u64,
    /// Free objects in spans, and what objects leave over there.
    pub in_spans_bytes: u64,
    /// Optional kernel calls that were tried and worked, one bit each in the order of [`FEATURES`].
    pub worked: u64,
    /// Those that were tried and refused.
    pub refused: u64,
    /// The process that takes memory back after the end, or 0.
    pub helper: u64,
    /// When the end began, if in order: nanoseconds of the monotonic clock.
    pub end_ns: u64,
    /// Bytes made lazy.
    pub lazied_bytes: u64,
    /// Zones whose freed memory becomes lazy first.
    pub lazy_zones: u64,
    /// Bytes given up lately and soon wanted again.
    pub reused_bytes: u64,
    /// Bytes given up lately and not wanted again.
    pub unused_bytes: u64,
    /// Runs of frames that another zone than the CPU's own gave.
    pub fallovers: u64,
    /// Bytes of per-CPU data that may be resident.
    pub percpu_bytes: u64,
    /// What the locks of each rank cost; empty without `lockstat`.
    pub locks: Vec<RankFigures>,
    /// Looks at which memory was found to be short.
    pub pressure_events: u64,
    /// 0: nobody has looked, 1: calm, 2: short.
    pub pressure_state: u64,
    /// Left of the nearest limit at the last look.
    pub limit_left_bytes: u64,
    /// That limit; 0: unknown.
    pub limit_bytes: u64,
    /// Released by calls that had taken more afresh than there was room for.
    pub paid_bytes: u64,
    /// What is looked at, one bit each: the machine, a cgroup limit, PSI, `memory.pressure_level`, the FIFO or
    /// socket of systemd's protocol; and 32: the environment wants no events.
    pub pressure_sources: u64,
    /// When the main thread left the memory at the end, as the helper saw it; 0: not known. Same clock as `end_ns`.
    pub left_ns: u64,
    /// When the figures were written that are not counted as they come; 0: not known. Same clock, in milliseconds.
    pub written_ms: u64,
}

/// The optional kernel calls in the order of the library's own list.
pub const FEATURES: [&str; 14] = [
    "membarrier",
    "mremap",
    "hugepage",
    "wipeonfork",
    "process_madvise",
    "pagemap_scan",
    "workers",
    "madvise_free",
    "dontneed_locked",
    "reaper",
    "populate",
    "dontneed",
    "rseq_unregister",
    "process_vm_writev",
];

/// The bits of [`StatsPage::pressure_sources`].
pub const PRESSURE_SOURCES: [&str; 6] = [
    "machine",
    "cgroup limit",
    "PSI",
    "pressure level",
    "notice",
    "events not wanted",
];

impl StatsPage {
    /// Reads the words; `None` if this is not such a page.
    pub fn parse(page: &[u8]) -> Option<Self> {
        if page.len() < LEN_BYTES {
            return None;
        }
        let word = |i: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&page[i * 8..i * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        if word(0) != MAGIC || word(1) != 1 {
            return None;
        }
        Some(StatsPage {
            pid: word(2),
            released_bytes: word(3),
            live_bytes: word(4),
            dirty_bytes: word(5),
            region_opened_bytes: word(6),
            rseq_mode: word(7),
            release_calls: word(8),
            cached_bytes: word(9),
            metadata_bytes: word(10),
            lazy_bytes: word(11),
            pending_bytes: word(12),
            worker_ns: word(13),
            longest_inline_stall_ns: word(14),
            refaulted_bytes: word(15),
            held_bytes: word(16),
            in_spans_bytes: word(17),
            worked: word(18),
            refused: word(19),
            helper: word(106),
            end_ns: word(107),
            lazied_bytes: word(24),
            lazy_zones: word(25),
            reused_bytes: word(26),
            unused_bytes: word(27),
            fallovers: word(32),
            percpu_bytes: word(96),
            locks: lock_figures::parse(
                &(LEN_BYTES / 8..page.len() / 8)
                    .map(word)
                    .collect::<Vec<_>>(),
            ),
            pressure_events: word(28),
            pressure_state: word(29),
            limit_left_bytes: word(30),
            limit_bytes: word(31),
            paid_bytes: word(128),
            pressure_sources: word(129),
            left_ns: word(130),
            written_ms: word(140),
        })
    }
}

/// A private directory for pages, gone when dropped. Its path is one that a
/// configuration can carry: absolute, short, without a comma.
pub fn private_dir() -> Result<TempDir> {
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
            // Whatever the umask.
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

/// Every page in `dir` that was written at `since` or later.
pub fn read_all(dir: &Path, since: SystemTime) -> Vec<StatsPage> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "ebb"))
        .filter(|e| {
            e.metadata()
                .and_then(|m| m.modified())
                .is_ok_and(|t| t >= since)
        })
        .filter_map(|e| StatsPage::parse(&fs::read(e.path()).ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(words: &[u64]) -> Vec<u8> {
        let mut page: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        page.resize(LEN_BYTES, 0);
        page
    }

    #[test]
    fn reads_the_words_in_order() {
        assert_eq!(&MAGIC.to_le_bytes(), b"EBBSTAT1");
        let p = StatsPage::parse(&page(&[
            MAGIC, 1, 42, 3, 4, 5, 6, 1, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
        ]))
        .unwrap();
        assert_eq!(
            (p.pid, p.released_bytes, p.live_bytes, p.dirty_bytes),
            (42, 3, 4, 5)
        );
        assert_eq!(
            (p.region_opened_bytes, p.rseq_mode, p.release_calls),
            (6, 1, 8)
        );
        assert_eq!((p.cached_bytes, p.metadata_bytes), (9, 10));
        assert_eq!((p.lazy_bytes, p.pending_bytes, p.worker_ns), (11, 12, 13));
        assert_eq!((p.longest_inline_stall_ns, p.refaulted_bytes), (14, 15));
        assert_eq!((p.held_bytes, p.in_spans_bytes), (16, 17));
    }

    #[test]
    fn refuses_other_files() {
        assert_eq!(StatsPage::parse(&page(&[MAGIC, 2, 42])), None);
        assert_eq!(StatsPage::parse(&page(&[0, 1, 42])), None);
        assert_eq!(StatsPage::parse(&[0; 100]), None);
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
        fs::write(dir.path().join("7.ebb"), page(&[MAGIC, 1, 7, 100])).unwrap();
        fs::write(dir.path().join("8.ebb"), page(&[MAGIC, 1, 8, 50])).unwrap();
        fs::write(dir.path().join("junk"), page(&[MAGIC, 1, 9, 50])).unwrap();
        fs::write(dir.path().join("9.ebb"), b"short").unwrap();
        let total: u64 = read_all(dir.path(), since)
            .iter()
            .map(|p| p.released_bytes)
            .sum();
        assert_eq!(total, 150);
    }
}
