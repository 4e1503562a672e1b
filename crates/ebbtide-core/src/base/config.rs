//! Parses `EBBTIDE_CONF="key=value,…"`, once, at the first call.
//!
//! The environment is ignored in a program that runs with more rights than its caller. For an unknown key or a bad value,
//! one line is written to stderr, and the default stays.

use crate::base::message::Message;
use core::fmt::Display;
use ebbtide_interface::keys::{self, Setting, Value};
use ebbtide_sys::lockstat::Holds;

/// Most zones.
pub const MAX_ZONES: usize = keys::MAX_ZONES as usize;
/// Most workers.
pub const MAX_WORKERS: usize = keys::MAX_WORKERS as usize;
/// Most threads of the exit helper that release memory.
pub const MAX_TEARDOWN_WORKERS: usize = keys::MAX_TEARDOWN_WORKERS as usize;

/// Declares [`Config`], its defaults without `EBBTIDE_CONF`, and the effect of each setting, from one entry for
/// each key: `key => field: type = default`.
macro_rules! settings {
    ($($(#[$doc:meta])* $key:ident => $field:ident: $type:ty = $default:expr;)*) => {
        /// All settings.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Config {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Config {
            /// The settings without `EBBTIDE_CONF`.
            pub const DEFAULT: Self = Self { $($field: $default,)* };

            fn set(&mut self, setting: &Setting) {
                match setting.key.name {
                    $(stringify!($key) => self.$field = Read::from(setting.value),)*
                    _ => {}
                }
            }
        }
    };
}

// The meaning of each key is described in `ebbtide_interface::keys`.
settings! {
    /// Restartable sections where they work.
    rseq => rseq: bool = true;
    /// Runs of frames are taken as a whole or, for comparison, frame by frame.
    cluster => cluster: bool = true;
    /// Huge pages for the growth range.
    thp => thp: bool = true;
    /// Milliseconds for which the recent peak keeps memory.
    retain_ms => retain_ms: u32 = 1000;
    /// Most bytes kept for reuse. The recent peak is a further bound.
    retain_max => retain_max: usize = usize::MAX;
    /// Most threads that release memory beside the program; 0 leaves all releases to slow paths. Default: half the
    /// CPUs, 1 to 4 ([`AUTO`]).
    workers => workers: usize = AUTO;
    /// Most bytes kept beyond live memory.
    limit => limit: Limit = Limit::None;
    /// Limits and events are watched while there is memory to return.
    pressure => pressure: bool = true;
    /// Empty pages of half-used spans are released too.
    depopulate => depopulate: bool = true;
    /// Whether due frames become lazy before they become clean.
    lazyfree => lazyfree: LazyFree = LazyFree::Auto;
    /// Milliseconds that a frame stays lazy.
    lazy_ms => lazy_ms: u32 = 5000;
    /// Ranges are gathered and released many at a time or, for comparison, each with a call of its own.
    gather => gather: bool = true;
    /// Most frames of one gather, at least 512: the rest is another piece, for another worker.
    threshold => threshold: u32 = 256 << 10;
    /// Number of zones; 0 chooses by the number of CPUs.
    zones => zones: usize = 0;
    /// Bytes between two samples; 0: no sampling.
    profile => profile_rate: usize = 0;
    /// File for the profile at the end of the process, and at a signal.
    profile_dump => profile_dump: Dump = Dump::NONE;
    /// Only mmap, munmap, mprotect, madvise and futex.
    syscalls => basic_syscalls: bool = false;
    /// The `vfork` guard. Switching it off shows the fault that it prevents.
    vfork_guard => vfork_guard: bool = true;
    /// Whether memory is returned after the program's end, beside its parent. Otherwise the kernel returns it
    /// before the parent sees the end.
    exit => exit_detached: bool = false;
    /// A process of this many bytes or more gets an exit helper.
    exit_threshold => exit_threshold: usize = 256 << 20;
    /// Threads of the helper while memory is not short. Default: as many as CPUs, 1 to 4 ([`AUTO`]). They run only
    /// on idle CPUs.
    teardown_workers => teardown_workers: usize = AUTO;
    /// Empty pages of per-CPU data are released; otherwise only whole chunks are.
    percpu_depopulate => percpu_depopulate: bool = true;
    /// Least number of copies of per-CPU data; the number of possible CPUs if that is more.
    percpu_units => percpu_units: usize = 1;
    /// Statistics of lock costs, and the clock for hold times.
    lockstat => lockstat: Option<Holds> = None;
    /// Heap misuse is found at once or soon: see `harden`.
    harden => harden: bool = false;
    /// One allocation of so many is guarded; 0: none.
    guard => guard: u32 = 0;
    /// Guard pages are used where the kernel has them.
    guard_pages => guard_pages: bool = true;
    /// `RTLD_DEEPBIND` is kept when a library is opened with it.
    deepbind => deepbind_kept: bool = false;
    /// Directory for one statistics file per process.
    stats_dir => stats_dir: Path = Path::EMPTY;
    /// Also short and small processes make that file, and none removes it.
    pages => all_pages: bool = false;
}

/// Parses a field of [`Config`] from a value of its key's kind.
trait Read {
    fn from(value: Value) -> Self;
}

/// The first of the two words means yes.
impl Read for bool {
    fn from(value: Value) -> Self {
        value == Value::Word(0)
    }
}

impl Read for u32 {
    fn from(value: Value) -> Self {
        <usize as Read>::from(value) as u32
    }
}

impl Read for usize {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => number as usize,
            _ => 0,
        }
    }
}

impl Read for LazyFree {
    fn from(value: Value) -> Self {
        match value {
            Value::Word(1) => Self::Off,
            Value::Word(2) => Self::Always,
            _ => Self::Auto,
        }
    }
}

impl Read for Option<Holds> {
    fn from(value: Value) -> Self {
        match value {
            Value::Word(1) => Some(Holds::Wall),
            Value::Word(2) => Some(Holds::Cpu),
            _ => None,
        }
    }
}

impl Read for Limit {
    fn from(value: Value) -> Self {
        match value {
            Value::Percent(percent) => Self::Percent(percent as u32),
            Value::Number(bytes) => Self::Bytes(bytes as usize),
            _ => Self::None,
        }
    }
}

impl Read for Path {
    fn from(value: Value) -> Self {
        let mut path = Self::EMPTY;
        if let Value::Path(text) = value {
            path.bytes[..text.len()].copy_from_slice(text);
            path.len = text.len();
        }
        path
    }
}

impl Read for Dump {
    fn from(value: Value) -> Self {
        match value {
            Value::Dump(path, signal) => Self {
                path: Read::from(Value::Path(path)),
                signal,
            },
            _ => Self::NONE,
        }
    }
}

/// See [`Config::lazyfree`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LazyFree {
    /// In zones whose frames are often reused soon.
    Auto,
    /// Never.
    Off,
    /// Wherever possible.
    Always,
}

/// The user's bound on the memory kept beyond live memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// No bound beside the rest of the configuration.
    None,
    /// This many bytes.
    Bytes(usize),
    /// A percentage of the smallest limit of the memory cgroups, at most of RAM.
    Percent(u32),
}

impl Limit {
    /// The bound in bytes. A percentage applies to `total`.
    pub fn bytes_of(self, total: u64) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes(bytes) => Some(bytes as u64),
            Self::Percent(percent) => Some(total / 100 * u64::from(percent)),
        }
    }
}

/// Value of [`Config::workers`] that chooses by the number of CPUs.
pub const AUTO: usize = usize::MAX;

/// A short path, kept without allocating.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    bytes: [u8; keys::MAX_PATH_BYTES],
    len: usize,
}

impl Path {
    const EMPTY: Self = Self {
        bytes: [0; keys::MAX_PATH_BYTES],
        len: 0,
    };

    /// The path, empty when none was set.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// See [`Config::profile_dump`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dump {
    /// The file; empty when none was set.
    pub path: Path,
    /// The number of the signal, or 0.
    pub signal: u8,
}

impl Dump {
    const NONE: Self = Self {
        path: Path::EMPTY,
        signal: 0,
    };
}

impl Config {
    /// Reads the variable of this process.
    pub fn from_environment() -> Self {
        if ebbtide_sys::process::is_secure() {
            return Self::DEFAULT;
        }
        let parsed = ebbtide_sys::process::environment(b"EBBTIDE_CONF", |text| {
            Self::parse(text, |item, problem| complaint(item, problem).write())
        });
        parsed.unwrap_or(Self::DEFAULT)
    }

    /// Parses `text`, and calls `complain` for each item that has no effect.
    pub fn parse(text: &[u8], mut complain: impl FnMut(&[u8], &dyn Display)) -> Self {
        const NO_CALLS: &str = "not possible with syscalls=basic";
        let mut config = Self::DEFAULT;
        for item in keys::items(text) {
            match keys::read(item) {
                Ok(setting) => config.set(&setting),
                Err(problem) => complain(item, &problem),
            }
        }
        if config.basic_syscalls {
            let mut refuse = |is_set: bool, item: &str| {
                if is_set {
                    complain(item.as_bytes(), &NO_CALLS);
                }
            };
            refuse(![0, AUTO].contains(&config.workers), "workers");
            refuse(config.exit_detached, "exit=detached");
            refuse(config.guard > 0, "guard");
            (config.workers, config.exit_detached, config.guard) = (0, false, 0);
            refuse(config.profile_dump != Dump::NONE, "profile_dump");
            config.profile_dump = Dump::NONE;
        }
        config
    }
}

/// Builds the message about an item. A long item is cut, the reason never is.
fn complaint(item: &[u8], problem: &dyn Display) -> Message {
    const MOST_BYTES: usize = 64;
    let shown = &item[..item.len().min(MOST_BYTES)];
    let cut = if shown == item { "" } else { "..." };
    Message::new()
        .text("EBBTIDE_CONF: \"")
        .bytes(shown)
        .text(cut)
        .text("\" is ignored: ")
        .display(problem)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn parse(text: &str) -> (Config, Vec<String>) {
        let mut complaints = Vec::new();
        let config = Config::parse(text.as_bytes(), |item, problem| {
            complaints.push(std::format!("{}: {problem}", String::from_utf8_lossy(item)));
        });
        (config, complaints)
    }

    #[test]
    fn keys_and_values() {
        let (config, complaints) =
            parse(" rseq=off, dev=zones:3,dev=retain_max:64m,stats_dir=/tmp/x ,syscalls=basic,");
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
            assert_eq!(complaints, ["workers: not possible with syscalls=basic"]);
        }
        let (config, complaints) = parse("exit=detached,syscalls=basic");
        assert!(!config.exit_detached);
        assert_eq!(
            complaints,
            ["exit=detached: not possible with syscalls=basic"]
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
        let line = complaint(&[b'x'; 1000], &keys::Problem::UnknownKey);
        let shown = String::from_utf8_lossy(line.shown());
        let users = keys::KEYS.iter().filter(|key| !key.is_dev);
        assert!(
            users.into_iter().all(|key| shown.contains(key.name)),
            "{shown}"
        );
    }

    /// Each key has a field that takes it, and the table shows the field's default, except where the table
    /// describes the default in words.
    #[test]
    fn each_key_is_taken_and_has_its_default() {
        const IN_WORDS: [&str; 8] = [
            "profile_dump",
            "limit",
            "workers",
            "stats_dir",
            "retain_max",
            "zones",
            "teardown_workers",
            "percpu_units",
        ];
        for key in keys::KEYS {
            let (before, between) = key.prefix();
            let item = |value: &str| std::format!("{before}{}{between}{value}", key.name);
            let (config, complaints) = parse(&item(key.default));
            let is_value = complaints.is_empty();
            assert_eq!(config, Config::DEFAULT, "{}", key.name);
            assert_eq!(is_value, !IN_WORDS.contains(&key.name), "{}", key.name);
            let other = match key.kind {
                keys::Kind::Word(words) => words
                    .iter()
                    .copied()
                    .find(|&word| word != key.default)
                    .unwrap(),
                keys::Kind::Path | keys::Kind::Dump => "/tmp",
                _ => "7",
            };
            assert_ne!(parse(&item(other)).0, Config::DEFAULT, "{}", key.name);
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
            "rsek=on,rseq=maybe,exit_threshold=1t,zones=3,retain_ms=-1,stats_dir=here,thp,lazyfree=on",
        );
        assert_eq!(config, Config::DEFAULT);
        assert_eq!(complaints.len(), 8);
        assert!(complaints[0].starts_with("rsek=on: unknown key; the keys are retain_ms"));
        assert_eq!(complaints[1], "rseq=maybe: bad value; rseq takes on|off");
        assert!(complaints[3].ends_with("write dev=zones:VALUE"));
    }
}
