//! `EBBTIDE_CONF="key=value,…"`, parsed once at the first call.
//!
//! Nothing is taken from the environment of a program that runs with more rights than its caller.
//! An unknown key or a bad value costs one line on stderr and leaves the default.

use crate::base::report::Line;
use ebbtide_sys::lockstat::Holds;

/// Zones at most.
pub const MAX_ZONES: usize = 64;

/// All settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Restartable sections where they work (`rseq=on|off`).
    pub rseq: bool,
    /// Runs of frames taken as a whole (`cluster=on`) or frame by frame, for comparison (`off`).
    pub cluster: bool,
    /// Huge pages for the growth range (`thp=on|off`).
    pub thp: bool,
    /// Milliseconds that the recent peak keeps memory (`retain_ms=N`).
    pub retain_ms: u32,
    /// Most bytes kept for reuse (`retain_max=SIZE`), beside what the recent peak says.
    pub retain_max: usize,
    /// Threads that release memory beside the program, at most (`workers=0..64`); 0 leaves all of it to
    /// slow paths. Default: half the CPUs, 1 to 4 ([`AUTO`]).
    pub workers: usize,
    /// Most bytes kept beyond live memory (`limit=SIZE|PERCENT%`).
    pub limit: Limit,
    /// Limits and events are watched while there is memory to give (`pressure=on|off`).
    pub pressure: bool,
    /// Empty pages of half-used spans go back too (`depopulate=on|off`).
    pub depopulate: bool,
    /// Whether due frames become lazy before they become clean (`lazyfree=auto|off|always`).
    pub lazyfree: LazyFree,
    /// Milliseconds that a frame stays lazy (`lazy_ms=N`).
    pub lazy_ms: u32,
    /// Ranges are gathered and released many at a time (`gather=batched`), or each with a call of its own
    /// (`inline`), for comparison.
    pub gather: bool,
    /// Frames of one gather at most, at least 512 (`threshold=FRAMES`): what is more is another piece, for
    /// another worker.
    pub threshold: u32,
    /// Number of zones (`zones=N`); 0 chooses by the number of CPUs.
    pub zones: usize,
    /// Only mmap, munmap, mprotect, madvise and futex (`syscalls=basic`).
    pub basic_syscalls: bool,
    /// The `vfork` guard (`vfork_guard=on|off`); `off` shows what it prevents.
    pub vfork_guard: bool,
    /// Memory is taken back after the program's end, beside its parent (`exit=detached`), or as the kernel does
    /// it, before the end is seen (`inline`).
    pub exit_detached: bool,
    /// Bytes from which on a process gets a helper for that (`exit_threshold=SIZE`).
    pub exit_threshold: usize,
    /// Threads of the helper while memory is not short (`teardown_workers=1..16`). Default: as many as CPUs, 1 to 4
    /// ([`AUTO`]): they run only where nobody else wants to.
    pub teardown_workers: usize,
    /// Empty pages of per-CPU data go back (`percpu_depopulate=on|off`); `off` gives only whole chunks back.
    pub percpu_depopulate: bool,
    /// Copies of per-CPU data at least (`percpu_units=1..1024`); as many as CPUs are possible if that is more.
    pub percpu_units: usize,
    /// Figures of what locks cost (`lockstat=off|on|cpu`), holds by the wall or by CPU time.
    pub lockstat: Option<Holds>,
    /// Mistakes of the program are found at once or soon (`harden=on|off`): see `harden`.
    pub harden: bool,
    /// Libraries opened with `RTLD_DEEPBIND` are opened so (`deepbind=keep`), or without it (`drop`).
    pub deepbind_kept: bool,
    /// Directory for one statistics file per process (`stats_dir=PATH`), NUL-ended.
    pub stats_dir: Path,
}

/// See [`Config::lazyfree`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LazyFree {
    /// Where a zone's frames are often wanted again soon.
    Auto,
    /// Never.
    Off,
    /// Wherever it is possible.
    Always,
}

/// How much the owner lets the manager keep beyond live memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// As much as the rest of the configuration says.
    None,
    /// So many bytes.
    Bytes(usize),
    /// So many hundredths of the smallest limit of the memory cgroups, at most of RAM.
    Percent(u32),
}

impl Limit {
    /// In bytes, if `total` is what a percentage is of.
    pub fn bytes_of(self, total: u64) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes(bytes) => Some(bytes as u64),
            Self::Percent(percent) => Some(total / 100 * u64::from(percent)),
        }
    }

    fn parse(value: &[u8]) -> Option<Self> {
        match value.strip_suffix(b"%") {
            Some(percent) => number(percent).filter(|&n| n <= 100).map(Self::Percent),
            None => size(value).map(Self::Bytes),
        }
    }
}

/// [`Config::workers`] by the number of CPUs.
pub const AUTO: usize = usize::MAX;
/// Workers at most.
pub const MAX_WORKERS: usize = 64;
/// Threads of the exit helper that take memory, at most.
pub const MAX_TEARDOWN_WORKERS: usize = 16;

/// A short path, kept without allocating.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    bytes: [u8; 200],
    len: usize,
}

impl Path {
    const EMPTY: Self = Self {
        bytes: [0; 200],
        len: 0,
    };

    fn new(text: &[u8]) -> Option<Self> {
        let mut path = Self::EMPTY;
        path.bytes.get_mut(..text.len())?.copy_from_slice(text);
        path.len = text.len();
        (text.first() == Some(&b'/')).then_some(path)
    }

    /// The path, empty when none was set.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Config {
    /// What holds without `EBBTIDE_CONF`.
    pub const DEFAULT: Self = Self {
        rseq: true,
        cluster: true,
        thp: true,
        retain_ms: 1000,
        retain_max: usize::MAX,
        workers: AUTO,
        limit: Limit::None,
        pressure: true,
        depopulate: true,
        lazyfree: LazyFree::Auto,
        lazy_ms: 5000,
        gather: true,
        threshold: 256 << 10,
        zones: 0,
        basic_syscalls: false,
        vfork_guard: true,
        exit_detached: false,
        exit_threshold: 256 << 20,
        teardown_workers: AUTO,
        percpu_depopulate: true,
        percpu_units: 1,
        lockstat: None,
        harden: false,
        deepbind_kept: false,
        stats_dir: Path::EMPTY,
    };

    /// Reads the variable of this process.
    pub fn from_environment() -> Self {
        if ebbtide_sys::process::is_secure() {
            return Self::DEFAULT;
        }
        let parsed = ebbtide_sys::process::environment(b"EBBTIDE_CONF", |text| {
            Self::parse(text, |problem, item| {
                complaint(problem, item).write();
            })
        });
        parsed.unwrap_or(Self::DEFAULT)
    }

    /// Parses `text`, telling `complain` of each item that is not understood.
    pub fn parse(text: &[u8], mut complain: impl FnMut(&str, &[u8])) -> Self {
        let mut config = Self::DEFAULT;
        for item in text.split(|&byte| byte == b',') {
            let item = item.trim_ascii();
            if item.is_empty() {
                continue;
            }
            let split = item.iter().position(|&byte| byte == b'=');
            let (key, value) = split.map_or((item, &b""[..]), |at| (&item[..at], &item[at + 1..]));
            match config.set(key, value) {
                Some(true) => {}
                Some(false) => complain("bad value", item),
                None => complain("unknown key", item),
            }
        }
        if config.basic_syscalls {
            if config.workers > 0 && config.workers != AUTO {
                complain("not possible with syscalls=basic", b"workers");
            }
            config.workers = 0;
            if config.exit_detached {
                complain("not possible with syscalls=basic", b"exit=detached");
            }
            config.exit_detached = false;
        }
        config
    }

    /// `None`: no such key. `Some(false)`: not a value for it.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<bool> {
        fn put<T>(place: &mut T, value: Option<T>) -> bool {
            value.map(|value| *place = value).is_some()
        }
        Some(match key {
            b"rseq" => put(&mut self.rseq, on_off(value)),
            b"cluster" => put(&mut self.cluster, on_off(value)),
            b"thp" => put(&mut self.thp, on_off(value)),
            b"vfork_guard" => put(&mut self.vfork_guard, on_off(value)),
            b"retain_ms" => put(
                &mut self.retain_ms,
                number(value).filter(|&ms| ms <= 3_600_000),
            ),
            b"retain_max" => put(&mut self.retain_max, size(value)),
            b"workers" => put(
                &mut self.workers,
                number(value)
                    .map(|n| n as usize)
                    .filter(|&n| n <= MAX_WORKERS),
            ),
            b"limit" => put(&mut self.limit, Limit::parse(value)),
            b"pressure" => put(&mut self.pressure, on_off(value)),
            b"depopulate" => put(&mut self.depopulate, on_off(value)),
            b"lazyfree" => put(
                &mut self.lazyfree,
                match value {
                    b"auto" => Some(LazyFree::Auto),
                    b"off" => Some(LazyFree::Off),
                    b"always" => Some(LazyFree::Always),
                    _ => None,
                },
            ),
            b"lazy_ms" => put(
                &mut self.lazy_ms,
                number(value).filter(|&ms| ms <= 3_600_000),
            ),
            b"gather" => put(
                &mut self.gather,
                match value {
                    b"batched" => Some(true),
                    b"inline" => Some(false),
                    _ => None,
                },
            ),
            b"threshold" => put(&mut self.threshold, number(value).filter(|&n| n > 0)),
            b"zones" => put(
                &mut self.zones,
                number(value)
                    .map(|n| n as usize)
                    .filter(|n| (1..=MAX_ZONES).contains(n)),
            ),
            b"syscalls" => put(
                &mut self.basic_syscalls,
                match value {
                    b"all" => Some(false),
                    b"basic" => Some(true),
                    _ => None,
                },
            ),
            b"exit" => put(
                &mut self.exit_detached,
                match value {
                    b"detached" => Some(true),
                    b"inline" => Some(false),
                    _ => None,
                },
            ),
            b"exit_threshold" => put(&mut self.exit_threshold, size(value)),
            b"teardown_workers" => put(
                &mut self.teardown_workers,
                number(value)
                    .map(|n| n as usize)
                    .filter(|n| (1..=MAX_TEARDOWN_WORKERS).contains(n)),
            ),
            b"percpu_depopulate" => put(&mut self.percpu_depopulate, on_off(value)),
            b"percpu_units" => put(
                &mut self.percpu_units,
                number(value)
                    .map(|n| n as usize)
                    .filter(|n| (1..=1024).contains(n)),
            ),
            b"lockstat" => put(
                &mut self.lockstat,
                match value {
                    b"off" => Some(None),
                    b"on" => Some(Some(Holds::Wall)),
                    b"cpu" => Some(Some(Holds::Cpu)),
                    _ => None,
                },
            ),
            b"harden" => put(&mut self.harden, on_off(value)),
            b"deepbind" => put(
                &mut self.deepbind_kept,
                match value {
                    b"drop" => Some(false),
                    b"keep" => Some(true),
                    _ => None,
                },
            ),
            b"stats_dir" => put(&mut self.stats_dir, Path::new(value)),
            _ => return None,
        })
    }
}

const KEYS: &str = "rseq=on|off cluster=on|off thp=on|off retain_ms=MS retain_max=SIZE workers=0..64 \
                    limit=SIZE|PERCENT% pressure=on|off depopulate=on|off lazyfree=auto|off|always lazy_ms=MS gather=batched|inline threshold=FRAMES zones=N \
                    syscalls=all|basic vfork_guard=on|off exit=detached|inline exit_threshold=SIZE \
                    teardown_workers=1..16 percpu_depopulate=on|off percpu_units=1..1024 lockstat=off|on|cpu harden=on|off \
                    deepbind=drop|keep stats_dir=/PATH";

/// The line about an item. A long one is cut, the keys never are.
fn complaint(problem: &str, item: &[u8]) -> Line {
    const MOST_BYTES: usize = 64;
    let (shown, cut) = match item.get(..MOST_BYTES) {
        Some(start) if item.len() > MOST_BYTES => (start, "..."),
        _ => (item, ""),
    };
    Line::new()
        .text("EBBTIDE_CONF: ")
        .text(problem)
        .text(" in \"")
        .bytes(shown)
        .text(cut)
        .text("\"; ignored. Keys: ")
        .text(KEYS)
}

fn on_off(value: &[u8]) -> Option<bool> {
    match value {
        b"on" => Some(true),
        b"off" => Some(false),
        _ => None,
    }
}

fn number(value: &[u8]) -> Option<u32> {
    core::str::from_utf8(value).ok()?.parse().ok()
}

/// A number of bytes with an optional k, m or g behind it.
fn size(value: &[u8]) -> Option<usize> {
    let (digits, shift) = match value.split_last()? {
        (b'k' | b'K', digits) => (digits, 10),
        (b'm' | b'M', digits) => (digits, 20),
        (b'g' | b'G', digits) => (digits, 30),
        _ => (value, 0),
    };
    let count: usize = core::str::from_utf8(digits).ok()?.parse().ok()?;
    count.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn parse(text: &str) -> (Config, Vec<String>) {
        let mut complaints = Vec::new();
        let config = Config::parse(text.as_bytes(), |problem, item| {
            complaints.push(std::format!("{problem}: {}", String::from_utf8_lossy(item)));
        });
        (config, complaints)
    }

    #[test]
    fn keys_and_values() {
        let (config, complaints) =
            parse(" rseq=off, zones=3,retain_max=64m,stats_dir=/tmp/x ,syscalls=basic,");
        assert!(complaints.is_empty());
        assert!(!config.rseq && config.basic_syscalls && config.cluster);
        assert_eq!((config.zones, config.retain_max), (3, 64 << 20));
        assert_eq!(config.stats_dir.as_bytes(), b"/tmp/x");
        assert_eq!(parse("").0, Config::DEFAULT);
    }

    #[test]
    fn few_calls_leave_no_room_for_workers_and_helpers() {
        for text in ["syscalls=basic,workers=2", "workers=64,syscalls=basic"] {
            let (config, complaints) = parse(text);
            assert_eq!(config.workers, 0);
            assert_eq!(complaints, ["not possible with syscalls=basic: workers"]);
        }
        let (config, complaints) = parse("exit=detached,syscalls=basic");
        assert!(!config.exit_detached);
        assert_eq!(
            complaints,
            ["not possible with syscalls=basic: exit=detached"]
        );
        for text in [
            "syscalls=basic",
            "workers=0,syscalls=basic",
            "exit=inline,syscalls=basic",
        ] {
            let (config, complaints) = parse(text);
            assert_eq!((config.workers, complaints.len()), (0, 0));
        }
        assert_eq!(parse("workers=2,syscalls=all").0.workers, 2);
    }

    #[test]
    fn a_complaint_has_all_keys() {
        let long = [b'x'; 1000];
        for item in [&long[..], b"retan_ms=5"] {
            let line = complaint("not possible with syscalls=basic", item);
            assert!(line.shown().ends_with(KEYS.as_bytes()));
        }
    }

    #[test]
    fn limits_are_sizes_or_percentages() {
        assert_eq!(parse("limit=64m").0.limit, Limit::Bytes(64 << 20));
        let (config, complaints) = parse("limit=10%,pressure=off");
        assert!(complaints.is_empty() && !config.pressure);
        assert_eq!(config.limit.bytes_of(1000), Some(100));
        assert_eq!(parse("").0.limit.bytes_of(1000), None);
        assert_eq!(parse("limit=101%,limit=-1,limit=%").1.len(), 3);
    }

    #[test]
    fn each_mistake_is_told_and_changes_nothing() {
        let (config, complaints) = parse(
            "rsek=on,rseq=maybe,retain_max=1t,zones=0,retain_ms=-1,stats_dir=here,thp,lazyfree=on",
        );
        assert_eq!(config, Config::DEFAULT);
        assert_eq!(complaints.len(), 8);
        assert_eq!(complaints[0], "unknown key: rsek=on");
        assert_eq!(complaints[1], "bad value: rseq=maybe");
    }
}
