//! The keys of `EBBTIDE_CONF`: name, values, default and meaning of each, in one table, and the reader of an item.
//!
//! `EBBTIDE_CONF` is a list of items with commas between them. An item is `key=value`, or `dev=key:value` for a comparison switch that is for
//! developers only. The library and the program `ebbtide` read it with the same functions.

use core::fmt;

/// What values a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of the listed words.
    Word(&'static [&'static str]),
    /// A whole number within these bounds.
    Number(u64, u64),
    /// Bytes, with an optional suffix K, M or G (powers of 1,024).
    Size,
    /// Bytes as in `Size`, or a number up to 100 with a % behind it.
    SizeOrPercent,
    /// One of so many allocations: `off` is 0, `on` is [`GUARD_RATE`], `all` is 1.
    OneOf,
    /// Bytes between two samples: as in `Size`, from 1 to [`MAX_RATE`]; `on` is [`RATE`], `off` is 0.
    Rate,
    /// An absolute path without a comma.
    Path,
    /// Such a path, and perhaps `@` and a signal of [`SIGNALS`] or [`FREE_SIGNALS`] behind it.
    Dump,
}

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The place of the word in the list of [`Kind::Word`].
    Word(usize),
    /// A number, or bytes.
    Number(u64),
    /// Hundredths.
    Percent(u64),
    /// A path.
    Path(&'a [u8]),
    /// A path, and the number of a signal or 0.
    Dump(&'a [u8], u8),
}

/// One of so many allocations is guarded with `guard=on`.
pub const GUARD_RATE: u64 = 5000;
/// Bytes between two samples on average, if the user does not say.
pub const RATE: u64 = 512 << 10;
/// The most bytes between two samples.
pub const MAX_RATE: u64 = 1 << 40;
/// The longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 199;

/// Signals for [`Kind::Dump`], with the numbers that all supported processors have.
pub const SIGNALS: [(&str, u8); 8] = [
    ("HUP", 1),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("URG", 23),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
];
/// Real-time signals that C libraries leave to programs.
pub const FREE_SIGNALS: core::ops::RangeInclusive<u64> = 35..=64;

impl Kind {
    /// Reads a value. `None`: it is none of this kind.
    pub fn read(self, text: &[u8]) -> Option<Value<'_>> {
        match self {
            Kind::Word(words) => {
                let place = words.iter().position(|word| word.as_bytes() == text);
                place.map(Value::Word)
            }
            Kind::Number(low, high) => number(text)
                .filter(|number| (low..=high).contains(number))
                .map(Value::Number),
            Kind::Size => size(text).map(Value::Number),
            Kind::SizeOrPercent => match text.strip_suffix(b"%") {
                Some(digits) => number(digits)
                    .filter(|&percent| percent <= 100)
                    .map(Value::Percent),
                None => size(text).map(Value::Number),
            },
            Kind::OneOf => match text {
                b"off" => Some(0),
                b"on" => Some(GUARD_RATE),
                b"all" => Some(1),
                _ => number(text).filter(|&number| (1..=u64::from(u32::MAX)).contains(&number)),
            }
            .map(Value::Number),
            Kind::Rate => match text {
                b"off" => Some(0),
                b"on" => Some(RATE),
                _ => size(text).filter(|rate| (1..=MAX_RATE).contains(rate)),
            }
            .map(Value::Number),
            Kind::Path => is_path(text).then_some(Value::Path(text)),
            Kind::Dump => {
                let (path, signal) = dump(text)?;
                is_path(path).then_some(Value::Dump(path, signal))
            }
        }
    }
}

/// As in a usage line: `on|off`, `N`, `SIZE`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Word(words) => {
                let (first, others) = words.split_first().ok_or(fmt::Error)?;
                f.write_str(first)?;
                others.iter().try_for_each(|word| write!(f, "|{word}"))
            }
            Kind::Number(..) => f.write_str("N"),
            Kind::Size => f.write_str("SIZE"),
            Kind::SizeOrPercent => f.write_str("SIZE|PERCENT%"),
            Kind::OneOf => f.write_str("off|on|all|N"),
            Kind::Rate => f.write_str("off|on|SIZE"),
            Kind::Path => f.write_str("/PATH"),
            Kind::Dump => f.write_str("/PATH[@SIGNAL]"),
        }
    }
}

fn is_path(text: &[u8]) -> bool {
    text.starts_with(b"/") && text.len() <= MAX_PATH_BYTES
}

/// Splits a path from a signal. Behind the last `@`, a word of capital letters and digits is a signal; all else is a part of the path.
fn dump(text: &[u8]) -> Option<(&[u8], u8)> {
    let Some(at) = text.iter().rposition(|&byte| byte == b'@') else {
        return Some((text, 0));
    };
    let (path, name) = (&text[..at], &text[at + 1..]);
    let is_word = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    if name.is_empty() || !name.iter().all(is_word) {
        return Some((text, 0));
    }
    let short = name.strip_prefix(b"SIG").unwrap_or(name);
    let named = SIGNALS.iter().find(|(known, _)| known.as_bytes() == short);
    let free = || number(name).filter(|number| FREE_SIGNALS.contains(number));
    let signal = named.map(|&(_, signal)| signal);
    Some((path, signal.or_else(|| free().map(|number| number as u8))?))
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let text = core::str::from_utf8(text).ok().filter(|_| digits)?;
    text.parse().ok()
}

/// A number of bytes with an optional K, M or G behind it, such as `64M`. `None`: it is not one, or does not fit.
pub fn size(text: &[u8]) -> Option<u64> {
    let (digits, shift) = match text.split_last()? {
        (b'k' | b'K', digits) => (digits, 10),
        (b'm' | b'M', digits) => (digits, 20),
        (b'g' | b'G', digits) => (digits, 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// The value that holds without it; in words where it depends on the machine.
    pub default: &'static str,
    /// What it does, without the last full stop.
    pub meaning: &'static str,
    /// A comparison switch, behind `dev=`.
    pub is_dev: bool,
}

impl Key {
    const fn user(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            meaning,
            is_dev: false,
        }
    }

    const fn dev(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self {
            is_dev: true,
            ..Self::user(name, kind, default, meaning)
        }
    }

    /// What stands before the value in an item.
    pub fn prefix(&self) -> (&'static str, &'static str) {
        if self.is_dev {
            ("dev=", ":")
        } else {
            ("", "=")
        }
    }
}

const ON_OFF: Kind = Kind::Word(&["on", "off"]);
const HOUR_MS: u64 = 3_600_000;
/// Zones at most.
pub const MAX_ZONES: u64 = 64;
/// Workers at most.
pub const MAX_WORKERS: u64 = 64;
/// Threads of the exit helper at most.
pub const MAX_TEARDOWN_WORKERS: u64 = 16;

/// All keys, those for users first.
pub const KEYS: &[Key] = &[
    Key::user(
        "retain_ms",
        Kind::Number(0, HOUR_MS),
        "1000",
        "Milliseconds for which a recent peak keeps freed memory for reuse, at most 3600000. With 0, nothing is kept, and large allocations are returned when they are freed",
    ),
    Key::user(
        "limit",
        Kind::SizeOrPercent,
        "no bound",
        "Soft bound on all memory kept beyond live memory: free frames, empty pages of spans, caches. A percentage is of the smallest limit of the process's memory cgroups, or of RAM if RAM is smaller",
    ),
    Key::user(
        "workers",
        Kind::Number(0, MAX_WORKERS),
        "half the CPUs, 1 to 4",
        "Threads that return memory beside the program: at most 64, and never more at once than CPUs. With 0, slow paths of the program do all of it",
    ),
    Key::user(
        "pressure",
        ON_OFF,
        "on",
        "Watches limits and memory pressure while there is memory to return",
    ),
    Key::user(
        "lazyfree",
        Kind::Word(&["auto", "off", "always"]),
        "auto",
        "Memory that is no longer kept becomes lazy (MADV_FREE) before it is released. auto: only where memory is soon wanted again; always: everywhere; off: never",
    ),
    Key::user(
        "thp",
        ON_OFF,
        "on",
        "Asks for huge pages, except in the first 16 MiB of a zone",
    ),
    Key::user(
        "exit",
        Kind::Word(&["detached", "inline"]),
        "inline",
        "detached: the parent's wait returns at once when a large process ends. A helper process returns the memory afterwards",
    ),
    Key::user(
        "exit_threshold",
        Kind::Size,
        "256M",
        "Processes of at least this size have the helper of exit=detached",
    ),
    Key::user(
        "harden",
        ON_OFF,
        "off",
        "Finds double frees and short overflows at once, and writes after a free soon",
    ),
    Key::user(
        "guard",
        Kind::OneOf,
        "off",
        "Puts one of so many allocations between pages without access, and reports misuse of it with stacks. on: one of 5000; all: each, for tests",
    ),
    Key::user(
        "stats_dir",
        Kind::Path,
        "none",
        "Directory in which each process keeps a page of figures while it runs, PID.ebb, for ebbtide top",
    ),
    Key::user(
        "profile",
        Kind::Rate,
        "off",
        "Samples allocations for ebbtide profile: one for this many allocated bytes on average; on: 512K; 1: each of them",
    ),
    Key::user(
        "profile_dump",
        Kind::Dump,
        "none",
        "File to which a process writes its profile when it ends, and at each signal of a kind if one is named, as in /PATH@USR2; %p is the number of the process",
    ),
    Key::user(
        "syscalls",
        Kind::Word(&["basic", "all"]),
        "all",
        "basic: after the start only mmap, munmap, mprotect, madvise and futex; with stats_dir also the calls that write its file. Implies rseq=off and workers=0",
    ),
    Key::user(
        "rseq",
        ON_OFF,
        "on",
        "Per-CPU caches by restartable sequences. off: the portable mode, with locks",
    ),
    Key::user(
        "deepbind",
        Kind::Word(&["keep", "drop"]),
        "drop",
        "drop: dlopen ignores RTLD_DEEPBIND, so such libraries (PHP's extensions) share the program's malloc. keep: such a library uses the C library's malloc",
    ),
    Key::dev(
        "retain_max",
        Kind::Size,
        "no bound",
        "Largest amount of freed memory that a zone keeps for reuse, whatever its peak was",
    ),
    Key::dev(
        "lazy_ms",
        Kind::Number(0, HOUR_MS),
        "5000",
        "Milliseconds that memory stays lazy, at most 3600000",
    ),
    Key::dev(
        "gather",
        Kind::Word(&["batched", "inline"]),
        "batched",
        "inline: one system call for each range",
    ),
    Key::dev(
        "threshold",
        Kind::Number(1, u32::MAX as u64),
        "262144",
        "Most frames in one piece of work, at least 512. A larger release is split among workers",
    ),
    Key::dev(
        "cluster",
        ON_OFF,
        "on",
        "Takes runs of frames whole. off: frame by frame",
    ),
    Key::dev(
        "depopulate",
        ON_OFF,
        "on",
        "Returns empty pages of half-used spans",
    ),
    Key::dev(
        "zones",
        Kind::Number(1, MAX_ZONES),
        "one for four CPUs",
        "Number of zones, each with its own lock, 1 to 64",
    ),
    Key::dev(
        "vfork_guard",
        ON_OFF,
        "on",
        "Keeps vfork children off the per-CPU caches. off shows what the guard prevents",
    ),
    Key::dev(
        "teardown_workers",
        Kind::Number(1, MAX_TEARDOWN_WORKERS),
        "the CPUs, 1 to 4",
        "Threads of the exit helper while memory is not short, at most 16",
    ),
    Key::dev(
        "percpu_depopulate",
        ON_OFF,
        "on",
        "Returns empty pages of per-CPU data. off returns only whole chunks",
    ),
    Key::dev(
        "percpu_units",
        Kind::Number(1, 1024),
        "the CPUs",
        "Lower bound for the number of copies of per-CPU data, 1 to 1024",
    ),
    Key::dev(
        "guard_pages",
        ON_OFF,
        "on",
        "With harden=on, closes pages without mappings (Linux 6.13). off: as before Linux 6.13",
    ),
    Key::dev(
        "pages",
        Kind::Word(&["all", "live"]),
        "live",
        "all: each process makes its statistics page at once and leaves it behind. live: from 1 s or 16 MiB on, and until it ends",
    ),
    Key::dev(
        "lockstat",
        Kind::Word(&["off", "on", "cpu"]),
        "off",
        "Records what locks cost, for ebbtide run -v and malloc_stats. cpu: hold times by CPU time",
    ),
];

/// The key of that name.
pub fn key(name: &[u8]) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name.as_bytes() == name)
}

/// An item that was read.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Its key.
    pub key: &'static Key,
    /// The value as it was written.
    pub text: &'a [u8],
    /// The value.
    pub value: Value<'a>,
}

/// Why an item has no effect. `Display` is the reason with its remedy, without the item and a full stop.
#[derive(Clone, Copy, Debug)]
pub enum Problem {
    /// There is no such key.
    UnknownKey,
    /// The key does not take this value.
    BadValue(&'static Key),
    /// A comparison switch without `dev=` before it.
    NeedsDev(&'static Key),
    /// A key for users behind `dev=`.
    NeedsNoDev(&'static Key),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::UnknownKey => {
                f.write_str("unknown key; the keys are")?;
                let mut users = KEYS.iter().filter(|key| !key.is_dev);
                users.try_for_each(|key| write!(f, " {}", key.name))
            }
            Problem::BadValue(key) => {
                write!(f, "bad value; {} takes ", key.name)?;
                match key.kind {
                    Kind::Word(_) => write!(f, "{}", key.kind),
                    Kind::Number(low, high) => write!(f, "a whole number from {low} to {high}"),
                    Kind::Size => f.write_str("bytes, also with K, M or G behind, such as 64M"),
                    Kind::SizeOrPercent => {
                        f.write_str("bytes, also with K, M or G behind, such as 64M, or up to 100%")
                    }
                    Kind::OneOf => f.write_str("on, off, all, or a whole number from 1 on"),
                    Kind::Rate => {
                        f.write_str("on, off, or bytes, also with K, M or G behind, such as 64K")
                    }
                    Kind::Path => write!(f, "an absolute path of at most {MAX_PATH_BYTES} bytes"),
                    Kind::Dump => {
                        write!(
                            f,
                            "an absolute path of at most {MAX_PATH_BYTES} bytes, also with @ and a signal behind:"
                        )?;
                        SIGNALS
                            .iter()
                            .try_for_each(|(name, _)| write!(f, " {name}"))?;
                        let (first, last) = (FREE_SIGNALS.start(), FREE_SIGNALS.end());
                        write!(f, ", or {first} to {last}")
                    }
                }
            }
            Problem::NeedsDev(key) => {
                write!(f, "a switch for developers; write dev={}:VALUE", key.name)
            }
            Problem::NeedsNoDev(key) => {
                write!(f, "no switch for developers; write {}=VALUE", key.name)
            }
        }
    }
}

/// Splits a text into its items, without blanks around them.
pub fn items(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

/// Reads an item. The work is in proportion to its length and the number of keys.
pub fn read(item: &[u8]) -> Result<Setting<'_>, Problem> {
    let (is_dev, rest) = match item.strip_prefix(b"dev=") {
        Some(rest) => (true, rest),
        None => (false, item),
    };
    let separator = if is_dev { b':' } else { b'=' };
    let split = rest.iter().position(|&byte| byte == separator);
    let (name, text) = split.map_or((rest, &b""[..]), |at| (&rest[..at], &rest[at + 1..]));
    let (name, text) = (name.trim_ascii(), text.trim_ascii());
    let key = key(name).ok_or(Problem::UnknownKey)?;
    if key.is_dev != is_dev {
        return Err(if is_dev {
            Problem::NeedsNoDev(key)
        } else {
            Problem::NeedsDev(key)
        });
    }
    let value = key.kind.read(text).ok_or(Problem::BadValue(key))?;
    Ok(Setting { key, text, value })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn values_of_each_kind() {
        let read = |name: &str, text: &str| {
            key(name.as_bytes())
                .unwrap()
                .kind
                .read(text.as_bytes())
                .map(|v| std::format!("{v:?}"))
        };
        let is = |name, text, value: Value| {
            assert_eq!(
                read(name, text),
                Some(std::format!("{value:?}")),
                "{name}={text}"
            )
        };
        is("rseq", "off", Value::Word(1));
        is("retain_ms", "3600000", Value::Number(3_600_000));
        is("exit_threshold", "3g", Value::Number(3 << 30));
        is("exit_threshold", "4K", Value::Number(4096));
        is("limit", "64m", Value::Number(64 << 20));
        is("limit", "100%", Value::Percent(100));
        is("guard", "off", Value::Number(0));
        is("guard", "on", Value::Number(GUARD_RATE));
        is("guard", "all", Value::Number(1));
        is("guard", "300", Value::Number(300));
        is("profile", "off", Value::Number(0));
        is("profile", "on", Value::Number(RATE));
        is("profile", "1", Value::Number(1));
        is("profile", "64k", Value::Number(64 << 10));
        is("stats_dir", "/tmp", Value::Path(b"/tmp"));
        for (text, path, signal) in [
            ("/tmp", "/tmp", 0),
            ("/a/%p@USR2", "/a/%p", 12),
            ("/a@SIGHUP", "/a", 1),
            ("/a@b@35", "/a@b", 35),
            ("/a@b", "/a@b", 0),
            ("/a@USR2/%p", "/a@USR2/%p", 0),
            ("/a@", "/a@", 0),
        ] {
            is("profile_dump", text, Value::Dump(path.as_bytes(), signal));
        }
        let long = std::format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for (name, text) in [
            ("rseq", "maybe"),
            ("rseq", ""),
            ("retain_ms", "3600001"),
            ("retain_ms", "-1"),
            ("retain_ms", "+1"),
            ("retain_ms", ""),
            ("retain_ms", "99999999999999999999"),
            ("exit_threshold", "12Q"),
            ("exit_threshold", "99999999999G"),
            ("exit_threshold", "K"),
            ("exit_threshold", ""),
            ("limit", "101%"),
            ("limit", "%"),
            ("guard", "0"),
            ("guard", "4294967296"),
            ("guard", ""),
            ("profile", "0"),
            ("profile", "1025G"),
            ("profile", ""),
            ("profile_dump", "/a@USR3"),
            ("profile_dump", "/a@KILL"),
            ("profile_dump", "/a@34"),
            ("profile_dump", "/a@65"),
            ("profile_dump", "@USR2"),
            ("stats_dir", "here"),
            ("stats_dir", &long),
        ] {
            assert_eq!(read(name, text), None, "{name}={text}");
        }
    }

    #[test]
    fn items_are_read_or_say_why_not() {
        let all: std::vec::Vec<_> = items(b" rseq=off,, dev=zones:3 ,").map(read).collect();
        let [Ok(rseq), Ok(zones)] = all[..] else {
            panic!("{all:?}");
        };
        assert_eq!((rseq.key.name, rseq.text), ("rseq", &b"off"[..]));
        assert_eq!((zones.key.name, zones.value), ("zones", Value::Number(3)));
        assert!(matches!(read(b"zones=3"), Err(Problem::NeedsDev(_))));
        assert!(matches!(read(b"dev=rseq:on"), Err(Problem::NeedsNoDev(_))));
        assert!(matches!(read(b"dev=zones=3"), Err(Problem::UnknownKey)));
        assert!(matches!(read(b"rsek=on"), Err(Problem::UnknownKey)));
        assert!(matches!(read(b"thp"), Err(Problem::BadValue(key)) if key.name == "thp"));
    }

    /// The tables of docs/configuration.md are this table.
    #[test]
    fn the_page_has_the_same_keys() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = std::fs::read_to_string(path).expect("docs/configuration.md");
        let (_, tables) = page.split_once("<!-- keys -->").expect("the mark");
        let (tables, _) = tables.split_once("<!-- /keys -->").expect("the mark");
        let rows = tables.lines().filter(|line| line.starts_with("| `"));
        let rows: std::vec::Vec<_> = rows.map(ToString::to_string).collect();
        let table = KEYS.iter().map(|key| {
            let (before, between) = key.prefix();
            let kind = key.kind.to_string().replace('|', "\\|");
            let (name, default, meaning) = (key.name, key.default, key.meaning);
            std::format!("| `{before}{name}{between}{kind}` | {default} | {meaning}. |")
        });
        let table: std::vec::Vec<_> = table.collect();
        assert_eq!(rows, table, "the page should have:\n{}", table.join("\n"));
    }

    #[test]
    fn names_are_unique_and_words_are_shown() {
        for (at, one) in KEYS.iter().enumerate() {
            assert!(KEYS[at + 1..].iter().all(|other| other.name != one.name));
            assert!(!one.meaning.ends_with('.'));
        }
        assert_eq!(Kind::Word(&["a", "b"]).to_string(), "a|b");
    }
}
