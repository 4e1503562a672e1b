//! What dead workers leave, and who does what they did.

use super::*;
use ebbtide_zone::plan::pressure::SAMPLE_MS;

#[test]
fn nobody_counts_on_workers_that_are_gone() {
    let workers = Workers::new();
    // Killed at what was queued: nobody took these bits back.
    workers.numbers.store(0b101, Ordering::Relaxed);
    workers.busy.store(0b101, Ordering::Relaxed);
    assert_eq!((workers.busy(), workers.count()), (0, 0));
    assert_eq!(workers.bury(), 0b101);
    let left = |bits: &AtomicU64| bits.load(Ordering::Relaxed);
    assert_eq!((left(&workers.busy), left(&workers.numbers)), (0, 0));
    assert_eq!(workers.bury(), 0);
}

/// What a dead one did alone, another one may do from then on, also while others live.
#[test]
fn the_coordinator_may_die_alone() {
    static WORKERS: Workers = Workers::new();
    static ENDS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn waits(_: usize) {
        while ENDS.load(Ordering::Relaxed) == 0 {
            thread::wait(&ENDS, 0, 1000);
        }
    }
    assert!(WORKERS.places[1].spawn(waits, 0));
    WORKERS.numbers.store(0b11, Ordering::Relaxed);
    assert!(WORKERS.coordinate(0) && !WORKERS.coordinate(1));
    assert_eq!((WORKERS.bury(), WORKERS.count()), (0b01, 1));
    assert!(WORKERS.coordinate(1));
    assert_eq!(WORKERS.bury(), 0);
    assert!(!WORKERS.coordinate(0), "the living keep what they do");
    ENDS.store(1, Ordering::Relaxed);
    ebbtide_sys::lock::futex_wake(&ENDS, 1);
    while !WORKERS.places[1].is_free() {
        thread::give_way();
    }
}

#[test]
fn one_made_in_advance_looks_more_seldom_while_nothing_grows() {
    let mut watch = WatchSchedule::default();
    let pauses = [10, 10, 10, 20, 20].map(|open| watch.pause(open));
    let look = SAMPLE_MS.0;
    assert_eq!(pauses, [look, 2 * look, 4 * look, look, 2 * look]);
}
