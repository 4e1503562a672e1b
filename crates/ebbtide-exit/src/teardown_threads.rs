//! The threads that release the pieces.
//!
//! While memory is not short, few helpers work at a time ([`crate::admission`]), with threads that run only on idle CPUs.
//! In a hurry, as many threads as there are CPUs work at the usual priority. The hurry begins at the first sign of
//! shortage, or when the calm work or the wait for admission has taken long. The helper's own thread keeps its priority so
//! that it can make these threads: a thread at the lowest priority cannot raise it again.
//!
//! A thread takes a piece by number, without a lock that a thread without a CPU could hold. If a thread has taken a piece
//! and does not get to it, a hurried thread releases it. If no thread can be made, the first thread releases all pieces.

use crate::arena::{Arena, CALM, HURRIED, Piece};
use crate::memory_shortage::MemoryShortage;
use crate::resources::Resources;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebbtide_sys::helper;
use ebbtide_sys::thread::{self, Affinity};
use ebbtide_sys::vm;

/// Interval between checks for memory shortage.
const SHORTAGE_CHECK_MS: u64 = 50;
/// Longest time of calm work, from the helper's admission on.
const CALM_MS: u64 = 5000;
/// Longest wait for admission: a helper that has a slot may have been stopped.
const ADMISSION_MS: u64 = 60_000;
/// Hurried work without progress for this long is left to the end of the process.
const STUCK_MS: u64 = 10_000;
/// For waits that end by a wake-up.
const LONG_MS: u64 = 3_600_000;

/// Has the listed pieces released by threads. Returns when all pieces are done, or there is no progress.
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

/// Whether the calm work has used up its time, from admission on, or the wait for admission has.
fn is_late(now: u64, called: u64, admitted: Option<u64>) -> bool {
    admitted.map_or(now - called > ADMISSION_MS, |since| now - since > CALM_MS)
}

/// A thread that works while memory is not short. The first such thread waits for the admission of the helper; the
/// others wait for the first.
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

/// Releases the pieces that no thread has taken.
fn take_untaken(arena: Arena) {
    while let Some(piece) = listed(arena).get(arena.control().next.fetch_add(1, Ordering::SeqCst)) {
        take(arena, piece);
    }
}

/// Releases the pieces that are not done: a thread may have taken them without getting to them, or none has.
fn take_what_is_left(arena: Arena) {
    listed(arena).iter().for_each(|piece| take(arena, piece));
}

fn listed(arena: Arena) -> &'static [Piece] {
    let count = arena.control().count.load(Ordering::SeqCst);
    arena.pieces().get(..count).unwrap_or_default()
}

fn take(arena: Arena, piece: &Piece) {
    let control = arena.control();
    // SAFETY: INV-REAPER-1: no other process uses the memory; INV-REAPER-2: it is not the helper's own. If the call
    // is refused, the end of the process releases the memory.
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
