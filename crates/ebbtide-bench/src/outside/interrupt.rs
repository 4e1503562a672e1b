//! A run that is interrupted still prints the results so far.
//!
//! The first SIGINT, SIGTERM or SIGHUP ends the measured processes, so that the threads that wait for them return.
//! The harness then checks [`came`]. A later signal ends this process. A second signal right after the first counts
//! as the same one, sent both to this process and to its group, as `timeout` does. A signal that is ignored at the
//! start stays ignored.
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
/// Interval at which children are ended again: a process may just have been starting.
const AGAIN: Duration = Duration::from_millis(200);

/// Signals within this time count as one.
const TOGETHER: Duration = Duration::from_millis(500);

/// The signal that came, or 0.
static CAME: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
/// Whether a signal ends this process: true while no `Listening` exists, and from [`TOGETHER`] after the first signal
/// on.
static ENDS: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Number of `Listening` values that exist.
static LISTENING: AtomicUsize = AtomicUsize::new(0);

/// The signal that interrupted the run.
pub fn came() -> Option<i32> {
    Some(CAME.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
}

/// The name of a signal.
pub fn name(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// While a value exists, signals interrupt the run.
pub struct Listening(());

impl Listening {
    /// Begins to listen.
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
        // After a signal, the results are still to be printed, and the same signal may come twice.
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

/// Waits for a signal. Then ends the children as long as the run goes on.
fn end_children(mut heard: Signals) {
    heard.forever().next();
    let first = Instant::now();
    loop {
        let is_running = LISTENING.load(Ordering::Acquire) > 0;
        if is_running {
            children().into_iter().for_each(end);
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

/// The children of all threads.
fn children() -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let files = tasks.flatten().map(|task| task.path().join("children"));
    // A blank stands behind each number.
    let numbers: String = files.flat_map(fs::read_to_string).collect();
    let numbers = numbers.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Kills a child, and its group if it has one of its own.
fn end(pid: u32) {
    // INV-SIGNAL-1: the number may belong to another process by now; its descriptor cannot.
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
        assert!(children().contains(&child.id()));
        // A grandchild must not be killed by its number.
        end(inner);
        assert!(open_process(inner).is_ok());
        end(child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
        // The pipe of the group is at its end: no process of the group is left.
        assert_eq!(said.read(&mut [0; 16]).unwrap(), 0);
        assert_eq!((name(SIGINT), name(0)), ("SIGINT", "a signal"));
    }
}
