//! `EBBTIDE_CONF="key=value,…"`, parsed once at the first call.
//!
//! Nothing is taken from the environment of a program that runs with more rights than its caller.
//! An unknown key or a bad value costs one line on stderr and leaves the default.

use crate::base::report::Line;
use core::ops::RangeInclusive;
use core::str::FromStr;
use ebbtide_sys::lockstat::Holds;

/// Longest times that can be set.
const HOUR_MS: u32 = 3_600_000;
/// Zones at most.
pub const MAX_ZONES: usize = 64;

/// Declares [`Config`], what holds without `EBBTIDE_CONF`, the reader of a key, and the list of keys, from one entry for
/// each key: `key = "values" => field: type = default, reader`.
macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident = $values:literal => $field:ident: $type:ty = $default:expr, $read:expr;)*) => {
        /// All settings.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Config {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Config {
            /// What holds without `EBBTIDE_CONF`.
            pub const DEFAULT: Self = Self { $($field: $default,)* };

            /// `None`: no such key. `Some(false)`: not a value for it.
            fn set(&mut self, key: &[u8], value: &[u8]) -> Option<bool> {
                $(if key == stringify!($key).as_bytes() {
                    let read: fn(&[u8]) -> Option<$type> = $read;
                    return Some(read(value).map(|read| self.$field = read).is_some());
                })*
                None
            }
        }

        const KEYS: &str = concat!($(" ", stringify!($key), "=", $values),*);
    };
}

keys! {
    /// Restartable sections where they work.
    rseq = "on|off" => rseq: bool = true, on_off;
    /// Runs of frames taken as a whole or, for comparison, frame by frame.
    cluster = "on|off" => cluster: bool = true, on_off;
    /// Huge pages for the growth range.
    thp = "on|off" => thp: bool = true, on_off;
    /// Milliseconds that the recent peak keeps memory.
    retain_ms = "MS" => retain_ms: u32 = 1000, |value| number(value, 0..=HOUR_MS);
    /// Most bytes kept for reuse, beside what the recent peak says.
    retain_max = "SIZE" => retain_max: usize = usize::MAX, size;
    /// Threads that release memory beside the program, at most; 0 leaves all of it to slow paths. Default: half the CPUs,
    /// 1 to 4 ([`AUTO`]).
    workers = "0..64" => workers: usize = AUTO, |value| number(value, 0..=MAX_WORKERS);
    /// Most bytes kept beyond live memory.
    limit = "SIZE|PERCENT%" => limit: Limit = Limit::None, Limit::parse;
    /// Limits and events are watched while there is memory to give.
    pressure = "on|off" => pressure: bool = true, on_off;
    /// Empty pages of half-used spans go back too.
    depopulate = "on|off" => depopulate: bool = true, on_off;
    /// Whether due frames become lazy before they become clean.
    lazyfree = "auto|off|always" => lazyfree: LazyFree = LazyFree::Auto, |value| {
        choice(value, [("auto", LazyFree::Auto), ("off", LazyFree::Off), ("always", LazyFree::Always)])
    };
    /// Milliseconds that a frame stays lazy.
    lazy_ms = "MS" => lazy_ms: u32 = 5000, |value| number(value, 0..=HOUR_MS);
    /// Ranges are gathered and released many at a time or, for comparison, each with a call of its own (`inline`).
    gather = "batched|inline" => gather: bool = true, |value| choice(value, [("batched", true), ("inline", false)]);
    /// Frames of one gather at most, at least 512: what is more is another piece, for another worker.
    threshold = "FRAMES" => threshold: u32 = 256 << 10, |value| number(value, 1..=u32::MAX);
    /// Number of zones; 0 chooses by the number of CPUs.
    zones = "N" => zones: usize = 0, |value| number(value, 1..=MAX_ZONES);
    /// Only mmap, munmap, mprotect, madvise and futex (`basic`).
    syscalls = "all|basic" => basic_syscalls: bool = false, |value| choice(value, [("all", false), ("basic", true)]);
    /// The `vfork` guard; `off` shows what it prevents.
    vfork_guard = "on|off" => vfork_guard: bool = true, on_off;
    /// Memory is taken back after the program's end, beside its parent (`detached`), or as the kernel does it, before the
    /// end is seen.
    exit = "detached|inline" => exit_detached: bool = false, |value| {
        choice(value, [("detached", true), ("inline", false)])
    };
    /// Bytes from which on a process gets a helper for that.
    exit_threshold = "SIZE" => exit_threshold: usize = 256 << 20, size;
    /// Threads of the helper while memory is not short. Default: as many as CPUs, 1 to 4 ([`AUTO`]): they run only where
    /// nobody else wants to.
    teardown_workers = "1..16" => teardown_workers: usize = AUTO, |value| number(value, 1..=MAX_TEARDOWN_WORKERS);
    /// Empty pages of per-CPU data go back; `off` gives only whole chunks back.
    percpu_depopulate = "on|off" => percpu_depopulate: bool = true, on_off;
    /// Copies of per-CPU data at least; as many as CPUs are possible if that is more.
    percpu_units = "1..1024" => percpu_units: usize = 1, |value| number(value, 1..=1024);
    /// Figures of what locks cost, holds by the wall (`on`) or by CPU time.
    lockstat = "off|on|cpu" => lockstat: Option<Holds> = None, |value| {
        choice(value, [("off", None), ("on", Some(Holds::Wall)), ("cpu", Some(Holds::Cpu))])
    };
    /// Mistakes of the program are found at once or soon: see `harden`.
    harden = "on|off" => harden: bool = false, on_off;
    /// Libraries opened with `RTLD_DEEPBIND` are opened so (`keep`), or without it.
    deepbind = "drop|keep" => deepbind_kept: bool = false, |value| choice(value, [("drop", false), ("keep", true)]);
    /// Directory for one statistics file per process.
    stats_dir = "/PATH" => stats_dir: Path = Path::EMPTY, Path::new;
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
            Some(percent) => number(percent, 0..=100).map(Self::Percent),
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
    /// Reads the variable of this process.
    pub fn from_environment() -> Self {
        if ebbtide_sys::process::is_secure() {
            return Self::DEFAULT;
        }
        let parsed = ebbtide_sys::process::environment(b"EBBTIDE_CONF", |text| {
            Self::parse(text, |problem, item| complaint(problem, item).write())
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
            let mut refuse = |is_set: bool, item: &str| {
                if is_set {
                    complain("not possible with syscalls=basic", item.as_bytes());
                }
            };
            refuse(![0, AUTO].contains(&config.workers), "workers");
            refuse(config.exit_detached, "exit=detached");
            (config.workers, config.exit_detached) = (0, false);
        }
        config
    }
}

/// The line about an item. A long one is cut, the keys never are.
fn complaint(problem: &str, item: &[u8]) -> Line {
    const MOST_BYTES: usize = 64;
    let shown = &item[..item.len().min(MOST_BYTES)];
    let cut = if shown == item { "" } else { "..." };
    Line::new()
        .text("EBBTIDE_CONF: ")
        .text(problem)
        .text(" in \"")
        .bytes(shown)
        .text(cut)
        .text("\"; ignored. Keys:")
        .text(KEYS)
}

fn on_off(value: &[u8]) -> Option<bool> {
    choice(value, [("on", true), ("off", false)])
}

fn choice<T, const N: usize>(value: &[u8], all: [(&str, T); N]) -> Option<T> {
    let mut all = all.into_iter();
    all.find_map(|(name, choice)| (name.as_bytes() == value).then_some(choice))
}

fn number<T: FromStr + PartialOrd>(value: &[u8], range: RangeInclusive<T>) -> Option<T> {
    let number = core::str::from_utf8(value).ok()?.parse().ok()?;
    range.contains(&number).then_some(number)
}

/// A number of bytes with an optional k, m or g behind it.
fn size(value: &[u8]) -> Option<usize> {
    let (digits, shift) = match value.split_last()? {
        (b'k' | b'K', digits) => (digits, 10),
        (b'm' | b'M', digits) => (digits, 20),
        (b'g' | b'G', digits) => (digits, 30),
        _ => (value, 0),
    };
    number(digits, 0..=usize::MAX >> shift).map(|count| count << shift)
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
