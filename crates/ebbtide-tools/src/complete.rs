//! Shell completions. A shell asks the program at each press of Tab, so the candidates are those of this moment: processes, installed programs.
//!
//! The script that [`crate::program::completions`] prints calls the program with the variable [`ENV`]. The program then prints candidates and
//! does nothing else.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::CompleteEnv;
pub use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use ebbtide_interface::keys::{KEYS, Key, Kind};
use rustix::fs::{Access, access};

/// The variable by which a shell asks for candidates; its value is the shell's name.
pub const ENV: &str = "EBBTIDE_COMPLETE";

/// Prints the candidates and ends, if a shell asks for them. Call it before everything else.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(ENV).complete();
}

/// A candidate with a line that explains it.
pub fn candidate(value: impl Into<String>, help: impl Into<String>) -> CompletionCandidate {
    CompletionCandidate::new(value.into()).help(Some(help.into().into()))
}

/// Items of `EBBTIDE_CONF`, behind those that are there already.
pub fn conf(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let start = text.rfind(',').map_or(0, |comma| comma + 1);
    let (before, item) = text.split_at(start);
    let used = |key: &&Key| {
        let form = form(key);
        !before.split(',').any(|item| item.starts_with(&form))
    };
    let all = KEYS.iter().filter(used);
    items(item, all)
        .into_iter()
        .map(|found| found.add_prefix(before))
        .collect()
}

/// Items that a running process accepts.
pub fn settable(current: &OsStr) -> Vec<CompletionCandidate> {
    let can = |key: &&Key| SETTABLE.contains(&key.name);
    items(&current.to_string_lossy(), KEYS.iter().filter(can))
}

/// The keys that a running process accepts.
pub const SETTABLE: [&str; 4] = ["retain_ms", "limit", "profile", "profile_dump"];

/// What stands before the value: `key=` or `dev=key:`.
fn form(key: &Key) -> String {
    let (before, between) = key.prefix();
    format!("{before}{}{between}", key.name)
}

/// The keys that begin like `item`; values, if its key is complete. Switches for developers only behind `dev=`.
fn items<'a>(item: &str, keys: impl Iterator<Item = &'a Key>) -> Vec<CompletionCandidate> {
    let mut found = Vec::new();
    for key in keys.filter(|key| !key.is_dev || item.starts_with("dev=")) {
        let form = form(key);
        if let Some(value) = item.strip_prefix(&form) {
            let words: &[&str] = match key.kind {
                Kind::Word(words) => words,
                Kind::OneOf => &["off", "on", "all"],
                Kind::Rate => &["off", "on"],
                Kind::Number(..) | Kind::Size | Kind::SizeOrPercent | Kind::Path | Kind::Dump => {
                    &[]
                }
            };
            let fitting = words.iter().filter(|word| word.starts_with(value));
            found.extend(fitting.map(|word| candidate(format!("{form}{word}"), key.meaning)));
        } else if form.starts_with(item) {
            let help = format!("{} [{}]", key.meaning, key.default);
            found.push(candidate(form, help));
        }
    }
    found
}

/// A program in `PATH` or a file, then its arguments.
pub struct ProgramCompleter;

impl ValueCompleter for ProgramCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        self.complete_at(0, current)
    }

    fn complete_at(&self, index: usize, current: &OsStr) -> Vec<CompletionCandidate> {
        let name = current.to_string_lossy();
        if index > 0 {
            return PathCompleter::any().complete(current);
        }
        if name.contains('/') {
            let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
            return PathCompleter::any().filter(runs).complete(current);
        }
        let dirs = env::var_os("PATH").unwrap_or_default();
        let entries = env::split_paths(&dirs).filter_map(|dir| fs::read_dir(dir).ok());
        let files = entries.flatten().flatten().filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let fits = file.starts_with(&*name) && access(entry.path(), Access::EXEC_OK).is_ok();
            fits.then_some(file)
        });
        let sorted: BTreeSet<String> = files.collect();
        sorted.into_iter().map(CompletionCandidate::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(found: Vec<CompletionCandidate>) -> Vec<String> {
        let text = |found: &CompletionCandidate| found.get_value().to_string_lossy().into_owned();
        found.iter().map(text).collect()
    }

    #[test]
    fn keys_and_values_of_a_list() {
        let conf = |text: &str| texts(conf(OsStr::new(text)));
        assert_eq!(conf("ret"), ["retain_ms="]);
        assert_eq!(
            conf("limit=8m,ex"),
            ["limit=8m,exit=", "limit=8m,exit_threshold="]
        );
        assert_eq!(conf("exit="), ["exit=detached", "exit=inline"]);
        assert_eq!(conf("guard=a"), ["guard=all"]);
        assert_eq!(conf("dev=lazy"), ["dev=lazy_ms:"]);
        assert_eq!(conf("dev=gather:i"), ["dev=gather:inline"]);
        assert!(conf("thp=on,thp").is_empty(), "a key stands once");
        let users = KEYS.iter().filter(|key| !key.is_dev).count();
        assert_eq!(conf("").len(), users);
    }

    #[test]
    fn only_some_keys_can_change() {
        assert_eq!(texts(settable(OsStr::new("r"))), ["retain_ms="]);
        assert!(settable(OsStr::new("rseq=")).is_empty());
    }

    #[test]
    fn programs_then_files() {
        let found =
            |index, text: &str| texts(ProgramCompleter.complete_at(index, OsStr::new(text)));
        assert!(found(0, "s").contains(&"sh".into()));
        assert!(found(0, "/bin/s").contains(&"/bin/sh".into()));
        assert!(found(1, "Cargo.t").contains(&"Cargo.toml".into()));
        assert!(found(0, "no-such-program-x").is_empty());
    }
}
