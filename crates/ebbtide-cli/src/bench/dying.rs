//! A measured process that ends while it holds memory, and what its parent sees of it.
//!
//! ```text
//! worker    @base … @filled   @ending T0, end
//! observer    look    look      poll: the worker's end, the helper's end, the system's free memory
//! ```
//! The memory is gone when the process has been waited for and its helper, if it had
//! one, has ended too. That is seen at once, by process descriptors; the system's free
//! memory is looked at every few milliseconds, alike under every allocator.

use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::block::touch;
use crate::bench::link::{self, now_ns};
use crate::bench::observe::{SETTLE, is_readable, parse_mark};
use crate::bench::sample::{Probe, Sample};
use crate::bench::worker::{Curve, Output, alloc};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `exit(0)`.
    Exit,
    /// SIGKILL from its parent, while it sleeps.
    Kill,
    /// A write where nothing may be written, without a core file.
    Fault,
}

impl Death {
    /// By the name of the worker's case.
    fn named(case: &str) -> Option<Self> {
        [Death::Exit, Death::Kill, Death::Fault]
            .into_iter()
            .find(|death| death.case() == case)
    }

    /// The worker's case.
    pub fn case(self) -> &'static str {
        match self {
            Death::Exit => "end_exit",
            Death::Kill => "end_kill",
            Death::Fault => "end_fault",
        }
    }

    fn fits(self, status: ExitStatus) -> bool {
        match self {
            Death::Exit => status.success(),
            Death::Kill => status.signal() == Some(libc::SIGKILL),
            Death::Fault => status.signal() == Some(libc::SIGSEGV),
        }
    }
}

/// How to watch an end.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// How it ends.
    pub death: Death,
    /// What the process fills.
    pub size_bytes: u64,
    /// How long to wait for the memory.
    pub wait: Duration,
}

/// Between two looks, and between two points of a curve.
const POLL_MS: u64 = 2;
const CURVE_STEP_MS: u64 = 10;
const MIB: f64 = (1 << 20) as f64;

/// The measured process. Does not return.
pub fn run(case: &str, bytes: u64) -> Result<Output> {
    let death = Death::named(case).with_context(|| format!("unknown end '{case}'"))?;
    let never = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid limit; the default action for the signal.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &never);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
    }
    link::base();
    let block = alloc(bytes as usize);
    // SAFETY: the block has these bytes.
    unsafe { touch(block, bytes as usize) };
    // SAFETY: a new mapping, no address asked for.
    let forbidden = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0)
    };
    ensure!(forbidden != libc::MAP_FAILED, "mmap: out of memory");
    // One that is to be killed gets no answer.
    link::filled(0);
    link::ending(now_ns());
    match death {
        Death::Exit => std::process::exit(0),
        Death::Kill => bail!("was answered instead of killed"),
        // SAFETY: a mapping of ours. The write is refused, which ends the process.
        Death::Fault => unsafe { forbidden.cast::<u8>().write_volatile(1) },
    }
    bail!("outlived its fault")
}

/// What was seen of an end.
#[derive(Debug, Default)]
struct Seen {
    base: Sample,
    filled: Sample,
    /// The call, or the signal.
    began_ns: u64,
    /// Waited for.
    ended_ns: u64,
    /// Its helper too.
    gone_ns: u64,
    samples: Vec<Sample>,
}

impl Seen {
    /// What the system has less than before the fill.
    fn taken(&self, s: &Sample) -> i64 {
        self.base.free_bytes as i64 - s.free_bytes as i64
    }

    /// All but a hundredth; the system's other business takes and gives a little.
    fn is_back(&self, s: &Sample, size_bytes: u64) -> bool {
        self.taken(s) <= (size_bytes / 100).max(8 << 20) as i64
    }

    /// Whether others took or gave too much during the fill.
    fn is_disturbed(&self) -> bool {
        let grown = self.filled.rss_bytes as i64 - self.base.rss_bytes as i64;
        (self.taken(&self.filled) - grown).abs() > grown / 10 + (4 << 20)
    }

    fn output(&self, size_bytes: u64) -> Output {
        let ms = |at_ns: u64| at_ns.saturating_sub(self.began_ns) as f64 / 1e6;
        let back = self
            .samples
            .iter()
            .find(|s| s.at_ns >= self.began_ns && self.is_back(s, size_bytes))
            .map_or(f64::INFINITY, |s| ms(s.at_ns));
        let back = if self.is_disturbed() { f64::NAN } else { back };
        let figures = [
            ("seen_ms", ms(self.ended_ns)),
            ("gone_ms", ms(self.gone_ns)),
            ("back_ms", back),
        ];
        Output {
            checksum: size_bytes,
            metrics: figures.map(|(k, v)| (k.to_owned(), v)).into(),
            curve: Some(self.curve()),
            ..Output::default()
        }
    }

    fn curve(&self) -> Curve {
        let mut curve = Curve {
            step_ms: CURVE_STEP_MS,
            base_mib: self.base.rss_bytes as f64 / MIB,
            ..Curve::default()
        };
        let end_ns = self.samples.last().map_or(0, |s| s.at_ns);
        let (mut next, mut latest) = (0, self.filled);
        let mut at_ns = self.began_ns;
        while at_ns <= end_ns {
            while let Some(s) = self.samples.get(next).filter(|s| s.at_ns <= at_ns) {
                latest = *s;
                next += 1;
            }
            curve.rss_mib.push(latest.rss_bytes as f64 / MIB);
            curve.system_mib.push(self.taken(&latest) as f64 / MIB);
            at_ns += CURVE_STEP_MS * 1_000_000;
        }
        curve
    }
}

/// Follows a worker to its end and until its memory is back.
pub fn follow(
    child: &mut Child,
    ending: Ending,
    needs_helper: bool,
    limit: Instant,
) -> Result<Output> {
    let mut probe = Probe::new(child.id())?;
    let mut said = child.stdout.take().context("no pipe from the worker")?;
    let mut answer = child.stdin.take().context("no pipe to the worker")?;
    let mut seen = Seen::default();
    mark(&mut said, "base", limit)?;
    std::thread::sleep(SETTLE);
    seen.base = probe.look(true)?;
    answer.write_all(b"g")?;
    mark(&mut said, "filled", limit)?;
    seen.filled = probe.look(true)?;

    let worker = open_process(child.id()).context("no process descriptor (Linux 5.3)")?;
    let helper = helper_of(child.id());
    ensure!(
        helper.is_some() || !needs_helper,
        "no helper was made: this is the kernel's own exit ('ebbtide doctor' may say why)"
    );
    if let Some((pid, _)) = &helper {
        probe.turn_to(*pid)?;
    }
    if ending.death == Death::Kill {
        seen.began_ns = now_ns();
        child.kill()?;
    } else {
        answer.write_all(b"g")?;
    }
    let helper = helper.map(|(_, process)| process);
    let mut waiting = [Some(worker), helper];
    let patience_ns = ending.wait.as_nanos() as u64;
    loop {
        let over = poll_ends(&waiting)?;
        if over[0] {
            let status = child.wait()?;
            seen.ended_ns = now_ns();
            ensure!(ending.death.fits(status), "ends with {status}");
        }
        for (place, is_over) in waiting.iter_mut().zip(over) {
            if is_over {
                *place = None;
            }
        }
        let is_gone = waiting.iter().all(Option::is_none);
        if is_gone && seen.gone_ns == 0 {
            seen.gone_ns = now_ns();
        }
        let sample = probe.look_beyond(is_gone && over != [false, false])?;
        seen.samples.push(sample);
        ensure!(Instant::now() < limit, "no end in time");
        let is_late = is_gone && now_ns() >= seen.gone_ns + patience_ns;
        if is_gone && (is_late || seen.is_back(&sample, ending.size_bytes)) {
            break;
        }
    }
    if ending.death != Death::Kill {
        seen.began_ns = mark(&mut said, "ending", limit)?;
    }
    Ok(seen.output(ending.size_bytes))
}

/// Reads the mark of this name, and its number if it has one.
fn mark(said: &mut ChildStdout, name: &str, limit: Instant) -> Result<u64> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let patience = limit.saturating_duration_since(Instant::now());
        ensure!(is_readable(said, patience)?, "no '{name}' in time");
        let mut byte = [0u8];
        ensure!(said.read(&mut byte)? == 1, "ended before '{name}'");
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    match parse_mark(line.trim()) {
        Some((found, numbers)) if found == name => Ok(numbers.first().copied().unwrap_or(0)),
        _ => bail!("not the mark '{name}': {line:?}"),
    }
}

/// The process's only child: it starts none but its helper.
pub fn helper_of(pid: u32) -> Option<(u32, OwnedFd)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let children = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .collect::<String>();
    let helper = children.split_whitespace().next()?.parse().ok()?;
    Some((helper, open_process(helper).ok()?))
}

fn open_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; the new descriptor is owned by nobody else.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}

/// Which of the processes have ended, at the latest after [`POLL_MS`].
fn poll_ends(processes: &[Option<OwnedFd>; 2]) -> Result<[bool; 2]> {
    // SAFETY: numbers only, for which zero is a value.
    let mut polls: [libc::pollfd; 2] = unsafe { mem::zeroed() };
    for (poll, process) in polls.iter_mut().zip(processes) {
        // A negative descriptor is passed over.
        poll.fd = process.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        poll.events = libc::POLLIN;
    }
    // SAFETY: two descriptors, as said.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, POLL_MS as libc::c_int) };
    Ok(polls.map(|p| p.revents != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, free_mib: u64) -> Sample {
        Sample {
            at_ns: at_ms * 1_000_000,
            rss_bytes: 0,
            free_bytes: free_mib << 20,
        }
    }

    #[test]
    fn times_count_from_the_end() {
        let mut seen = Seen {
            base: sample(0, 2000),
            filled: sample(50, 1000),
            began_ns: 100_000_000,
            ended_ns: 101_000_000,
            gone_ns: 150_000_000,
            samples: vec![sample(90, 1995), sample(120, 1500), sample(140, 1991)],
        };
        seen.filled.rss_bytes = 1000 << 20;
        let output = seen.output(1000 << 20);
        // Within 10 MiB; what was seen before the end does not count.
        assert_eq!(output.metrics["back_ms"], 40.0);
        assert_eq!(output.metrics["seen_ms"], 1.0);
        assert_eq!(output.metrics["gone_ms"], 50.0);
        assert_eq!(output.curve.unwrap().system_mib[2], 500.0);
        seen.filled.rss_bytes = 800 << 20;
        assert!(seen.output(1000 << 20).metrics["back_ms"].is_nan());
        seen.samples.pop();
        seen.filled.rss_bytes = 1000 << 20;
        assert!(seen.output(1000 << 20).metrics["back_ms"].is_infinite());
    }

    #[test]
    fn a_child_is_found_and_its_end_is_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let (pid, process) = helper_of(std::process::id()).unwrap();
        // Other tests of this process may have a child, too.
        if pid == child.id() {
            assert_eq!(
                poll_ends(&[Some(process.try_clone().unwrap()), None]).unwrap(),
                [false; 2]
            );
        }
        child.kill().unwrap();
        let ended = open_process(child.id()).unwrap();
        while poll_ends(&[Some(ended.try_clone().unwrap()), None]).unwrap() != [true, false] {}
        child.wait().unwrap();
    }
}
