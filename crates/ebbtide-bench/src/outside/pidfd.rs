//! Processes by descriptor: finds them, sends them signals, and waits for them. A descriptor never means another
//! process, even if the number is reused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::{Result, ensure};
use ebbtide_tools::proc::children_of_main_thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

/// The only child of the process's main thread: its helper, because the main thread starts no other. An error if it
/// has none and needs one.
pub fn helper_of(pid: u32, is_needed: bool) -> Result<Option<(u32, OwnedFd)>> {
    let found = children_of_main_thread(pid).first().copied();
    let helper = found.and_then(|helper| Some((helper, open_process(helper).ok()?)));
    ensure!(
        helper.is_some() || !is_needed,
        "no helper was made: this is the kernel's own exit ('ebbtide doctor' may say why)"
    );
    Ok(helper)
}

/// Opens a descriptor of the process.
pub fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Kills a process.
pub fn kill(process: &OwnedFd) -> io::Result<()> {
    signal(process, Signal::KILL)
}

/// Sends a signal to a process.
pub fn signal(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    Ok(pidfd_send_signal(process, signal)?)
}

/// Whether it is a child of this process that has not been waited for.
pub fn is_own_child(process: &OwnedFd) -> bool {
    let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::PidFd(process.as_fd()), flags).is_ok()
}

/// Sleeps until one of the processes has ended. Returns which ones have; none if the time is up.
pub fn wait_for_any(processes: &[&OwnedFd], limit: Instant) -> Vec<bool> {
    let polls = processes
        .iter()
        .map(|process| PollFd::new(process, PollFlags::IN));
    let mut polls: Vec<PollFd> = polls.collect();
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        // A signal to this process is no end.
        if poll(&mut polls, left.as_ref()).is_ok() {
            return polls.iter().map(|p| !p.revents().is_empty()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn a_child_is_found_and_its_end_is_seen() {
        let mut parent = Command::new("sh");
        let parent = parent.args(["-c", "sleep 100 & echo; wait"]);
        let mut child = parent.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut said, &mut [0]).unwrap();
        let (_, process) = helper_of(child.id(), true).unwrap().unwrap();
        let soon = Instant::now() + Duration::from_millis(2);
        assert_eq!(wait_for_any(&[&process], soon), [false]);
        kill(&process).unwrap();
        child.wait().unwrap();
        assert!(helper_of(child.id(), false).unwrap().is_none());
        assert!(helper_of(child.id(), true).is_err());
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let ended = open_process(child.id()).unwrap();
        kill(&ended).unwrap();
        let limit = Instant::now() + Duration::from_secs(10);
        assert_eq!(wait_for_any(&[&ended], limit), [true]);
        child.wait().unwrap();
    }
}
