//! The keys of `EBBTIDE_CONF`: one table, from which the check, the help text
//! and the manual page come.
//!
//! The library has its own reader of the same keys (`ebbtide::config`), which
//! allocates nothing; what is accepted here, it accepts.
//!
//! Invariants:
//! - `INV-CONF-1`: a text that [`Conf::parse`] accepts holds only keys of
//!   [`KEYS`], each with a value of its kind, each at most once.
//! - `INV-CONF-2`: [`Conf`]'s `Display` gives a text that parses to the same `Conf`.

use std::env;
use std::fmt;

use anyhow::{Context, Result, bail};

/// Environment variable that holds the library's configuration.
pub const ENV: &str = "EBBTIDE_CONF";

/// The environment's configuration with that of the flags on top.
pub fn merged(given: &[String]) -> Result<Conf> {
    let base = match env::var_os(ENV) {
        Some(text) => Conf::parse(&text.to_string_lossy()).with_context(|| {
            format!("in the environment variable {ENV} (correct it, or unset it)")
        })?,
        None => Conf::default(),
    };
    Ok(base.overlaid(&Conf::parse(&given.join(",")).context("--conf")?))
}

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
    /// An absolute path without a comma.
    Path,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Word(words) => f.write_str(&words.join("|")),
            Kind::Number(..) => f.write_str("N"),
            Kind::Size => f.write_str("SIZE"),
            Kind::SizeOrPercent => f.write_str("SIZE|PERCENT%"),
            Kind::Path => f.write_str("/PATH"),
        }
    }
}

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// Its name, as written before the `=`.
    pub name: &'static str,
    /// The values it takes.
    pub kind: Kind,
    /// One line for the help text.
    pub help: &'static str,
}

/// The library keeps at most so much of a path.
const MAX_PATH_BYTES: usize = 199;

/// The library has at most so many zones.
const MAX_ZONES: u64 = 64;

const ON_OFF: Kind = Kind::Word(&["on", "off"]);

/// Every key that the library knows.
pub const KEYS: &[Key] = &[
    Key {
        name: "rseq",
        kind: ON_OFF,
        help: "per-CPU caches by restartable sequences; off: the portable model under locks",
    },
    Key {
        name: "cluster",
        kind: ON_OFF,
        help: "refill by clusters of 64 frames; off: frame by frame",
    },
    Key {
        name: "thp",
        kind: ON_OFF,
        help: "ask for transparent huge pages in the growth range",
    },
    Key {
        name: "retain_ms",
        kind: Kind::Number(0, 3_600_000),
        help: "window, in milliseconds, over which recent peaks keep freed memory",
    },
    Key {
        name: "retain_max",
        kind: Kind::Size,
        help: "most freed memory to keep for reuse",
    },
    Key {
        name: "workers",
        kind: Kind::Number(0, 64),
        help: "most threads that give memory back in the background; 0: none",
    },
    Key {
        name: "limit",
        kind: Kind::SizeOrPercent,
        help: "most memory to keep beyond what is live; %: of the smallest limit of its memory cgroups, at most of RAM",
    },
    Key {
        name: "pressure",
        kind: ON_OFF,
        help: "watch limits and memory pressure while there is memory to give",
    },
    Key {
        name: "gather",
        kind: Kind::Word(&["batched", "inline"]),
        help: "collect ranges and release them together; inline: one by one, at once",
    },
    Key {
        name: "threshold",
        kind: Kind::Number(1, u32::MAX as u64),
        help: "frames that are handed to a worker at a time",
    },
    Key {
        name: "depopulate",
        kind: ON_OFF,
        help: "give back the empty pages of spans that are still in use",
    },
    Key {
        name: "lazyfree",
        kind: Kind::Word(&["auto", "off", "always"]),
        help: "make due memory lazy (MADV_FREE) before it is released; auto: where it is wanted again soon",
    },
    Key {
        name: "lazy_ms",
        kind: Kind::Number(0, 3_600_000),
        help: "milliseconds that memory stays lazy before it is released",
    },
    Key {
        name: "zones",
        kind: Kind::Number(1, MAX_ZONES),
        help: "number of zones (lock domains)",
    },
    Key {
        name: "syscalls",
        kind: Kind::Word(&["all", "basic"]),
        help: "basic: only mmap, munmap, mprotect, madvise and futex (for sandboxes)",
    },
    Key {
        name: "vfork_guard",
        kind: ON_OFF,
        help: "keep vfork children off the per-CPU caches; off shows what it prevents",
    },
    Key {
        name: "exit",
        kind: Kind::Word(&["detached", "inline"]),
        help: "detached: the end of a large process is seen at once, a helper takes its memory back after it",
    },
    Key {
        name: "exit_threshold",
        kind: Kind::Size,
        help: "from this size on a process has such a helper",
    },
    Key {
        name: "teardown_workers",
        kind: Kind::Number(1, 16),
        help: "threads of the helper while memory is not short",
    },
    Key {
        name: "percpu_depopulate",
        kind: ON_OFF,
        help: "give back the empty pages of per-CPU data; off gives only whole chunks back",
    },
    Key {
        name: "percpu_units",
        kind: Kind::Number(1, 1024),
        help: "copies of per-CPU data at least; more than there are CPUs is for measurements",
    },
    Key {
        name: "lockstat",
        kind: Kind::Word(&["off", "on", "cpu"]),
        help: "figures of what locks cost; cpu: holds by CPU time instead of by the wall",
    },
    Key {
        name: "harden",
        kind: ON_OFF,
        help: "find double frees, writes after free and short overflows at once or soon, and stop the program",
    },
    Key {
        name: "deepbind",
        kind: Kind::Word(&["drop", "keep"]),
        help: "drop: libraries opened with RTLD_DEEPBIND (PHP's extensions) are opened without it, and share the program's malloc",
    },
    Key {
        name: "stats_dir",
        kind: Kind::Path,
        help: "directory in which each process keeps a statistics page, PID.ebb",
    },
];

/// What fits a manual page, and help, in a terminal of 80 columns.
const TABLE_WIDTH: usize = 72;

/// The table of keys as text, one line a key.
pub fn key_table() -> String {
    let forms: Vec<String> = KEYS
        .iter()
        .map(|k| format!("{}={}", k.name, k.kind))
        .collect();
    let width = forms.iter().map(String::len).max().unwrap_or(0);
    let mut out = String::from("Configuration keys (--conf KEY=VALUE,… or EBBTIDE_CONF):\n");
    for (form, key) in forms.iter().zip(KEYS) {
        let mut form = form.as_str();
        for line in lines(key.help, TABLE_WIDTH - width - 4) {
            out.push_str(&format!("  {form:width$}  {line}\n"));
            form = "";
        }
    }
    out
}

/// The words of a text in lines of at most `width` characters, longer words in lines of their own.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// A checked configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    pairs: Vec<(&'static str, String)>,
}

impl Conf {
    /// Parses `key=value,…`; the error names the remedy.
    pub fn parse(text: &str) -> Result<Self> {
        let mut conf = Conf::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let Some((name, value)) = item.split_once('=') else {
                bail!("configuration item '{item}' has no '='; write it as key=value");
            };
            let key = find_key(name.trim())?;
            let value = value.trim();
            check_value(key.kind, value)
                .with_context(|| format!("bad value '{value}' for configuration key '{name}'"))?;
            conf.set(key.name, value);
        }
        Ok(conf)
    }

    /// Sets a key, replacing an earlier value.
    pub fn set(&mut self, name: &'static str, value: &str) {
        debug_assert!(KEYS.iter().any(|k| k.name == name));
        self.pairs.retain(|(n, _)| *n != name);
        self.pairs.push((name, value.to_owned()));
    }

    /// The value of a key, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| v.as_str())
    }

    /// This configuration with `over` laid on top.
    pub fn overlaid(mut self, over: &Conf) -> Conf {
        for (name, value) in &over.pairs {
            self.set(name, value);
        }
        self
    }
}

impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.pairs.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

/// Parses a size such as `64M`; `None` if it is not one or does not fit.
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn find_key(name: &str) -> Result<&'static Key> {
    if let Some(key) = KEYS.iter().find(|k| k.name == name) {
        return Ok(key);
    }
    let mut near: Vec<(f64, &str)> = KEYS
        .iter()
        .map(|k| (strsim::jaro_winkler(&name.to_lowercase(), k.name), k.name))
        .filter(|(score, _)| *score > 0.75)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<&str> = near.into_iter().take(2).map(|(_, n)| n).collect();
    let all: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
    let hint = if near.is_empty() {
        String::new()
    } else {
        format!("; did you mean '{}'", near.join("' or '"))
    };
    bail!(
        "unknown configuration key '{name}'{hint}; the keys are: {}",
        all.join(", ")
    )
}

fn check_value(kind: Kind, value: &str) -> Result<()> {
    match kind {
        Kind::Word(words) if !words.contains(&value) => {
            bail!("it takes one of: {}", words.join(", "))
        }
        Kind::Number(low, high) => match number(value) {
            Some(n) if (low..=high).contains(&n) => Ok(()),
            _ => bail!("it takes a whole number from {low} to {high}"),
        },
        Kind::Size if parse_size(value).is_none() => {
            bail!("it takes bytes with an optional suffix K, M or G, such as 64M")
        }
        Kind::SizeOrPercent
            if parse_size(value).is_none()
                && value
                    .strip_suffix('%')
                    .and_then(number)
                    .is_none_or(|n| n > 100) =>
        {
            bail!(
                "it takes bytes with an optional suffix K, M or G, or at most 100 and a %, such as 64M or 10%"
            )
        }
        Kind::Path if !value.starts_with('/') || value.len() > MAX_PATH_BYTES => {
            bail!("it takes an absolute path of at most {MAX_PATH_BYTES} bytes")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_kind_and_keeps_the_last() {
        let c = Conf::parse("rseq=off, retain_max=64M,zones=4,rseq=on,stats_dir=/tmp/x,").unwrap();
        assert_eq!(c.get("rseq"), Some("on"));
        assert_eq!(
            c.to_string(),
            "retain_max=64M,zones=4,rseq=on,stats_dir=/tmp/x"
        );
        assert_eq!(Conf::parse(&c.to_string()).unwrap(), c);
        assert_eq!(Conf::parse("").unwrap(), Conf::default());
    }

    #[test]
    fn unknown_key_names_near_matches_and_all_keys() {
        let text = format!("{:#}", Conf::parse("retain_mx=1").unwrap_err());
        assert!(text.contains("retain_max"), "{text}");
        for key in KEYS {
            assert!(text.contains(key.name), "{text}");
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            "rseq=maybe",
            "zones=-1",
            "zones=",
            "zones=99999999999999999999",
            "retain_max=12Q",
            "retain_max=",
            "stats_dir=",
            "stats_dir=here",
            "zones=0",
            "retain_ms=3600001",
            "thp",
        ] {
            assert!(Conf::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Some(0));
        assert_eq!(parse_size("4K"), Some(4096));
        assert_eq!(parse_size("3g"), Some(3 << 30));
        assert_eq!(parse_size("99999999999G"), None);
        assert_eq!(parse_size("1T"), None);
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size("+1"), None);
    }

    #[test]
    fn overlay_wins() {
        let base = Conf::parse("rseq=on,zones=2").unwrap();
        let over = Conf::parse("rseq=off").unwrap();
        let both = base.overlaid(&over);
        assert_eq!(both.get("rseq"), Some("off"));
        assert_eq!(both.get("zones"), Some("2"));
    }

    #[test]
    fn table_lists_every_key() {
        let table = key_table();
        for line in table.lines() {
            assert!(line.chars().count() <= TABLE_WIDTH, "{line}");
        }
        for key in KEYS {
            assert!(table.contains(key.name));
        }
    }

    /// The library's own table of keys, an entry of which is `key = "values" => …`, names the same keys.
    #[test]
    fn the_library_knows_the_same_keys() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../ebbtide-core/src/base/config.rs"
        );
        let source = std::fs::read_to_string(path).expect("the library's source");
        let (_, table) = source.split_once("\nkeys! {").expect("the table");
        let (table, _) = table.split_once("\n}\n").expect("its end");
        let mut theirs: Vec<&str> = table
            .lines()
            .filter(|line| line.contains("\" => "))
            .filter_map(|line| line.trim().split_once(" = \"").map(|(key, _)| key))
            .collect();
        let mut ours: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs);
    }
}
