//! Result files: `docs/results/KIND-DATE.md`. `scripts/results-age` reads their first lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Today's date, as in the names of result files.
pub(crate) fn today() -> Result<String, String> {
    let run = Command::new("date").args(["-u", "+%F"]).output();
    let run = run.map_err(|e| format!("date: {e}"))?;
    Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
}

/// The first lines of a result file: title, commit, the paths whose changes make it outdated, and the command that
/// makes a new one.
pub(crate) fn head(title: &str, date: &str, covers: &str, again: &str) -> String {
    let commit = commit(covers);
    format!("# {title}, {date}\n\ncommit: {commit}  \ncovers: {covers}  \nagain: {again}\n\n")
}

/// The commit that is checked out, and whether there are changes below these paths.
pub(crate) fn commit(covers: &str) -> String {
    let paths: Vec<&str> = covers.split(' ').collect();
    let changes = git(&[&["status", "--porcelain", "--"], &paths[..]].concat());
    match (git(&["rev-parse", "HEAD"]), changes.as_deref()) {
        (Some(commit), Some("")) => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "unknown".into(),
    }
}

/// Writes a result file, and returns its path from the repository's root.
pub(crate) fn write(kind: &str, date: &str, text: &str) -> Result<String, String> {
    let dir = repository().join("docs/results");
    let name = format!("{kind}-{date}.md");
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(dir.join(&name), text))
        .map_err(|e| format!("docs/results/{name}: {e}"))?;
    Ok(format!("docs/results/{name}"))
}

/// Runs `git` in the repository.
fn git(arguments: &[&str]) -> Option<String> {
    let run = Command::new("git")
        .args(arguments)
        .current_dir(repository())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    run.status.success().then_some(text)
}
