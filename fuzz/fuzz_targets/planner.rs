//! The planner against what holds for every snapshot, and the policies of memory pressure against series of samples.
#![no_main]

#[path = "../../crates/ebbtide-zone/tests/plan/always.rs"]
mod always;

use ebbtide_fuzz::draw;
use ebbtide_zone::plan::pressure::{CALM_MS, Policy, Room, SAMPLE_MS, Sample, Stalls};
use libfuzzer_sys::fuzz_target;
use proptest::prelude::*;

/// A step of time, the limit, what is left of it, the heap's potential and resident bytes, and an event.
type Step = (u64, Option<(u64, u64)>, u64, u64, bool);

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![0..1u64 << 24, 0..1u64 << 44];
    let room = prop::option::of((bytes(), bytes()));
    (0..20_000u64, room, bytes(), bytes(), any::<bool>())
}

fn check_pressure(steps: Vec<Step>) {
    let mut policy = Policy::new();
    let mut now_ms = 1;
    let mut last_event_ms = None;
    for (passed_ms, room, potential, resident, had_event) in steps {
        now_ms += passed_ms;
        let room = room.map(|(limit, left)| Room::new(left.min(limit), limit));
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
fn check_stalls(stall_us: u64, window_us: u64, samples: Vec<(u64, u64)>) {
    let mut stalls = Stalls::new(stall_us, window_us);
    let (mut now_ms, mut stalled_us) = (1000, 0);
    let mut last_event_ms: Option<u64> = None;
    for (passed_ms, more_us) in samples {
        (now_ms, stalled_us) = (now_ms + passed_ms, stalled_us + more_us);
        if stalls.sample(now_ms, stalled_us) {
            assert!(stalled_us >= stall_us);
            assert!(last_event_ms.is_none_or(|last| now_ms - last >= window_us / 1000));
            last_event_ms = Some(now_ms);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let snapshot = (
        (always::tick(), always::frames(), always::frames()),
        (
            always::bounds(),
            always::actors(),
            0..1000u64,
            any::<bool>(),
        ),
        (always::remaining(), always::pace()),
    );
    // The window and the stall of a trigger come from the environment: any number is possible.
    let number = || prop_oneof![1..10_000_000u64, 1..=u64::MAX];
    let sample = (0..20_000u64, 0..20_000_000u64);
    let series = (
        prop::collection::vec(step(), 0..40),
        (number(), number(), prop::collection::vec(sample, 0..40)),
    );
    let Some((snapshot, (steps, (stall_us, window_us, samples)))) =
        draw(bytes, &(snapshot, series))
    else {
        return;
    };
    let ((tick, spare, waiting), (bounds, actors, more, flag), (left, pace)) = snapshot;
    always::in_place_is_bounded(&tick, spare, waiting, &bounds, &actors);
    always::quiet_does_nothing(&tick, spare, waiting, &bounds, &actors);
    always::more_due_is_more(&tick, &bounds, &actors, more);
    always::looks_again(&left, &pace);
    always::round_takes_due(&tick, &bounds, flag);
    check_pressure(steps);
    check_stalls(stall_us, window_us, samples);
});
