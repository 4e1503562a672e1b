//! Memory that is touched by a process of its own and held until it is told to end.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ebbtide_tools::out;

use crate::outside::interrupt;
use crate::outside::observe::mark;

/// How often the kernel has told its host of free memory. Few kernels count that; mainline's does not.
const PASSES: &str = "/sys/module/page_reporting/parameters/passes";
/// Less than this is used in so short a time that it is hardly ever hit.
const HIT_BYTES: u64 = 1 << 30;
/// What makes it do so when it comes free: more huge pages than the CPUs keep to themselves. 8 MiB is not always enough.
const ENOUGH_BYTES: u64 = 64 << 20;
/// Longer than the time between two of them.
const PASS_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// A process that has touched memory, holds it, and gives it back when it is told to end. What it held lies free
/// for the shortest time: a host takes back what has done so for some seconds.
pub struct Warm(Child);

impl Warm {
    /// It is all touched when this returns.
    pub fn start(bytes: u64) -> Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(exe)
            .env_remove("LD_PRELOAD")
            .args(["worker", "warm_held", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start")?;
        let mut warm = Warm(child);
        let said = warm.0.stdout.take().context("no pipe")?;
        mark(&mut BufReader::new(said), "base").context("the memory was not touched")?;
        Ok(warm)
    }

    /// The same for memory that somebody measured will need, held until the host has just been told of what is free.
    pub fn before_it_is_needed(bytes: u64) -> Result<Self> {
        let warm = Warm::start(bytes)?;
        if bytes >= HIT_BYTES {
            rest_of_host()?;
        }
        Ok(warm)
    }
}

/// Waits until the kernel has just told its host of free memory, where it does so and counts: what comes free after that
/// is the guest's for the two seconds until the next time.
fn rest_of_host() -> Result<()> {
    let Ok(before) = fs::read_to_string(PASSES) else {
        return Ok(());
    };
    // There is no next time before something comes free.
    drop(Warm::start(ENOUGH_BYTES)?);
    if !changes(Path::new(PASSES), &before, PASS_WAIT) {
        out::warning(
            "the kernel did not tell its host of free memory in 5 s; a figure may be of memory that the host took",
        );
    }
    Ok(())
}

/// Whether the content of a file becomes another one than this in time. A signal that breaks off the run ends the wait,
/// and then nobody needs to be warned.
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

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
