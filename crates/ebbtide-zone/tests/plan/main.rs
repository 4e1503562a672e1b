//! The planner: logs of real programs replayed, and what holds for every snapshot.
//!
//! `golden/*.log` were written by the code that decided before the planner did: each tick and round of ten programs, thinned
//! out to lines that differ in more than their numbers (`scripts/record-plan`).

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

mod limits;
mod pressure;
mod worker;

use ebbtide_zone::plan::*;
use proptest::prelude::*;

const LOGS: [(&str, &str); 10] = [
    ("redis", include_str!("golden/redis.log")),
    ("sqlite", include_str!("golden/sqlite.log")),
    ("python", include_str!("golden/python.log")),
    ("git", include_str!("golden/git.log")),
    ("gcc", include_str!("golden/gcc.log")),
    ("sort", include_str!("golden/sort.log")),
    ("perl", include_str!("golden/perl.log")),
    ("bash", include_str!("golden/bash.log")),
    ("give_back", include_str!("golden/give_back.log")),
    ("lazy", include_str!("golden/lazy.log")),
];

fn flag(number: u64) -> bool {
    assert!(number < 2, "{number} is no flag");
    number == 1
}

/// The numbers of a line, part by part.
fn parts(line: &str) -> Vec<Vec<u64>> {
    let numbers = |part: &str| {
        let numbers = part
            .split_whitespace()
            .map(|number| number.parse().unwrap());
        numbers.collect()
    };
    line[1..].split(':').map(numbers).collect()
}

fn replay_tick(line: &str) {
    let parts = parts(line);
    let [
        now,
        freed,
        asked_ms,
        dirty,
        due,
        lazy,
        lazy_due,
        asked,
        spare,
        waiting,
        rest @ ..,
    ] = &parts[0][..]
    else {
        panic!("{line}");
    };
    let [
        watched,
        watches,
        window,
        count,
        most,
        next,
        short,
        limited,
        cap,
        forked,
        huge,
        can_be_made,
    ] = *rest
    else {
        panic!("{line}");
    };
    let tick = Tick {
        now_ms: *now,
        asked_ms: *asked_ms,
        freed_bytes: *freed as usize,
        backlog: Backlog {
            dirty: *dirty,
            due: *due,
            lazy: *lazy,
            lazy_due: *lazy_due,
        },
    };
    let bounds = Bounds {
        window_ms: window,
        is_short: flag(short),
        is_limited: flag(limited),
        cap_frames: cap,
    };
    let actors = Actors {
        workers: Workers {
            count,
            most,
            can_be_made: flag(can_be_made),
            next_ms: next,
            are_watching: flag(watched) || !flag(watches),
        },
        has_forked: flag(forked),
        has_huge_pages: flag(huge),
    };
    assert_eq!(tick.asks_outside(), flag(*asked), "{line}");
    let plan = tick.decide(*spare, *waiting, &bounds, &actors);
    if tick.is_quiet(*spare, *waiting, &bounds) {
        assert_eq!(plan, TickPlan::Nothing, "{line}");
    }
    match (&parts[1][1..], plan) {
        ([], TickPlan::Nothing) => {}
        (
            [2, frames, by_program],
            TickPlan::Little {
                frames: planned,
                may_make_worker,
            },
        ) => {
            assert_eq!(
                (*frames, flag(*by_program)),
                (planned, may_make_worker),
                "{line}"
            );
        }
        (
            [1, calls, called, amounts @ ..],
            TickPlan::Much {
                wake,
                beside,
                alone,
                alone_lazy,
            },
        ) => {
            assert_eq!(wake == Wake::Call, flag(*calls), "{line}");
            match (flag(*called), amounts) {
                (true, []) => assert_eq!(beside, 0, "{line}"),
                (true, [frames]) => assert_eq!(beside, *frames, "{line}"),
                (false, [due, lazy]) => assert_eq!((alone, alone_lazy), (*due, *lazy), "{line}"),
                _ => panic!("{line}"),
            }
            if !flag(*calls) {
                assert_eq!(wake == Wake::NotNeeded, flag(*called), "{line}");
            }
        }
        (_, plan) => panic!("{plan:?}: {line}"),
    }
}

fn replay_round(line: &str) {
    let parts = parts(line);
    let [
        now,
        dirty,
        due,
        lazy,
        lazy_due,
        short,
        limited,
        cap,
        window,
        is_worker,
        may_be_lazy,
    ] = parts[0][..]
    else {
        panic!("{line}");
    };
    let bounds = Bounds {
        window_ms: window,
        is_short: flag(short),
        is_limited: flag(limited),
        cap_frames: cap,
    };
    let backlog = Backlog {
        dirty,
        due,
        lazy,
        lazy_due,
    };
    let plan = round(&backlog, &bounds, flag(is_worker) && flag(may_be_lazy));
    let [released, frames, lazy_first, lazy, ref left @ ..] = parts[1][..] else {
        panic!("{line}");
    };
    assert_eq!(plan.due > 0, flag(released), "{line}");
    assert_eq!((plan.due, plan.lazy), (frames, lazy), "{line}");
    if plan.due > 0 {
        assert_eq!(plan.lazy_first, flag(lazy_first), "{line}");
    }
    let [
        dirty,
        lazy,
        spare,
        cached,
        depopulated,
        waiting,
        percpu,
        active,
        lazy_part,
        quarantined,
        unsplit,
        unsplit_retry_ms,
        expecting,
    ] = *left
    else {
        panic!("{line}");
    };
    let left = Remaining {
        dirty: dirty + spare,
        lazy,
        cached_bytes: cached * 4096,
        elsewhere: depopulated.max(waiting).max(percpu),
        quarantined_bytes: quarantined,
        unsplit,
        unsplit_retry_ms: (unsplit_retry_ms > 0).then_some(unsplit_retry_ms),
        is_expecting: flag(expecting),
    };
    let pace = Pace {
        window_ms: window,
        lazy_ms: lazy_part * 16,
        is_active: flag(active),
    };
    let next = match parts[2][..] {
        [2, ms] => Next::Much(ms),
        [1, ms] => Next::Little(ms),
        [0, 0] => Next::Nothing,
        _ => panic!("{line}"),
    };
    assert_eq!(left.next(&pace), next, "at {now}: {line}");
}

fn replay(log: &str) -> (usize, usize) {
    let (mut ticks, mut rounds) = (0, 0);
    for line in log.lines() {
        match line.as_bytes() {
            [b't', ..] => {
                replay_tick(line);
                ticks += 1;
            }
            [b'r', ..] => {
                replay_round(line);
                rounds += 1;
            }
            _ => panic!("no line of a log: {line}"),
        }
    }
    (ticks, rounds)
}

#[test]
fn ten_programs_are_decided_as_before() {
    let mut all_rounds = 0;
    for (name, log) in LOGS {
        let (ticks, rounds) = replay(log);
        assert!(ticks > 5, "{name}: {ticks} ticks");
        all_rounds += rounds;
    }
    assert!(all_rounds > 50, "{all_rounds} rounds");
}

/// A log of any length: `EBBTIDE_PLAN_LOG=FILE cargo test -p ebbtide-zone --test plan`.
#[test]
fn a_log_of_ones_own() {
    if let Ok(path) = std::env::var("EBBTIDE_PLAN_LOG") {
        let (ticks, rounds) = replay(&std::fs::read_to_string(&path).unwrap());
        println!("{ticks} ticks and {rounds} rounds are decided as before");
    }
}

#[test]
#[should_panic(expected = "t 1000")]
fn another_decision_is_noticed() {
    // 3,000 dirty frames, and nothing done about them.
    replay_tick(
        "t 1000 0 1000 3000 3000 0 0 0 0 0 0 1 1000 0 1 18446744073709551615 0 0 1000000 0 1 1 : 0",
    );
}

prop_compose! {
    fn bounds()(
        window_ms in prop_oneof![Just(0), 1..100_000u64],
        is_short in any::<bool>(),
        is_limited in any::<bool>(),
        cap_frames in prop_oneof![Just(u64::MAX), 0..1_000_000u64],
    ) -> Bounds {
        Bounds { window_ms, is_short, is_limited, cap_frames }
    }
}

prop_compose! {
    fn actors()(
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
    fn tick()(
        dirty in frames(), due in frames(), lazy in frames(), lazy_due in frames(),
        now_ms in 10_000..20_000u64, asked_ms in 9_000..20_000u64, freed_bytes in 0..40_000_000usize,
    ) -> Tick {
        let backlog = Backlog { dirty, due: due.min(dirty), lazy, lazy_due: lazy_due.min(lazy) };
        Tick { now_ms, asked_ms, freed_bytes, backlog }
    }
}

fn frames() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..2 * IN_PLACE_FRAMES, 0..10_000_000u64]
}

proptest! {
    /// `INV-PLAN-1`, `INV-PLAN-2`.
    #[test]
    fn what_goes_in_place_is_bounded(
        tick in tick(), spare in frames(), waiting in frames(), bounds in bounds(), actors in actors()
    ) {
        let due = tick.backlog.due;
        match tick.decide(spare, waiting, &bounds, &actors) {
            TickPlan::Nothing => {
                prop_assert!(tick.backlog.dirty + tick.backlog.lazy + spare <= IN_PLACE_FRAMES && waiting <= IN_PLACE_FRAMES);
                let shared = actors.small_release(bounds.floor_frames() == 0).is_none();
                prop_assert!(due <= bounds.floor_frames() || shared);
            }
            TickPlan::Little { frames, .. } => {
                prop_assert!(frames > 0 && frames <= STEP_FRAMES && frames <= due);
            }
            TickPlan::Much { wake, beside, alone, alone_lazy } => {
                prop_assert!(beside <= HELP_FRAMES && alone <= due.min(HELP_FRAMES));
                prop_assert!(alone_lazy <= tick.backlog.lazy_due.min(HELP_FRAMES));
                prop_assert_eq!(wake == Wake::Never, actors.workers.most == 0);
                let workers = &actors.workers;
                let looks_now = workers.count > 0 && workers.next_ms <= tick.now_ms;
                if workers.most > 0 && looks_now && due <= IN_PLACE_FRAMES {
                    prop_assert_eq!(wake, Wake::NotNeeded);
                }
                if wake == Wake::NotNeeded {
                    prop_assert!(due <= IN_PLACE_FRAMES && actors.workers.count > 0);
                }
            }
        }
    }

    #[test]
    fn a_quiet_tick_does_nothing(
        tick in tick(), spare in frames(), waiting in frames(), bounds in bounds(), actors in actors()
    ) {
        if tick.is_quiet(spare, waiting, &bounds) {
            prop_assert_eq!(tick.decide(spare, waiting, &bounds, &actors), TickPlan::Nothing);
        }
    }

    /// With nothing kept and nothing due, nothing is done.
    #[test]
    fn an_idle_heap_is_left_alone(mut tick in tick(), bounds in bounds(), actors in actors()) {
        tick.backlog = Backlog::default();
        prop_assert_eq!(tick.decide(0, 0, &bounds, &actors), TickPlan::Nothing);
    }

    /// More memory that is due never leads to less that goes.
    #[test]
    fn more_due_is_more_released(tick in tick(), bounds in bounds(), actors in actors(), more in 0..1000u64) {
        let amount = |plan| match plan {
            TickPlan::Nothing => 0,
            TickPlan::Little { frames, .. } => frames,
            TickPlan::Much { alone, .. } => alone,
        };
        let mut larger = tick;
        larger.backlog.due += more;
        larger.backlog.dirty += more;
        prop_assert!(
            amount(tick.decide(0, 0, &bounds, &actors)) <= amount(larger.decide(0, 0, &bounds, &actors))
        );
    }

    /// `INV-PLAN-3`.
    #[test]
    fn while_something_waits_somebody_looks_again(
        dirty in frames(), lazy in frames(), elsewhere in frames(),
        window_ms in 0..100_000u64, lazy_ms in 0..100_000u64, is_active in any::<bool>(),
    ) {
        let left = Remaining { dirty, lazy, elsewhere, ..Remaining::default() };
        let pace = Pace { window_ms, lazy_ms, is_active };
        match left.next(&pace) {
            Next::Much(ms) => prop_assert!(ms >= 10 && dirty.max(elsewhere).max(lazy) > FLOOR_FRAMES),
            Next::Little(ms) => prop_assert!(ms >= 10 && dirty.max(elsewhere) <= IN_PLACE_FRAMES),
            Next::Nothing => prop_assert!(dirty.max(elsewhere) <= FLOOR_FRAMES && lazy == 0),
        }
    }

    #[test]
    fn a_round_takes_what_is_due(tick in tick(), bounds in bounds(), may_be_lazy in any::<bool>()) {
        let plan = round(&tick.backlog, &bounds, may_be_lazy);
        prop_assert!(plan.due <= tick.backlog.due && plan.due + bounds.floor_frames() >= tick.backlog.due);
        prop_assert_eq!(plan.lazy, tick.backlog.lazy_due);
        prop_assert!(!plan.lazy_first || may_be_lazy);
    }
}

#[test]
fn a_tick_comes_when_time_is_over_or_much_was_freed() {
    assert!(!tick_is_due(1009, 1000, (8 << 20) - 1, false));
    assert!(tick_is_due(1010, 1000, 0, false));
    assert!(tick_is_due(1000, 1000, 8 << 20, false));
    assert!(tick_is_due(1000, 1000, 256 << 10, true) && !tick_is_due(1000, 1000, 256 << 10, false));
}

#[test]
fn lazy_frames_are_looked_at_in_parts_of_their_time() {
    let next = |lazy, lazy_ms| {
        let left = Remaining {
            lazy,
            ..Remaining::default()
        };
        let pace = Pace {
            window_ms: 1000,
            lazy_ms,
            is_active: true,
        };
        left.next(&pace)
    };
    assert_eq!(next(1, 5000), Next::Little(312));
    assert_eq!(next(FLOOR_FRAMES + 1, 5000), Next::Much(312));
    assert_eq!(next(FLOOR_FRAMES + 1, 100), Next::Much(10));
    assert_eq!(next(0, 5000), Next::Nothing);
}
