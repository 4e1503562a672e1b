//! The library for a service, and what would keep it from taking effect there.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use ebbtide_tools::conf::{self, Conf};
use ebbtide_tools::library as files;

use crate::library;
use crate::run::program;

use super::unit::{Unit, followed, is_live};

/// The library's path as the service sees it, by its soname if it has that name too: this name stays over updates.
pub fn library(root: &Path, given: Option<&Path>) -> Result<PathBuf> {
    let found = match is_live(root) {
        true => library::find(given)?,
        false => files::find_under(root, given)?,
    };
    let stable = found.with_file_name(files::SONAME);
    let is_same =
        inside(root, &stable).canonicalize().ok() == inside(root, &found).canonicalize().ok();
    Ok(if is_same { stable } else { found })
}

/// A path of the system with this root.
fn inside(root: &Path, path: &Path) -> PathBuf {
    let path = root.join(path.strip_prefix("/").unwrap_or(path));
    followed(root, path)
}

/// Why the library would not take effect in this service, with the remedy. `own` is the drop-in of this program.
pub fn obstacle(
    root: &Path,
    unit: &Unit,
    library: &Path,
    conf: &Conf,
    own: &Path,
) -> Option<String> {
    set_elsewhere(root, unit, "LD_PRELOAD", own)
        .or_else(|| set_elsewhere(root, unit, conf::ENV, own).filter(|_| *conf != Conf::default()))
        .or_else(|| unreadable(root, library))
        .or_else(|| other_root(unit))
        .or_else(|| hidden(unit, library))
        .or_else(|| no_effect(root, unit))
}

/// A file of the unit, or a file with its environment, sets the variable too.
fn set_elsewhere(root: &Path, unit: &Unit, name: &str, own: &Path) -> Option<String> {
    let assignment = format!("{name}=");
    let lines = unit
        .values("Environment")
        .filter(|(file, value)| *file != own && value.contains(&assignment));
    let named = unit
        .values("EnvironmentFile")
        .map(|(_, value)| PathBuf::from(value.trim_start_matches('-')));
    let files = named.filter(|file| {
        let text = fs::read_to_string(inside(root, file)).unwrap_or_default();
        text.lines()
            .any(|line| line.trim_start().starts_with(&assignment))
    });
    let file = lines.map(|(file, _)| file.to_owned()).chain(files).next()?;
    let shown = file.display();
    Some(match name {
        "LD_PRELOAD" => format!(
            "{shown} sets LD_PRELOAD already; add the library to the list there, with a colon between"
        ),
        _ => format!("{shown} sets {name} already; change it there, and leave --conf out"),
    })
}

/// Services have users of their own: all users must be able to read the library.
fn unreadable(root: &Path, library: &Path) -> Option<String> {
    let file = inside(root, library).canonicalize().ok()?;
    let mode = |path: &Path| path.metadata().map_or(0, |m| m.permissions().mode());
    let ways = file
        .ancestors()
        .skip(1)
        .take_while(|way| is_live(root) || way.starts_with(root));
    // A root of its own may lie in a private folder.
    let closed = ways
        .filter(|way| is_live(root) || *way != root)
        .find(|way| mode(way) & 0o1 == 0);
    let closed = closed.or(Some(file.as_path()).filter(|file| mode(file) & 0o4 == 0))?;
    Some(format!(
        "users other than its owner cannot read {}, because of the rights of {}; install the library with 'sudo make install'",
        library.display(),
        closed.display()
    ))
}

fn other_root(unit: &Unit) -> Option<String> {
    let mut found = ["RootDirectory", "RootImage"]
        .into_iter()
        .flat_map(|key| unit.values(key).map(move |v| (key, v)));
    let (key, (_, value)) = found.find(|(_, (_, value))| !value.is_empty())?;
    Some(format!(
        "{} has {key}={value}, where the library must be; copy it to the same path there",
        unit.name()
    ))
}

/// The unit hides the folder that the library is in.
fn hidden(unit: &Unit, library: &Path) -> Option<String> {
    let is_set = |key, words: &[&str]| unit.values(key).any(|(_, value)| words.contains(&value));
    let is_in = |dirs: &[&str]| dirs.iter().any(|dir| library.starts_with(dir));
    let key = if is_in(&["/home", "/root", "/run/user"])
        && is_set("ProtectHome", &["yes", "true", "on", "1", "tmpfs"])
    {
        "ProtectHome"
    } else if is_in(&["/tmp", "/var/tmp"]) && is_set("PrivateTmp", &["yes", "true", "on", "1"]) {
        "PrivateTmp"
    } else {
        return None;
    };
    Some(format!(
        "{} has {key}=, so it does not see {}; install the library with 'sudo make install'",
        unit.name(),
        library.display()
    ))
}

/// A program of `ExecStart=` that a preloaded library has no effect in.
fn no_effect(root: &Path, unit: &Unit) -> Option<String> {
    // Scripts name their interpreters by paths of the running system.
    let programs = unit
        .values("ExecStart")
        .filter_map(|(_, line)| program_of(line));
    let programs = programs.map(|path| inside(root, Path::new(path)));
    let mut programs = programs.filter(|path| is_live(root) || !is_script(path));
    let refusal = programs.find_map(|path| program::check(&path).err())?;
    let text = refusal.text.split("; --force").next()?.to_owned();
    Some(format!("{}: {text}", unit.name()))
}

/// The path of the program in a line of `ExecStart=`, if it is clear without systemd's own rules.
fn program_of(line: &str) -> Option<&str> {
    let line = line.trim_start_matches(['@', '-', ':', '+', '!']);
    let word = line.split_whitespace().next()?;
    let is_plain = !word.contains(['"', '\'', '\\', '%', '$']);
    (word.starts_with('/') && is_plain).then_some(word)
}

fn is_script(path: &Path) -> bool {
    let mut head = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head == *b"#!"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_first_plain_path() {
        assert_eq!(program_of("/bin/a --b"), Some("/bin/a"));
        assert_eq!(program_of("-!!/bin/a"), Some("/bin/a"));
        for unclear in ["", "a", "\"/bin/a b\"", "/opt/%i/a"] {
            assert_eq!(program_of(unclear), None, "{unclear}");
        }
    }
}
