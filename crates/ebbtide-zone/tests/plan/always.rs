//! Snapshots that are drawn at random, and what holds for every one of them. The fuzz target `planner` checks it too.

use ebbtide_zone::plan::*;
use proptest::prelude::*;

prop_compose! {
    pub(crate) fn bounds()(
        window_ms in prop_oneof![Just(0), 1..100_000u64],
        is_short in any::<bool>(),
        is_limited in any::<bool>(),
        cap_frames in prop_oneof![Just(u64::MAX), 0..1_000_000u64],
    ) -> Bounds {
        Bounds { window_ms, is_short, is_limited, cap_frames }
    }
}

prop_compose! {
    pub(crate) fn actors()(
        count in 0..5u64,
        most in 0..5u64,
        can_be_made in any::<bool>(),
        next_ms in prop_oneof![Just(u64::MAX), 0..20_000u64],
        are_watching in any::<bool>(),
        has_forked in any::<bool>(),
        has_huge_pages in any::<bool>(),
    ) -> Actors {
        let workers = Workers { count, most, can_be_made, next_ms, are_watching };
        Actors { workers, has_forked, has_huge_pages }
    }
}

prop_compose! {
    pub(crate) fn tick()(
        dirty in frames(), due in frames(), lazy in frames(), lazy_due in frames(),
        now_ms in 10_000..20_000u64, asked_ms in 9_000..20_000u64, freed_bytes in 0..40_000_000usize,
    ) -> Tick {
        let backlog = Backlog { dirty, due: due.min(dirty), lazy, lazy_due: lazy_due.min(lazy) };
        Tick { now_ms, asked_ms, freed_bytes, backlog }
    }
}

pub(crate) fn frames() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..2 * IN_PLACE_FRAMES, 0..10_000_000u64]
}

prop_compose! {
    pub(crate) fn remaining()(dirty in frames(), lazy in frames(), elsewhere in frames()) -> Remaining {
        Remaining { dirty, lazy, elsewhere, ..Remaining::default() }
    }
}

prop_compose! {
    pub(crate) fn pace()(
        window_ms in 0..100_000u64, lazy_ms in 0..100_000u64, is_active in any::<bool>()
    ) -> Pace {
        Pace { window_ms, lazy_ms, is_active }
    }
}

/// `INV-PLAN-1`, `INV-PLAN-2`.
pub(crate) fn in_place_is_bounded(
    tick: &Tick,
    spare: u64,
    waiting: u64,
    bounds: &Bounds,
    actors: &Actors,
) {
    let Backlog {
        dirty,
        due,
        lazy,
        lazy_due,
    } = tick.backlog;
    match tick.decide(spare, waiting, bounds, actors) {
        TickPlan::Nothing => {
            assert!(dirty + lazy + spare <= IN_PLACE_FRAMES && waiting <= IN_PLACE_FRAMES);
            let shared = actors.small_release(bounds.floor_frames() == 0).is_none();
            assert!(due <= bounds.floor_frames() || shared);
        }
        TickPlan::Little { frames, .. } => {
            assert!(frames > 0 && frames <= STEP_FRAMES && frames <= due);
        }
        TickPlan::Much {
            wake,
            beside,
            alone,
            alone_lazy,
        } => {
            assert!(beside <= HELP_FRAMES && alone <= due.min(HELP_FRAMES));
            assert!(alone_lazy <= lazy_due.min(HELP_FRAMES));
            let workers = &actors.workers;
            assert_eq!(wake == Wake::Never, workers.most == 0);
            let looks_now = workers.count > 0 && workers.next_ms <= tick.now_ms;
            if workers.most > 0 && looks_now && due <= IN_PLACE_FRAMES {
                assert_eq!(wake, Wake::NotNeeded);
            }
            if wake == Wake::NotNeeded {
                assert!(due <= IN_PLACE_FRAMES && workers.count > 0);
            }
        }
    }
}

/// A tick that is quiet needs no decision.
pub(crate) fn quiet_does_nothing(
    tick: &Tick,
    spare: u64,
    waiting: u64,
    bounds: &Bounds,
    actors: &Actors,
) {
    if tick.is_quiet(spare, waiting, bounds) {
        assert_eq!(
            tick.decide(spare, waiting, bounds, actors),
            TickPlan::Nothing
        );
    }
}

/// More memory that is due never leads to less that goes.
pub(crate) fn more_due_is_more(tick: &Tick, bounds: &Bounds, actors: &Actors, more: u64) {
    let amount = |tick: &Tick| match tick.decide(0, 0, bounds, actors) {
        TickPlan::Nothing => 0,
        TickPlan::Little { frames, .. } => frames,
        TickPlan::Much { alone, .. } => alone,
    };
    let mut larger = *tick;
    larger.backlog.due += more;
    larger.backlog.dirty += more;
    assert!(amount(tick) <= amount(&larger));
}

/// `INV-PLAN-3`.
pub(crate) fn looks_again(left: &Remaining, pace: &Pace) {
    let most = left.dirty.max(left.elsewhere);
    match left.next(pace) {
        Next::Much(ms) => assert!(ms >= 10 && most.max(left.lazy) > FLOOR_FRAMES),
        Next::Little(ms) => assert!(ms >= 10 && most <= IN_PLACE_FRAMES),
        Next::Nothing => assert!(most <= FLOOR_FRAMES && left.lazy == 0),
    }
}

/// A round releases what is due, except for the floor.
pub(crate) fn round_takes_due(tick: &Tick, bounds: &Bounds, may_be_lazy: bool) {
    let plan = round(&tick.backlog, bounds, may_be_lazy);
    let due = tick.backlog.due;
    assert!(plan.due <= due && plan.due + bounds.floor_frames() >= due);
    assert_eq!(plan.lazy, tick.backlog.lazy_due);
    assert!(!plan.lazy_first || may_be_lazy);
}
