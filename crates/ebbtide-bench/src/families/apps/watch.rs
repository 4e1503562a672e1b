//! Watches the processes of a case from outside: resident memory during the work and the rest after it, CPU time.
//!
//! ```text
//!  process   … work …   @rest    … nothing …        done N, or a worker's line of JSON
//!                         ↓ ↑
//!  this        sample     sample until the rest is over, then answer
//! ```
//! A process that ends without the mark has no rest. The mark `@watch PID` names the only process that counts, and
//! leaves out clients beside it; without it, all processes that descend from main threads count.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ebbtide_tools::proc::{self, children_of_main_thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::measured::MIB;
use crate::measured::calls::{cpu_us, now_ns, page_bytes, wait_with_usage};
use crate::outside::observe::parse_mark;
use crate::outside::tree::Group;

/// Time between two samples.
const STEP: Duration = Duration::from_millis(5);
/// When RSS at rest is taken, if the rest is not shorter.
const RESTED_S: f64 = 3.0;

/// Resident memory over time.
#[derive(Debug)]
struct Memory {
    /// The only process that counts.
    only: Option<u32>,
    /// Time and MiB of the last sample.
    last: (f64, f64),
    peak_mib: f64,
    mib_s: f64,
}

impl Memory {
    fn new() -> Self {
        Memory {
            only: None,
            last: (now_s(), 0.0),
            peak_mib: 0.0,
            mib_s: 0.0,
        }
    }

    fn sample(&mut self, root: u32) {
        let pages = match self.only {
            Some(pid) => anonymous_pages(pid),
            None => of_all(root),
        };
        self.add(now_s(), pages as f64 * page_bytes() as f64 / MIB);
    }

    fn add(&mut self, at_s: f64, mib: f64) {
        self.mib_s += self.last.1 * (at_s - self.last.0);
        self.peak_mib = self.peak_mib.max(mib);
        self.last = (at_s, mib);
    }
}

fn now_s() -> f64 {
    now_ns() as f64 / 1e9
}

/// Resident pages of a process that are not of files or shared.
fn anonymous_pages(pid: u32) -> u64 {
    let text = proc::text(format!("/proc/{pid}/statm")).unwrap_or_default();
    let numbers = text.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let numbers: Vec<u64> = numbers.take(3).collect();
    match numbers[..] {
        [_, resident, shared] => resident.saturating_sub(shared),
        _ => 0,
    }
}

/// The same of a process and all below it.
fn of_all(pid: u32) -> u64 {
    let below = children_of_main_thread(pid).into_iter().map(of_all);
    anonymous_pages(pid) + below.sum::<u64>()
}

/// CPU time of a process so far, without its children's.
fn cpu_s(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let numbers = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = numbers.take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    // SAFETY: takes a number, returns a number.
    let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(ticks as f64 / per_s as f64)
}

/// Runs a case to its end, which must come within `limit`. Returns its last line and the figures.
pub fn watch(
    mut command: Command,
    rest: Duration,
    limit: Duration,
) -> Result<(String, Vec<(&'static str, f64)>)> {
    let mut errors = tempfile::tempfile()?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors.try_clone()?);
    let mut group = Group::start(&mut command)?;
    let began_s = now_s();
    let mut memory = Memory::new();
    let (mut rests_at, mut cpu, mut rest_mib) = (None, None, None);
    let mut said = group.0.stdout.take().context("no pipe")?;
    let mut answer = group.0.stdin.take();
    let (mut text, mut last) = (Vec::new(), String::new());
    loop {
        memory.sample(group.0.id());
        let (at_s, mib) = memory.last;
        cpu = memory.only.and_then(cpu_s).or(cpu);
        ensure!(
            at_s - began_s < limit.as_secs_f64(),
            "no end within {} s",
            limit.as_secs()
        );
        if let Some(rests_at_s) = rests_at {
            // After the answer the process ends.
            let is_at_rest = answer.is_some() && at_s - rests_at_s <= RESTED_S;
            if is_at_rest || rest_mib.is_none() {
                rest_mib = Some(mib);
            }
            if at_s - rests_at_s >= rest.as_secs_f64()
                && let Some(mut answer) = answer.take()
            {
                answer.write_all(b"g\n")?;
            }
        }
        let mut polled = [PollFd::new(&said, PollFlags::IN)];
        let patience = Timespec::try_from(STEP).ok();
        // A signal to this process is nothing to read.
        if poll(&mut polled, patience.as_ref()).unwrap_or(0) == 0 {
            continue;
        }
        let mut part = [0u8; 4096];
        let len = said.read(&mut part)?;
        if len == 0 {
            break;
        }
        text.extend_from_slice(&part[..len]);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            match parse_mark(&line) {
                Some(("rest", _)) => rests_at = rests_at.or(Some(now_s())),
                Some(("watch", pid)) => memory.only = pid.first().map(|pid| *pid as u32),
                _ => last = line,
            }
        }
    }
    let ended_s = now_s();
    let (status, usage) =
        wait_with_usage(group.0.id(), 0).context("cannot wait for the process")?;
    if status != 0 {
        let mut said = String::new();
        errors.seek(SeekFrom::Start(0))?;
        errors.read_to_string(&mut said)?;
        let line = said.lines().last().unwrap_or("no message");
        ensure!(status == 0, "ends with status {status}: {line}");
    }
    let mut figures = vec![
        ("wall_s", rests_at.unwrap_or(ended_s) - began_s),
        ("cpu_s", cpu.unwrap_or(cpu_us(&usage) as f64 / 1e6)),
        ("peak_mib", memory.peak_mib),
        ("mib_s", memory.mib_s),
    ];
    figures.extend(rest_mib.map(|mib| ("rest_mib", mib)));
    Ok((last, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, rest_ms: u64) -> Result<(String, Vec<(&'static str, f64)>)> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let rest = Duration::from_millis(rest_ms);
        watch(command, rest, Duration::from_secs(20))
    }

    #[test]
    fn memory_is_summed_over_time() {
        let mut memory = Memory::new();
        memory.last = (1.0, 0.0);
        memory.add(2.0, 10.0);
        memory.add(4.0, 5.0);
        memory.add(5.0, 5.0);
        assert_eq!((memory.mib_s, memory.peak_mib), (25.0, 10.0));
    }

    #[test]
    fn the_rest_is_not_work() {
        let began_s = now_s();
        let (last, figures) = run("sleep 0.1; echo @rest; read x; echo done 7", 400).unwrap();
        let all_s = now_s() - began_s;
        let of = |name: &str| figures.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        assert_eq!(last, "done 7");
        let wall_s = of("wall_s").unwrap();
        assert!((0.1..all_s - 0.4).contains(&wall_s), "{wall_s} of {all_s}");
        assert!(of("peak_mib").unwrap() > 0.0 && of("rest_mib").is_some());
        assert!(of("mib_s").unwrap() > 0.0);
    }

    #[test]
    fn only_the_named_process_counts() {
        let script = "sleep 60 & echo \"@watch $!\"; i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; kill $!; wait; echo done 1";
        let (_, figures) = run(script, 0).unwrap();
        let cpu = figures.iter().find(|(n, _)| *n == "cpu_s").unwrap().1;
        assert!(cpu < 0.05, "{cpu}");
        assert!(figures.iter().all(|(n, _)| *n != "rest_mib"));
    }

    #[test]
    fn a_failure_says_why() {
        let told = run("echo that failed >&2; exit 3", 0).unwrap_err();
        assert!(told.to_string().contains("that failed"), "{told}");
    }
}
