//! Runs real programs under an allocator, by shell scripts that check their own results.
//!
//! A script's last line is `done N`, and N is the same whenever the script did its work. CPU time and peak memory
//! count the script's process and the processes that it waited for. If the library keeps lock figures, they are read
//! from its statistics pages.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use ebbtide_tools::{lock_figures, stats_page};

use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::Starter;
use crate::measured::Output;
use crate::measured::calls::{cpu_us, wait_with_usage};

/// The scripts by name.
const SCRIPTS: [(&str, &str); 3] = [
    ("redis", include_str!("scripts/redis.sh")),
    ("gcc", include_str!("scripts/gcc.sh")),
    ("python", include_str!("scripts/python.sh")),
];

/// A real program, by a shell script that checks what it did.
#[derive(Debug)]
pub struct Script {
    /// Its name.
    pub name: &'static str,
    /// Whether to do only a quarter of the work.
    pub is_quick: bool,
}

impl Run for Script {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let pages = stats_page::private_dir()?;
        let counts = entry.is_own() && entry.conf.contains("lockstat");
        let conf = format!("stats_dir={},dev=pages:all", pages.path().display());
        let conf = if counts { &conf } else { "" };
        let command = starter.shell(entry, conf);
        run(
            command,
            self.name,
            self.is_quick,
            counts.then_some(pages.path()),
        )
    }
}

/// Runs a script in `command`'s environment. Reads figures of locks from `pages`, if the library keeps them there.
fn run(mut command: Command, name: &str, is_quick: bool, pages: Option<&Path>) -> Result<Output> {
    let script = SCRIPTS.iter().find(|script| script.0 == name);
    let (_, text) = script.with_context(|| format!("no script '{name}'"))?;
    let since = SystemTime::now() - std::time::Duration::from_secs(1);
    let scale = if is_quick { "1" } else { "4" };
    command
        .args(["-c", text, "sh", scale])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let began = Instant::now();
    let mut child = command.spawn().context("cannot start sh")?;
    let mut said = String::new();
    let mut errors = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut said)?;
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut errors)?;
    }
    let (status, usage) = wait_with_usage(child.id(), 0).context("cannot wait for sh")?;
    let wall_s = began.elapsed().as_secs_f64();
    ensure!(
        status == 0,
        "{name} fails: {}",
        errors.lines().last().unwrap_or("no message")
    );
    let last = said.lines().last().unwrap_or_default();
    let checksum = last
        .strip_prefix("done ")
        .and_then(|n| n.trim().parse().ok())
        .with_context(|| format!("{name} did not do its work: {last:?}"))?;
    let mut metrics = vec![
        ("cpu_s", cpu_us(&usage) as f64 / 1e6),
        ("wall_s", wall_s),
        ("faults", usage.ru_minflt as f64),
    ];
    if let Some(pages) = pages {
        let all = stats_page::read_all(pages, since);
        let locks = lock_figures::sum(all.iter().map(|page| page.locks.as_slice()));
        let zone = locks.iter().find(|lock| lock.rank == "ZONE");
        let zone = zone.context("the library kept no figures of its zones")?;
        let contended_pct = zone.contended as f64 * 100.0 / zone.taken as f64;
        metrics.extend([
            ("contended_pct", contended_pct),
            ("waited_ms", zone.waits.sum_ns as f64 / 1e6),
            ("held_ms", zone.holds.sum_ns as f64 / 1e6),
        ]);
    }
    Ok(Output::new(checksum, metrics))
}
