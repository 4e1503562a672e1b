//! A process that touches memory and holds it until its parent ends it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ebbtide_tools::out;

use crate::harness::process::TIMEOUT;
use crate::measured::worker;
use crate::outside::interrupt;
use crate::outside::observe::{Killed, mark};

/// Counts how often the kernel has reported free memory to its host. Few kernels have this file; mainline has not.
const PASSES: &str = "/sys/module/page_reporting/parameters/passes";
/// Below this much memory, the time of use is so short that a report hardly ever falls into it.
const HIT_BYTES: u64 = 1 << 30;
/// Freeing this much memory makes the kernel report: it is more huge pages than the CPUs keep in their lists. 8 MiB
/// is not always enough.
const ENOUGH_BYTES: u64 = 64 << 20;
/// Longer than the time between two reports.
const PASS_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// Starts a process that has touched memory and holds it until it is dropped. Then the memory is free only for a short
/// time: a host takes back memory that was free for some seconds.
pub fn held(bytes: u64) -> Result<Killed> {
    let child = worker("warm_held", bytes)?
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut warm = Killed(child.context("cannot start")?);
    mark(&mut warm.0, "base", Instant::now() + TIMEOUT).context("the memory was not touched")?;
    Ok(warm)
}

/// The same for memory that a measured process will need. It is held until right after a report to the host.
pub fn held_before_it_is_needed(bytes: u64) -> Result<Killed> {
    let warm = held(bytes)?;
    if bytes >= HIT_BYTES {
        rest_of_host()?;
    }
    Ok(warm)
}

/// Waits for a report of free memory to the host, if the kernel reports and counts. Memory that is freed after it
/// stays with the guest for the two seconds until the next report.
fn rest_of_host() -> Result<()> {
    let Ok(before) = fs::read_to_string(PASSES) else {
        return Ok(());
    };
    // There is no report before memory is freed.
    drop(held(ENOUGH_BYTES)?);
    if !changes(Path::new(PASSES), &before, PASS_WAIT) {
        out::warning(
            "the kernel did not tell its host of free memory in 5 s; a figure may be of memory that the host took",
        );
    }
    Ok(())
}

/// Whether the content of a file changes from `before` within `wait`. A signal that interrupts the run ends the wait;
/// then no warning is needed.
fn changes(file: &Path, before: &str, wait: Duration) -> bool {
    let limit = Instant::now() + wait;
    while Instant::now() < limit && interrupt::came().is_none() {
        if fs::read_to_string(file).is_ok_and(|now| now != before) {
            return true;
        }
        sleep(POLL);
    }
    interrupt::came().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_and_waited_for_no_longer_than_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("count");
        let short = Duration::from_millis(20);
        assert!(!changes(&file, "7", short), "there is none");
        fs::write(&file, "7").unwrap();
        assert!(!changes(&file, "7", short));
        assert!(changes(&file, "6", short));
        let writes = std::thread::spawn({
            let file = file.clone();
            move || {
                sleep(short);
                fs::write(file, "8").unwrap();
            }
        });
        assert!(changes(&file, "7", Duration::from_secs(60)));
        writes.join().unwrap();
    }
}
