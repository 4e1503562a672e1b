//! Processes by descriptor: found, signalled, and waited for, whatever becomes of their numbers.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Instant;

use ebbtide_tools::proc::children_of_main_thread;

/// The only child of the process's main thread, which starts none but its helper.
pub fn helper_of(pid: u32) -> Option<(u32, OwnedFd)> {
    let helper = *children_of_main_thread(pid).first()?;
    Some((helper, open_process(helper).ok()?))
}

/// A descriptor of the process.
pub fn open_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; the new descriptor is owned by nobody else.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}

/// Ends a process.
pub fn kill(process: &OwnedFd) -> io::Result<()> {
    signal(process, libc::SIGKILL)
}

/// Sends it a signal.
pub fn signal(process: &OwnedFd, signal: libc::c_int) -> io::Result<()> {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: takes numbers, and no further information.
    let sent = unsafe {
        let call = libc::SYS_pidfd_send_signal;
        libc::syscall(call, process.as_raw_fd(), signal, none, 0)
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether it is a child of this process that has not been waited for.
pub fn is_own_child(process: &OwnedFd) -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: zero is a valid siginfo, which the kernel fills in; nothing is collected.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let id = process.as_raw_fd() as libc::id_t;
        libc::waitid(libc::P_PIDFD, id, &mut info, flags) == 0
    }
}

/// Sleeps until one of the processes has ended: which of them have. None when time is up.
pub fn wait_for_any(processes: &[&OwnedFd], limit: Instant) -> Vec<bool> {
    let poll = |process: &&OwnedFd| libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polls: Vec<libc::pollfd> = processes.iter().map(poll).collect();
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        let left_ms = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: as many descriptors as said.
        let ready = unsafe {
            let count = polls.len() as libc::nfds_t;
            libc::poll(polls.as_mut_ptr(), count, left_ms)
        };
        // A signal of this process's is no end.
        if ready >= 0 {
            return polls.iter().map(|p| p.revents != 0).collect();
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
        let (_, process) = helper_of(child.id()).unwrap();
        let soon = Instant::now() + Duration::from_millis(2);
        assert_eq!(wait_for_any(&[&process], soon), [false]);
        kill(&process).unwrap();
        child.wait().unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let ended = open_process(child.id()).unwrap();
        kill(&ended).unwrap();
        let limit = Instant::now() + Duration::from_secs(10);
        assert_eq!(wait_for_any(&[&ended], limit), [true]);
        child.wait().unwrap();
    }
}
