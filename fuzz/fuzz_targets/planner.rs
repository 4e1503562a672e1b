//! The planner against what holds for every snapshot, and the policies of memory pressure against series of samples.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/plan/always.rs"]
mod always;

use ebbtide_fuzz::Bytes;
use ebbtide_zone::plan::pressure::{CALM_MS, Policy, Room, SAMPLE_MS, Sample, Stalls};
use ebbtide_zone::plan::*;
use libfuzzer_sys::fuzz_target;

/// A number of frames: none, a few, or many.
fn frames(bytes: &mut Bytes) -> u64 {
    bytes.of(&[0..=0, 0..=2 * IN_PLACE_FRAMES, 0..=10_000_000])
}

fn tick(bytes: &mut Bytes) -> Tick {
    let [dirty, due, lazy, lazy_due] = [(); 4].map(|()| frames(bytes));
    Tick {
        now_ms: bytes.number(10_000..=20_000),
        asked_ms: bytes.number(9_000..=20_000),
        freed_bytes: bytes.below(40_000_000),
        backlog: Backlog {
            dirty,
            due: due.min(dirty),
            lazy,
            lazy_due: lazy_due.min(lazy),
        },
    }
}

fn bounds(bytes: &mut Bytes) -> Bounds {
    Bounds {
        window_ms: bytes.of(&[0..=0, 1..=100_000]),
        is_short: bytes.flag(),
        is_limited: bytes.flag(),
        cap_frames: bytes.of(&[u64::MAX..=u64::MAX, 0..=1_000_000]),
    }
}

fn actors(bytes: &mut Bytes) -> Actors {
    let workers = Workers {
        count: bytes.number(0..=4),
        most: bytes.number(0..=4),
        can_be_made: bytes.flag(),
        next_ms: bytes.of(&[u64::MAX..=u64::MAX, 0..=20_000]),
        are_watching: bytes.flag(),
    };
    Actors {
        workers,
        has_forked: bytes.flag(),
        has_huge_pages: bytes.flag(),
    }
}

fn check_snapshot(bytes: &mut Bytes) {
    let (tick, bounds, actors) = (tick(bytes), bounds(bytes), actors(bytes));
    let [spare, waiting, dirty, lazy, elsewhere] = [(); 5].map(|()| frames(bytes));
    always::in_place_is_bounded(&tick, spare, waiting, &bounds, &actors);
    always::quiet_does_nothing(&tick, spare, waiting, &bounds, &actors);
    always::more_due_is_more(&tick, &bounds, &actors, bytes.number(0..=999));
    always::round_takes_due(&tick, &bounds, bytes.flag());
    let left = Remaining {
        dirty,
        lazy,
        elsewhere,
        ..Remaining::default()
    };
    let pace = Pace {
        window_ms: bytes.number(0..=100_000),
        lazy_ms: bytes.number(0..=100_000),
        is_active: bytes.flag(),
    };
    always::looks_again(&left, &pace);
}

fn check_pressure(bytes: &mut Bytes) {
    let mut policy = Policy::new();
    let mut now_ms = 1;
    let mut last_event_ms = None;
    for _ in 0..bytes.below(40) {
        now_ms += bytes.number(0..=20_000);
        let [limit, left, potential, resident] =
            [(); 4].map(|()| bytes.of(&[0..=1 << 24, 0..=1 << 44]));
        let room = bytes.flag().then(|| Room::new(left.min(limit), limit));
        let had_event = bytes.flag();
        let verdict = policy.sample(&Sample {
            now_ms,
            room,
            potential,
            resident,
            had_event,
        });
        let is_near = room.is_some_and(|room| room.left < room.low_mark());
        assert!(verdict.event || !(had_event || is_near));
        assert!(verdict.event || !verdict.release);
        if verdict.event {
            last_event_ms = Some(now_ms);
        }
        let is_pressed = last_event_ms.is_some_and(|event_ms| now_ms < event_ms + CALM_MS);
        assert_eq!(verdict.pressed, is_pressed);
        let budget = verdict.budget;
        assert_eq!(budget.is_some(), room.is_some());
        assert!(budget.is_none_or(|budget| room.is_some_and(|room| budget <= room.left / 2)));
        assert!((SAMPLE_MS.1..=SAMPLE_MS.0).contains(&verdict.next_ms));
    }
}

/// A time with less stall than an event takes has no event, and events are a window apart.
///
/// The window and the stall of a trigger come from the environment: any number is possible.
fn check_stalls(bytes: &mut Bytes) {
    let [stall_us, window_us] = [(); 2].map(|()| bytes.of(&[1..=10_000_000, 1..=u64::MAX]));
    let mut stalls = Stalls::new(stall_us, window_us);
    let (mut now_ms, mut stalled_us) = (1000, 0);
    let mut last_event_ms: Option<u64> = None;
    for _ in 0..bytes.below(40) {
        now_ms += bytes.number(0..=20_000);
        stalled_us += bytes.number(0..=20_000_000);
        if stalls.sample(now_ms, stalled_us) {
            assert!(stalled_us >= stall_us);
            assert!(
                last_event_ms
                    .is_none_or(|last| now_ms - last >= (window_us / 1000).min(24 * 3_600_000))
            );
            last_event_ms = Some(now_ms);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes::new(bytes);
    check_snapshot(&mut bytes);
    check_pressure(&mut bytes);
    check_stalls(&mut bytes);
});
