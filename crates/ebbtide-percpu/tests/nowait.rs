//! Per-CPU data without waiting: [`allocate_nowait`] while locks are held.

use ebbtide_core::front::heap_of;
use ebbtide_core::reclaim::sources::Parts;
use ebbtide_percpu::{PERCPU, Problem, allocate, allocate_nowait, free};

static PARTS: Parts = Parts {
    caches: &[],
    holders: &[&PERCPU],
    hooks: &[],
};

/// A call that waited would wait for ever.
#[test]
fn a_lock_that_is_held_is_passed_by() {
    assert_eq!(
        allocate_nowait(16, 8),
        Err(Problem::NoMemory),
        "not started"
    );
    let first = allocate(heap_of(&PARTS).unwrap(), 16, 8).unwrap();
    let second = allocate_nowait(16, 8).expect("the rest of the page");
    PERCPU.locks().for_each(|shard| shard.lock_for_fork());
    let refused = allocate_nowait(16, 8);
    // SAFETY: this thread has taken them.
    PERCPU
        .locks()
        .for_each(|shard| unsafe { shard.unlock_after_fork() });
    assert_eq!(refused, Err(Problem::NoMemory));
    let third = allocate_nowait(16, 8).expect("the locks are free");
    [first, second, third].into_iter().for_each(free);
}
