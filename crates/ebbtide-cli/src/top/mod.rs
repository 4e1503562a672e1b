//! `ebbtide top`: shows what processes under Ebbtide hold, keep and release, while they run.
//!
//! | module | what it does |
//! |---|---|
//! | `find` | finds the processes and their statistics pages |
//! | `watch` | keeps the recent figures of each process |
//! | `table` | columns and order; the plain table, and JSON |
//! | `view`, `chart` | the view on a terminal; layers over time |
//! | `screen` | the terminal: keys and signals; restores it at the end |
//! | `started` | a command that `top` started to watch it |

mod chart;
pub mod find;
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
use ebbtide_tools::proc::Stat;
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
    let is_once = args.once || !is_terminal;
    if !is_terminal && !args.once {
        out::stderr("ebbtide: not a terminal, so this prints one table, as with --once\n");
    }
    match (args.command.is_empty(), is_once) {
        (true, true) => once(args),
        (true, false) => watch(args),
        (false, _) => with_command(args, is_once),
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

fn once(args: &TopArgs) -> Result<u8> {
    let mut watch = first_look(args)?;
    thread::sleep(args.interval.unwrap_or(ONCE_INTERVAL));
    watch.look(Instant::now());
    print(args, &watch);
    Ok(0)
}

fn print(args: &TopArgs, watch: &Watch) {
    let text = match args.json {
        true => table::json(watch),
        false => table::text(watch),
    };
    out::stdout(text.as_bytes());
}

/// Warns about each named process that cannot be shown, with the reason. Fails if none can be shown.
fn check_pids(args: &TopArgs, watch: &Watch) -> Result<()> {
    let mut reasons = Vec::new();
    for &pid in watch.missing(&args.pids) {
        let untold = watch.untold.iter().find(|u| u.pid == pid);
        reasons.push(match Stat::read(pid) {
            None => format!("there is no process {pid}"),
            Some(_) if untold.is_some_and(|u| u.soon) => {
                format!("process {pid} was forked; it gets figures of its own when it allocates more")
            }
            Some(_) if untold.is_some() => format!(
                "process {pid} keeps no statistics page; start it with EBBTIDE_CONF=stats_dir=/DIRECTORY"
            ),
            Some(_) if !find::is_open(pid) => format!(
                "process {pid} cannot be read: it belongs to another user (root can read it), or no user may read it"
            ),
            Some(_) => format!("process {pid} does not run under Ebbtide"),
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
    let pid = started.pid();
    let adopt = |watch: &mut Watch| {
        watch.adopt(dir.path(), pid, &name);
        if watch.processes.is_empty() {
            out::stderr(&format!(
                "ebbtide: no figures for {name}: it has allocated nothing, or Ebbtide was not loaded\n"
            ));
        }
    };
    if is_once {
        let interval = args.interval.unwrap_or(INTERVAL);
        let until = Instant::now() + interval;
        while Instant::now() < until && !started.has_ended()? {
            watch.look(Instant::now());
            thread::sleep((interval / 4).min(ONCE_INTERVAL));
        }
        watch.look(Instant::now());
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
