//! A measured process that ends while it holds memory, and its end as its parent sees it.
//!
//! ```text
//! worker    @base … @filled   @ending T0, end
//! parent                        wait ─────── returns
//! (its helper's)                poll ─────────────────── returns
//! observer    sample  sample    sleep, sample, sleep, sample …
//! ```
//! The memory counts as returned when the process has been waited for and its helper, if it had one, has ended too.
//! Each of the two ends is awaited by a thread that does nothing else. The system's free memory is sampled every few
//! milliseconds, in the same way under every allocator.
//!
//! - `INV-DYING-1`: no sample is taken between an end and the time that is recorded for it. No sample is taken before
//!   an end that comes at once, or because of the program's end while its helper is at work.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::measured::block::touch;
use crate::measured::calls::{map, now_ns};
use crate::measured::{Curve, MIB, Output, alloc, link};
use crate::outside::observe::{SETTLE, answer, mark};
use crate::outside::pidfd::{helper_of, kill, open_process, wait_for_any};
use crate::outside::sample::{Probe, Sample};

/// The way in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Death {
    /// `exit(0)`.
    Exit,
    /// SIGKILL from its parent, while the process sleeps.
    Kill,
    /// A write to memory without write access, without a core file.
    Segv,
}

impl Death {
    /// The way in a case such as `exit_4k`.
    pub fn of(case: &str) -> Option<Self> {
        let (name, _) = case.split_once('_')?;
        Death::from_str(name, false).ok()
    }

    fn fits(self, status: ExitStatus) -> bool {
        match self {
            Death::Exit => status.success(),
            Death::Kill => status.signal() == Some(libc::SIGKILL),
            Death::Segv => status.signal() == Some(libc::SIGSEGV),
        }
    }
}

/// A measured process that ends while it holds memory.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Its case.
    pub case: &'static str,
    /// The way in which the process ends.
    pub death: Death,
    /// Bytes that the process fills.
    pub size_bytes: u64,
    /// Maximum time to wait until the memory is back.
    pub wait: Duration,
}

/// Time from the call or signal to the first sample: a process that ends at once ends without a sample.
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// Time between two samples, and between two points of a curve.
const POLL: Duration = Duration::from_millis(2);
const CURVE_STEP_MS: u64 = 10;

/// Runs in the measured process. Does not return.
pub fn run(death: Death, bytes: u64) -> Result<Output> {
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
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let forbidden = map(4096, libc::PROT_NONE, flags, -1)?;
    // A process that will be killed gets no answer.
    link::filled(0);
    link::ending(now_ns());
    match death {
        Death::Exit => std::process::exit(0),
        Death::Kill => bail!("was answered instead of killed"),
        // SAFETY: a mapping of this process. The write is refused, which ends the process.
        Death::Segv => unsafe { forbidden.write_volatile(1) },
    }
    bail!("outlived its fault")
}

/// The observations of one end.
#[derive(Debug, Default)]
struct Seen {
    base: Sample,
    filled: Sample,
    /// Time of the call or the signal.
    began_ns: u64,
    /// Time at which the process had been waited for.
    ended_ns: u64,
    /// Time at which its helper had ended too.
    gone_ns: u64,
    samples: Vec<Sample>,
}

impl Seen {
    /// Memory that the system has less than before the fill.
    fn taken(&self, s: &Sample) -> i64 {
        self.base.free_bytes as i64 - s.free_bytes as i64
    }

    /// Whether the memory is back, except for a hundredth: other processes take and free some memory.
    fn is_back(&self, s: &Sample, size_bytes: u64) -> bool {
        self.taken(s) <= (size_bytes / 100).max(8 << 20) as i64
    }

    /// Takes samples until both have ended and the memory is back, or until the time is over.
    fn watch(
        &mut self,
        mut ends: Ends,
        ending: Ending,
        limit: Instant,
        mut look: impl FnMut(bool) -> Result<Sample>,
    ) -> Result<()> {
        let patience_ns = ending.wait.as_nanos() as u64;
        let mut look_at = Instant::now() + FIRST_LOOK;
        loop {
            let pause = look_at.saturating_duration_since(Instant::now());
            let end = ends.told.recv_timeout(pause).ok();
            let is_new = end.is_some();
            if let Some((at_ns, end)) = end {
                if let End::Program(status) = end {
                    let status = status?;
                    ensure!(ending.death.fits(status), "ends with {status}");
                    self.ended_ns = at_ns;
                }
                self.gone_ns = self.gone_ns.max(at_ns);
                ends.left -= 1;
                if ends.left > 0 {
                    // A sample now would delay only the other end.
                    continue;
                }
            }
            let is_gone = ends.left == 0;
            let sample = look(is_gone && is_new)?;
            look_at = Instant::now() + POLL;
            self.samples.push(sample);
            ensure!(Instant::now() < limit, "no end in time");
            let is_late = is_gone && now_ns() >= self.gone_ns + patience_ns;
            if is_gone && (is_late || self.is_back(&sample, ending.size_bytes)) {
                return Ok(());
            }
        }
    }

    fn output(&self, size_bytes: u64) -> Output {
        let ms = |at_ns: u64| at_ns.saturating_sub(self.began_ns) as f64 / 1e6;
        let back = self
            .samples
            .iter()
            .find(|s| s.at_ns >= self.began_ns && self.is_back(s, size_bytes))
            .map_or(f64::INFINITY, |s| ms(s.at_ns));
        // Not a number if other processes took or freed too much memory during the fill.
        let back = match self.filled.is_disturbed_since(&self.base) {
            true => f64::NAN,
            false => back,
        };
        let figures = [
            ("seen_ms", ms(self.ended_ns)),
            ("gone_ms", ms(self.gone_ns)),
            ("back_ms", back),
        ];
        Output {
            curve: Some(self.curve()),
            ..Output::new(size_bytes, figures)
        }
    }

    fn curve(&self) -> Curve {
        let mut curve = Curve {
            step_ms: CURVE_STEP_MS,
            base_mib: self.base.rss_bytes as f64 / MIB,
            ..Curve::default()
        };
        let points = curve.points(self.began_ns, self.filled, &self.samples, |s| s.at_ns);
        (curve.rss_mib, curve.system_mib) = points
            .map(|s| (s.rss_bytes as f64 / MIB, self.taken(&s) as f64 / MIB))
            .unzip();
        curve
    }
}

/// Follows a worker to its end, and until its memory is back.
pub fn follow(
    child: &mut Child,
    ending: Ending,
    needs_helper: bool,
    limit: Instant,
) -> Result<Output> {
    let mut probe = Probe::new(child.id())?;
    let mut seen = Seen::default();
    mark(child, "base", limit)?;
    std::thread::sleep(SETTLE);
    seen.base = probe.look(true)?;
    answer(child)?;
    mark(child, "filled", limit)?;
    seen.filled = probe.look(true)?;

    let worker = open_process(child.id()).context("no process descriptor (Linux 5.3)")?;
    let helper = helper_of(child.id(), needs_helper)?;
    if let Some((pid, _)) = &helper {
        probe.turn_to(*pid)?;
    }
    let helper = helper.map(|(_, process)| process);
    let mut input = child.stdin.take().context("no pipe to the worker")?;
    beside_waiters(child, helper, limit, |ends| {
        if ending.death == Death::Kill {
            seen.began_ns = now_ns();
            kill(&worker)?;
        } else {
            input.write_all(b"g")?;
        }
        seen.watch(ends, ending, limit, |is_exact| probe.look_beyond(is_exact))
    })?;
    if ending.death != Death::Kill {
        let numbers = mark(child, "ending", limit)?;
        seen.began_ns = numbers.first().copied().unwrap_or(0);
    }
    Ok(seen.output(ending.size_bytes))
}

/// An end, at the time when the waiting thread saw it.
#[derive(Debug)]
enum End {
    Program(io::Result<ExitStatus>),
    Helper,
}

/// The ends that threads wait for.
struct Ends {
    told: Receiver<(u64, End)>,
    /// Number of ends that have not come.
    left: usize,
}

/// Runs `watch` while two threads wait for the ends and report their times. If it fails, the process is killed.
fn beside_waiters(
    child: &mut Child,
    helper: Option<OwnedFd>,
    limit: Instant,
    watch: impl FnOnce(Ends) -> Result<()>,
) -> Result<()> {
    let program = open_process(child.id())?;
    let (tell, told) = mpsc::channel();
    let left = 1 + usize::from(helper.is_some());
    thread::scope(|scope| {
        let to = tell.clone();
        scope.spawn(move || {
            let status = child.wait();
            let _ = to.send((now_ns(), End::Program(status)));
        });
        if let Some(helper) = helper {
            let to = tell.clone();
            scope.spawn(move || {
                if wait_for_any(&[&helper], limit) == [true] {
                    let _ = to.send((now_ns(), End::Helper));
                }
            });
        }
        // Now both threads wait.
        thread::sleep(SETTLE);
        let watched = watch(Ends { told, left });
        if watched.is_err() {
            let _ = kill(&program);
        }
        watched
    })
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
        // The memory is within 10 MiB; samples before the end do not count.
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

    fn sleeper() -> Child {
        let mut command = std::process::Command::new("sleep");
        command.arg("100").spawn().unwrap()
    }

    /// Tests INV-DYING-1. On busy CPUs a waiting thread may be late, but not three times.
    #[test]
    fn slow_looks_do_not_make_ends_late() {
        const LOOK: Duration = Duration::from_millis(300);
        let late = (0..3).map(|_| ends_are_late_ns(LOOK));
        let in_time = |ns: &[u64; 2]| ns.iter().all(|&ns| ns < LOOK.as_nanos() as u64 / 2);
        let all: Vec<_> = late.take_while(|ns| !in_time(ns)).collect();
        assert!(all.len() < 3, "{all:?}");
    }

    /// The delays with which the ends of a program and its helper are seen, beside samples that take `look`.
    fn ends_are_late_ns(look: Duration) -> [u64; 2] {
        let (mut child, helper) = (sleeper(), sleeper());
        let (program, mut helper) = (open_process(child.id()).unwrap(), helper);
        let helper_process = open_process(helper.id()).unwrap();
        let limit = Instant::now() + Duration::from_secs(20);
        let ending = Ending {
            case: "",
            death: Death::Kill,
            size_bytes: 64 << 20,
            wait: Duration::ZERO,
        };
        let mut seen = Seen::default();
        let (mut looks, mut killed_ns) = (0, 0);
        beside_waiters(&mut child, Some(helper_process), limit, |ends| {
            seen.watch(ends, ending, limit, |_| {
                looks += 1;
                let at_ns = now_ns();
                if looks == 1 {
                    // The ends come right after the start of a sample.
                    killed_ns = at_ns;
                    kill(&program)?;
                    helper.kill()?;
                }
                thread::sleep(look);
                Ok(Sample {
                    at_ns,
                    ..Sample::default()
                })
            })
        })
        .unwrap();
        helper.wait().unwrap();
        let late_ns = |at_ns: u64| at_ns - killed_ns;
        assert!(looks >= 2, "one when all is gone");
        [late_ns(seen.ended_ns), late_ns(seen.gone_ns)]
    }

    #[test]
    fn an_end_at_once_is_not_looked_at_before() {
        let ending = Ending {
            case: "",
            death: Death::Exit,
            size_bytes: 64 << 20,
            wait: Duration::ZERO,
        };
        let limit = Instant::now() + Duration::from_secs(10);
        let look = |is_exact: bool| {
            assert!(is_exact, "the first look is the one after the end");
            Ok(Sample::default())
        };
        let ended = |status: i32, helper_ns: Option<u64>| {
            let (tell, told) = mpsc::channel();
            let status = ExitStatus::from_raw(status);
            tell.send((7, End::Program(Ok(status)))).unwrap();
            if let Some(at_ns) = helper_ns {
                tell.send((at_ns, End::Helper)).unwrap();
            }
            let left = 1 + usize::from(helper_ns.is_some());
            Ends { told, left }
        };
        let mut seen = Seen::default();
        seen.watch(ended(0, None), ending, limit, look).unwrap();
        assert_eq!((seen.ended_ns, seen.gone_ns), (7, 7));
        assert_eq!(seen.samples.len(), 1);
        let mut seen = Seen::default();
        seen.watch(ended(0, Some(9)), ending, limit, look).unwrap();
        assert_eq!((seen.ended_ns, seen.gone_ns), (7, 9));
        assert_eq!(seen.samples.len(), 1);
        // A process that ended in another way than intended is an error.
        let other = Seen::default().watch(ended(9, None), ending, limit, look);
        assert!(other.unwrap_err().to_string().contains("signal"));
    }
}
