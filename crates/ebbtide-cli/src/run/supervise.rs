//! Starts a child, waits until it ends, and measures it.
//!
//! The child is made by fork, not by a call that shares this process's memory: then the kernel's peak (`ru_maxrss`)
//! would start at the size of this process.
//!
//! States of the child: running → stopped ⇄ running → zombie → reaped. The sampler and the passing of signals end
//! while the child is a zombie, so neither can meet a recycled process number.

use std::io;
use std::mem;
use std::process::Command;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::run::end::{End, monotonic_ns};
use crate::run::sample::{Sampler, Samples};
use crate::run::signals::{Passing, came_ns};
use crate::run::summary::Figures;

/// Runs the command to its end, and passes signals on to it. An error means that it could not be started.
pub fn measure(mut command: Command, passing: &Passing) -> io::Result<Figures> {
    let began = Instant::now();
    let pid = passing.start(&mut command)?;
    let sampler = Sampler::start(pid.as_raw_pid() as u32).ok();

    let waited = wait_until_zombie(pid);
    let seen = (Instant::now(), monotonic_ns());
    let wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let samples = sampler.map_or_else(Samples::default, Sampler::finish);
    passing.clear_child();
    waited?;

    let (status, usage) = reap(pid)?;
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    Ok(Figures {
        exit_status: exit_status(status),
        signal,
        wall_ns,
        end: Some(End {
            pid: pid.as_raw_pid() as u32,
            signal: signal.map(|signal| (signal, came_ns(signal))),
            seen: seen.0,
            seen_ns: seen.1,
        }),
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        faults_minor: usage.ru_minflt as u64,
        faults_major: usage.ru_majflt as u64,
        memory: samples.with_peak(usage.ru_maxrss as u64 * 1024),
        ..Figures::default()
    })
}

/// Waits for the end without reaping.
fn wait_until_zombie(pid: Pid) -> io::Result<()> {
    while !is_over(pid, WaitIdOptions::STOPPED)? {}
    Ok(())
}

/// Whether the child has ended. It waits for that, except with `NOHANG` in `flags`. With `STOPPED`: when the child
/// stops for job control, this process stops too, so that the shell sees the job stop.
pub fn is_over(pid: Pid, flags: WaitIdOptions) -> io::Result<bool> {
    let flags = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | flags;
    let status = match waitid(WaitId::Pid(pid), flags) {
        Ok(Some(status)) => status,
        Ok(None) | Err(Errno::INTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if !status.stopped() && !status.trapped() {
        return Ok(true);
    }
    // Consumes the stop event that was seen above.
    let _ = waitid(
        WaitId::Pid(pid),
        WaitIdOptions::STOPPED | WaitIdOptions::NOHANG,
    );
    let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    if status
        .stopping_signal()
        .is_some_and(|stop| stops.contains(&stop))
    {
        // SAFETY: a plain call; it returns when this process is continued.
        unsafe { libc::raise(libc::SIGSTOP) };
        // The child is not reaped, so its number is still its own.
        let _ = kill_process(pid, Signal::CONT);
    }
    Ok(false)
}

/// The child's exit status, or 128 and the signal that ended it.
pub fn exit_status(status: libc::c_int) -> u8 {
    match libc::WIFSIGNALED(status) {
        true => 128 + libc::WTERMSIG(status) as u8,
        false => libc::WEXITSTATUS(status) as u8,
    }
}

/// Reaps a child that has ended.
pub fn reap(pid: Pid) -> io::Result<(libc::c_int, libc::rusage)> {
    let mut status = 0;
    // SAFETY: rusage is plain data for which zero is valid.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    let pid = pid.as_raw_pid();
    // SAFETY: both pointers are to live locals.
    if unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } != pid {
        return Err(io::Error::last_os_error());
    }
    Ok((status, usage))
}

fn ns(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
}
