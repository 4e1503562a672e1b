//! A run that is broken off still says what it has measured.
//!
//! The first SIGINT, SIGTERM or SIGHUP ends the measured processes, so that whoever waits for one comes back; the harness
//! looks at [`came`] then. A later one ends this process; one right behind the first is the same one, sent both to this
//! process and to its group, as `timeout` does. What was ignored at the start stays ignored.
//!
//! The handlers set a flag, or end this process; a thread does the rest.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};
use std::thread;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::outside::pidfd::{is_own_child, open_process, signal};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// A process that was just being started is ended after this.
const AGAIN: Duration = Duration::from_millis(200);

/// Signals within this time are one.
const TOGETHER: Duration = Duration::from_millis(500);

/// The signal that came, or 0.
static CAME: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
/// Whether a signal ends this process: true while no `Listening` lives, and from [`TOGETHER`] after the first signal on.
static ENDS: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Number of `Listening` that live.
static LISTENING: AtomicUsize = AtomicUsize::new(0);

/// The signal that broke off the run.
pub fn came() -> Option<i32> {
    Some(CAME.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
}

/// Its name.
pub fn name(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// While a value lives, signals break off the run.
pub struct Listening(());

impl Listening {
    /// Begins.
    pub fn start() -> io::Result<Self> {
        static PREPARED: Once = Once::new();
        let mut prepared = Ok(());
        PREPARED.call_once(|| prepared = prepare());
        prepared?;
        LISTENING.fetch_add(1, Ordering::AcqRel);
        if came().is_none() {
            ENDS.store(false, Ordering::Release);
        }
        Ok(Listening(()))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let is_last = LISTENING.fetch_sub(1, Ordering::AcqRel) == 1;
        // After a signal, what was measured is still to be printed; the same signal may come twice.
        if is_last && came().is_none() {
            ENDS.store(true, Ordering::Release);
        }
    }
}

/// Installs the handlers and starts the thread.
fn prepare() -> io::Result<()> {
    let signals = SIGNALS.into_iter().filter(|&signal| !is_ignored(signal));
    let signals: Vec<i32> = signals.collect();
    for &signal in &signals {
        flag::register_conditional_default(signal, Arc::clone(&ENDS))?;
        flag::register_usize(signal, Arc::clone(&CAME), signal as usize)?;
    }
    let heard = Signals::new(signals)?;
    thread::Builder::new().spawn(move || end_children(heard))?;
    Ok(())
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: zero is a valid sigaction, and a place to write to for the call, which changes nothing.
    unsafe {
        let mut old: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Waits for a signal, and ends the children as long as the run goes on.
fn end_children(mut heard: Signals) {
    heard.forever().next();
    let first = Instant::now();
    loop {
        let is_running = LISTENING.load(Ordering::Acquire) > 0;
        if is_running {
            children().for_each(end);
        }
        thread::sleep(AGAIN);
        if first.elapsed() > TOGETHER {
            ENDS.store(true, Ordering::Release);
            if !is_running {
                return;
            }
        }
    }
}

fn children() -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir("/proc/self/task").ok();
    let texts = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers: Vec<u32> = texts
        .flat_map(|text| {
            let found = text.split_whitespace().filter_map(|n| n.parse().ok());
            found.collect::<Vec<u32>>()
        })
        .collect();
    numbers.into_iter()
}

/// Ends a child, with its group if it has one of its own.
fn end(pid: u32) {
    // INV-SIGNAL-1: the number may be another process's by now, its descriptor cannot become that.
    let Ok(process) = open_process(pid) else {
        return;
    };
    if !is_own_child(&process) {
        return;
    }
    let group = getpgid(Pid::from_raw(pid as i32));
    if let Some(group) = group.ok().filter(|group| group.as_raw_pid() == pid as i32) {
        let _ = kill_process_group(group, Signal::TERM);
    }
    let _ = signal(&process, Signal::TERM);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    #[test]
    fn signals_end_this_process_when_nobody_listens() {
        let outer = Listening::start().unwrap();
        drop(Listening::start().unwrap());
        assert!(!ENDS.load(Ordering::Acquire), "one still does");
        drop(outer);
        assert!(ENDS.load(Ordering::Acquire));
        let again = Listening::start().unwrap();
        assert!(!ENDS.load(Ordering::Acquire));
        drop(again);
        assert_eq!(came(), None);
    }

    #[test]
    fn children_are_ended_with_their_group_and_others_are_left_alone() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .stdout(std::process::Stdio::piped());
            command.process_group(0).spawn().unwrap()
        };
        let mut child = sh("sleep 100 & echo $!; wait");
        let mut said = child.stdout.take().unwrap();
        let mut inner = [0u8; 16];
        let len = said.read(&mut inner).unwrap();
        let inner: u32 = std::str::from_utf8(&inner[..len])
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(children().any(|pid| pid == child.id()));
        // A grandchild is nobody to be ended by its number.
        end(inner);
        assert!(open_process(inner).is_ok());
        end(child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
        // The end of what the group wrote to: nobody of it is left.
        assert_eq!(said.read(&mut [0; 16]).unwrap(), 0);
        assert_eq!((name(SIGINT), name(0)), ("SIGINT", "a signal"));
    }
}
