//! `ebbtide top`: shows what processes under Ebbtide hold, keep and release, while they run.
//!
//! | module | what it does |
//! |---|---|
//! | `find` | finds the processes and their statistics pages |
//! | `watch` | keeps the recent figures of each process |
//! | `table` | columns and order; the plain table, and JSON |
//! | `view`, `chart` | the view on a terminal; layers over time |
//! | `cover` | what keys lay over the view: help, parts of memory, settings, a release |
//! | `request` | asks a process through its statistics page |
//! | `screen` | the terminal: keys and signals; restores it at the end |
//! | `started` | a command that `top` started to watch it |

mod chart;
mod cover;
pub mod find;
pub mod request;
mod screen;
mod started;
mod table;
mod view;
mod watch;

use std::env;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ebbtide_tools::{conf, out, stats_page};

use crate::cli::TopArgs;
use crate::run::Launch;
use crate::run::signals::Passing;
use find::Scope;
use screen::Left;
use started::{Output, Started};
use view::View;
use watch::Watch;

const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between the two samples from which `--once` computes rates.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the processes and returns the exit status.
pub fn main(args: &TopArgs) -> Result<u8> {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb;
    let is_stream = args.json && !args.once;
    let is_once = args.once || !is_terminal;
    if !is_terminal && !args.once && !args.json {
        out::stderr("ebbtide: not a terminal, so this prints one table, as with --once\n");
    }
    match (args.command.is_empty(), is_once || is_stream) {
        (true, _) if is_stream => stream(args),
        (true, true) => once(args),
        (true, false) => watch(args),
        (false, plain) => with_command(args, plain),
    }
}

/// A watch with a first sample of the processes that the arguments name.
fn first_look(args: &TopArgs) -> Result<Watch> {
    let mut watch = Watch::new(match args.pids.is_empty() {
        true => Scope::All,
        false => Scope::Pids(args.pids.clone()),
    });
    watch.look(Instant::now());
    check_pids(args, &watch)?;
    Ok(watch)
}

/// Prints an object after each interval, until a signal comes or no reader is left.
fn stream(args: &TopArgs) -> Result<u8> {
    let mut watch = first_look(args)?;
    while print(args, &watch) {
        thread::sleep(args.interval.unwrap_or(INTERVAL));
        watch.look(Instant::now());
    }
    Ok(0)
}

fn once(args: &TopArgs) -> Result<u8> {
    let mut watch = first_look(args)?;
    thread::sleep(args.interval.unwrap_or(ONCE_INTERVAL));
    watch.look(Instant::now());
    print(args, &watch);
    Ok(0)
}

/// Prints the figures. `false`: no reader is left, or the output failed.
fn print(args: &TopArgs, watch: &Watch) -> bool {
    let text = match args.json {
        true => table::json(watch),
        false => table::text(watch),
    };
    out::to_reader(text.as_bytes())
}

/// Warns about each named process that cannot be shown, with the reason. Fails if none can be shown.
fn check_pids(args: &TopArgs, watch: &Watch) -> Result<()> {
    let mut reasons = Vec::new();
    for &pid in watch.missing(&args.pids) {
        let untold = watch.untold.iter().find(|u| u.pid == pid);
        reasons.push(match untold {
            Some(untold) => untold.why.sentence(pid),
            None => find::absent(pid),
        });
    }
    if !args.pids.is_empty() && reasons.len() == args.pids.len() {
        bail!("{}", reasons.join("; "));
    }
    reasons.iter().for_each(|reason| out::warning(reason));
    Ok(())
}

fn view(args: &TopArgs) -> View {
    let interval = args.interval.unwrap_or(INTERVAL);
    View::new(interval, out::is_fancy(&io::stdout()))
}

fn watch(args: &TopArgs) -> Result<u8> {
    let mut watch = first_look(args)?;
    let passing = Passing::hold().context("cannot handle signals")?;
    passing.set_child(None);
    let left = screen::show(&mut watch, &mut view(args), None).context("cannot draw")?;
    drop(passing);
    if let Left::Signal(signal) = left {
        screen::die_by(signal);
    }
    Ok(0)
}

/// Takes samples for this time, or until the command has ended. Returns whether it still runs.
fn look_for(time: Duration, watch: &mut Watch, started: &Started) -> Result<bool> {
    let until = Instant::now() + time;
    while Instant::now() < until && !started.has_ended()? {
        watch.look(Instant::now());
        thread::sleep((time / 4).min(ONCE_INTERVAL));
    }
    watch.look(Instant::now());
    Ok(!started.has_ended()?)
}

fn with_command(args: &TopArgs, is_once: bool) -> Result<u8> {
    let mut conf = conf::merged(&args.conf)?;
    let launch = Launch::new(&args.command, &args.lib, &conf, false)?;
    // A directory of its own, so that it holds no pages of other processes.
    let dir = stats_page::private_dir()?;
    stats_page::keep_all_in(dir.path(), &mut conf);
    let output = if is_once {
        Output::Stderr
    } else {
        Output::Held
    };
    let mut command = launch.command(Some(&conf));
    let started = Started::start(&mut command, output);
    let mut started = started.map_err(|error| launch.cannot_start(&error))?;
    let mut watch = Watch::new(Scope::Dir(dir.path().into()));
    let name = launch.short_name();
    let adopt = |watch: &mut Watch| {
        watch.adopt(dir.path());
        if watch.processes.is_empty() {
            out::stderr(&format!(
                "ebbtide: no figures for {name}: it has allocated nothing, or Ebbtide was not loaded\n"
            ));
        }
    };
    if is_once {
        let interval = args.interval.unwrap_or(INTERVAL);
        // A stream ends with the command, or when no reader is left.
        while look_for(interval, &mut watch, &started)? && args.json && !args.once {
            if !print(args, &watch) {
                return started.wait();
            }
        }
        adopt(&mut watch);
        print(args, &watch);
        return started.wait();
    }
    let left = screen::show(&mut watch, &mut view(args), Some(&started));
    adopt(&mut watch);
    match &left {
        Ok(Left::Quit) => out::stderr(&format!("ebbtide: {name} continues; waiting for its end\n")),
        Ok(Left::Signal(_) | Left::Ended) => {}
        Err(error) => out::warning(&format!("cannot draw: {error}; the command continues")),
    }
    let status = started.wait()?;
    if let Ok(Left::Ended) = left {
        out::stderr(&table::text(&watch));
    }
    Ok(status)
}
