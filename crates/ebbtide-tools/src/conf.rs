//! Checks the configuration of a command (`EBBTIDE_CONF` and `--conf`) before the command starts.
//!
//! The keys, and the parser of an item, are those of the library ([`ebbtide_interface::keys`]).
//!
//! Invariants:
//! - `INV-CONF-1`: a text that [`Conf::parse`] accepts holds only items that the library accepts, each key at most once.
//! - `INV-CONF-2`: [`Conf`]'s `Display` gives a text that parses to the same `Conf`.

use std::env;
use std::fmt;

use anyhow::{Context, Result, bail};
use ebbtide_interface::keys::{self, KEYS, Key, Problem};

/// Environment variable that holds the library's configuration.
pub const ENV: &str = "EBBTIDE_CONF";

/// The environment's configuration, overlaid with the one from the flags.
pub fn merged(given: &[String]) -> Result<Conf> {
    let base = match env::var_os(ENV) {
        Some(text) => Conf::parse(&text.to_string_lossy()).with_context(|| {
            format!("in the environment variable {ENV} (correct it, or unset it)")
        })?,
        None => Conf::default(),
    };
    Ok(base.overlaid(&Conf::parse(&given.join(",")).context("--conf")?))
}

/// Width of the table of keys: it fits into a manual page, and into the help on a terminal of 80 columns.
const TABLE_WIDTH: usize = 72;

/// The table of keys for users, as text.
pub fn key_table() -> String {
    let users = || KEYS.iter().filter(|key| !key.is_dev);
    let forms: Vec<String> = users().map(|k| format!("{}={}", k.name, k.kind)).collect();
    let width = forms.iter().map(String::len).max().unwrap_or(0);
    let mut out = String::from("Configuration keys (--conf KEY=VALUE,… or EBBTIDE_CONF):\n");
    for (form, key) in forms.iter().zip(users()) {
        let mut form = form.as_str();
        let help = format!("{} [{}]", key.meaning, key.default);
        for line in lines(&help, TABLE_WIDTH - width - 4) {
            out.push_str(&format!("  {form:width$}  {line}\n"));
            form = "";
        }
    }
    out
}

/// Wraps a text into lines of at most `width` characters. Longer words get lines of their own.
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
        for item in keys::items(text.as_bytes()) {
            let shown = String::from_utf8_lossy(item);
            if !item.contains(&b'=') {
                bail!("configuration item '{shown}' has no '='; write it as key=value");
            }
            match keys::read(item) {
                Ok(setting) => conf.set(setting.key.name, &String::from_utf8_lossy(setting.text)),
                Err(Problem::UnknownKey) => {
                    bail!("'{shown}': {}{}", Problem::UnknownKey, similar(&shown))
                }
                Err(problem) => bail!("'{shown}': {problem}"),
            }
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
        let pair = self.pairs.iter().find(|(n, _)| *n == name);
        pair.map(|(_, value)| value.as_str())
    }

    /// This configuration, in which the keys of `over` replace its own.
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
            let (before, between) = keys::key(name.as_bytes()).map_or(("", "="), Key::prefix);
            write!(f, "{comma}{before}{name}{between}{value}")?;
        }
        Ok(())
    }
}

/// Suggests known keys that are similar to an unknown one.
fn similar(item: &str) -> String {
    let name = item.strip_prefix("dev=").unwrap_or(item).to_lowercase();
    let name = name.split(['=', ':']).next().unwrap_or_default().trim();
    let scores = KEYS.iter().map(|k| (strsim::jaro_winkler(name, k.name), k));
    let mut near: Vec<(f64, &Key)> = scores.filter(|(score, _)| *score > 0.75).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names = near.iter().take(2);
    let names: Vec<String> = names
        .map(|(_, key)| format!("{}{}", key.prefix().0, key.name))
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; did you mean '{}'", names.join("' or '")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_kind_and_keeps_the_last() {
        let c = Conf::parse("rseq=off, limit=64M,dev=zones:4,rseq=on,stats_dir=/tmp/x,").unwrap();
        assert_eq!(c.get("rseq"), Some("on"));
        assert_eq!(
            c.to_string(),
            "limit=64M,dev=zones:4,rseq=on,stats_dir=/tmp/x"
        );
        assert_eq!(Conf::parse(&c.to_string()).unwrap(), c);
        assert_eq!(Conf::parse("").unwrap(), Conf::default());
    }

    #[test]
    fn unknown_key_names_near_matches_and_all_keys() {
        let text = format!("{:#}", Conf::parse("retain_mx=1").unwrap_err());
        assert!(
            text.contains("'retain_ms'") && text.contains("'dev=retain_max'"),
            "{text}"
        );
        for key in KEYS.iter().filter(|key| !key.is_dev) {
            assert!(text.contains(key.name), "{text}");
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for (bad, remedy) in [
            ("rseq=maybe", "on|off"),
            ("dev=zones:-1", "1 to 64"),
            ("zones=2", "write dev=zones:VALUE"),
            ("dev=thp:on", "write thp=VALUE"),
            ("exit_threshold=12Q", "64M"),
            ("limit=101%", "100%"),
            ("stats_dir=here", "absolute"),
            ("retain_ms=3600001", "3600000"),
            ("profile=0", "64K"),
            ("thp", "key=value"),
        ] {
            let text = format!("{:#}", Conf::parse(bad).unwrap_err());
            assert!(text.contains(remedy), "{bad}: {text}");
        }
    }

    #[test]
    fn overlay_wins() {
        let base = Conf::parse("rseq=on,dev=zones:2").unwrap();
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
            let entry = format!("\n  {}={}", key.name, key.kind);
            assert_eq!(table.contains(&entry), !key.is_dev);
        }
    }
}
