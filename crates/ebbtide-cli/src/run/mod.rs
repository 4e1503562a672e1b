//! `ebbtide run`: starts a program under Ebbtide.
//!
//! Without a summary this process *becomes* the program (`execve`), so signals, job control and exit status are the
//! program's own. With a summary it stays as the parent: it passes signals on, samples memory, and repeats the exit
//! status.
//!
//! | module | what it does |
//! |---|---|
//! | `program` | checks the program before it starts |
//! | `supervise`, `signals` | runs it as a child, and passes signals on |
//! | `sample`, `stable`, `end` | measure its memory, and its end |
//! | `rounds` | `--compare`: runs it several times, with and without Ebbtide |
//! | `input`, `captured` | the input and the output of these rounds |
//! | `summary`, `spread` | the figures as text and JSON |

mod captured;
pub mod end;
mod input;
pub mod program;
mod rounds;
pub mod sample;
pub mod signals;
mod spread;
mod stable;
pub mod summary;
pub mod supervise;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use ebbtide_tools::conf::{self, Conf};
use ebbtide_tools::library::LibArgs;
use ebbtide_tools::program::{EXIT_OWN, Failure};
use ebbtide_tools::{out, stats_page};

use crate::cli::{Exit, Format, RunArgs};
use crate::library;
use program::{Kind, Refusal};
use signals::Passing;
use summary::{Figures, LibraryFigures, Summary};

/// Runs the command and returns the exit status.
pub fn main(args: &RunArgs) -> Result<u8> {
    let mut conf = conf::merged(&args.conf)?;
    match args.exit {
        Some(Exit::Detached) => conf.set("exit", "detached"),
        Some(Exit::Inline) => conf.set("exit", "inline"),
        None => {}
    }
    let launch = Launch::new(&args.command, &args.lib, &conf, args.force)?;
    if args.compare {
        return rounds::compare(args, &launch, &conf);
    }
    if args.summary.is_none() && !args.verbose && args.summary_file.is_none() {
        let error = launch.command(Some(&conf)).exec();
        return Err(launch.cannot_start(&error).into());
    }
    supervised(args, &launch, &conf)
}

/// A command that can be started with and without the library.
pub struct Launch<'a> {
    name: &'a OsStr,
    program: PathBuf,
    rest: &'a [OsString],
    library: PathBuf,
    /// The obstacle despite which the program is started (`--force`).
    obstacle: Option<Refusal>,
}

impl<'a> Launch<'a> {
    /// Checks the command, which has at least one word.
    pub fn new(words: &'a [OsString], lib: &LibArgs, conf: &Conf, force: bool) -> Result<Self> {
        let library = library::find(lib.lib.as_deref())?;
        let (name, rest) = words.split_first().context("no command given")?;
        let program = program::resolve(name)?;
        let checked = program::check_machine(conf).and_then(|()| program::check(&program));
        let obstacle = match checked {
            Err(refusal) if force && matches!(refusal.kind, Kind::NoEffect | Kind::Breaks) => {
                out::warning(&refusal.text);
                Some(refusal)
            }
            checked => checked.map(|()| None)?,
        };
        Ok(Launch {
            name,
            program,
            rest,
            library,
            obstacle,
        })
    }

    /// Why the program could not be started.
    pub fn cannot_start(&self, error: &io::Error) -> Failure {
        let (status, hint) = match error.raw_os_error() {
            Some(libc::ENOENT) => (127, "; the file or its loader is missing"),
            Some(libc::E2BIG) => (
                126,
                "; the arguments and the environment are too long, shorten them",
            ),
            Some(libc::EAGAIN | libc::ENOMEM) => {
                (EXIT_OWN, "; the limit on processes or memory is reached")
            }
            _ => (126, ""),
        };
        let shown = self.program.display();
        let text = format!("cannot start {shown}: {error}{hint}");
        Failure { status, text }
    }

    /// Why no process of the command loaded the library, as far as it is known.
    fn not_loaded_because(&self) -> String {
        let unknown = "no process of the command kept a statistics page, and the reason is not known; \
                       'ebbtide doctor' tests the library here";
        let text = self
            .obstacle
            .as_ref()
            .map_or(unknown, |refusal| &refusal.text);
        text.split("; --force").next().unwrap_or(text).to_owned()
    }

    /// The program's short name.
    pub fn short_name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The command to run: with a configuration under Ebbtide, without one as if Ebbtide were not there.
    pub fn command(&self, conf: Option<&Conf>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0(self.name).args(self.rest);
        let others = other_preloads(env::var_os("LD_PRELOAD").as_deref());
        // A program that Ebbtide would break runs without it.
        let breaks = |refusal: &Refusal| refusal.kind == Kind::Breaks;
        let conf = conf.filter(|_| !self.obstacle.as_ref().is_some_and(breaks));
        let ours = conf.map(|_| self.library.clone().into_os_string());
        let list: Vec<OsString> = ours.into_iter().chain(others).collect();
        for (name, value) in [
            ("LD_PRELOAD", list.join(OsStr::new(":"))),
            (
                conf::ENV,
                conf.map(Conf::to_string).unwrap_or_default().into(),
            ),
        ] {
            match value.is_empty() {
                true => command.env_remove(name),
                false => command.env(name, value),
            };
        }
        command
    }
}

/// Whether this names a program that can be started.
pub fn is_program(name: &OsStr) -> bool {
    program::resolve(name).is_ok()
}

/// The entries of `LD_PRELOAD` other than Ebbtide.
fn other_preloads(list: Option<&OsStr>) -> Vec<OsString> {
    list.unwrap_or_default()
        .to_string_lossy()
        .split([':', ' '])
        .filter(|p| !p.is_empty() && !library::is_ebbtide(p))
        .map(OsString::from)
        .collect()
}

/// Runs the command once and reports what it used.
fn supervised(args: &RunArgs, launch: &Launch, conf: &Conf) -> Result<u8> {
    let start = |command| {
        let passing = Passing::hold()?;
        supervise::measure(command, &passing)
    };
    let figures = with_ebbtide(launch, conf, start)?;
    if let Some(reason) = &figures.not_loaded {
        warn_of_no_library(args, reason);
    }
    let status = figures.exit_status;
    report(args, &Summary::new(words(args), figures));
    Ok(status)
}

/// Runs the command once under Ebbtide, with `measure`. Takes over the figures of the library.
fn with_ebbtide(
    launch: &Launch,
    conf: &Conf,
    measure: impl FnOnce(Command) -> io::Result<Figures>,
) -> Result<Figures> {
    let mut conf = conf.clone();
    // A directory that the user named stays, without pages of processes that have ended. A private one is removed.
    let mut own_dir = None;
    let (stats_dir, since) = match conf.get("stats_dir") {
        Some(dir) => (PathBuf::from(dir), SystemTime::now()),
        None => {
            let dir = own_dir.insert(stats_page::private_dir()?).path();
            (dir.to_owned(), SystemTime::UNIX_EPOCH)
        }
    };
    stats_page::keep_all_in(&stats_dir, &mut conf);
    let figures = measure(launch.command(Some(&conf)));
    let mut figures = figures.map_err(|error| launch.cannot_start(&error))?;
    figures.wait_for_memory(&stats_page::read_all(&stats_dir, since));
    let pages = stats_page::read_all(&stats_dir, since);
    stats_page::remove_abandoned(&stats_dir);
    figures.ebbtide = LibraryFigures::sum(&pages);
    figures.complete_end(&pages);
    if figures.ebbtide.is_none() {
        figures.not_loaded = Some(launch.not_loaded_because());
    }
    Ok(figures)
}

/// A text summary on stderr says the same.
fn warn_of_no_library(args: &RunArgs, reason: &str) {
    if args.summary == Some(Format::Json) || args.summary_file.is_some() {
        out::warning(&format!("Ebbtide was NOT loaded: {reason}"));
    }
}

/// The command as text.
fn words(args: &RunArgs) -> Vec<String> {
    let words = args.command.iter();
    words.map(|word| word.to_string_lossy().into()).collect()
}

/// Prints the summary, or writes it to the file that the arguments name.
fn report(args: &RunArgs, summary: &Summary) {
    let text = match args.summary {
        Some(Format::Json) => summary.json(),
        _ => summary.text(args.verbose),
    };
    match &args.summary_file {
        None => out::stderr(&text),
        Some(path) => {
            if let Err(error) = std::fs::write(path, &text) {
                // The program's exit status counts more than this.
                out::warning(&format!(
                    "cannot write {}: {error}; the summary follows here",
                    path.display()
                ));
                out::stderr(&text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloads_leave_ebbtide_out() {
        let list = OsStr::new("/a/libebbtide.so:/b/x.so /c/y.so:/d/libebbtide.so.0.1.0::");
        assert_eq!(other_preloads(Some(list)), ["/b/x.so", "/c/y.so"]);
        assert!(other_preloads(None).is_empty());
    }
}
