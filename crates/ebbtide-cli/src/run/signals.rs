//! Passes signals on to the child, and records when they came.
//!
//! A signal from the terminal reaches the whole foreground process group, the child included. So only signals sent to
//! this process (by `kill`) are passed on. A signal that is ignored at the start stays ignored, here and in the child
//! (`nohup`).
//!
//! Invariants:
//! - `INV-SIGNAL-1`: [`CHILD`] is 0 or a child that has not been reaped, so a signal never goes to a recycled process
//!   number.
//! - `INV-SIGNAL-2`: the handler calls only async-signal-safe functions and keeps `errno`.
//!
//! The time of each signal is recorded, whichever process sent it: the signal may be the one that ends the child.

use std::io;
use std::mem;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::process::Pid;

use crate::run::end::monotonic_ns;

/// Signals that are passed on, and whose time is recorded.
const PASSED: [libc::c_int; 12] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGIO,
];

/// Signals that end a program, by its user or the system.
const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The child's process number, or 0.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Time of the last signal of each kind, in the order of [`PASSED`]; 0: none came.
static CAME_NS: [AtomicU64; PASSED.len()] = [const { AtomicU64::new(0) }; PASSED.len()];

/// Time at which the last signal of this number came, for this process or for its whole group.
pub fn came_ns(signal: libc::c_int) -> Option<u64> {
    let place = PASSED.iter().position(|&passed| passed == signal)?;
    Some(CAME_NS[place].load(Ordering::Relaxed)).filter(|&ns| ns != 0)
}

/// A signal that ends programs and has come since [`Passing::hold`], at this time or later.
pub fn ending_signal(since_ns: u64) -> Option<libc::c_int> {
    let is_new = |&signal: &libc::c_int| came_ns(signal).is_some_and(|ns| ns >= since_ns);
    ENDING.into_iter().find(is_new)
}

/// Whether this is such a signal.
pub fn is_ending(signal: libc::c_int) -> bool {
    ENDING.contains(&signal)
}

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info` to a SA_SIGINFO handler.
    let from_kernel = unsafe { (*info).si_code } > 0;
    if let Some(place) = PASSED.iter().position(|&passed| passed == signal) {
        CAME_NS[place].store(monotonic_ns(), Ordering::Relaxed);
    }
    // Acquire pairs with the Release in `set_child`; only the number matters.
    let child = CHILD.load(Ordering::Acquire);
    if from_kernel || child == 0 {
        return;
    }
    // SAFETY: `kill` and access to the thread's errno are async-signal-safe (INV-SIGNAL-2);
    // `child` is not reaped (INV-SIGNAL-1).
    unsafe {
        let errno = *libc::__errno_location();
        libc::kill(child, signal);
        *libc::__errno_location() = errno;
    }
}

/// Installed signal handlers. Signals are held back until the child is known. Dropping it restores everything.
pub struct Passing(Saved);

/// The previous signal mask and actions, for this process and for the child.
#[derive(Clone)]
pub struct Saved {
    mask: libc::sigset_t,
    actions: Vec<(libc::c_int, libc::sigaction)>,
}

impl Saved {
    /// Restores the mask and the actions. It makes only async-signal-safe calls, because the child calls it between
    /// fork and exec.
    pub fn restore(&self) {
        for (signal, old) in &self.actions {
            // SAFETY: `old` is what the kernel gave for this signal.
            unsafe { libc::sigaction(*signal, old, ptr::null_mut()) };
        }
        self.unmask();
    }

    fn unmask(&self) {
        // SAFETY: `mask` is a set that the kernel filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut()) };
    }
}

impl Passing {
    /// Installs the handlers and holds the signals back.
    pub fn hold() -> io::Result<Self> {
        CAME_NS
            .iter()
            .for_each(|came| came.store(0, Ordering::Relaxed));
        let mask = block()?;
        // SAFETY: sigaction is plain data for which zero is valid; all
        // pointers are to live locals; `pass_on` has the signature SA_SIGINFO asks for.
        unsafe {
            // An inherited "ignore" would make the kernel reap the child by itself.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut actions = Vec::new();
            for signal in PASSED {
                let mut old: libc::sigaction = mem::zeroed();
                if libc::sigaction(signal, ptr::null(), &mut old) != 0
                    || old.sa_sigaction == libc::SIG_IGN
                {
                    continue;
                }
                let mut new: libc::sigaction = mem::zeroed();
                new.sa_sigaction = pass_on as *const () as usize;
                new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigfillset(&mut new.sa_mask);
                if libc::sigaction(signal, &new, ptr::null_mut()) == 0 {
                    actions.push((signal, old));
                }
            }
            Ok(Passing(Saved { mask, actions }))
        }
    }

    /// Starts the child with the previous mask and actions. Signals held back so far, and during the start, are then passed on to it. If it
    /// cannot be started, they stay held back.
    pub fn start(&self, command: &mut Command) -> io::Result<Pid> {
        // They came through already if this is not the first child.
        block()?;
        let saved = self.0.clone();
        // SAFETY: `restore` makes async-signal-safe calls only and does not allocate.
        unsafe {
            command.pre_exec(move || {
                saved.restore();
                Ok(())
            });
        }
        let pid = Pid::from_child(&command.spawn()?);
        self.set_child(Some(pid));
        Ok(pid)
    }

    /// Sets the child, or none. Signals held back so far are then passed on to it.
    pub fn set_child(&self, pid: Option<Pid>) {
        CHILD.store(Pid::as_raw(pid), Ordering::Release);
        self.0.unmask();
    }

    /// Must be called before the child is reaped (INV-SIGNAL-1).
    pub fn clear_child(&self) {
        CHILD.store(0, Ordering::Release);
    }
}

/// Holds the signals back that are passed on, and returns the mask before.
fn block() -> io::Result<libc::sigset_t> {
    // SAFETY: sigset_t is plain data for which zero is valid; all pointers are to live locals.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        let mut mask: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in PASSED {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut mask) {
            0 => Ok(mask),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.clear_child();
        self.0.restore();
    }
}
