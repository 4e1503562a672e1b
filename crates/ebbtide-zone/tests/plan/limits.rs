//! Where one decision ends and the next begins.

use ebbtide_zone::plan::*;

const NOW: u64 = 10_000;
const KEEPS: Bounds = Bounds {
    window_ms: 1000,
    is_short: false,
    is_limited: false,
    cap_frames: 1_000_000,
};
const KEEPS_NOTHING: Bounds = Bounds {
    window_ms: 0,
    ..KEEPS
};
const WORKERS: Workers = Workers {
    count: 1,
    most: 1,
    can_be_made: true,
    next_ms: u64::MAX,
    are_watching: true,
};
const NONE_YET: Workers = Workers {
    count: 0,
    ..WORKERS
};

fn tick(dirty: u64, due: u64, lazy: u64) -> Tick {
    Tick {
        now_ms: NOW,
        asked_ms: NOW,
        freed_bytes: 0,
        backlog: Backlog {
            dirty,
            due,
            lazy,
            lazy_due: lazy,
        },
    }
}

fn actors(workers: Workers) -> Actors {
    Actors {
        workers,
        has_forked: false,
        has_huge_pages: false,
    }
}

fn decide(tick: Tick, bounds: Bounds, workers: Workers) -> TickPlan {
    tick.decide(0, 0, &bounds, &actors(workers))
}

fn little(frames: u64, may_make_worker: bool) -> TickPlan {
    TickPlan::Little {
        frames,
        may_make_worker,
    }
}

#[test]
fn without_a_window_a_tick_waits_for_a_large_allocation() {
    assert!(!tick_is_due(1000, 1000, (256 << 10) - 1, true));
    assert!(tick_is_due(1000, 1000, 256 << 10, true));
}

#[test]
fn a_tick_is_quiet_up_to_its_limits() {
    let quiet = |tick: Tick, spare, waiting| tick.is_quiet(spare, waiting, &KEEPS);
    assert!(quiet(tick(1000, 256, 256), 0, 0));
    assert!(!quiet(tick(1000, 257, 256), 0, 0));
    assert!(!quiet(tick(1000, 256, 257), 0, 0));
    assert!(quiet(tick(1792, 0, 256), 0, 0) && !quiet(tick(1793, 0, 256), 0, 0));
    assert!(quiet(tick(1000, 0, 0), 1048, 0) && !quiet(tick(1000, 0, 0), 1049, 0));
    assert!(quiet(tick(1000, 0, 0), 0, 2048) && !quiet(tick(1000, 0, 0), 0, 2049));
}

#[test]
fn lazy_frames_need_a_worker_from_the_floor_on() {
    assert_eq!(decide(tick(0, 0, 256), KEEPS, NONE_YET), TickPlan::Nothing);
    assert_eq!(decide(tick(0, 0, 257), KEEPS, WORKERS), TickPlan::Nothing);
    let much = TickPlan::Much {
        wake: Wake::Call,
        beside: 0,
        alone: 0,
        alone_lazy: 257,
    };
    assert_eq!(decide(tick(0, 0, 257), KEEPS, NONE_YET), much);
}

#[test]
fn a_thread_helps_above_half_the_cap() {
    let bounds = Bounds {
        cap_frames: 6000,
        ..KEEPS
    };
    let much = |beside, alone| TickPlan::Much {
        wake: Wake::Call,
        beside,
        alone,
        alone_lazy: 0,
    };
    assert_eq!(decide(tick(5000, 3000, 0), bounds, WORKERS), much(0, 2744));
    assert_eq!(
        decide(tick(5000, 3001, 0), bounds, WORKERS),
        much(HELP_FRAMES, 2745)
    );
}

#[test]
fn a_little_goes_in_place_above_the_floor() {
    assert_eq!(decide(tick(500, 256, 0), KEEPS, WORKERS), TickPlan::Nothing);
    assert_eq!(decide(tick(500, 257, 0), KEEPS, WORKERS), little(1, false));
    assert_eq!(
        decide(tick(600, 600, 0), KEEPS, WORKERS),
        little(STEP_FRAMES, false)
    );
    assert_eq!(
        decide(tick(500, 1, 0), KEEPS_NOTHING, WORKERS),
        little(1, false)
    );
}

#[test]
fn a_shared_huge_page_waits_for_a_worker_unless_nothing_is_kept() {
    let forked = Actors {
        workers: NONE_YET,
        has_forked: true,
        has_huge_pages: true,
    };
    let tick = tick(500, 300, 0);
    assert_eq!(tick.decide(0, 0, &KEEPS, &forked), TickPlan::Nothing);
    assert_eq!(
        tick.decide(0, 0, &KEEPS_NOTHING, &forked),
        little(256, true)
    );
    let others = [
        Actors {
            has_forked: false,
            ..forked
        },
        Actors {
            has_huge_pages: false,
            ..forked
        },
        Actors {
            workers: WORKERS,
            ..forked
        },
        Actors {
            workers: Workers {
                most: 0,
                ..NONE_YET
            },
            ..forked
        },
        Actors {
            workers: Workers {
                can_be_made: false,
                ..NONE_YET
            },
            ..forked
        },
    ];
    for actors in others {
        assert_eq!(tick.decide(0, 0, &KEEPS, &actors), little(44, false));
    }
}

/// A request makes no worker for up to 8 MiB, unless a huge page may be shared, which only a worker sees.
#[test]
fn a_request_for_little_makes_no_worker() {
    let none = actors(NONE_YET);
    assert_eq!(request(2000, 48, &none), RequestPlan::InPlace);
    assert_eq!(request(2000, 49, &none), RequestPlan::WithWorkers);
    assert_eq!(request(0, 0, &actors(WORKERS)), RequestPlan::WithWorkers);
    let forked = Actors {
        has_forked: true,
        has_huge_pages: true,
        ..none
    };
    assert_eq!(request(10, 0, &forked), RequestPlan::WithWorkers);
}

#[test]
fn a_worker_that_looks_soon_enough_is_not_called() {
    let wake = |due, window_ms, workers| match decide(
        tick(5000, due, 0),
        Bounds { window_ms, ..KEEPS },
        workers,
    ) {
        TickPlan::Much { wake, .. } => wake,
        plan => panic!("{plan:?}"),
    };
    let looks = |ms, are_watching| Workers {
        next_ms: NOW + ms,
        are_watching,
        ..WORKERS
    };
    for (window_ms, are_watching, soon) in [(1000, true, 1000), (50, true, 100), (1000, false, 40)]
    {
        assert_eq!(
            wake(0, window_ms, looks(soon, are_watching)),
            Wake::NotNeeded
        );
        assert_eq!(
            wake(0, window_ms, looks(soon + 1, are_watching)),
            Wake::Call
        );
    }
    assert_eq!(wake(2048, 1000, looks(0, true)), Wake::NotNeeded);
    assert_eq!(wake(2049, 1000, looks(0, true)), Wake::Call);
    let nobody = Workers {
        count: 0,
        ..looks(0, true)
    };
    assert_eq!(wake(0, 1000, nobody), Wake::Call);
    assert_eq!(wake(0, 1000, Workers { most: 0, ..nobody }), Wake::Never);
}

#[test]
fn other_sources_are_asked_when_much_was_freed_or_some_time_has_passed() {
    let asks = |kept: u64, freed_bytes, ms| {
        let tick = Tick {
            asked_ms: NOW - ms,
            freed_bytes,
            ..tick(kept - 1, 0, 1)
        };
        tick.asks_outside()
    };
    assert!(asks(2048, 8 << 20, 0) && !asks(2049, 8 << 20, 0));
    assert!(!asks(2048, (8 << 20) - 1, 99));
    assert!(asks(2048, 0, 100) && !asks(2049, 0, 100));
}

#[test]
fn frames_become_lazy_first_up_to_the_cap() {
    let bounds = Bounds {
        cap_frames: 3000,
        ..KEEPS
    };
    let plan = |dirty, lazy| round(&tick(dirty, 700, lazy).backlog, &bounds, true);
    let full = RoundPlan {
        due: 444,
        lazy_first: true,
        lazy: 1000,
    };
    assert_eq!(plan(2000, 1000), full);
    assert!(!plan(2001, 1000).lazy_first);
}

fn next(left: Remaining, is_active: bool) -> Next {
    left.next(&Pace {
        window_ms: 1000,
        lazy_ms: 5000,
        is_active,
    })
}

#[test]
fn whatever_is_the_most_says_when_a_worker_looks() {
    let kept = |frames| {
        let mut noted = Remaining::default();
        noted.note(frames);
        noted.note(frames - 1);
        let dirty = Remaining {
            dirty: frames,
            ..Remaining::default()
        };
        let cached = Remaining {
            cached_bytes: frames * 4096,
            ..Remaining::default()
        };
        [noted, dirty, cached]
    };
    for (frames, expected, active) in [
        (2049, Next::Much(125), Next::Much(500)),
        (2048, Next::Little(125), Next::Little(500)),
        (257, Next::Little(125), Next::Little(500)),
        (256, Next::Nothing, Next::Nothing),
    ] {
        for left in kept(frames) {
            assert_eq!((next(left, false), next(left, true)), (expected, active));
        }
    }
}

#[test]
fn lazy_frames_beside_others_wait_as_long_as_those() {
    let next = |dirty, lazy| {
        let left = Remaining {
            dirty,
            lazy,
            ..Remaining::default()
        };
        next(left, false)
    };
    assert_eq!(next(257, 257), Next::Much(125));
    assert_eq!(next(256, 257), Next::Much(312));
    assert_eq!(next(257, 256), Next::Little(125));
    assert_eq!(next(256, 256), Next::Little(312));
}

#[test]
fn what_is_quarantined_held_or_expected_is_waited_for() {
    let quarantined = Remaining {
        quarantined_bytes: 1,
        ..Remaining::default()
    };
    assert_eq!(next(quarantined, true), Next::Little(125));
    let unsplit = |unsplit, unsplit_retry_ms| Remaining {
        unsplit,
        unsplit_retry_ms,
        ..Remaining::default()
    };
    assert_eq!(next(unsplit(2049, Some(7)), true), Next::Much(7));
    assert_eq!(next(unsplit(2049, None), true), Next::Nothing);
    assert_eq!(next(unsplit(2048, Some(7)), true), Next::Nothing);
    let expecting = Remaining {
        is_expecting: true,
        ..Remaining::default()
    };
    assert_eq!(next(expecting, true), Next::Little(1000));
}
