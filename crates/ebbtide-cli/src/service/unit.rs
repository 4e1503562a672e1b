//! Finds the files of a systemd unit under a root, and reads their settings.
//!
//! Only what `ebbtide service` needs: the unit's own file, that of its template, and their drop-ins. systemd also applies drop-ins of name
//! prefixes (`foo-.service.d`) and of aliases; these are not read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Where units are, first the ones that win.
const DIRS: [&str; 9] = [
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "run/systemd/transient",
    "run/systemd/generator.early",
    "run/systemd/generator.late",
];

const SUFFIX: &str = ".service";

/// How many links may lead to a unit's file.
const MAX_LINKS: u32 = 8;

/// A unit that exists.
#[derive(Debug)]
pub struct Unit {
    name: String,
    /// `(file, key, value)` of every setting, in no particular order of files.
    settings: Vec<(PathBuf, String, String)>,
}

/// Whether this root is that of the running system.
pub fn is_live(root: &Path) -> bool {
    root == Path::new("/")
}

/// The name with its suffix.
pub fn full_name(name: &str) -> Result<String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || ":_.@-\\".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_known) {
        bail!(
            "'{name}' is no name of a service; give it as systemctl shows it, such as redis-server"
        );
    }
    let suffixes = [
        "socket",
        "timer",
        "target",
        "path",
        "mount",
        "slice",
        "scope",
        "device",
        "automount",
        "swap",
    ];
    match name.rsplit_once('.') {
        Some((_, suffix)) if suffixes.contains(&suffix) => {
            bail!("{name} is no service; give the name of a service, which ends in {SUFFIX}")
        }
        _ if name.ends_with(SUFFIX) => Ok(name.into()),
        _ => Ok(format!("{name}{SUFFIX}")),
    }
}

/// The name of the template that a unit is made from: `a@b.service` from `a@.service`.
fn template(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('@')?;
    (rest != SUFFIX).then(|| format!("{prefix}@{SUFFIX}"))
}

impl Unit {
    /// Finds the unit under `root`; the name may lack `.service`.
    pub fn find(root: &Path, name: &str) -> Result<Self> {
        let name = full_name(name)?;
        if !root.is_dir() {
            bail!(
                "--root {}: there is no such directory; give the root of a system",
                root.display()
            );
        }
        let names: Vec<String> = [Some(name.clone()), template(&name)]
            .into_iter()
            .flatten()
            .collect();
        let first = |file: &String| {
            DIRS.iter()
                .map(|dir| root.join(dir).join(file))
                .find(|path| path.symlink_metadata().is_ok())
        };
        let Some(file) = names.iter().find_map(first) else {
            bail!(
                "no unit {name} under {}{}; 'systemctl list-unit-files' lists the services",
                root.display(),
                similar(root, &name)
            );
        };
        let file = followed(root, file);
        if file == root.join("dev/null") {
            bail!("{name} is masked, so it cannot start; 'systemctl unmask {name}' lets it");
        }
        let mut files = vec![file];
        for dir in DIRS {
            for owner in names.iter().map(String::as_str).chain(["service"]) {
                files.extend(drop_ins(&root.join(dir).join(format!("{owner}.d"))));
            }
        }
        let settings = files.into_iter().flat_map(|file| {
            let text = fs::read_to_string(followed(root, file.clone())).unwrap_or_default();
            let pairs = settings_of(&text).into_iter();
            pairs.map(move |(key, value)| (file.clone(), key, value))
        });
        Ok(Unit {
            name,
            settings: settings.collect(),
        })
    }

    /// The name, with `.service`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The values of a key of the section `[Service]`, with the files that they are in.
    pub fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a Path, &'a str)> {
        let fits = self.settings.iter().filter(move |(_, name, _)| name == key);
        fits.map(|(file, _, value)| (file.as_path(), value.as_str()))
    }
}

/// Follows links as a system with this root would.
pub fn followed(root: &Path, mut path: PathBuf) -> PathBuf {
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else {
            break;
        };
        path = match target.strip_prefix("/") {
            Ok(inside) => root.join(inside),
            Err(_) => path.parent().unwrap_or(root).join(target),
        };
    }
    path
}

fn drop_ins(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "conf"))
        .collect()
}

/// The pairs `Key=value` of the section `[Service]`. A backslash at the end continues a line.
fn settings_of(text: &str) -> Vec<(String, String)> {
    let mut lines: Vec<String> = Vec::new();
    let mut is_continued = false;
    for line in text.lines() {
        let line = line.trim();
        // Comments may stand between continued lines.
        if line.starts_with(['#', ';']) || (line.is_empty() && !is_continued) {
            continue;
        }
        let part = line.strip_suffix('\\');
        match lines.last_mut().filter(|_| is_continued) {
            Some(last) => {
                last.push(' ');
                last.push_str(part.unwrap_or(line));
            }
            None => lines.push(part.unwrap_or(line).to_owned()),
        }
        is_continued = part.is_some();
    }
    let mut is_service = false;
    let mut found = Vec::new();
    for line in lines {
        if line.starts_with('[') {
            is_service = line == "[Service]";
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_service) {
            found.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

/// Names a unit with a similar name.
fn similar(root: &Path, name: &str) -> String {
    let entries = DIRS
        .iter()
        .filter_map(|dir| fs::read_dir(root.join(dir)).ok());
    let names = entries
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let scores = names
        .filter(|other| other.ends_with(SUFFIX))
        .map(|other| (strsim::jaro_winkler(name, &other), other));
    let near = scores.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(&a.1)));
    match near {
        Some((score, other)) if score > 0.9 => format!("; did you mean '{other}'?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn settings_are_those_of_the_service_with_continued_lines() {
        let text =
            "[Unit]\nA=0\n[Service]\n# B=1\nC = 2 \\\n# between\n  3\n;D=4\nE=\n[Install]\nF=6\n";
        let pairs = settings_of(text);
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(pairs, [("C", "2  3"), ("E", "")]);
    }

    #[test]
    fn units_are_found_with_their_templates_and_drop_ins() {
        let root = root(&[
            (
                "lib/systemd/system/web@.service",
                "[Service]\nExecStart=/bin/web %i\n",
            ),
            (
                "etc/systemd/system/web@.service.d/a.conf",
                "[Service]\nUser=web\n",
            ),
            (
                "etc/systemd/system/web@a.service.d/b.conf",
                "[Service]\nUser=a\n",
            ),
            (
                "etc/systemd/system/web@b.service.d/b.conf",
                "[Service]\nUser=b\n",
            ),
        ]);
        let unit = Unit::find(root.path(), "web@a").unwrap();
        assert_eq!(unit.name(), "web@a.service");
        let mut users: Vec<&str> = unit.values("User").map(|(_, value)| value).collect();
        users.sort_unstable();
        assert_eq!(users, ["a", "web"]);
        assert_eq!(unit.values("ExecStart").count(), 1);
    }

    #[test]
    fn links_lead_to_files_under_the_root() {
        let root = root(&[("lib/systemd/system/ssh.service", "[Service]\nUser=x\n")]);
        let etc = root.path().join("etc/systemd/system");
        fs::create_dir_all(&etc).unwrap();
        symlink("/lib/systemd/system/ssh.service", etc.join("sshd.service")).unwrap();
        symlink("/dev/null", etc.join("off.service")).unwrap();
        assert_eq!(
            Unit::find(root.path(), "sshd")
                .unwrap()
                .values("User")
                .count(),
            1
        );
        let masked = Unit::find(root.path(), "off").unwrap_err().to_string();
        assert!(masked.contains("masked"), "{masked}");
        let unknown = Unit::find(root.path(), "shh").unwrap_err().to_string();
        assert!(
            unknown.contains("no unit shh.service") && unknown.contains("list-unit-files"),
            "{unknown}"
        );
        let near = Unit::find(root.path(), "sshs").unwrap_err().to_string();
        assert!(near.contains("did you mean 'ssh"), "{near}");
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", "../x", "a/b", "a b", ".service", "x.timer"] {
            assert!(full_name(name).is_err(), "{name}");
        }
        assert_eq!(full_name("a.b").unwrap(), "a.b.service");
        assert_eq!(full_name("a@b-c.service").unwrap(), "a@b-c.service");
    }
}
