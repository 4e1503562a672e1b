//! The samples of a running process. Its memory is read; it is not stopped.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use ebbtide_interface::profile::{Area, MAX_STACKS, VERSION, used_bytes};
use ebbtide_tools::proc::Stat;
use ebbtide_tools::{library, out};

use super::model::View;
use super::raw::{self, Bad, Raw};
use super::report::{self, Report};
use super::{RATE, symbols};
use crate::cli::{ProfileArgs, ReleaseArgs};
use crate::control;
use crate::memory::{self, Memory, Readable};
use crate::run::end::monotonic_ns;
use crate::run::signals::{Passing, ending_signal};
use crate::smaps;
use crate::top::find::{self, Scope};
use crate::top::request::answer;

/// How long a process is sampled that was not sampled before.
const SECONDS: Duration = Duration::from_secs(10);
/// How long a process may take to switch sampling on or off.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(50);
/// Time between two snapshots, one of which is used if the process ends.
pub const SNAPSHOT: Duration = Duration::from_secs(1);

/// Takes the profile of a process and writes it.
pub fn profile(args: &ProfileArgs, pid: u32, report: &mut Report) -> Result<()> {
    let passing = Passing::hold().context("cannot handle signals")?;
    passing.set_child(None);
    let start = read(pid)?;
    let is_on = start.as_ref().is_some_and(|raw| raw.area.rate > 0);
    let sampled = if is_on {
        if args.rate.is_some() {
            out::warning(&format!(
                "process {pid} takes samples already: --rate has no effect"
            ));
        }
        wait(pid, args.seconds.unwrap_or(Duration::ZERO))
    } else {
        let seconds = args.seconds.unwrap_or(SECONDS);
        let rate = args.rate.as_deref().unwrap_or(RATE);
        switch(pid, rate)?;
        out::stderr(&format!(
            "ebbtide: process {pid} took no samples: it does for {} s; Ctrl-C ends this earlier\n",
            seconds.as_secs_f64()
        ));
        let sampled = wait(pid, seconds);
        if sampled.as_ref().is_ok_and(|sampled| !sampled.has_ended)
            && let Err(error) = switch(pid, "off")
        {
            out::warning(&format!("process {pid} goes on taking samples: {error:#}"));
        }
        sampled
    };
    let Sampled { mut raw, has_ended } = sampled?;
    let mut notes = report::notes_of(&raw);
    if has_ended {
        notes.push(format!(
            "process {pid} has ended; this is its profile from a second before, at most"
        ));
    }
    let is_over_time = report.shown.view() == View::Allocated;
    if let Some(start) = start
        && is_over_time
        && (args.seconds.is_some() || !is_on)
    {
        raw.subtract(&start);
    }
    let profile = symbols::name(&raw, Some(pid), &mut notes);
    report.write(profile, notes)
}

/// A snapshot at the end of a wait.
struct Sampled {
    raw: Raw,
    has_ended: bool,
}

/// Waits until the time is over, a signal comes, or the process ends.
fn wait(pid: u32, time: Duration) -> Result<Sampled> {
    let (began_ns, end) = (monotonic_ns(), Instant::now() + time);
    let (mut last, mut next) = (None, Instant::now() + SNAPSHOT);
    while Instant::now() < end && ending_signal(began_ns).is_none() && !is_over(pid) {
        thread::sleep(STEP.min(end.saturating_duration_since(Instant::now())));
        if Instant::now() >= next {
            last = read(pid).ok().flatten().or(last);
            next = Instant::now() + SNAPSHOT;
        }
    }
    let (read, has_ended) = (read(pid), is_over(pid));
    match (read, last) {
        (Ok(Some(raw)), _) => Ok(Sampled { raw, has_ended }),
        (Err(_), Some(raw)) if has_ended => Ok(Sampled { raw, has_ended }),
        (Err(error), _) => Err(error),
        (Ok(None), _) => bail!(
            "process {pid} has taken no samples yet: it begins at its next slow call of malloc or free. 'ebbtide set {pid} profile=off' takes that back"
        ),
    }
}

fn is_over(pid: u32) -> bool {
    Stat::read(pid).is_none_or(|stat| stat.is_over())
}

/// Switches sampling on, with a rate, or off.
fn switch(pid: u32, value: &str) -> Result<()> {
    let has_page = find::search(&Scope::Pids(vec![pid])).found.pop();
    if has_page.is_none_or(|found| found.page.is_err()) {
        bail!(
            "process {pid} takes no samples, and keeps no statistics page through which this could change: \
             start it with 'ebbtide profile -- COMMAND', or with EBBTIDE_CONF=profile={RATE} or stats_dir=/DIRECTORY"
        );
    }
    let item = format!("profile={value}");
    let request = ReleaseArgs {
        pid,
        wait: PATIENCE,
    };
    match control::ask(&request, &item)? {
        Some(after) if after.request_result != 0 => {
            bail!("{}", answer(&item, after.request_result))
        }
        _ => Ok(()),
    }
}

/// Reads the samples of a process. `None`: it never took any.
pub fn read(pid: u32) -> Result<Option<Raw>> {
    let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_over()) else {
        bail!("{}", find::gone(pid));
    };
    let mappings = smaps::read(pid, "maps")?;
    let memory = match Memory::open(pid, &mappings) {
        Ok(memory) => memory,
        Err(error) => bail!("{}", memory::refused(pid, &error)),
    };
    let Some(words) = memory::find_page(&memory, &mappings) else {
        let has_library = mappings.iter().any(|it| library::is_named(it.file_name()));
        bail!("{}", without_page(pid, has_library));
    };
    let at = memory::places(&words).map_or(0, |places| places.profile);
    if at == 0 {
        return Ok(None);
    }
    let raw = read_area(&memory, at).with_context(|| format!("the samples of process {pid}"))?;
    Ok(Some(Raw {
        mappings,
        program: stat.name,
        pid: pid.into(),
        time_ns: monotonic_ns(),
        unix_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
        ..raw
    }))
}

fn read_area(memory: &Memory, at: u64) -> Result<Raw> {
    let head = memory.read(at, Area::COUNT * 8)?;
    let stacks = raw::area(&head).map_err(said)?.stacks;
    // Stacks that come meanwhile are left out.
    let used = memory.read(at, used_bytes((stacks as usize).min(MAX_STACKS)))?;
    Raw::parse(&used).map_err(said)
}

fn said(bad: Bad) -> anyhow::Error {
    match bad {
        Bad::Version(version) => anyhow!(
            "they have version {version}, and this program reads version {VERSION}: use the 'ebbtide' that belongs to the library"
        ),
        Bad::NoProfile | Bad::Short => anyhow!("they are damaged"),
    }
}

fn without_page(pid: u32, has_library: bool) -> String {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let program = program.map_or("COMMAND".into(), |path| path.display().to_string());
    match has_library {
        true => format!(
            "process {pid} has an Ebbtide of another version: use the 'ebbtide' that belongs to its library"
        ),
        false => format!(
            "process {pid} does not run under Ebbtide: start it with 'ebbtide profile -- {program} …'"
        ),
    }
}
