//! Watches the memory of a process tree from `/proc` while it runs.
//!
//! A thread looks after 1 ms, then at intervals that double up to 50 ms, and
//! longer where looking costs more than 1 % of the time. `smaps_rollup` walks
//! the page tables of the process, so it is read a second apart at most.

use std::collections::BTreeSet;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::run::end::is_at_work;

const FIRST_INTERVAL: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(50);
const ROLLUP_INTERVAL: Duration = Duration::from_secs(1);
/// Intervals are at least this many times what looking costs.
const COST_FACTOR: u32 = 100;
const MAX_PROCESSES: usize = 64;

/// What the samples showed. Values are 0 where no sample came in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Number of samples.
    pub count: u64,
    /// Peak resident size of the first process (`VmHWM`).
    pub rss_peak_bytes: u64,
    /// Resident size of the first process in the last sample.
    pub rss_end_bytes: u64,
    /// Peak of the sum over the tree.
    pub tree_rss_peak_bytes: u64,
    /// Sum over the tree in the last sample.
    pub tree_rss_end_bytes: u64,
    /// Mean over time of the sum over the tree.
    pub tree_rss_mean_bytes: u64,
    /// Swapped-out bytes of the first process in the last sample.
    pub swap_end_bytes: u64,
    /// Peak of bytes given with `MADV_FREE` and still resident.
    pub lazy_free_peak_bytes: u64,
    /// Sum of the same over the tree in the last sample that looked; none without such a sample.
    pub tree_lazy_free_end_bytes: Option<u64>,
    /// Peak of bytes in anonymous huge pages.
    pub huge_peak_bytes: u64,
}

/// The sampling thread.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Samples>,
}

impl Sampler {
    /// Starts to watch the process `pid` and its descendants.
    pub fn start(pid: i32) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || {
                let mut watch = Watch::new(pid);
                let mut interval = FIRST_INTERVAL;
                loop {
                    let began = Instant::now();
                    watch.look(began);
                    let cost = began.elapsed();
                    let wait = interval.max(cost * COST_FACTOR);
                    match stopped.recv_timeout(wait) {
                        Err(RecvTimeoutError::Timeout) => interval = (interval * 2).min(INTERVAL),
                        _ => return watch.finish(),
                    }
                }
            })?;
        Ok(Sampler { stop, thread })
    }

    /// Stops and gives what was seen.
    pub fn finish(self) -> Samples {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

struct Watch {
    pid: i32,
    tree: BTreeSet<i32>,
    looks: u64,
    rollup_due: Instant,
    last: Option<(Instant, u64)>,
    area_byte_ns: u128,
    area_ns: u128,
    samples: Samples,
}

impl Watch {
    fn new(pid: i32) -> Self {
        Watch {
            pid,
            tree: BTreeSet::new(),
            looks: 0,
            // The first one after half a second: short programs are left alone.
            rollup_due: Instant::now() + ROLLUP_INTERVAL / 2,
            last: None,
            area_byte_ns: 0,
            area_ns: 0,
            samples: Samples::default(),
        }
    }

    fn look(&mut self, now: Instant) {
        if self.looks.is_multiple_of(4) {
            self.tree = descendants(self.pid);
        }
        self.looks += 1;
        let Some(main) = fs::read_to_string(format!("/proc/{}/status", self.pid))
            .ok()
            .and_then(|t| Status::parse(&t))
        else {
            return;
        };
        let others: u64 = self.tree.iter().filter_map(|pid| rss_of(*pid as u32)).sum();
        let total = main.rss_bytes + others;
        if let Some((at, value)) = self.last {
            let ns = (now - at).as_nanos();
            self.area_byte_ns += u128::from(value) * ns;
            self.area_ns += ns;
        }
        self.last = Some((now, total));
        let s = &mut self.samples;
        s.count += 1;
        s.rss_peak_bytes = s.rss_peak_bytes.max(main.peak_bytes).max(main.rss_bytes);
        s.rss_end_bytes = main.rss_bytes;
        s.tree_rss_peak_bytes = s.tree_rss_peak_bytes.max(total);
        s.tree_rss_end_bytes = total;
        s.swap_end_bytes = main.swap_bytes;
        if now >= self.rollup_due {
            self.look_at_rollup();
        }
    }

    fn look_at_rollup(&mut self) {
        let began = Instant::now();
        if let Ok(text) = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)) {
            let s = &mut self.samples;
            let value = |name| kib_field(&text, name).unwrap_or(0);
            s.lazy_free_peak_bytes = s.lazy_free_peak_bytes.max(value("LazyFree"));
            s.huge_peak_bytes = s.huge_peak_bytes.max(value("AnonHugePages"));
            let others: u64 = self.tree.iter().filter_map(|pid| lazy_of(*pid)).sum();
            s.tree_lazy_free_end_bytes = Some(value("LazyFree") + others);
        }
        let cost = began.elapsed();
        self.rollup_due = Instant::now() + ROLLUP_INTERVAL.max(cost * COST_FACTOR);
    }

    fn finish(mut self) -> Samples {
        let s = &mut self.samples;
        s.tree_rss_mean_bytes = match self.area_byte_ns.checked_div(self.area_ns) {
            Some(mean) => mean as u64,
            None => s.tree_rss_end_bytes,
        };
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

/// The value of a line `Name:   123 kB`, in bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn lazy_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    kib_field(&text, "LazyFree")
}

/// What is resident of a process.
pub fn rss_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_bytes())
}

fn page_bytes() -> u64 {
    // SAFETY: a plain call.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The descendants of `pid`, up to [`MAX_PROCESSES`] of them. By their parents, and not by `children` of each thread: whoever has
/// looked at a thread in `/proc` makes the kernel hold up whoever waits for the end of the process.
fn descendants(pid: i32) -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let stats =
        numbers.filter_map(|n| Some((n, fs::read_to_string(format!("/proc/{n}/stat")).ok()?)));
    // A helper's memory is its program's.
    let others: Vec<(i32, i32)> = stats
        .filter(|(_, stat)| !is_at_work(stat))
        .filter_map(|(n, stat)| Some((n, parent_of(&stat)?)))
        .collect();
    let mut tree = BTreeSet::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (child, _) in others.iter().filter(|(_, of)| *of == parent) {
            if tree.len() < MAX_PROCESSES && tree.insert(*child) {
                parents.push(*child);
            }
        }
    }
    tree
}

/// `PID (name) state parent …`; the name may hold anything.
fn parent_of(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(kib_field(STATUS, "Vm"), None);
    }

    #[test]
    fn watches_itself() {
        let sampler = Sampler::start(std::process::id() as i32).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let s = sampler.finish();
        assert!(s.count > 0);
        assert!(s.rss_peak_bytes >= s.rss_end_bytes && s.rss_end_bytes > 0);
        assert!(s.tree_rss_mean_bytes > 0);
    }

    #[test]
    fn sees_descendants_of_any_thread() {
        let spawn = || {
            let mut command = std::process::Command::new("sh");
            let command = command.args(["-c", "sleep 5 & echo $!; wait"]);
            let mut child = command
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
            std::io::BufRead::read_line(&mut said, &mut line).unwrap();
            (child, line.trim().parse::<i32>().unwrap())
        };
        let (mut child, grandchild) = std::thread::spawn(spawn).join().unwrap();
        let tree = descendants(std::process::id() as i32);
        // SAFETY: a number and a signal.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.contains(&(child.id() as i32)) && tree.contains(&grandchild));
        assert_eq!(parent_of("7 (a) b) S 5 7 7"), Some(5));
    }
}
