//! The threads that take the pieces.
//!
//! While memory is not short: few helpers at a time ([`crate::admission`]), by threads that run only where nobody
//! else wants to. At the first sign of shortage, or when that or the wait for admission has taken long: by as many
//! threads as there are CPUs, at the usual priority. The helper's own thread does not lower its priority, so that
//! it can make them: there is no way back from the lowest.
//!
//! A piece is taken by number, without a lock that an idle thread could hold. One that it has taken and does not
//! come to is done again by a hurried thread. Where no thread is to be had, the first one does it all.

use crate::arena::{Arena, CALM, HURRIED, Piece};
use crate::memory_shortage::MemoryShortage;
use crate::resources::Resources;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebbtide_sys::helper;
use ebbtide_sys::thread::{self, Affinity};
use ebbtide_sys::vm;

/// Between two looks at whether memory is short.
const SHORTAGE_CHECK_MS: u64 = 50;
/// Calm work may take this long once the helper is admitted.
const CALM_MS: u64 = 5000;
/// Admission may be this long in coming: a helper that has a slot may have been stopped.
const ADMISSION_MS: u64 = 60_000;
/// Hurried work that has not come on for this long is left to the end of the process.
const STUCK_MS: u64 = 10_000;
/// For waits that end otherwise.
const LONG_MS: u64 = 3_600_000;

/// Has the listed pieces taken. Returns when all are done, or do not come on.
pub fn take_pieces(resources: &Resources, shortage: &mut MemoryShortage) {
    let (arena, control) = (resources.arena, resources.arena.control());
    let make = |seats: Range<usize>, count: usize, entry: helper::Entry| {
        // SAFETY: each seat is used once; the entries keep to what a helper may do.
        unsafe { resources.spawn(seats.take(count), entry) > 0 }
    };
    let hurry = || {
        control.hurry.set();
        control.admitted.wake();
        make(HURRIED, Affinity::current().count().max(1), hurried)
    };
    let called_ms = helper::now_ms();
    let mut are_made = if shortage.is_pressing() {
        hurry()
    } else {
        make(CALM, control.workers, calm)
    };
    let mut admitted_ms = None;
    let (mut left, mut since) = (control.left.load(Ordering::SeqCst), called_ms);
    loop {
        if !are_made {
            take_what_is_left(arena);
        }
        control.finished.wait(SHORTAGE_CHECK_MS);
        let (left_now, now) = (control.left.load(Ordering::SeqCst), helper::now_ms());
        if left_now == 0 {
            return;
        }
        if left_now != left {
            (left, since) = (left_now, now);
        }
        if control.hurry.is_set() {
            if now - since > STUCK_MS {
                return;
            }
            continue;
        }
        if control.admitted.is_set() {
            admitted_ms.get_or_insert(now);
        }
        if shortage.is_pressing() || is_late(now, called_ms, admitted_ms) {
            since = now;
            are_made = hurry();
        }
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
    take_untaken(resources.arena);
    helper::exit_thread()
}

extern "C" fn hurried(argument: usize) {
    // SAFETY: as above.
    let (resources, seat) = unsafe { Resources::of_thread(argument) };
    Affinity::current().pin(seat, usize::MAX);
    take_untaken(resources.arena);
    take_what_is_left(resources.arena);
    helper::exit_thread()
}

/// Those that no thread has taken.
fn take_untaken(arena: Arena) {
    while let Some(piece) = listed(arena).get(arena.control().next.fetch_add(1, Ordering::SeqCst)) {
        take(arena, piece);
    }
}

/// Those that are not done, whether a thread has taken them and not come to them, or none has.
fn take_what_is_left(arena: Arena) {
    listed(arena).iter().for_each(|piece| take(arena, piece));
}

fn listed(arena: Arena) -> &'static [Piece] {
    let count = arena.control().count.load(Ordering::SeqCst);
    arena.pieces().get(..count).unwrap_or_default()
}

fn take(arena: Arena, piece: &Piece) {
    let control = arena.control();
    // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: not the helper's own. What is refused is
    // left to the end of the process.
    let zap = |start, bytes| unsafe {
        if vm::advise(start, bytes, libc::MADV_DONTNEED).is_err() {
            let _ = vm::advise(start, bytes, vm::MADV_DONTNEED_LOCKED);
        }
    };
    if piece.take(zap) && control.left.fetch_sub(1, Ordering::SeqCst) == 1 {
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
