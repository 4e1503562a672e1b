//! Starts a small process under the library and reads its statistics page.

use std::env;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use ebbtide_tools::stats_page::{self, StatsPage, named};
use ebbtide_tools::{conf, out};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::Check;
use crate::library;
use ebbtide_interface::FEATURES;
use ebbtide_interface::known::{self, Known};

/// After this time, the trial process counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for a process that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

const REINSTALL: &str = "install it again, or build it again with 'make' in a checkout, \
     and check it with: LD_PRELOAD=PATH /bin/true";

/// The results of the trial.
#[derive(Default)]
pub struct Trial {
    /// `rseq` or `portable`, if the library works here.
    pub mode: Option<&'static str>,
    /// The library.
    pub path: Option<PathBuf>,
    /// The combination for which the library refused to start.
    pub refusal: Option<&'static Known>,
    /// The lines of the report.
    pub checks: Vec<Check>,
}

/// Finds the library and tries it.
pub fn run(given: Option<&Path>) -> Trial {
    let mut trial = Trial::default();
    match library::find(given) {
        Ok(path) => {
            let found = Check::ok("library", path.display().to_string());
            trial.checks.push(found);
            trial.start(&path);
            trial.path = Some(path);
        }
        Err(error) => {
            let missing = Check::missing("library", "not found, or not usable");
            trial.checks.push(missing.with_remedy(format!("{error:#}")));
        }
    }
    trial
}

impl Trial {
    /// Runs `ebbtide --version` under the library.
    fn start(&mut self, library: &Path) {
        let exe = env::current_exe().context("cannot find this program");
        let page = exe.and_then(|exe| {
            let mut command = Command::new(exe);
            command.arg("--version");
            watch(command, library, "")
        });
        match page {
            Ok(Some(page)) => self.works(&page),
            Ok(None) => self.checks.push(
                Check::missing("trial", "no statistics page")
                    .with_effect("the process ran, but the library did not take effect in it")
                    .with_remedy(REINSTALL),
            ),
            Err(error) => {
                let said = format!("{error:#}");
                self.refusal = refused_for(&said);
                let remedy = self.refusal.map_or(REINSTALL, |known| known.remedy);
                let check = Check::missing("trial", said).with_remedy(remedy);
                self.checks.push(check);
            }
        }
    }

    fn works(&mut self, page: &StatsPage) {
        let mode = match page.rseq_mode {
            1 => "rseq",
            _ => "portable",
        };
        self.mode = Some(mode);
        let opened = out::bytes(page.opened_bytes);
        let memory = format!(
            "{opened} opened, {} of records",
            out::bytes(page.metadata_bytes)
        );
        let names = |mask| out::list(&named(mask, &FEATURES), "none");
        let (worked, refused) = (names(page.worked), names(page.refused));
        self.checks.extend([
            Check::ok("trial", format!("runs, mode {mode}")),
            Check::info("trial_memory", memory),
            Check::info(
                "trial_calls",
                format!("worked: {worked}; refused: {refused}"),
            ),
        ]);
    }
}

/// The combination named in the library's message.
fn refused_for(said: &str) -> Option<&'static Known> {
    let (_, line) = said.split_once(known::REFUSED)?;
    let mut all = known::ALL.into_iter();
    all.find(|known| line.starts_with(known.what))
}

/// What a process under the library left.
pub struct Watched {
    /// Its statistics page.
    pub page: Option<StatsPage>,
    /// Its first line on stderr.
    pub said: String,
}

/// Runs a command under the library with this configuration, and reads its statistics page.
pub fn watch(command: Command, library: &Path, conf: &str) -> Result<Option<StatsPage>> {
    watch_saying(command, library, conf).map(|watched| watched.page)
}

/// The same, with what the process said.
pub fn watch_saying(mut command: Command, library: &Path, conf: &str) -> Result<Watched> {
    let dir = stats_page::private_dir()?;
    // A file, not a pipe: then there is no wait for a process that still has it open.
    let mut stderr = tempfile::tempfile_in(dir.path())?;
    command
        .env("LD_PRELOAD", library)
        .env(
            conf::ENV,
            format!("stats_dir={},dev=pages:all,{conf}", dir.path().display()),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr.try_clone()?);
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| {
            // The trial process ends with this program, however that ends.
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        });
    }
    let status = TrialProcess(command.spawn()?).wait_within(TIMEOUT)?;
    let mut said = Vec::new();
    stderr.rewind()?;
    stderr.read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    let said = said.lines().next().unwrap_or_default();
    if !status.success() {
        bail!("it ends with {status} {said}");
    }
    if said.contains("cannot be preloaded") {
        bail!("the loader refuses the library: {said}");
    }
    let pages = stats_page::read_all(dir.path(), SystemTime::UNIX_EPOCH);
    Ok(Watched {
        page: pages.into_iter().next(),
        said: said.to_owned(),
    })
}

/// Kills and reaps the process when dropped.
struct TrialProcess(Child);

impl TrialProcess {
    fn wait_within(mut self, time: Duration) -> Result<ExitStatus> {
        self.end_within(time)?.context("it hangs")
    }

    fn end_within(&mut self, time: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + time;
        loop {
            let status = self.0.try_wait()?;
            if status.is_some() || Instant::now() > end {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        // Has no effect on a process that was reaped.
        let _ = self.0.kill();
        // The wait is limited, because a tracer may keep the process.
        let _ = self.end_within(KILL_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::process::{Pid, WaitOptions, waitpid};

    #[test]
    fn a_trial_that_hangs_is_not_left_behind() {
        let child = Command::new("sleep").arg("77").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let error = TrialProcess(child).wait_within(Duration::from_millis(20));
        assert_eq!(error.unwrap_err().to_string(), "it hangs");
        let left = waitpid(Some(pid), WaitOptions::NOHANG);
        assert_eq!(left.unwrap_err(), Errno::CHILD, "still a child");
    }
}
