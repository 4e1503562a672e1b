//! `ebbtide top`: what processes under Ebbtide hold, keep, and give back, while they run.
//!
//! | module | what it does |
//! |---|---|
//! | `find` | which processes there are, and where their pages of figures lie |
//! | `watch` | what was seen of each lately |
//! | `table` | columns and order; the plain table, and JSON |
//! | `view`, `chart` | the picture on a terminal; layers over time |
//! | `screen` | the terminal: keys, signals, and as it was afterwards |
//! | `started` | a command that was started to be watched |

mod chart;
mod find;
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
use table::Sort;
use view::View;
use watch::Watch;

const INTERVAL: Duration = Duration::from_secs(1);
/// Two looks tell what is given back in between.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the processes; gives the exit status to end with.
pub fn main(args: &TopArgs) -> Result<u8> {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb;
    let is_once = args.once || !is_terminal;
    if !is_terminal && !args.once {
        out::stderr("ebbtide: this is no terminal to draw on: one table, as with --once\n");
    }
    match (args.command.is_empty(), is_once) {
        (true, true) => once(args),
        (true, false) => watch(args),
        (false, _) => with_command(args, is_once),
    }
}

fn scope(args: &TopArgs) -> Scope {
    match args.pids.is_empty() {
        true => Scope::All,
        false => Scope::Pids(args.pids.clone()),
    }
}

fn once(args: &TopArgs) -> Result<u8> {
    let mut watch = Watch::new(scope(args));
    watch.look(Instant::now());
    check_pids(args, &watch)?;
    thread::sleep(args.interval.unwrap_or(ONCE_INTERVAL));
    watch.look(Instant::now());
    print(args, &watch);
    Ok(0)
}

fn print(args: &TopArgs, watch: &Watch) {
    let text = match args.json {
        true => table::json(watch, Sort::Rss),
        false => table::text(watch, Sort::Rss),
    };
    out::stdout(text.as_bytes());
}

/// Says which of the processes that were named cannot be shown, and why; fails if none can.
fn check_pids(args: &TopArgs, watch: &Watch) -> Result<()> {
    let mut reasons = Vec::new();
    for &pid in watch.missing(&args.pids) {
        let untold = watch.untold.iter().find(|u| u.pid == pid);
        reasons.push(match find::Stat::read(pid) {
            None => format!("there is no process {pid}"),
            Some(_) if untold.is_some_and(|u| u.soon) => {
                format!("process {pid} was forked, and has figures of its own as soon as it allocates more")
            }
            Some(_) if untold.is_some() => format!(
                "process {pid} keeps no page of figures: start it with EBBTIDE_CONF=stats_dir=/DIRECTORY"
            ),
            Some(_) if !find::is_open(pid) => format!(
                "process {pid} may not be looked at: it is another user's (root sees it), or closed to everybody"
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
    let mut watch = Watch::new(scope(args));
    watch.look(Instant::now());
    check_pids(args, &watch)?;
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
    let launch = match Launch::new(&args.command, &args.lib, &conf, false)? {
        Ok(launch) => launch,
        Err(status) => return Ok(status),
    };
    // One of its own, so that nobody else is in it.
    let dir = stats_page::private_dir()?;
    conf.set("stats_dir", &dir.path().to_string_lossy());
    let output = if is_once {
        Output::Stderr
    } else {
        Output::Held
    };
    let mut command = launch.command(Some(&conf));
    let mut started = match Started::start(&mut command, output) {
        Ok(started) => started,
        Err(error) => return Ok(launch.cannot_start(&error)),
    };
    let mut watch = Watch::new(Scope::Dir(dir.path().into()));
    let name = launch.short_name();
    let pid = started.pid();
    let adopt = |watch: &mut Watch| {
        watch.adopt(dir.path(), pid, &name);
        if watch.processes.is_empty() {
            out::stderr(&format!(
                "ebbtide: no figures of {name}: it has allocated nothing, or runs without Ebbtide\n"
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
    match left {
        Ok(Left::Ended) => {
            let status = started.wait()?;
            out::stderr(&table::text(&watch, Sort::Rss));
            Ok(status)
        }
        Ok(Left::Quit) => {
            out::stderr(&format!(
                "ebbtide: {name} goes on; this waits for its end\n"
            ));
            started.wait()
        }
        Ok(Left::Signal(_)) => started.wait(),
        Err(error) => {
            out::warning(&format!("cannot draw: {error}; the command goes on"));
            started.wait()
        }
    }
}
