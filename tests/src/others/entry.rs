//! An entry: a script, and what its first lines say about it.
//!
//! ```text
//! # what: the C library's own tests of malloc
//! # source: debian glibc            (or: crate NAME VERSION; rust TOOLCHAIN; or none)
//! # needs: gcc:gcc /usr/include/gtest/gtest.h:libgtest-dev      (program or file, and its Debian package)
//! # loaded: redis-server            (processes in which the library must be seen)
//! # limit_s: 120                    (time limit of one run)
//! # conf: harden=on                 (settings of Ebbtide, for suites)
//! # prepare: yes                    (is called with `prepare` first, which is not measured)
//! # user: any                       (root will do; otherwise it runs as nobody)
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{ensure_installed, is_root, results};

const KEYS: [&str; 8] = [
    "what", "source", "needs", "loaded", "limit_s", "user", "conf", "prepare",
];

/// A script and its description.
pub(super) struct Entry {
    pub name: String,
    pub script: PathBuf,
    pub what: String,
    fields: BTreeMap<String, String>,
}

/// The entries in a directory of `tests`, by name: all, or the named ones.
pub(super) fn all(directory: &str, names: &[&str]) -> Result<Vec<Entry>, String> {
    let dir = results::repository().join("tests").join(directory);
    let dir = dir
        .canonicalize()
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut entries = Vec::new();
    for path in crate::matrix::entries(&dir)? {
        if path.extension().is_some_and(|extension| extension == "sh") {
            entries.push(Entry::read(&path)?);
        }
    }
    let is_there = |name: &&&str| entries.iter().any(|entry| entry.name == **name);
    if let Some(unknown) = names.iter().find(|name| !is_there(name)) {
        let known: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
        return Err(format!("no {unknown}; there are {}", known.join(" ")));
    }
    entries.retain(|entry| names.is_empty() || names.contains(&&*entry.name));
    Ok(entries)
}

impl Entry {
    fn read(path: &Path) -> Result<Entry, String> {
        let shown = path.display();
        let text = fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))?;
        Entry::parse(path, &text).map_err(|why| format!("{shown}: {why}"))
    }

    fn parse(path: &Path, text: &str) -> Result<Entry, String> {
        let mut fields = BTreeMap::new();
        let head = text.lines().skip_while(|line| line.starts_with("#!"));
        for line in head.map_while(|line| line.strip_prefix("# ")) {
            let Some((key, value)) = line.split_once(": ") else {
                continue;
            };
            if !KEYS.contains(&key) {
                return Err(format!("unknown key {key}"));
            }
            fields.insert(key.to_owned(), value.to_owned());
        }
        let name = path.file_stem().unwrap_or_default();
        Ok(Entry {
            name: name.to_string_lossy().into_owned(),
            script: path.to_owned(),
            what: fields.remove("what").ok_or("says not what it is")?,
            fields,
        })
    }

    fn field(&self, key: &str) -> &str {
        self.fields.get(key).map_or("", String::as_str)
    }

    /// Where the source comes from, in words; empty if there is none.
    pub fn source(&self) -> &str {
        self.field("source")
    }

    /// Names of processes in which the library must be seen.
    pub fn loaded(&self) -> Vec<&str> {
        self.field("loaded").split_whitespace().collect()
    }

    /// Time limit of one run.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.field("limit_s").parse().unwrap_or(180))
    }

    /// Settings of Ebbtide for its tests.
    pub fn conf(&self) -> &str {
        self.field("conf")
    }

    /// Whether it prepares what both runs use.
    pub fn is_prepared(&self) -> bool {
        self.field("prepare") == "yes"
    }

    /// Whether root runs it as nobody.
    pub fn is_for_nobody(&self) -> bool {
        is_root() && self.field("user") != "any"
    }

    /// Installs what is missing, as root on Debian; otherwise says what is missing.
    pub fn ensure_needs(&self) -> Result<(), String> {
        for need in self.field("needs").split_whitespace() {
            let (thing, package) = need.split_once(':').unwrap_or((need, need));
            if !ensure_installed(thing, package) {
                let hint = if is_root() {
                    "apt did not install it"
                } else {
                    "root would install it"
                };
                return Err(format!("{thing} (Debian: {package}) is missing; {hint}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_describes_itself() {
        for directory in ["suites", "big"] {
            let entries = all(directory, &[]).expect("all can be read");
            assert!(!entries.is_empty());
        }
    }

    #[test]
    fn a_head_is_read_up_to_the_code() {
        let path = Path::new("/x/redis.sh");
        let text = "# what: a: b\n# limit_s: 7\n# loaded: a b\nset -e\n# source: no\n";
        let entry = Entry::parse(path, text).expect("it is whole");
        assert_eq!((&*entry.name, &*entry.what), ("redis", "a: b"));
        assert_eq!(entry.limit(), Duration::from_secs(7));
        assert_eq!(entry.loaded(), ["a", "b"]);
        assert_eq!(entry.source(), "");
        assert!(Entry::parse(path, "# wat: x\n").is_err());
        assert!(Entry::parse(path, "# limit_s: 7\n").is_err());
    }

    #[test]
    fn an_unknown_name_is_refused() {
        assert!(all("suites", &["no-such-suite"]).is_err());
    }
}
