//! Memory ahead of need (`populate=on`): all frames of a fresh span in one call, instead of a fault for each.
//!
//! Only for classes that grow: a span is asked for when every object of the class is out, so what was populated for
//! the spans before has been handed out, and at most one span of a class is populated and not yet used. From the
//! [`GROWN_SPANS`]th on that is a fifth of the class at most. What the figure of used frames would hide is judged
//! when a populated span comes back: was less than three quarters of it ever handed out, the class pauses, twice as
//! long each time. Never where a huge page may come, under pressure, or past the retain cap.
//!
//! Off by default: `docs/decisions/0017-populate-off.md`.

use crate::objects::Objects;
use crate::size_class::CLASSES;
use crate::stats;
use core::sync::atomic::{AtomicU16, Ordering};
use ebbtide_sys::features::POPULATE;
use ebbtide_sys::{Errno, vm};
use ebbtide_zone::{FRAME_BYTES, Run};

/// Spans that a class has before the next ones are populated.
const GROWN_SPANS: usize = 4;
/// The longest pause of a class, in spans.
const MOST_PAUSE: u16 = 1024;

/// How a class fares.
struct Class {
    /// Spans to go without.
    pause: AtomicU16,
    /// The pause after the next bad one.
    next: AtomicU16,
}

static STATE: [Class; CLASSES] = [const {
    Class {
        pause: AtomicU16::new(0),
        next: AtomicU16::new(8),
    }
}; CLASSES];

impl Objects {
    /// Gives the clean frames of a span-to-be their memory, if that is likely to pay. Whether they may be resident.
    pub fn populate(&self, class: usize, run: &Run) -> bool {
        if !self.config.populate
            || !POPULATE.may_work()
            || self.may_be_huge(run.first)
            || self.central[class].spans.lock().count() < GROWN_SPANS
            || !self.has_room_for(u64::from(run.frames))
        {
            return false;
        }
        let pause = &STATE[class].pause;
        let left = pause.load(Ordering::Relaxed);
        if left > 0 {
            pause.store(left - 1, Ordering::Relaxed);
            return false;
        }
        let bytes = run.frames as usize * FRAME_BYTES;
        let address = self.region().address(run.first);
        // SAFETY: frames that this thread alone has; their content stays.
        let populated = unsafe { vm::advise(address, bytes, vm::MADV_POPULATE_WRITE) };
        match populated {
            Ok(()) => stats::count_populated(bytes),
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => {
                // An older kernel, or a filter: nothing was done.
                POPULATE.refuse();
                return false;
            }
            // A part of it may have been.
            Err(_) => pause.store(MOST_PAUSE, Ordering::Relaxed),
        }
        true
    }
}

/// A populated span of the class comes back: `used` of its `bytes` were handed out at some time.
pub fn judge(class: usize, used: usize, bytes: usize) {
    let state = &STATE[class];
    if used >= bytes / 4 * 3 {
        state.next.store(8, Ordering::Relaxed);
        return;
    }
    let pause = state.next.load(Ordering::Relaxed);
    state.pause.store(pause, Ordering::Relaxed);
    state
        .next
        .store((pause * 2).min(MOST_PAUSE), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_waste_pause_longer_each_time() {
        let state = &STATE[CLASSES - 1];
        let seen = || state.pause.load(Ordering::Relaxed);
        let judged = |used| {
            judge(CLASSES - 1, used, 4096);
            seen()
        };
        assert_eq!((judged(4000), judged(100), judged(100)), (0, 8, 16));
        for _ in 0..20 {
            judged(100);
        }
        assert_eq!(seen(), MOST_PAUSE);
        judge(CLASSES - 1, 4096, 4096);
        assert_eq!(judged(0), 8);
    }
}
