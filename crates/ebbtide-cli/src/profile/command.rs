//! Runs a command with sampling. Each of its processes writes a dump when it ends in order; the heaviest one is shown.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ebbtide_tools::{conf, out, stats_page};
use rustix::process::{Pid, WaitIdOptions};

use super::RATE;
use super::model::Amount;
use super::process::{self, SNAPSHOT};
use super::raw::Raw;
use super::report::{self, Report};
use super::symbols;
use crate::cli::ProfileArgs;
use crate::run::Launch;
use crate::run::signals::Passing;
use crate::run::supervise::{exit_status, is_over, reap};

const STEP: Duration = Duration::from_millis(20);
/// Other processes that are named.
const MOST_NAMED: usize = 3;

/// Runs the command, writes its profile, and returns its exit status.
pub fn profile(args: &ProfileArgs, report: &mut Report) -> Result<u8> {
    let mut conf = conf::merged(&args.conf)?;
    if args.rate.is_some() || conf.get("profile").is_none() {
        conf.set("profile", args.rate.as_deref().unwrap_or(RATE));
    }
    let dir = stats_page::private_dir()?;
    let dumps = dir.path().join("%p");
    conf.set("profile_dump", &dumps.to_string_lossy());
    let launch = Launch::new(&args.command, &args.lib, &conf, false)?;
    let passing = Passing::hold().context("cannot handle signals")?;
    let started = passing.start(&mut launch.command(Some(&conf)));
    let pid = started.map_err(|error| launch.cannot_start(&error))?;
    let watched = watch(args, pid, report);
    passing.clear_child();
    let (status, _) = reap(pid).context("cannot wait for the command")?;
    let status = exit_status(status);
    let written = watched.and_then(|watched| match watched {
        Watched::Written => Ok(()),
        Watched::Ended(last) => at_the_end(dir.path(), last, report),
    });
    match written {
        // The command's status counts more.
        Err(error) if status != 0 => {
            out::error(&error);
            Ok(status)
        }
        written => written.map(|()| status),
    }
}

/// What happened until the end of the command.
enum Watched {
    /// The profile was written after the time that was asked for.
    Written,
    /// The last snapshot of the command's first process.
    Ended(Option<Box<Raw>>),
}

/// Waits for the end of the command, without reaping it. After `--seconds` it writes the profile.
fn watch(args: &ProfileArgs, pid: Pid, report: &mut Report) -> Result<Watched> {
    let number = pid.as_raw_pid() as u32;
    let end = args.seconds.map(|time| Instant::now() + time);
    let (mut last, mut next, mut written) = (None, Instant::now() + SNAPSHOT, None);
    loop {
        let flags = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if is_over(pid, flags).context("cannot wait for the command")? {
            break;
        }
        thread::sleep(STEP);
        if written.is_none() && Instant::now() >= next {
            last = process::read(number).ok().flatten().or(last);
            next = Instant::now() + SNAPSHOT;
        }
        if written.is_none() && end.is_some_and(|end| Instant::now() >= end) {
            written = Some(process::read(number).and_then(|raw| match raw {
                Some(raw) => write(&raw, Some(number), Vec::new(), report),
                None => bail!("the command has taken no samples yet"),
            }));
        }
    }
    match written {
        Some(written) => written.map(|()| Watched::Written),
        None => Ok(Watched::Ended(last.map(Box::new))),
    }
}

/// Writes the profile from the dumps in the directory, or else from the last snapshot.
fn at_the_end(dir: &Path, last: Option<Box<Raw>>, report: &mut Report) -> Result<()> {
    let view = report.shown.view() as usize;
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let dumps = files.filter_map(|file| Raw::parse_dump(&fs::read(file.path()).ok()?).ok());
    let mut dumps: Vec<(f64, Raw)> = dumps.map(|dump| (estimate(&dump, view), dump)).collect();
    dumps.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut notes = Vec::new();
    let raw = match (dumps.split_first(), last) {
        (Some(((_, first), others)), _) => {
            notes.extend(others_of(others));
            first.clone()
        }
        (None, Some(last)) => {
            notes.push(
                "the command did not end in order (a signal, or _exit), so it wrote no profile; this is its first process at most a second before"
                    .into(),
            );
            *last
        }
        (None, None) => bail!(
            "no process of the command wrote a profile: a signal or _exit ended it within a second, or Ebbtide was not loaded; \
             'ebbtide run --summary -- COMMAND' tells"
        ),
    };
    write(&raw, None, notes, report)
}

fn write(raw: &Raw, pid: Option<u32>, notes: Vec<String>, report: &mut Report) -> Result<()> {
    let mut notes = [notes, report::notes_of(raw)].concat();
    let profile = symbols::name(raw, pid, &mut notes);
    report.write(profile, notes)
}

/// The bytes that all samples of a view stand for.
fn estimate(raw: &Raw, view: usize) -> f64 {
    let amounts = raw.stacks.iter().map(|stack| {
        let (samples, bytes) = stack.samples[view];
        Amount::of_samples(samples, bytes, stack.rate).bytes
    });
    amounts.sum()
}

/// Names the processes that are not shown, the heaviest first.
fn others_of(others: &[(f64, Raw)]) -> Option<String> {
    let named = others.iter().take(MOST_NAMED);
    let named: Vec<String> = named
        .map(|(bytes, raw)| {
            format!(
                "{}[{}] {}",
                raw.program,
                raw.pid,
                out::bytes(bytes.round() as u64)
            )
        })
        .collect();
    let more = match others.len() > MOST_NAMED {
        true => ", …",
        false => "",
    };
    (!others.is_empty()).then(|| {
        format!(
            "{} other processes of the command are left out: {}{more}; EBBTIDE_CONF=profile=…,profile_dump=/DIR/%p keeps all",
            others.len(),
            named.join(", ")
        )
    })
}
