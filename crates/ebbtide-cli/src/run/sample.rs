//! Samples the memory of a process tree from `/proc` while it runs.
//!
//! A thread samples the known processes after 1 ms, then at intervals that double up to 50 ms. The intervals are
//! longer if sampling costs more than 1 % of the time. Two steps cost more. They have intervals of their own, by
//! their own cost, so that they do not delay the samples. Reading `smaps_rollup` walks the page tables of a process;
//! it is read at most once a second. A walk through all of `/proc` finds processes that were started by other threads
//! than main threads.

use std::collections::BTreeSet;
use std::iter;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ebbtide_tools::machine::page_bytes;
use ebbtide_tools::proc::{self, HELPER, Stat, children_of_main_thread, kib_field, numbers_in};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::run::stable::Stable;

const FIRST_INTERVAL: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(50);
const ROLLUP_INTERVAL: Duration = Duration::from_secs(1);
/// The distance between two samples of a kind is at least this many times their cost.
const COST_FACTOR: u32 = 100;
const MAX_PROCESSES: usize = 64;

/// The results of all samples. A value is 0 if no sample came in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Samples {
    /// Peak resident size of the largest single process: of the first one, unless the kernel knows of a larger one.
    pub rss_peak_bytes: u64,
    /// Resident size of the process tree in the last sample before the end.
    pub rss_end_bytes: u64,
    /// Of that, memory that the kernel could not take at once: without pages under `MADV_FREE`, in most cases as of
    /// at most a second before. None if the program ended before the first such sample.
    pub rss_without_lazy_end_bytes: Option<u64>,
    /// Mean over time of the resident size of the process tree.
    pub rss_mean_bytes: u64,
    /// Mean of the last second in which the resident size of the process tree changed by at most a twentieth; none if there was no such
    /// second.
    pub rss_stable_bytes: Option<u64>,
    /// Peak of the summed resident size of the process tree.
    pub tree_rss_peak_bytes: u64,
    /// Swapped-out bytes of the first process in the last sample.
    pub swap_end_bytes: u64,
    /// Peak of bytes under `MADV_FREE` that were still resident in the first process.
    pub lazy_free_peak_bytes: u64,
    /// Peak of bytes in its anonymous huge pages.
    pub huge_peak_bytes: u64,
    /// Samples taken.
    pub samples: u64,
}

impl Samples {
    /// Takes over the kernel's own peak of the largest process.
    pub fn with_peak(mut self, kernels_bytes: u64) -> Self {
        self.rss_peak_bytes = self.rss_peak_bytes.max(kernels_bytes);
        self.tree_rss_peak_bytes = self.tree_rss_peak_bytes.max(self.rss_peak_bytes);
        self
    }
}

/// The sampling thread.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Samples>,
}

impl Sampler {
    /// Starts to watch the process `pid` and its descendants.
    pub fn start(pid: u32) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || {
                let mut watch = Watch::new(pid);
                let mut interval = FIRST_INTERVAL;
                loop {
                    let (now, began) = (Instant::now(), cpu_time());
                    let is_there = watch.look(now);
                    let cost = cpu_time() - began;
                    if is_there {
                        watch.look_closer(now);
                    }
                    let wait = interval.max(cost * COST_FACTOR);
                    match stopped.recv_timeout(wait) {
                        Err(RecvTimeoutError::Timeout) => interval = (interval * 2).min(INTERVAL),
                        _ => return watch.finish(),
                    }
                }
            })?;
        Ok(Sampler { stop, thread })
    }

    /// Stops the thread and returns the results.
    pub fn finish(self) -> Samples {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

/// CPU time of this thread. With wall time, the work of other threads would count as cost, and busy CPUs would stop
/// the samples.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Watch {
    pid: u32,
    /// The known descendants.
    tree: BTreeSet<u32>,
    walk_due: Instant,
    rollup_due: Instant,
    last: Option<(Instant, u64)>,
    stable: Stable,
    area_byte_ns: u128,
    area_ns: u128,
    /// Bytes under `MADV_FREE` in the tree, in the last sample that read them.
    lazy_bytes: Option<u64>,
    samples: Samples,
}

impl Watch {
    fn new(pid: u32) -> Self {
        let now = Instant::now();
        Watch {
            pid,
            tree: BTreeSet::new(),
            // Not at the first sample, because the second one comes soon.
            walk_due: now + FIRST_INTERVAL,
            // The first rollup comes after half a second, so that short programs are not disturbed.
            rollup_due: now + ROLLUP_INTERVAL / 2,
            last: None,
            stable: Stable::default(),
            area_byte_ns: 0,
            area_ns: 0,
            lazy_bytes: None,
            samples: Samples::default(),
        }
    }

    /// Takes a sample. Returns `false` if the first process has no memory any more.
    fn look(&mut self, now: Instant) -> bool {
        let text = proc::text(format!("/proc/{}/status", self.pid));
        let Some(main) = text.and_then(|text| Status::parse(&text)) else {
            return false;
        };
        self.follow();
        let others: u64 = self.tree.iter().filter_map(|pid| rss_of(*pid)).sum();
        let total = main.rss_bytes + others;
        if let Some((at, value)) = self.last {
            let ns = (now - at).as_nanos();
            self.area_byte_ns += u128::from(value) * ns;
            self.area_ns += ns;
        }
        self.last = Some((now, total));
        self.stable.add(now, total);
        let s = &mut self.samples;
        s.samples += 1;
        s.rss_peak_bytes = s.rss_peak_bytes.max(main.peak_bytes).max(main.rss_bytes);
        s.tree_rss_peak_bytes = s.tree_rss_peak_bytes.max(total);
        s.rss_end_bytes = total;
        s.swap_end_bytes = main.swap_bytes;
        true
    }

    /// Adds the children of the known processes, and removes processes that are gone.
    fn follow(&mut self) {
        let known = self.tree.iter().copied();
        let parents = iter::once(self.pid).chain(known).collect();
        grow(&mut self.tree, parents, children_of_main_thread);
        // A helper's memory is its program's. A helper gets its name a moment after it is made.
        self.tree.retain(|pid| {
            proc::text(format!("/proc/{pid}/comm")).is_some_and(|name| name.trim() != HELPER)
        });
    }

    /// Takes the more expensive steps that are due.
    fn look_closer(&mut self, now: Instant) {
        if now >= self.walk_due {
            let began = cpu_time();
            self.tree = descendants(self.pid);
            self.walk_due = Instant::now() + (cpu_time() - began) * COST_FACTOR;
        }
        if now >= self.rollup_due {
            self.look_at_rollup();
        }
    }

    fn look_at_rollup(&mut self) {
        let began = cpu_time();
        if let Some(text) = proc::text(format!("/proc/{}/smaps_rollup", self.pid)) {
            let s = &mut self.samples;
            let value = |name| kib_field(&text, name).unwrap_or(0);
            s.lazy_free_peak_bytes = s.lazy_free_peak_bytes.max(value("LazyFree"));
            s.huge_peak_bytes = s.huge_peak_bytes.max(value("AnonHugePages"));
            let others: u64 = self.tree.iter().filter_map(|pid| lazy_of(*pid)).sum();
            self.lazy_bytes = Some(value("LazyFree") + others);
        }
        let cost = cpu_time() - began;
        self.rollup_due = Instant::now() + ROLLUP_INTERVAL.max(cost * COST_FACTOR);
    }

    fn finish(mut self) -> Samples {
        let s = &mut self.samples;
        let mean = self.area_byte_ns.checked_div(self.area_ns);
        s.rss_mean_bytes = mean.map_or(s.rss_end_bytes, |mean| mean as u64);
        s.rss_stable_bytes = self.stable.mean();
        let without = |lazy| s.rss_end_bytes.saturating_sub(lazy);
        s.rss_without_lazy_end_bytes = self.lazy_bytes.map(without);
        self.samples
    }
}

/// The figures taken from `/proc/PID/status`.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    rss_bytes: u64,
    peak_bytes: u64,
    swap_bytes: u64,
}

impl Status {
    /// `None` once the memory of the process is gone.
    fn parse(text: &str) -> Option<Self> {
        Some(Status {
            rss_bytes: kib_field(text, "VmRSS").filter(|n| *n > 0)?,
            peak_bytes: kib_field(text, "VmHWM")?,
            swap_bytes: kib_field(text, "VmSwap").unwrap_or(0),
        })
    }
}

fn lazy_of(pid: u32) -> Option<u64> {
    let text = proc::text(format!("/proc/{pid}/smaps_rollup"))?;
    kib_field(&text, "LazyFree")
}

/// Resident memory of a process.
pub fn rss_of(pid: u32) -> Option<u64> {
    let text = proc::text(format!("/proc/{pid}/statm"))?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_bytes())
}

/// The descendants of `pid`, at most [`MAX_PROCESSES`], whichever thread started them. They are found by their parent
/// numbers, not by the file `children` of each thread. If a thread's files in `/proc` were read, the kernel delays
/// every process that waits for the end of the thread's process.
fn descendants(pid: u32) -> BTreeSet<u32> {
    let numbers = numbers_in("/proc", "").into_iter();
    let stats = numbers.filter_map(|number| Some((number, Stat::read(number)?)));
    // A helper's memory is its program's.
    let others: Vec<(u32, u32)> = stats
        .filter(|(_, stat)| !stat.is_helper())
        .map(|(number, stat)| (number, stat.parent))
        .collect();
    let mut tree = BTreeSet::new();
    grow(&mut tree, vec![pid], |parent| {
        let children = others.iter().filter(|(_, of)| *of == parent);
        children.map(|(child, _)| *child).collect()
    });
    tree
}

/// Adds the descendants of the parents that are not in the tree, up to [`MAX_PROCESSES`].
fn grow(tree: &mut BTreeSet<u32>, mut parents: Vec<u32>, children: impl Fn(u32) -> Vec<u32>) {
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            if tree.len() < MAX_PROCESSES && tree.insert(child) {
                parents.push(child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    const STATUS: &str =
        "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nVmSwap:\t       4 kB\n";

    #[test]
    fn status_of_live_and_dead() {
        let s = Status::parse(STATUS).unwrap();
        assert_eq!(
            (s.rss_bytes, s.peak_bytes, s.swap_bytes),
            (1 << 20, 2 << 20, 4096)
        );
        assert_eq!(Status::parse("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn peak_is_the_larger_of_kernel_and_samples() {
        let samples = Samples {
            rss_peak_bytes: 50,
            ..Samples::default()
        };
        let peaks = [100, 10].map(|kernels| samples.clone().with_peak(kernels).rss_peak_bytes);
        assert_eq!(peaks, [100, 50]);
    }

    #[test]
    fn watches_itself() {
        let sampler = Sampler::start(std::process::id()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let s = sampler.finish();
        assert!(s.samples > 0 && s.rss_mean_bytes > 0);
        assert!(s.tree_rss_peak_bytes >= s.rss_end_bytes && s.rss_end_bytes > 0);
        assert!(s.rss_peak_bytes > 0);
    }

    /// A shell whose name is cut in the middle of a character, and the number of its child.
    fn shell(dir: &Path) -> (Child, u32) {
        let path = dir.join("абвгдежзик");
        std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
        let mut command = Command::new(path);
        command
            .arg0("sh")
            .args(["-c", "sleep 60 & echo $!; read end"]);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        (child, line.trim().parse().unwrap())
    }

    fn end(child: &mut Child, grandchild: u32) {
        let grandchild = Pid::from_raw(grandchild as i32).unwrap();
        kill_process(grandchild, Signal::KILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn sees_descendants_of_any_thread() {
        let dir = tempfile::tempdir().unwrap();
        let started = std::thread::scope(|s| s.spawn(|| shell(dir.path())).join());
        let (mut child, grandchild) = started.unwrap();
        let (pid, tree) = (child.id(), descendants(std::process::id()));
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap();
        end(&mut child, grandchild);
        assert!(String::from_utf8(stat).is_err(), "the name is cut");
        assert!(tree.contains(&pid) && tree.contains(&grandchild));
    }

    /// A child that starts between two walks.
    #[test]
    fn follows_the_children_of_main_threads() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, grandchild) = shell(dir.path());
        let mut watch = Watch::new(child.id());
        let is_there = watch.look(Instant::now());
        let found = watch.tree.clone();
        end(&mut child, grandchild);
        assert!(is_there && watch.samples.samples == 1);
        assert_eq!(found, BTreeSet::from([grandchild]));
        let Samples {
            rss_peak_bytes,
            rss_end_bytes,
            ..
        } = watch.samples;
        assert!(rss_end_bytes > rss_peak_bytes, "both processes count");
        assert!(!watch.look(Instant::now()));
    }
}
