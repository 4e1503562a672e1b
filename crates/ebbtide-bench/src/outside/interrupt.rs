//! A run that is broken off still says what it has measured.
//!
//! The first SIGINT, SIGTERM or SIGHUP ends the measured processes, so that whoever waits for one comes back; the harness
//! looks at [`came`] then. A later one ends this process; one right behind the first is the same one, sent both to this
//! process and to its group, as `timeout` does. What was ignored at the start stays ignored.
//!
//! The handler notes the signal and writes to a pipe (INV-SIGNAL-2); a thread that reads from it does the rest.

use std::fs;
use std::io::{self, PipeReader, Read};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use std::{mem, ptr};

use crate::measured::link::now_ns;
use crate::outside::pidfd::{is_own_child, open_process, signal};

const SIGNALS: [(libc::c_int, &str); 3] = [
    (libc::SIGINT, "SIGINT"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGHUP, "SIGHUP"),
];
/// A process that was just being started is ended after this.
const AGAIN: Duration = Duration::from_millis(200);

/// Signals within this time are one.
const TOGETHER: Duration = Duration::from_millis(500);

/// The signal that came, or 0.
static CAME: AtomicI32 = AtomicI32::new(0);
/// When the first one came, or 0.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Where the handler writes.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static LISTENING: AtomicBool = AtomicBool::new(false);

/// The signal that broke off the run.
pub fn came() -> Option<libc::c_int> {
    Some(CAME.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

/// Its name.
pub fn name(signal: libc::c_int) -> &'static str {
    let known = SIGNALS.iter().find(|(number, _)| *number == signal);
    known.map_or("a signal", |(_, name)| name)
}

extern "C" fn note(signal: libc::c_int) {
    let now = now_ns();
    let first = FIRST_NS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if let Err(first) = first {
        if is_another(first, now) {
            // SAFETY: both are async-signal-safe (INV-SIGNAL-2). Taken when this handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        return;
    }
    CAME.store(signal, Ordering::Relaxed);
    // SAFETY: `write` and access to the thread's errno are async-signal-safe (INV-SIGNAL-2); one byte that exists.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(PIPE.load(Ordering::Relaxed), ptr::from_ref(&0u8).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Whether a signal is another one than the first.
fn is_another(first_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(first_ns) > TOGETHER.as_nanos() as u64
}

/// While it lives, signals break off the run.
pub struct Listening(Vec<(libc::c_int, libc::sigaction)>);

impl Listening {
    /// Begins.
    pub fn start() -> io::Result<Self> {
        let (heard, tell) = io::pipe()?;
        // For good: a handler may be on its way when this ends.
        PIPE.store(tell.into_raw_fd(), Ordering::Relaxed);
        LISTENING.store(true, Ordering::Release);
        thread::Builder::new().spawn(move || end_children(heard))?;
        let mut before = Vec::new();
        for (number, _) in SIGNALS {
            // SAFETY: zero is a valid sigaction; all pointers are to live locals; `note` has the signature of a handler.
            unsafe {
                let mut old: libc::sigaction = mem::zeroed();
                if libc::sigaction(number, ptr::null(), &mut old) != 0
                    || old.sa_sigaction == libc::SIG_IGN
                {
                    continue;
                }
                let mut new: libc::sigaction = mem::zeroed();
                new.sa_sigaction = note as *const () as usize;
                new.sa_flags = libc::SA_RESTART;
                if libc::sigaction(number, &new, ptr::null_mut()) == 0 {
                    before.push((number, old));
                }
            }
        }
        Ok(Listening(before))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENING.store(false, Ordering::Release);
        if came().is_some() {
            // What was measured is still to be printed; the same signal may come twice.
            return;
        }
        for (number, old) in &self.0 {
            // SAFETY: `old` is what the kernel gave for this signal.
            unsafe { libc::sigaction(*number, old, ptr::null_mut()) };
        }
    }
}

/// Waits for a signal, and ends the children as long as the run goes on.
fn end_children(mut heard: PipeReader) {
    if !matches!(heard.read(&mut [0]), Ok(1)) {
        return;
    }
    while LISTENING.load(Ordering::Acquire) {
        children().for_each(end);
        thread::sleep(AGAIN);
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
    let pid = pid as libc::pid_t;
    // SAFETY: takes numbers.
    unsafe {
        if libc::getpgid(pid) == pid {
            libc::kill(-pid, libc::SIGTERM);
        }
    }
    let _ = signal(&process, libc::SIGTERM);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    #[test]
    fn signals_right_behind_each_other_are_one() {
        let second = 1_000_000_000;
        assert!(!is_another(5 * second, 5 * second) && !is_another(5 * second, 4 * second));
        assert!(!is_another(5 * second, 5 * second + second / 10));
        assert!(is_another(5 * second, 6 * second));
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
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        // The end of what the group wrote to: nobody of it is left.
        assert_eq!(said.read(&mut [0; 16]).unwrap(), 0);
        assert_eq!((name(libc::SIGINT), name(0)), ("SIGINT", "a signal"));
    }
}
