//! The threads that take the pieces.
//!
//! While memory is not short: few helpers at a time ([`crate::admission`]), by threads that run only where nobody
//! else wants to. At the first sign of shortage, or when that or the wait for admission has taken long: by as many
//! threads as there are CPUs, at the usual priority. The helper's own thread does not lower its priority, so that
//! it can make them: there is no way back from the lowest.
//!
//! A piece is taken by number, without a lock that an idle thread could hold. One that it has taken and does not
//! come to is done again by a hurried thread.

use crate::admission::Admission;
use crate::arena::{Arena, FIRST_CALM, FIRST_HURRIED, HURRIED};
use crate::memory_shortage::MemoryShortage;
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

/// The threads, and the first one's view of them. It must not move once they are called.
pub struct TeardownThreads {
    shared: Shared,
    called_ms: Option<u64>,
    admitted_ms: Option<u64>,
}

/// What the threads read.
struct Shared {
    arena: Arena,
    admission: Admission,
    affinity: Affinity,
}

impl TeardownThreads {
    /// Nobody yet.
    pub fn new(arena: Arena, admission: Admission) -> Self {
        Self {
            shared: Shared {
                arena,
                admission,
                affinity: Affinity::current(),
            },
            called_ms: None,
            admitted_ms: None,
        }
    }

    /// Sees the pieces of this round done. `false`: they do not come on.
    pub fn finish(&mut self, shortage: &mut MemoryShortage) -> bool {
        let control = self.shared.arena.control();
        let is_first = self.called_ms.is_none();
        let called_ms = *self.called_ms.get_or_insert_with(helper::now_ms);
        if is_first {
            if shortage.is_pressing() {
                self.hurry();
            } else {
                self.spawn(FIRST_CALM, control.workers, calm);
            }
        }
        let (mut left, mut since) = (control.left.load(Ordering::SeqCst), helper::now_ms());
        loop {
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
            if shortage.is_pressing() || is_late(now, called_ms, self.admitted_ms) {
                since = now;
                self.hurry();
            }
        }
    }

    fn hurry(&self) {
        let control = self.shared.arena.control();
        control.hurry.set();
        control.admitted.wake();
        let cpus = self.shared.affinity.count().clamp(1, HURRIED);
        if !self.spawn(FIRST_HURRIED, cpus, hurried) {
            self.shared.take_what_is_left();
        }
    }

    /// Starts as many threads, in seats from `first` on. `false`: there is none, and this one has done what is listed.
    fn spawn(&self, first: usize, count: usize, entry: helper::Entry) -> bool {
        let arena = self.shared.arena;
        let shared = &raw const self.shared as usize;
        arena.control().shared.store(shared, Ordering::SeqCst);
        let made = (first..first + count).filter(|&seat| {
            let argument = arena.address() | seat;
            // SAFETY: each seat is used once; the argument is the arena's address with the number of the seat in
            // the bits that are 0 there. `shared` stays until the process ends.
            unsafe { helper::spawn_thread(arena.seat(seat), entry, argument) }.is_ok()
        });
        let has_some = made.count() > 0;
        if !has_some {
            self.shared.take_pieces();
        }
        has_some
    }
}

/// Whether calm work has had its time: since admission, or while waiting for it.
fn is_late(now: u64, called: u64, admitted: Option<u64>) -> bool {
    admitted.map_or(now - called > ADMISSION_MS, |since| now - since > CALM_MS)
}

/// What a thread finds: all there is, and its seat's number.
fn enter(argument: usize) -> (&'static Shared, usize) {
    let (address, seat) = (argument & !4095, argument & 4095);
    let shared = Arena::at(address).control().shared.load(Ordering::SeqCst);
    // SAFETY: `spawn` stored it, and it stays until the process ends.
    let shared = unsafe { &*(shared as *const Shared) };
    (shared, seat)
}

/// While there is enough. The first one waits for admission of the helper, the others for that one.
extern "C" fn calm(argument: usize) {
    let (shared, seat) = enter(argument);
    thread::run_idly();
    let control = shared.arena.control();
    if seat == FIRST_CALM {
        shared.admission.wait(u64::from(control.program));
        control.admitted.tell();
    }
    while !control.admitted.is_set() && !control.hurry.is_set() {
        control.admitted.wait(LONG_MS);
    }
    shared.work(|| {})
}

extern "C" fn hurried(argument: usize) {
    let (shared, seat) = enter(argument);
    shared.affinity.pin(seat, usize::MAX);
    shared.work(|| shared.take_what_is_left())
}

impl Shared {
    /// Works through rounds until the process ends.
    fn work(&self, then: impl Fn()) -> ! {
        let round = &self.arena.control().round;
        loop {
            let seen = round.load(Ordering::SeqCst);
            self.take_pieces();
            then();
            helper::wait(round.as_ptr() as usize, seen, LONG_MS);
        }
    }

    fn take_pieces(&self) {
        let control = self.arena.control();
        let more = |number| (number < control.count.load(Ordering::SeqCst)).then_some(number + 1);
        while let Ok(number) = control
            .next
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
        {
            self.take(number);
        }
    }

    /// Those that somebody has taken and not come to.
    fn take_what_is_left(&self) {
        for number in 0..self.arena.control().count.load(Ordering::SeqCst) {
            self.take(number);
        }
    }

    fn take(&self, number: usize) {
        let control = self.arena.control();
        let piece = self.arena.pieces().get(number);
        let Some((piece, range)) = piece.and_then(|piece| Some((piece, piece.pending()?))) else {
            return;
        };
        // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: not the helper's own. What is refused is
        // left to the end of the process.
        unsafe {
            if vm::advise(range.start, range.bytes, libc::MADV_DONTNEED).is_err() {
                let _ = vm::advise(range.start, range.bytes, vm::MADV_DONTNEED_LOCKED);
            }
        }
        if piece.finish(range) && control.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            control.finished.tell();
        }
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
