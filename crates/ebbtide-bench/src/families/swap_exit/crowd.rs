//! One run of the family `swap-exit`: many processes are killed together while another one starts.
//!
//! The helpers of the killed processes become children of this process, which makes itself their subreaper. So it can
//! read the CPU time of all when they have ended. A thread of its own waits for them, so that no sample of memory and
//! swap comes between an end and its time.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{getpid, set_child_subreaper};

use super::NOBODY;
use super::phone::SWAPPED_TENTHS;
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, TIMEOUT, parse, piped, rest, threshold_kib};
use crate::measured::calls::{cpu_us, now_ns, wait_with_usage};
use crate::measured::{Curve, MIB, Output};
use crate::outside::observe::{Killed, answer, mark, parse_mark};
use crate::outside::pidfd::{helper_of, kill, open_process, wait_for_any};
use crate::outside::sample::System;
use crate::outside::swap::{self, join};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Number of killed processes.
    pub processes: u32,
    /// Memory that each of them holds.
    pub size_bytes: u64,
    /// Bytes that the foreground process maps.
    pub foreground_bytes: u64,
    /// The file that the foreground process reads.
    pub file: PathBuf,
    /// The cgroup of all processes. It has no room for the foreground process until the others release some memory.
    pub group: Option<PathBuf>,
    /// Maximum time to wait for memory and swap.
    pub wait: Duration,
}

const POLL: Duration = Duration::from_millis(4);
/// Maximum time to wait for swap after the last end.
const LATE_NS: u64 = 1_000_000_000;
const CURVE_STEP_MS: u64 = 20;
/// Room in the cgroup beyond the memory of the killed processes.
const ROOM_BYTES: u64 = 8 << 20;
/// Minimum part of the intended swap for a valid run.
const LEAST_SWAPPED: f64 = 0.8;

/// A process that will be killed.
struct App {
    // Its input stays open until the kill; otherwise the process would end by itself.
    child: Child,
    process: OwnedFd,
    helper: Option<(u32, OwnedFd)>,
    cpu_us: u64,
}

/// Memory and swap at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at_ns: u64,
    free_bytes: u64,
    swap_bytes: u64,
}

impl Run for Crowd {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let _subreaper = Subreaper::new()?;
        let mut system = System::new()?;
        let mut look = || -> Result<Look> {
            Ok(Look {
                at_ns: now_ns(),
                free_bytes: system.free_bytes(false)?,
                swap_bytes: swap::used_bytes(),
            })
        };
        let group = self.group.as_deref();
        let base = look()?;
        let apps = self.start(starter, entry)?;
        let plain = Entry::plain("foreground");
        let mut foreground = starter.worker("foreground", self.foreground_bytes, &plain, "");
        foreground.arg(&self.file);
        if let Some(group) = group {
            let room = swap::group_usage_bytes(group)? + ROOM_BYTES;
            swap::limit_group(group, Some(room))?;
            join(&mut foreground, group)?;
        }
        piped(&mut foreground);
        foreground.stdin(Stdio::null());

        let full = look()?;
        // Swap counts as back when 99 % of it are free again.
        let least_swap = base.swap_bytes + full.swap_bytes.saturating_sub(base.swap_bytes) / 100;
        let limit = Instant::now() + self.wait;
        let mut ends = Ends::of(&apps, limit)?;
        let began_ns = now_ns();
        for app in &apps {
            kill(&app.process)?;
        }
        let mut front = Killed(foreground.spawn().context("cannot start")?);
        let mut looks = vec![full];
        let mut status = None;
        loop {
            looks.push(look()?);
            ends.hear();
            if status.is_none() {
                status = front.0.try_wait()?;
            }
            // All memory is back when the last process has ended; only swap may come later.
            let late = ends.all_ns().map_or(0, |ns| now_ns().saturating_sub(ns));
            let is_back = looks.last().is_some_and(|l| l.swap_bytes <= least_swap);
            let is_over = ends.all_ns().is_some() && status.is_some();
            if (is_over && (is_back || late > LATE_NS)) || Instant::now() > limit {
                break;
            }
            thread::sleep(POLL);
        }
        if let Some(group) = group {
            swap::limit_group(group, None)?;
        }
        let status = status.context("the foreground process does not end")?;
        let (started_ns, mut output) = foreground_said(&mut front.0, status)?;
        let gone_ns = ends.all_ns().context("the killed processes do not end")?;
        let ms = |at_ns: u64| at_ns.saturating_sub(began_ns) as f64 / 1e6;
        let swap_back = looks
            .iter()
            .find(|l| l.at_ns >= began_ns && l.swap_bytes <= least_swap);
        let swap_back_ms = swap_back.map_or(f64::INFINITY, |l| ms(l.at_ns));
        output.add([
            ("start_ms", ms(started_ns)),
            ("dying_cpu_ms", ends.cpu_us as f64 / 1e3),
            ("gone_ms", ms(gone_ns)),
            ("seen_ms", ms(ends.seen_ns)),
            ("swap_back_ms", swap_back_ms),
        ]);
        output.curve = Some(curve(&base, &looks, began_ns));
        Ok(output)
    }
}

impl Crowd {
    /// Starts the processes and waits until the memory of each is resident or swapped out as intended.
    fn start(&self, starter: &Starter, entry: &Entry) -> Result<Vec<App>> {
        let conf = format!("exit_threshold={}K,thp=off", threshold_kib(self.size_bytes));
        let processes = if entry.name == NOBODY {
            0
        } else {
            self.processes
        };
        let mut begun = Vec::new();
        for _ in 0..processes {
            let mut command = starter.worker("app", self.size_bytes, entry, &conf);
            piped(&mut command);
            command.stderr(Stdio::null());
            if let Some(group) = &self.group {
                join(&mut command, group)?;
            }
            let mut child = command.spawn().context("cannot start")?;
            answer(&mut child)?;
            begun.push(child);
        }
        begun
            .into_iter()
            .map(|child| self.filled(child, entry))
            .collect()
    }

    /// Waits for one of the processes.
    fn filled(&self, mut child: Child, entry: &Entry) -> Result<App> {
        let limit = Instant::now() + TIMEOUT;
        mark(&mut child, "base", limit)?;
        let numbers = mark(&mut child, "ready", limit)?;
        let [swapped, cpu_us] = numbers[..] else {
            bail!("not a mark: {numbers:?}");
        };
        let intended = self.size_bytes / 10 * SWAPPED_TENTHS;
        ensure!(
            swapped as f64 >= intended as f64 * LEAST_SWAPPED,
            "only {} of {} MiB could be swapped out",
            swapped >> 20,
            intended >> 20
        );
        Ok(App {
            process: open_process(child.id())?,
            helper: helper_of(child.id(), entry.is_detached())?,
            child,
            cpu_us,
        })
    }
}

/// The time at which the foreground process had started, and its figures.
fn foreground_said(front: &mut Child, status: ExitStatus) -> Result<(u64, Output)> {
    let (said, _) = rest(front, status, false).context("the foreground process")?;
    let (first, figures) = said.split_once('\n').unwrap_or_default();
    let mark = parse_mark(first).filter(|(name, _)| *name == "started");
    let (_, numbers) = mark.with_context(|| format!("not the mark 'started': {first:?}"))?;
    let started_ns = numbers.first().copied().unwrap_or(0);
    Ok((started_ns, parse(figures.trim_end())?))
}

/// The end of a process: its number, the time, and the CPU time used.
struct End {
    is_helper: bool,
    at_ns: u64,
    cpu_us: u64,
}

/// The ends of all killed processes and their helpers.
struct Ends {
    told: Receiver<End>,
    /// Number of ends that have not come.
    left: usize,
    /// CPU time since before the kill.
    cpu_us: u64,
    /// Time at which the last of the killed processes was waited for.
    seen_ns: u64,
    gone_ns: u64,
}

impl Ends {
    /// Starts a thread that waits for the ends.
    fn of(apps: &[App], limit: Instant) -> Result<Self> {
        let mut waiting = Vec::new();
        for app in apps {
            waiting.push((app.child.id(), app.process.try_clone()?, false));
            if let Some((pid, process)) = &app.helper {
                waiting.push((*pid, process.try_clone()?, true));
            }
        }
        let before: u64 = apps.iter().map(|a| a.cpu_us).sum();
        let (tell, told) = mpsc::channel();
        let ends = Ends {
            told,
            left: waiting.len(),
            // More than this is added below.
            cpu_us: 0u64.wrapping_sub(before),
            seen_ns: 0,
            gone_ns: now_ns(),
        };
        thread::spawn(move || wait_for_all(waiting, limit, &tell));
        Ok(ends)
    }

    /// Takes in the ends that the thread has reported.
    fn hear(&mut self) {
        for end in self.told.try_iter() {
            self.left -= 1;
            self.cpu_us = self.cpu_us.wrapping_add(end.cpu_us);
            self.gone_ns = self.gone_ns.max(end.at_ns);
            if !end.is_helper {
                self.seen_ns = self.seen_ns.max(end.at_ns);
            }
        }
    }

    /// Time of the last end.
    fn all_ns(&self) -> Option<u64> {
        (self.left == 0).then_some(self.gone_ns)
    }
}

/// Waits for processes and helpers, in the order in which they end. A helper becomes a child of this process when its
/// own parent has ended, and it outlives that parent.
fn wait_for_all(mut waiting: Vec<(u32, OwnedFd, bool)>, limit: Instant, tell: &Sender<End>) {
    while !waiting.is_empty() && Instant::now() < limit {
        let processes: Vec<&OwnedFd> = waiting.iter().map(|(_, process, _)| process).collect();
        let mut over = wait_for_any(&processes, limit).into_iter();
        waiting.retain(|(pid, _, is_helper)| {
            if over.next() != Some(true) {
                return true;
            }
            // A process that was waited for elsewhere counts as missing when the time is up.
            if let Some((_, usage)) = wait_with_usage(*pid, libc::WNOHANG | libc::__WALL) {
                let _ = tell.send(End {
                    is_helper: *is_helper,
                    at_ns: now_ns(),
                    cpu_us: cpu_us(&usage),
                });
            }
            false
        });
    }
}

/// While it lives, orphans of this process's children become its children.
struct Subreaper;

impl Subreaper {
    fn new() -> Result<Self> {
        set_child_subreaper(Some(getpid())).context("PR_SET_CHILD_SUBREAPER is refused")?;
        Ok(Subreaper)
    }
}

impl Drop for Subreaper {
    fn drop(&mut self) {
        let _ = set_child_subreaper(None);
    }
}

fn curve(base: &Look, looks: &[Look], began_ns: u64) -> Curve {
    let mut curve = Curve {
        step_ms: CURVE_STEP_MS,
        ..Curve::default()
    };
    let points = curve.points(began_ns, Look::default(), looks, |look| look.at_ns);
    (curve.system_mib, curve.swap_mib) = points
        .map(|look| {
            let taken = base.free_bytes as f64 - look.free_bytes as f64;
            let used = look.swap_bytes.saturating_sub(base.swap_bytes) as f64;
            ((taken / MIB).round(), (used / MIB).round())
        })
        .unzip();
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// On busy CPUs a sleep or the receiving thread may be late, but not three times.
    #[test]
    fn ends_are_collected_with_their_cpu_time() {
        const LATE: Duration = Duration::from_millis(300);
        let late_ns = LATE.as_nanos() as u64;
        let in_time = |ns: &u64| (late_ns..late_ns * 3 / 2).contains(ns);
        let seen = (0..3).map(|_| second_of_two_is_seen_after_ns(LATE));
        let all: Vec<_> = seen.take_while(|ns| !in_time(ns)).collect();
        assert!(all.len() < 3, "{all:?}");
    }

    /// The second process ends `late` after the first.
    fn second_of_two_is_seen_after_ns(late: Duration) -> u64 {
        let child = || {
            let mut command = Command::new("sleep");
            command.arg("100").stdin(Stdio::piped());
            let child = command.spawn().unwrap();
            App {
                process: open_process(child.id()).unwrap(),
                child,
                helper: None,
                cpu_us: 0,
            }
        };
        let apps = [child(), child()];
        let limit = Instant::now() + Duration::from_secs(20);
        let mut ends = Ends::of(&apps, limit).unwrap();
        let began_ns = now_ns();
        kill(&apps[0].process).unwrap();
        thread::sleep(late);
        ends.hear();
        assert_eq!((ends.left, ends.all_ns()), (1, None));
        kill(&apps[1].process).unwrap();
        // The end is received late, but its time is exact.
        thread::sleep(late);
        ends.hear();
        assert!(ends.all_ns() == Some(ends.seen_ns) && ends.cpu_us < 1_000_000);
        ends.seen_ns - began_ns
    }

    #[test]
    fn curves_count_from_the_kill() {
        let look = |at_ms: u64, swap_mib: u64| Look {
            at_ns: at_ms * 1_000_000,
            free_bytes: 100 << 20,
            swap_bytes: swap_mib << 20,
        };
        let looks = [look(10, 50), look(45, 30), look(70, 0)];
        let curve = curve(&look(0, 0), &looks, 20_000_000);
        assert_eq!(curve.swap_mib, [50.0, 50.0, 30.0]);
        assert_eq!(curve.system_mib, [0.0, 0.0, 0.0]);
    }
}
