//! The planner: logs of real programs replayed, and what holds for every snapshot.
//!
//! `golden/*.log` were written by the code that decided before the planner did: each tick and round of ten programs, thinned
//! out to lines that differ in more than their numbers (`scripts/record-plan`).

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

mod always;
mod limits;
mod pressure;
mod worker;

use always::{actors, bounds, frames, pace, remaining, tick};
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

proptest! {
    #[test]
    fn what_goes_in_place_is_bounded(
        tick in tick(), spare in frames(), waiting in frames(), bounds in bounds(), actors in actors()
    ) {
        always::in_place_is_bounded(&tick, spare, waiting, &bounds, &actors);
    }

    #[test]
    fn a_quiet_tick_does_nothing(
        tick in tick(), spare in frames(), waiting in frames(), bounds in bounds(), actors in actors()
    ) {
        always::quiet_does_nothing(&tick, spare, waiting, &bounds, &actors);
    }

    /// With nothing kept and nothing due, nothing is done.
    #[test]
    fn an_idle_heap_is_left_alone(mut tick in tick(), bounds in bounds(), actors in actors()) {
        tick.backlog = Backlog::default();
        prop_assert_eq!(tick.decide(0, 0, &bounds, &actors), TickPlan::Nothing);
    }

    #[test]
    fn more_due_is_more_released(tick in tick(), bounds in bounds(), actors in actors(), more in 0..1000u64) {
        always::more_due_is_more(&tick, &bounds, &actors, more);
    }

    #[test]
    fn while_something_waits_somebody_looks_again(left in remaining(), pace in pace()) {
        always::looks_again(&left, &pace);
    }

    #[test]
    fn a_round_takes_what_is_due(tick in tick(), bounds in bounds(), may_be_lazy in any::<bool>()) {
        always::round_takes_due(&tick, &bounds, may_be_lazy);
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
