//! Decides whether memory is short, and what follows: a pure state machine, fed with samples.
//!
//! | state | meaning | entered |
//! |---|---|---|
//! | calm | releases wait for the window | 10 s ([`CALM_MS`]) after the last event |
//! | pressed | nothing is deferred | at an event, or when a limit is nearer than its low mark |
//!
//! Entering *pressed* releases everything at once. While the state lasts, everything is released again at growing
//! intervals, so that a storm of events costs no more than its first event.
//!
//! The memory left until the low mark is the base of the *budget*: the frames that may be taken fresh before the next
//! sample. The budget is half of that memory, so that samples come closer together as the limit does.
//!
//! This is the only rule for "memory is short", for workers and for the exit helper. Memory is short if less is left of a
//! limit than its low mark ([`Room::low_mark`]: a sixteenth of the limit, 8 to 512 MiB), or at an event, by default a stall
//! of 150 ms within 2 s ([`Stalls`], [`is_ours`]). The state lasts 10 s from then on.
//!
//! Usage lags behind allocation: memory counts when it is touched. So growth that is not resident yet is subtracted from
//! the memory that is left. It is forgotten over seconds, because some programs never touch what they allocate.
//!
//! Other processes grow without asking. At their speed since the last sample, they take a quarter of the memory left above the
//! low mark in a certain time. The next sample is due before that time.

use super::WATCH_MS;

/// Pressed ends this long after the last event.
pub const CALM_MS: u64 = 10_000;
/// Interval between two releases of everything while pressed: the first, and the largest.
const AGAIN_MS: (u64, u64) = (1000, CALM_MS);
/// Milliseconds between samples: while no other process grows, and the least.
pub const SAMPLE_MS: (u64, u64) = (WATCH_MS, 5);
/// The longest window of stalls: a day.
const LONGEST_WINDOW_MS: u64 = 24 * 3_600_000;
/// Within this time, most of the growth that was not touched is forgotten.
const FORGET_MS: u64 = 2000;

/// The distance to a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes that may still be used.
    pub left: u64,
    /// The limit, in bytes.
    pub limit: u64,
    /// What is left of the limit that has the least left: this limit or another one.
    pub least: u64,
}

impl Room {
    /// The distance to one limit.
    pub fn new(left: u64, limit: u64) -> Self {
        Self {
            left,
            limit,
            least: left,
        }
    }

    /// The low mark of a limit: a sixteenth of it, 8 to 512 MiB, and at most a quarter. If less is left, memory is
    /// short.
    pub fn low_mark(self) -> u64 {
        (self.limit / 16)
            .clamp(8 << 20, 512 << 20)
            .min(self.limit / 4)
    }

    /// The limit that has less left above its low mark. So a small limit that is far away does not hide a large one
    /// that is near.
    pub fn nearer(self, other: Option<Room>) -> Room {
        let above = |room: Room| room.left as i64 - room.low_mark() as i64;
        let Some(other) = other else { return self };
        let nearer = if above(other) < above(self) {
            other
        } else {
            self
        };
        Room {
            least: self.least.min(other.least),
            ..nearer
        }
    }
}

/// The input of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When.
    pub now_ms: u64,
    /// The nearest limit, if any is known.
    pub room: Option<Room>,
    /// Bytes that the heap may have resident: live, dirty, or on their way to the kernel.
    pub potential: u64,
    /// Bytes that the process has resident.
    pub resident: u64,
    /// Whether an event of pressure came since the last sample.
    pub had_event: bool,
}

/// The result of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The state is pressed, until [`Policy::calm_at_ms`].
    pub pressed: bool,
    /// This sample began or prolonged the state.
    pub event: bool,
    /// Everything must be released now.
    pub release: bool,
    /// Bytes that may be taken fresh before the next sample. `None`: any number.
    pub budget: Option<u64>,
    /// Milliseconds until the next sample.
    pub next_ms: u64,
}

/// The state.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    calm_at_ms: u64,
    released_ms: u64,
    again_ms: u64,
    untouched: u64,
    last: Option<(u64, u64, u64)>,
    /// The last time when the others' usage was known, the limit at that time, and that usage.
    others: Option<(u64, u64, u64)>,
    /// The interval that followed from it.
    next_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy {
    /// Calm, without any sample yet.
    pub const fn new() -> Self {
        Self {
            calm_at_ms: 0,
            released_ms: 0,
            again_ms: AGAIN_MS.0,
            untouched: 0,
            last: None,
            others: None,
            next_ms: SAMPLE_MS.0,
        }
    }

    /// When the state becomes calm if no further event comes.
    pub fn calm_at_ms(&self) -> u64 {
        self.calm_at_ms
    }

    /// Decides by a sample.
    pub fn sample(&mut self, sample: &Sample) -> Verdict {
        self.follow_growth(sample);
        let left = sample.room.map(|room| {
            let after = room.left.saturating_sub(self.untouched);
            after.checked_sub(room.low_mark())
        });
        let near = left == Some(None);
        let event = near || sample.had_event;
        let was_pressed = sample.now_ms < self.calm_at_ms;
        let mut release = false;
        if event {
            release = !was_pressed || sample.now_ms - self.released_ms >= self.again_ms;
            self.calm_at_ms = sample.now_ms + CALM_MS;
        }
        if release {
            self.again_ms = if was_pressed {
                (self.again_ms * 2).min(AGAIN_MS.1)
            } else {
                AGAIN_MS.0
            };
            self.released_ms = sample.now_ms;
        }
        Verdict {
            pressed: sample.now_ms < self.calm_at_ms,
            event,
            release,
            budget: left.map(|left| left.unwrap_or(0) / 2),
            next_ms: self.follow_others(sample),
        }
    }

    /// Milliseconds until the other processes may have taken a quarter of what is left above the low mark.
    fn follow_others(&mut self, sample: &Sample) -> u64 {
        let now = sample.room.map(|room| {
            let used = room.limit.saturating_sub(room.left);
            (
                sample.now_ms,
                room.limit,
                used.saturating_sub(sample.resident),
            )
        });
        if let (Some((now_ms, limit, _)), Some((last_ms, last_limit, _))) = (now, self.others)
            && limit == last_limit
            && now_ms.saturating_sub(last_ms) < SAMPLE_MS.1
        {
            // This sample comes right after another one, as in an early round: too soon to compute their speed.
            return self.next_ms;
        }
        let before = core::mem::replace(&mut self.others, now);
        self.next_ms = Self::until_taken(now, before, sample.room);
        self.next_ms
    }

    fn until_taken(
        now: Option<(u64, u64, u64)>,
        before: Option<(u64, u64, u64)>,
        room: Option<Room>,
    ) -> u64 {
        let (Some((now_ms, limit, others)), Some((last_ms, last_limit, last_others)), Some(room)) =
            (now, before, room)
        else {
            return SAMPLE_MS.0;
        };
        let grown = others.saturating_sub(last_others);
        if grown == 0 || limit != last_limit {
            return SAMPLE_MS.0;
        }
        let left = room.left.saturating_sub(room.low_mark()) / 4;
        let passed = now_ms.saturating_sub(last_ms).min(SAMPLE_MS.0);
        (left.saturating_mul(passed) / grown).clamp(SAMPLE_MS.1, SAMPLE_MS.0)
    }

    /// Updates the growth that has not been touched yet.
    fn follow_growth(&mut self, sample: &Sample) {
        let (last_ms, potential, resident) = self.last.unwrap_or((sample.now_ms, 0, 0));
        let passed = sample.now_ms.saturating_sub(last_ms);
        let forgotten = self.untouched * passed.min(FORGET_MS) / FORGET_MS + passed;
        let kept = self.untouched.saturating_sub(forgotten);
        let grown = sample.potential as i64 - potential as i64;
        let touched = sample.resident as i64 - resident as i64;
        self.untouched = kept
            .saturating_add_signed(grown - touched)
            .min(sample.potential);
        self.last = Some((sample.now_ms, sample.potential, sample.resident));
    }
}

/// Whether a stall counts. Stalls of the machine do not count while a quarter of its memory is available. A process
/// that stalls at the limit of another group gains nothing from memory that this process releases.
pub fn is_ours(is_machines: bool, machine: Option<Room>) -> bool {
    let plenty = |room: Room| room.left > room.limit / 4;
    !is_machines || !machine.is_some_and(plenty)
}

/// Converts a stall counter into events, as the kernel does for waiting processes: at most one in a window.
#[derive(Clone, Copy, Debug)]
pub struct Stalls {
    stall_us: u64,
    window_ms: u64,
    /// Start of the current window, the counter at its start, and the growth in the window before.
    window: Option<(u64, u64, u64)>,
    quiet_until_ms: u64,
}

impl Stalls {
    /// No stall is known. An event is `stall_us` microseconds of stall within `window_us`.
    pub const fn new(stall_us: u64, window_us: u64) -> Self {
        let window_ms = match window_us / 1000 {
            0 => 1,
            // The environment may name any window. Longer ones are cut, so that sums of times do not overflow.
            ms if ms > LONGEST_WINDOW_MS => LONGEST_WINDOW_MS,
            ms => ms,
        };
        Self {
            stall_us,
            window_ms,
            window: None,
            quiet_until_ms: 0,
        }
    }

    /// Whether the last window had that much stall.
    pub fn sample(&mut self, now_ms: u64, stalled_us: u64) -> bool {
        let window_ms = self.window_ms;
        let Some((start, at_start, before)) = self.window else {
            self.window = Some((now_ms, stalled_us, 0));
            return false;
        };
        let grown = stalled_us.saturating_sub(at_start);
        let passed = now_ms.saturating_sub(start);
        let sum = if passed >= window_ms {
            let mean = grown.saturating_mul(window_ms) / passed;
            self.window = Some((now_ms, stalled_us, mean));
            mean
        } else {
            grown.saturating_add(before.saturating_mul(window_ms - passed) / window_ms)
        };
        let event = sum >= self.stall_us && now_ms >= self.quiet_until_ms;
        if event {
            self.quiet_until_ms = now_ms + window_ms;
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process with a heap, in a group, with made-up samples.
    struct Fake {
        now_ms: u64,
        room: Option<Room>,
        potential: u64,
        resident: u64,
        had_event: bool,
        policy: Policy,
    }

    impl Fake {
        fn new(limit: u64, left: u64) -> Self {
            Self {
                now_ms: 1000,
                room: Some(Room::new(left, limit)),
                potential: 0,
                resident: 0,
                had_event: false,
                policy: Policy::new(),
            }
        }

        fn sample(&mut self) -> Verdict {
            let had_event = core::mem::take(&mut self.had_event);
            self.policy.sample(&Sample {
                now_ms: self.now_ms,
                room: self.room,
                potential: self.potential,
                resident: self.resident,
                had_event,
            })
        }

        fn after(&mut self, ms: u64) -> &mut Self {
            self.now_ms += ms;
            self
        }

        fn tell(&mut self) -> &mut Self {
            self.had_event = true;
            self
        }

        fn take_untouched(&mut self, bytes: u64) {
            self.potential += bytes;
        }

        fn touch(&mut self, bytes: u64) {
            self.resident += bytes;
            let room = self.room.as_mut().unwrap();
            room.left = room.left.saturating_sub(bytes);
        }
    }

    #[test]
    fn far_from_everything_it_is_calm() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        let verdict = fake.sample();
        assert!(!verdict.pressed && !verdict.event && !verdict.release);
        assert_eq!(verdict.budget, Some((4000 - 256) * MIB / 2));
    }

    #[test]
    fn an_event_presses_for_ten_seconds() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        let verdict = fake.tell().sample();
        assert!(verdict.pressed && verdict.event && verdict.release);
        let verdict = fake.after(9_990).sample();
        assert!(verdict.pressed && !verdict.event && !verdict.release);
        assert!(!fake.after(20).sample().pressed);
    }

    #[test]
    fn it_is_calm_ten_seconds_after_the_event() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        fake.tell().sample();
        let calm_at_ms = fake.now_ms + CALM_MS;
        assert_eq!(fake.policy.calm_at_ms(), calm_at_ms);
        assert!(fake.after(CALM_MS - 1).sample().pressed);
        assert!(!fake.after(1).sample().pressed);
        assert_eq!(fake.policy.calm_at_ms(), calm_at_ms);
    }

    #[test]
    fn each_event_prolongs_it() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        for _ in 0..5 {
            fake.tell().sample();
            assert!(fake.after(9_000).sample().pressed);
        }
        assert!(!fake.after(1_001).sample().pressed);
    }

    #[test]
    fn a_storm_does_not_spin() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        let mut releases = 0;
        for _ in 0..60_000 / 20 {
            releases += u32::from(fake.tell().after(20).sample().release);
        }
        // At 0, 1, 3, 7, 15, 25, 35, 45, 55 s.
        assert_eq!(releases, 9);
        // After a calm time the next event counts at once again, and so does the event a second later.
        fake.after(CALM_MS);
        assert!(fake.tell().sample().release);
        assert!(!fake.tell().after(20).sample().release);
        assert!(fake.tell().after(1000).sample().release);
    }

    #[test]
    fn near_the_limit_it_is_pressed_and_the_budget_is_spent() {
        let mut fake = Fake::new(256 * MIB, 100 * MIB);
        assert_eq!(fake.sample().budget, Some(42 * MIB));
        fake.take_untouched(42 * MIB);
        fake.touch(42 * MIB);
        let verdict = fake.sample();
        assert_eq!((verdict.event, verdict.budget), (false, Some(21 * MIB)));
        fake.take_untouched(43 * MIB);
        fake.touch(43 * MIB);
        let verdict = fake.sample();
        assert!(verdict.event && verdict.release);
        assert_eq!(verdict.budget, Some(0));
    }

    #[test]
    fn growth_counts_before_it_is_touched() {
        let mut fake = Fake::new(256 * MIB, 200 * MIB);
        assert!(!fake.sample().event);
        fake.take_untouched(190 * MIB);
        assert!(
            fake.after(1).sample().release,
            "it would not fit if touched"
        );
        // Touched in part: the rest still counts, once.
        let mut fake = Fake::new(256 * MIB, 200 * MIB);
        fake.sample();
        fake.take_untouched(100 * MIB);
        assert_eq!(fake.sample().budget, Some((200 - 100 - 16) * MIB / 2));
        fake.touch(60 * MIB);
        assert_eq!(fake.sample().budget, Some((140 - 40 - 16) * MIB / 2));
        fake.touch(40 * MIB);
        assert_eq!(fake.sample().budget, Some((100 - 16) * MIB / 2));
    }

    #[test]
    fn growth_is_touched_step_by_step() {
        let mut fake = Fake::new(1024 * MIB, 800 * MIB);
        fake.sample();
        fake.take_untouched(400 * MIB);
        fake.sample();
        for touched in [100, 200, 300] {
            fake.touch(100 * MIB);
            let left = 800 - touched - (400 - touched);
            assert_eq!(fake.sample().budget, Some((left - 64) * MIB / 2));
        }
    }

    #[test]
    fn half_of_what_is_not_touched_is_forgotten_in_a_second() {
        let mut fake = Fake::new(1024 * MIB, 800 * MIB);
        fake.sample();
        fake.take_untouched(400 * MIB);
        assert_eq!(fake.sample().budget, Some((800 - 400 - 64) * MIB / 2));
        let budget = fake.after(FORGET_MS / 2).sample().budget;
        assert_eq!(budget.unwrap() / MIB, (800 - 200 - 64) / 2);
    }

    #[test]
    fn what_is_never_touched_is_forgotten() {
        let mut fake = Fake::new(256 * MIB, 200 * MIB);
        fake.sample();
        fake.take_untouched(10_000 * MIB);
        assert!(fake.sample().pressed);
        for _ in 0..1000 {
            fake.after(100).sample();
        }
        let verdict = fake.sample();
        assert!(!verdict.pressed);
        assert_eq!(
            verdict.budget.map(|budget| budget / MIB),
            Some((200 - 16) / 2)
        );
    }

    #[test]
    fn a_limit_may_change_appear_and_go() {
        let mut fake = Fake::new(4096 * MIB, 4000 * MIB);
        assert!(!fake.sample().event);
        fake.room = Some(Room::new(5 * MIB, 106 * MIB));
        assert!(fake.after(40).sample().release);
        fake.room = None;
        let verdict = fake.after(40).sample();
        assert_eq!((verdict.event, verdict.budget), (false, None));
        assert!(!fake.after(CALM_MS).sample().pressed);
    }

    #[test]
    fn looks_come_closer_as_others_grow() {
        let mut fake = Fake::new(1024 * MIB, 264 * MIB);
        fake.resident = 600 * MIB;
        assert_eq!(fake.sample().next_ms, SAMPLE_MS.0);
        assert_eq!(fake.after(40).sample().next_ms, SAMPLE_MS.0, "nobody grows");
        let take = |fake: &mut Fake, bytes| fake.room.as_mut().unwrap().left -= bytes;
        // 2 MiB a millisecond: a quarter of 120 MiB is gone in 15 of them.
        take(&mut fake, 80 * MIB);
        assert_eq!(fake.after(40).sample().next_ms, 15);
        // Memory that this process has released meanwhile does not hide the others' growth.
        take(&mut fake, 30 * MIB);
        fake.resident -= 30 * MIB;
        fake.room.as_mut().unwrap().left += 30 * MIB;
        assert_eq!(fake.after(15).sample().next_ms, 15);
        // Its own growth does not count as theirs.
        fake.touch(20 * MIB);
        assert_eq!(fake.after(15).sample().next_ms, SAMPLE_MS.0);
        take(&mut fake, 90 * MIB);
        assert_eq!(fake.after(40).sample().next_ms, SAMPLE_MS.1);
        // A second sample right after the first, as an early round takes it, does not count as rest.
        assert_eq!(fake.sample().next_ms, SAMPLE_MS.1);
        assert_eq!(fake.after(1).sample().next_ms, SAMPLE_MS.1);
        assert_eq!(fake.after(SAMPLE_MS.1 - 2).sample().next_ms, SAMPLE_MS.1);
        assert_eq!(fake.after(1).sample().next_ms, SAMPLE_MS.0);
        take(&mut fake, 5 * MIB);
        // Another limit begins a new count.
        fake.room = Some(Room::new(100 * MIB, 4096 * MIB));
        assert_eq!(fake.after(5).sample().next_ms, SAMPLE_MS.0);
    }

    #[test]
    fn without_any_source_nothing_happens() {
        let mut fake = Fake::new(0, 0);
        fake.room = None;
        for _ in 0..100 {
            fake.take_untouched(100 * MIB);
            let verdict = fake.after(40).sample();
            assert_eq!((verdict.pressed, verdict.budget), (false, None));
        }
    }

    #[test]
    fn stalls_are_counted_over_a_window() {
        let mut stalls = Stalls::new(150_000, 2_000_000);
        // Stalls from before do not count.
        assert!(!stalls.sample(0, 1_000_000));
        // 5 % of the time: 100 ms in 2 s.
        let mut total = 1_000_000;
        for step in 1..200 {
            total += 2_000;
            assert!(!stalls.sample(step * 40, total), "at step {step}");
        }
        // 20 %: more than 150 ms in 2 s, one event a window.
        let mut events = 0;
        for step in 200..400 {
            total += 8_000;
            events += u32::from(stalls.sample(step * 40, total));
        }
        assert!((3..=4).contains(&events), "{events} in four windows");
        // After a long time without a sample, the mean counts.
        let mut stalls = Stalls::new(150_000, 2_000_000);
        stalls.sample(0, 0);
        assert!(!stalls.sample(100_000, 1_000_000));
        assert!(stalls.sample(100_040, 1_500_000));
    }
}
