//! The main process of a service, and whether it has loaded the library.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use ebbtide_tools::library;

use super::unit::is_live;

/// The main process, if systemd runs here and the service runs.
pub fn main_process(root: &Path, name: &str) -> Option<u32> {
    if !is_live(root) {
        return None;
    }
    let mut command = Command::new("systemctl");
    command
        .args(["show", "--property=MainPID", "--value", "--", name])
        .stderr(Stdio::null());
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let pid = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .ok()?;
    (pid != 0).then_some(pid)
}

/// Whether the process has mapped the library.
pub fn has_library(pid: u32) -> Result<bool> {
    let maps = fs::read(format!("/proc/{pid}/maps"));
    let maps = maps.with_context(|| {
        format!("cannot see what process {pid} has loaded; run this command as root (sudo)")
    })?;
    let maps = String::from_utf8_lossy(&maps);
    let files = maps.lines().filter_map(|line| line.rsplit_once('/'));
    let mut names = files.map(|(_, name)| name.trim_end_matches(" (deleted)"));
    Ok(names.any(library::is_named))
}
