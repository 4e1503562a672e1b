//! A signal by which a user asks the library for something.
//!
//! The handler notes the request and returns: a signal comes at any time, in any thread, under any lock. Only a signal without an action gets
//! the handler. If the program later takes the signal for itself, the program's handler stays alone.

use crate::call::Errno;
use crate::fault::Action;
use crate::process;
use core::ffi::c_int;
use core::mem::transmute;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Notes a request. It runs in a signal handler: it may store to atomic words and make system calls, and take no lock.
pub type Note = fn();

static NOTE: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The process that [`install`] was called in. A `vfork` child has other actions in the same memory.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Why there is no handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The signal is ignored: `nohup` and shells do that for their children.
    IsIgnored,
    /// The program has a handler.
    HasHandler,
    /// The kernel refuses.
    Refused(Errno),
}

/// Calls `note` at each signal of this number. Called once.
///
/// # Errors
/// See [`Problem`]; the action of the signal stays.
pub fn install(signal: c_int, note: Note) -> Result<(), Problem> {
    match Action::current(signal).map_err(Problem::Refused)?.handler {
        libc::SIG_DFL => {}
        libc::SIG_IGN => return Err(Problem::IsIgnored),
        _ => return Err(Problem::HasHandler),
    }
    NOTE.store(note as *const () as usize, Ordering::Relaxed);
    // Calls of the program that the signal interrupts go on, on the stack that the program chose.
    let flags = libc::SA_RESTART | libc::SA_ONSTACK;
    let ours = Action::new(on_signal as *const () as usize, flags);
    ours.install(signal).map_err(Problem::Refused)?;
    OWNER.store(process::id(), Ordering::Relaxed);
    SIGNAL.store(signal, Ordering::Relaxed);
    Ok(())
}

/// Says once that the program has taken the signal for itself: it has set an action with `handler`.
pub fn is_taken_by(signal: c_int, handler: usize) -> bool {
    SIGNAL.load(Ordering::Relaxed) == signal
        && handler != on_signal as *const () as usize
        && OWNER.load(Ordering::Relaxed) == process::id()
        && SIGNAL.swap(0, Ordering::Relaxed) == signal
}

unsafe extern "C" fn on_signal(_signal: c_int) {
    let note = NOTE.load(Ordering::Relaxed);
    // SAFETY: `install` stored a function of this type before the kernel got this handler.
    let note = unsafe { transmute::<usize, Note>(note) };
    note();
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOTED: AtomicU32 = AtomicU32::new(0);

    fn note() {
        NOTED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn only_a_signal_without_an_action_gets_the_handler() {
        let (free, ignored) = (libc::SIGPWR, libc::SIGWINCH);
        // SAFETY: signals that nothing else here uses.
        let raise = |signal| unsafe {
            libc::raise(signal);
        };
        // SAFETY: as above.
        unsafe { libc::signal(ignored, libc::SIG_IGN) };
        assert_eq!(install(ignored, note), Err(Problem::IsIgnored));
        assert_eq!(install(free, note), Ok(()));
        assert_eq!(install(free, note), Err(Problem::HasHandler));
        raise(ignored);
        raise(free);
        raise(free);
        assert_eq!(NOTED.load(Ordering::Relaxed), 2);
        let ours = on_signal as *const () as usize;
        assert!(!is_taken_by(free, ours) && !is_taken_by(ignored, libc::SIG_DFL));
        assert!(is_taken_by(free, libc::SIG_DFL) && !is_taken_by(free, libc::SIG_DFL));
        assert!(matches!(
            install(libc::SIGKILL, note),
            Err(Problem::Refused(_))
        ));
    }
}
