//! The watched processes and their recent figures.
//!
//! A process is *watched* from the search that finds it. After it has *ended*, it is shown for [`KEPT`], and longer
//! while its helper returns its memory.
//!
//! A sample costs the watched process little: its statistics page is shared memory, and `/proc/PID/stat` takes no
//! lock. Two steps cost more and run seldom, and still more seldom if they take long. Reading `smaps_rollup` walks
//! the process's page tables. A search reads the mappings of all processes.

use std::collections::VecDeque;
use std::fs;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use ebbtide_tools::conf::Conf;
use ebbtide_tools::proc::{self, Stat, kib_field};
use ebbtide_tools::stats_page::{StatsPage, names, read_all};
use serde::Serialize;

use crate::run::end::{is_helper, monotonic_ns};
use crate::run::sample::rss_of;
use crate::top::find::{OpenPage, Scope, Why, configuration, search};
use crate::top::request;

/// Time for which an ended process is shown.
pub const KEPT: Duration = Duration::from_secs(5);
/// Time span of the charts.
pub const SPAN: Duration = Duration::from_secs(180);
/// Minimum time between two searches, and between two reads of `smaps_rollup`.
const SEARCH: Duration = Duration::from_secs(1);
const ROLLUP: Duration = Duration::from_secs(2);
/// The intervals are at least so many times the cost of the work. A rollup costs the watched process time, a search
/// only this program.
const COST_FACTOR: u32 = 100;
const SEARCH_FACTOR: u32 = 20;

/// The figures of a process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The moment.
    pub at: Instant,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Memory that the program holds.
    pub live_bytes: u64,
    /// Free memory that is still resident: dirty, or on its way to the kernel.
    pub dirty_bytes: u64,
    /// Free memory that the kernel may take.
    pub lazy_bytes: u64,
    /// Bytes released since the process began.
    pub released_bytes: u64,
    /// Bytes released and used again since the process began.
    pub refaulted_bytes: u64,
    /// CPU time of workers since the process began.
    pub worker_ns: u64,
}

/// Changes in the last interval, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Memory released to the kernel.
    pub released_bytes_per_s: f64,
    /// Memory released and used again.
    pub refaulted_bytes_per_s: f64,
    /// Share of a CPU that workers used.
    pub worker_share: f64,
}

/// One process.
#[derive(Debug, Default, Serialize)]
pub struct Process {
    /// The process number.
    pub pid: u32,
    /// The short name of its program.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// Its `EBBTIDE_CONF`.
    pub conf: String,
    /// `inline` or `detached`.
    pub exit: &'static str,
    /// Resident now.
    pub rss_bytes: u64,
    /// Of `rss_bytes`, memory that the kernel could not take at once, in the last sample.
    pub rss_without_lazy_bytes: Option<u64>,
    /// Age of the figures that are refreshed only from time to time; none if the page has no such time.
    pub figures_age_ms: Option<u64>,
    /// None before the second sample.
    pub rates: Option<Rates>,
    /// The figures on its statistics page.
    pub figures: StatsPage,
    /// When it was seen to have ended.
    #[serde(rename = "ended", serialize_with = "is_some")]
    pub ended: Option<Instant>,
    /// The recent points, the latest last.
    #[serde(skip)]
    pub history: VecDeque<Point>,
    #[serde(skip)]
    page: Option<OpenPage>,
    #[serde(skip)]
    began: u64,
    #[serde(skip)]
    rollup_due: Option<Instant>,
}

fn is_some<S: serde::Serializer>(ended: &Option<Instant>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bool(ended.is_some())
}

/// A process under Ebbtide that has no figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untold {
    /// The process number.
    pub pid: u32,
    /// The short name of its program.
    pub name: String,
    /// Whether it will have figures soon, because it was forked.
    pub soon: bool,
    /// The reason.
    pub why: Why,
}

impl Untold {
    /// A process without figures.
    pub fn new(pid: u32, name: String, why: Why) -> Self {
        let soon = why == Why::Forked;
        Untold {
            pid,
            name,
            soon,
            why,
        }
    }
}

/// All watched processes.
#[derive(Debug, Default)]
pub struct Watch {
    scope: Scope,
    /// Processes with figures, by number.
    pub processes: Vec<Process>,
    /// Processes without figures.
    pub untold: Vec<Untold>,
    /// Number of processes that this user may not read.
    pub hidden: usize,
    search_due: Option<Instant>,
}

impl Watch {
    /// A watch without any process yet.
    pub fn new(scope: Scope) -> Self {
        Watch {
            scope,
            ..Watch::default()
        }
    }

    /// Takes a sample of all processes, and searches for new ones from time to time.
    pub fn look(&mut self, now: Instant) {
        if self.search_due.is_none_or(|due| now >= due) {
            self.search(now);
            let least = match self.scope {
                Scope::Dir(_) => Duration::ZERO,
                _ => SEARCH,
            };
            self.search_due = Some(now + least.max(now.elapsed() * SEARCH_FACTOR));
        }
        let shown = self.processes.len().max(1) as u32;
        for process in &mut self.processes {
            process.look(now, shown);
        }
        self.processes.retain(|process| {
            let is_over = |at: Instant| now.saturating_duration_since(at) > KEPT;
            !process.ended.is_some_and(is_over) || is_helper(process.figures.helper)
        });
    }

    fn search(&mut self, now: Instant) {
        let search = search(&self.scope);
        self.hidden = search.hidden;
        self.untold.clear();
        let mut seen = Vec::new();
        for found in search.found {
            let (pid, stat) = (found.pid, found.stat);
            match found.page {
                Ok(page) => {
                    seen.push((pid, stat.began));
                    self.found(pid, stat, page);
                }
                Err(why) => self.untold.push(Untold::new(pid, stat.name, why)),
            }
        }
        // A process that became a program without Ebbtide counts as ended.
        for process in &mut self.processes {
            if !seen.contains(&(process.pid, process.began)) {
                process.end(now);
            }
        }
        self.processes.sort_by_key(|process| process.pid);
    }

    fn found(&mut self, pid: u32, stat: Stat, page: OpenPage) {
        let is_it = |process: &Process| {
            (process.pid, process.began) == (pid, stat.began) && process.ended.is_none()
        };
        let place = self.processes.iter().position(is_it).unwrap_or_else(|| {
            self.processes.push(Process::new(pid, stat.began));
            self.processes.len() - 1
        });
        // The process may have become another program since.
        self.processes[place].become_(stat.name, page);
    }

    /// Adds processes that were too short to be found, by the pages that they left in `dir`.
    pub fn adopt(&mut self, dir: &Path) {
        let mut names = names(dir);
        for page in read_all(dir, SystemTime::UNIX_EPOCH) {
            let number = page.pid as u32;
            if self.processes.iter().all(|p| p.pid != number) {
                let mut process = Process::new(number, 0);
                process.name = names.remove(&number).unwrap_or_else(|| "?".into());
                process.figures = page;
                process.end(Instant::now());
                self.processes.push(process);
            }
        }
    }

    /// The watched process with this number; the living one if the number was used twice.
    pub fn by_pid(&self, pid: u32) -> Option<&Process> {
        let with_pid = self.processes.iter().filter(|process| process.pid == pid);
        with_pid.min_by_key(|process| process.ended.is_some())
    }

    /// The numbers in `pids` that are not watched.
    pub fn missing<'a>(&self, pids: &'a [u32]) -> impl Iterator<Item = &'a u32> {
        let known: Vec<u32> = self.processes.iter().map(|p| p.pid).collect();
        pids.iter().filter(move |pid| !known.contains(pid))
    }
}

impl Process {
    /// A process without figures so far.
    pub fn new(pid: u32, began: u64) -> Self {
        Process {
            pid,
            exit: "inline",
            began,
            ..Process::default()
        }
    }

    fn become_(&mut self, name: String, page: OpenPage) {
        self.name = name;
        self.page = Some(page);
        self.command = proc::words(self.pid, "cmdline").join(" ");
        self.conf = configuration(self.pid);
        let is_detached = is_detached(&self.conf) || self.figures.helper != 0;
        self.exit = if is_detached { "detached" } else { "inline" };
    }

    fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    fn look(&mut self, now: Instant, shown: u32) {
        if let Some(figures) = self.page.as_ref().and_then(OpenPage::read) {
            self.figures = figures;
        }
        if self.figures.helper != 0 {
            self.exit = "detached";
        }
        let is_it = |stat: &Stat| stat.began == self.began && !stat.is_over();
        if Stat::read(self.pid).filter(is_it).is_none() {
            self.end(now);
        }
        // After the end, the helper holds the memory.
        let holder = match self.ended {
            None => Some(self.pid),
            Some(_) => Some(self.figures.helper as u32).filter(|&pid| is_helper(pid.into())),
        };
        self.rss_bytes = holder.and_then(rss_of).unwrap_or(0);
        self.look_at_rollup(now, shown);
        let written_ms = Some(self.figures.written_ms).filter(|&ms| ms != 0);
        self.figures_age_ms = written_ms.map(|ms| (monotonic_ns() / 1_000_000).saturating_sub(ms));
        self.note(now);
    }

    /// Reads `smaps_rollup` if it is due. The read walks the page tables.
    fn look_at_rollup(&mut self, now: Instant, shown: u32) {
        if self.ended.is_some() {
            self.rss_without_lazy_bytes = None;
            return;
        }
        if self.rollup_due.is_some_and(|due| now < due) {
            return;
        }
        let began = Instant::now();
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid));
        let value = |name| kib_field(text.as_deref().ok()?, name);
        let without = value("Rss").zip(value("LazyFree"));
        self.rss_without_lazy_bytes = without.map(|(rss, lazy)| rss.saturating_sub(lazy));
        self.rollup_due = Some(now + ROLLUP.max(began.elapsed() * COST_FACTOR * shown));
    }

    /// Adds the current figures to the history.
    fn note(&mut self, now: Instant) {
        let f = &self.figures;
        let point = Point {
            at: now,
            rss_bytes: self.rss_bytes,
            live_bytes: f.live_bytes,
            dirty_bytes: f.dirty_bytes + f.pending_bytes,
            lazy_bytes: f.lazy_bytes,
            released_bytes: f.released_bytes,
            refaulted_bytes: f.refaulted_bytes,
            worker_ns: f.worker_ns,
        };
        if let Some(before) = self.history.back() {
            self.rates = Some(point.since(before));
        }
        self.history.push_back(point);
        let is_old = |point: &Point| now.saturating_duration_since(point.at) > SPAN;
        while self.history.len() > 2 && is_old(&self.history[0]) {
            self.history.pop_front();
        }
    }

    /// Asks the process through its page: see [`request::send`].
    pub fn ask(&self, text: &str) -> Result<(u64, File)> {
        let page = self.page.as_ref().context("its statistics page is gone")?;
        request::send(page, self.pid, text)
    }

    /// The result of the request with this number, once it is done.
    pub fn answer(&self, number: u64) -> Option<u64> {
        (self.figures.request_done == number).then_some(self.figures.request_result)
    }

    /// Free memory, lazy memory included.
    pub fn freed_bytes(&self) -> u64 {
        self.figures.dirty_bytes + self.figures.lazy_bytes
    }

    /// Bytes released per second; 0 if not known.
    pub fn back(&self) -> u64 {
        self.rates
            .map_or(0, |rates| rates.released_bytes_per_s as u64)
    }

    /// Whether the process has ended and its helper still returns memory.
    pub fn is_going(&self) -> bool {
        self.ended.is_some() && self.rss_bytes > 0
    }
}

impl Point {
    fn since(&self, before: &Point) -> Rates {
        let seconds = (self.at.saturating_duration_since(before.at).as_secs_f64()).max(1e-3);
        // The counters restart when a process becomes another program.
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            released_bytes_per_s: rate(self.released_bytes, before.released_bytes),
            refaulted_bytes_per_s: rate(self.refaulted_bytes, before.refaulted_bytes),
            worker_share: rate(self.worker_ns, before.worker_ns) / 1e9,
        }
    }

    /// Resident memory in layers that add up to it: other, live, dirty, lazy. Live memory that was never touched is
    /// in no layer.
    pub fn layers(&self) -> [u64; 4] {
        let lazy = self.lazy_bytes.min(self.rss_bytes);
        let dirty = self.dirty_bytes.min(self.rss_bytes - lazy);
        let live = self.live_bytes.min(self.rss_bytes - lazy - dirty);
        [self.rss_bytes - lazy - dirty - live, live, dirty, lazy]
    }
}

fn is_detached(conf: &str) -> bool {
    Conf::parse(conf).is_ok_and(|conf| conf.get("exit") == Some("detached"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: Instant, rss: u64, live: u64, dirty: u64, lazy: u64) -> Point {
        Point {
            at,
            rss_bytes: rss,
            live_bytes: live,
            dirty_bytes: dirty,
            lazy_bytes: lazy,
            released_bytes: 0,
            refaulted_bytes: 0,
            worker_ns: 0,
        }
    }

    #[test]
    fn layers_add_up_to_what_is_resident() {
        let now = Instant::now();
        assert_eq!(point(now, 100, 50, 20, 10).layers(), [20, 50, 20, 10]);
        // Live memory that was never touched.
        assert_eq!(point(now, 100, 900, 20, 10).layers(), [0, 70, 20, 10]);
        assert_eq!(point(now, 5, 50, 20, 10).layers(), [0, 0, 0, 5]);
    }

    #[test]
    fn rates_are_by_the_second_and_never_negative() {
        let now = Instant::now();
        let before = point(now, 0, 0, 0, 0);
        let after = Point {
            at: now + Duration::from_millis(500),
            released_bytes: 1000,
            worker_ns: 250_000_000,
            ..before
        };
        let rates = after.since(&before);
        assert_eq!(
            (rates.released_bytes_per_s, rates.worker_share),
            (2000.0, 0.5)
        );
        assert_eq!(before.since(&after).released_bytes_per_s, 0.0);
    }

    #[test]
    fn an_end_is_seen_and_shown_for_a_while() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let began = Stat::read(child.id()).unwrap().began;
        let mut watch = Watch::new(Scope::Pids(Vec::new()));
        let now = Instant::now();
        watch.look(now);
        watch.processes.push(Process::new(child.id(), began));
        let looks = |watch: &mut Watch, ms| watch.look(now + Duration::from_millis(ms));
        looks(&mut watch, 1);
        assert!(watch.processes[0].ended.is_none() && watch.processes[0].rss_bytes > 0);
        assert!(watch.processes[0].rss_without_lazy_bytes.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        looks(&mut watch, 2);
        assert!(watch.processes[0].ended.is_some() && watch.processes[0].rss_bytes == 0);
        looks(&mut watch, 4000);
        assert_eq!(watch.processes.len(), 1);
        looks(&mut watch, 6000);
        assert!(watch.processes.is_empty());
    }

    #[test]
    fn a_configuration_tells_the_way_of_exit() {
        assert!(is_detached("retain_ms=5,exit=detached"));
        assert!(!is_detached("") && !is_detached("exit=inline") && !is_detached("rubbish"));
    }
}
