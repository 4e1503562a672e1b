//! The threads that take the pieces.
//!
//! While memory is not short: few helpers at a time ([`crate::admission`]), by threads that run only where nobody
//! else wants to. At the first sign of shortage, or when that or the wait for admission has taken long: by as many
//! threads as there are CPUs, at the usual priority. The helper's own thread does not lower its priority, so that
//! it can make them: there is no way back from the lowest.
//!
//! A piece is taken by number, without a lock that an idle thread could hold. One that it has taken and does not
//! come to is done again by a hurried thread.

use crate::arena::{Arena, CALM, HURRIED};
use crate::memory_shortage::MemoryShortage;
use crate::resources::Resources;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebbtide_sys::helper;
use ebbtide_sys::thread::{self, Affinity};
use ebbtide_sys::vm;

/// Between two looks at whether memory is short.
const LOOK_MS: u64 = 50;
/// Calm work may take this long once the helper is admitted.
const CALM_MS: u64 = 5000;
/// Admission may be this long in coming: a helper that has a slot may have been stopped.
const ADMISSION_MS: u64 = 60_000;
/// Hurried work that has not come on for this long is left to the end of the process.
const STUCK_MS: u64 = 10_000;
/// For waits that end otherwise.
const LONG_MS: u64 = 3_600_000;

/// The first thread's view of them.
pub struct TeardownThreads<'a> {
    resources: &'a Resources,
    /// Else the first thread does what they would.
    are_made: bool,
    called_ms: u64,
    admitted_ms: Option<u64>,
}

impl<'a> TeardownThreads<'a> {
    /// Starts them.
    pub fn call(resources: &'a Resources, shortage: &mut MemoryShortage) -> Self {
        let mut threads = Self {
            resources,
            are_made: false,
            called_ms: helper::now_ms(),
            admitted_ms: None,
        };
        if shortage.is_pressing() {
            threads.hurry();
        } else {
            threads.make(CALM, resources.arena.control().workers, calm);
        }
        threads
    }

    /// Sees the pieces of this round done. `false`: they do not come on.
    pub fn finish(&mut self, shortage: &mut MemoryShortage) -> bool {
        let arena = self.resources.arena;
        let control = arena.control();
        let (mut left, mut since) = (control.left.load(Ordering::SeqCst), helper::now_ms());
        loop {
            if !self.are_made {
                take_what_is_left(arena);
            }
            control.finished.wait(LOOK_MS);
            // Who was late with the round before may have told of that; who tells of this one after the count is read is
            // heard by the next wait.
            control.finished.clear();
            let left_now = control.left.load(Ordering::SeqCst);
            if left_now == 0 {
                return true;
            }
            let now = helper::now_ms();
            if left_now != left {
                (left, since) = (left_now, now);
            }
            if control.hurry.is_set() {
                if now - since > STUCK_MS {
                    return false;
                }
                continue;
            }
            if control.admitted.is_set() {
                self.admitted_ms.get_or_insert(now);
            }
            if shortage.is_pressing() || is_late(now, self.called_ms, self.admitted_ms) {
                since = now;
                self.hurry();
            }
        }
    }

    fn hurry(&mut self) {
        let control = self.resources.arena.control();
        control.hurry.set();
        control.admitted.wake();
        self.make(HURRIED, Affinity::current().count().max(1), hurried);
    }

    fn make(&mut self, seats: Range<usize>, count: usize, entry: helper::Entry) {
        // SAFETY: each seat is used once; the entries keep to what a helper may do.
        self.are_made = unsafe { self.resources.spawn(seats.take(count), entry) } > 0;
    }
}

/// Whether calm work has had its time: since admission, or while waiting for it.
fn is_late(now: u64, called: u64, admitted: Option<u64>) -> bool {
    admitted.map_or(now - called > ADMISSION_MS, |since| now - since > CALM_MS)
}

/// While there is enough. The first one waits for admission of the helper, the others for that one.
extern "C" fn calm(argument: usize) {
    // SAFETY: the argument of a thread made by `spawn`.
    let (resources, seat) = unsafe { Resources::of_thread(argument) };
    thread::run_idly();
    let control = resources.arena.control();
    if seat == CALM.start {
        resources.admission.wait(u64::from(control.program));
        control.admitted.tell();
    }
    while !control.admitted.is_set() && !control.hurry.is_set() {
        control.admitted.wait(LONG_MS);
    }
    work(resources.arena, |_| {})
}

extern "C" fn hurried(argument: usize) {
    // SAFETY: as above.
    let (resources, seat) = unsafe { Resources::of_thread(argument) };
    Affinity::current().pin(seat, usize::MAX);
    work(resources.arena, take_what_is_left)
}

/// Works through rounds until the process ends.
fn work(arena: Arena, then: impl Fn(Arena)) -> ! {
    let round = &arena.control().round;
    loop {
        let seen = round.load(Ordering::SeqCst);
        take_pieces(arena);
        then(arena);
        helper::wait(round.as_ptr() as usize, seen, LONG_MS);
    }
}

fn take_pieces(arena: Arena) {
    let control = arena.control();
    let more = |number| (number < control.count.load(Ordering::SeqCst)).then_some(number + 1);
    while let Ok(number) = control
        .next
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
    {
        take(arena, number);
    }
}

/// All that is not done, whether a thread has taken it and not come to it, or none has.
fn take_what_is_left(arena: Arena) {
    for number in 0..arena.control().count.load(Ordering::SeqCst) {
        take(arena, number);
    }
}

fn take(arena: Arena, number: usize) {
    let control = arena.control();
    // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: not the helper's own. What is refused is
    // left to the end of the process.
    let zap = |start, bytes| unsafe {
        if vm::advise(start, bytes, libc::MADV_DONTNEED).is_err() {
            let _ = vm::advise(start, bytes, vm::MADV_DONTNEED_LOCKED);
        }
    };
    let piece = arena.pieces().get(number);
    if piece.is_some_and(|piece| piece.take(zap))
        && control.left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        control.finished.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_work_and_the_wait_for_it_have_their_time() {
        assert!(!is_late(ADMISSION_MS, 0, None));
        assert!(is_late(ADMISSION_MS + 1, 0, None));
        // However late admission came.
        assert!(!is_late(ADMISSION_MS + CALM_MS, 0, Some(ADMISSION_MS)));
        assert!(is_late(ADMISSION_MS + CALM_MS + 1, 0, Some(ADMISSION_MS)));
        assert!(is_late(CALM_MS + 1, 0, Some(0)));
    }
}
