//! When a limit is near, whose stall counts, and how much of it is an event.

use ebbtide_zone::plan::pressure::*;

const MIB: u64 = 1 << 20;

#[test]
fn a_sixteenth_is_left_of_a_limit_within_bounds() {
    let low_mark = |limit_mib| Room::new(0, limit_mib * MIB).low_mark();
    for (limit_mib, mark_mib) in [
        (16, 4),
        (64, 8),
        (128, 8),
        (4096, 256),
        (8192, 512),
        (65_536, 512),
    ] {
        assert_eq!(low_mark(limit_mib), mark_mib * MIB, "of {limit_mib} MiB");
    }
}

#[test]
fn of_two_limits_the_one_nearer_to_its_low_mark_counts() {
    let room = |left, limit| Room::new(left * MIB, limit * MIB);
    // 236 MiB above its low mark, and 112 MiB below it.
    let (small, large) = (room(300, 1024), room(400, 8192));
    let both = Room {
        least: small.left,
        ..large
    };
    assert_eq!(small.nearer(Some(large)), both);
    assert_eq!(large.nearer(Some(small)), both);
    assert_eq!(small.nearer(None), small);
    // 36 MiB and 24 MiB above them.
    let (small, large) = (room(100, 1024), room(280, 4096));
    assert_eq!(small.nearer(Some(large)).limit, large.limit);
    assert_eq!(large.nearer(Some(small)).limit, large.limit);
}

#[test]
fn a_stall_of_the_machine_counts_where_a_quarter_of_it_or_less_is_left() {
    let machine = |left_mib| Some(Room::new(left_mib * MIB, 4096 * MIB));
    assert!(!is_ours(true, machine(1025)));
    assert!(is_ours(true, machine(1024)));
    assert!(is_ours(true, machine(0)));
    assert!(is_ours(true, None), "nothing is known of the machine");
    // A stall of the process's own group counts in any case.
    assert!(is_ours(false, machine(4096)) && is_ours(false, None));
}

/// 150 ms of stall in 2 s are an event.
fn stalls() -> Stalls {
    let mut stalls = Stalls::new(150_000, 2_000_000);
    assert!(!stalls.sample(0, 0));
    stalls
}

#[test]
fn the_part_of_the_window_before_counts_that_has_not_passed() {
    // 100 ms in the first window, of which three quarters count a quarter of a window later.
    let after = |stalled_us| {
        let mut stalls = stalls();
        assert!(!stalls.sample(2000, 100_000));
        stalls.sample(2500, stalled_us)
    };
    assert!(!after(174_999));
    assert!(after(175_000));
}

#[test]
fn a_late_look_counts_the_mean_of_a_window() {
    // Two windows later.
    assert!(!stalls().sample(4000, 299_998));
    assert!(stalls().sample(4000, 300_000));
    // That mean counts as the window before, in part.
    let after = |stalled_us| {
        let mut stalls = stalls();
        assert!(!stalls.sample(4000, 200_000));
        stalls.sample(5000, stalled_us)
    };
    assert!(!after(299_999));
    assert!(after(300_000));
}
