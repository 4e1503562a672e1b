//! Whether frames that are due go lazy first: from how many of those given up were soon wanted again.
//!
//! A frame is *given up* when it stops being dirty and free: it becomes lazy or clean. While frames given up less than
//! [`WINDOW_MS`] ago have not been replaced, each frame taken that is not dirty replaces one of them: it is *reused*,
//! whichever frame it is, for had they stayed dirty, it would have cost nothing. What is not reused in time is *unused*.
//! No frame has a clock: frames are counted by the eighth of the window in which they were given up.
//!
//! | ns a frame | straight to clean | lazy first |
//! |---|---|---|
//! | the calls | [`RELEASE_NS`] | [`LAZY_NS`], and [`RELEASE_NS`] if unused |
//! | touched again, if reused | [`REFAULT_NS`] | [`RETOUCH_NS`] |
//!
//! * `INV-LAZY-1` What was added to a [`Recent`] counts for its window and at most an eighth longer.
//! * `INV-LAZY-2` Every frame given up is judged once: reused, or unused after the window.

/// Reuse within this is what counts: 10 s.
pub const WINDOW_MS: u64 = 10_000;
/// First touch of a clean frame.
pub const REFAULT_NS: u64 = 1600;
/// First store to a lazy frame that the kernel has left.
pub const RETOUCH_NS: u64 = 450;
/// Releasing a frame.
pub const RELEASE_NS: u64 = 110;
/// Making a frame lazy.
pub const LAZY_NS: u64 = 135;

const PARTS: u64 = 8;
const SLOTS: usize = PARTS as usize + 1;

/// Frames counted by when something was done to them, for a while. Plain data.
#[derive(Clone, Copy, Debug)]
pub struct Recent {
    part_ms: u64,
    /// The number of the running part: `now_ms / part_ms`.
    now_part: u64,
    frames: [u64; SLOTS],
}

impl Recent {
    /// None.
    pub const fn new(window_ms: u64) -> Recent {
        let part_ms = window_ms.div_ceil(PARTS);
        Recent {
            part_ms: if part_ms == 0 { 1 } else { part_ms },
            now_part: 0,
            frames: [0; SLOTS],
        }
    }

    /// Moves on to `now_ms`; the frames that got too old. Earlier times count as the latest seen.
    pub fn advance(&mut self, now_ms: u64) -> u64 {
        let part = now_ms / self.part_ms;
        let steps = part.saturating_sub(self.now_part).min(SLOTS as u64);
        let mut old = 0;
        for step in 1..=steps {
            let slot = (self.now_part.wrapping_add(step) % SLOTS as u64) as usize;
            old += core::mem::take(&mut self.frames[slot]);
        }
        if steps == SLOTS as u64 {
            // Every slot is empty: where the count begins does not matter.
            old += core::mem::take(&mut self.frames).iter().sum::<u64>();
        }
        self.now_part = self.now_part.max(part);
        old
    }

    /// Counts frames, as of the time of the last [`Self::advance`].
    pub fn add(&mut self, frames: u64) {
        self.frames[(self.now_part % SLOTS as u64) as usize] += frames;
    }

    /// Takes up to `frames` out again, the newest first; how many.
    pub fn remove(&mut self, frames: u64) -> u64 {
        if frames == 0 {
            return 0;
        }
        let mut left = frames;
        for age in 0..SLOTS as u64 {
            let slot = ((self.now_part + SLOTS as u64 - age) % SLOTS as u64) as usize;
            let part = self.frames[slot].min(left);
            self.frames[slot] -= part;
            left -= part;
        }
        frames - left
    }

    /// All that are not too old.
    pub fn all(&self) -> u64 {
        self.frames.iter().sum()
    }
}

/// A zone's experience. Plain data.
#[derive(Clone, Copy, Debug)]
pub struct Refaults {
    given_up: Recent,
    reused: u64,
    unused: u64,
    halved_ms: u64,
    lazy_first: bool,
}

impl Refaults {
    /// No experience: straight to clean.
    pub const fn new() -> Refaults {
        Refaults {
            given_up: Recent::new(WINDOW_MS),
            reused: 0,
            unused: 0,
            halved_ms: 0,
            lazy_first: false,
        }
    }

    /// Notes that dirty frames were given up.
    pub fn give_up(&mut self, frames: u64) {
        self.given_up.add(frames);
    }

    /// To be called at each tick, with the frames taken since the last one that were not dirty.
    pub fn observe(&mut self, now_ms: u64, taken: u64) {
        // Old evidence counts half every window.
        let windows = now_ms.saturating_sub(self.halved_ms) / WINDOW_MS;
        if windows > 0 {
            let shift = windows.min(63) as u32;
            (self.reused, self.unused) = (self.reused >> shift, self.unused >> shift);
            self.halved_ms += windows * WINDOW_MS;
        }
        self.unused += self.given_up.advance(now_ms);
        self.reused += self.given_up.remove(taken);
        self.judge();
    }

    /// Compares the two costs. The calls for what is unused are the same; twice the margin is needed to go back, and
    /// without evidence nothing changes. What may still be wanted counts as unused until it is: a few frames that come back at
    /// once say nothing of the many that were given up with them.
    fn judge(&mut self) {
        let gain = self.reused * (REFAULT_NS + RELEASE_NS - RETOUCH_NS);
        let cost = (self.reused + self.unused + self.given_up.all()) * LAZY_NS;
        if gain > cost {
            self.lazy_first = true;
        } else if 2 * gain < cost {
            self.lazy_first = false;
        }
    }

    /// Whether going lazy first is the cheaper course.
    pub fn lazy_first(&self) -> bool {
        self.lazy_first
    }

    /// Frames that may be lazy at once: twice as many as were reused lately. A few that come back do not hold many.
    pub fn lazy_limit(&self) -> u64 {
        if self.lazy_first { 2 * self.reused } else { 0 }
    }

    /// The evidence: frames reused, and unused, the older ones counted less.
    pub fn evidence(&self) -> (u64, u64) {
        (self.reused, self.unused)
    }
}

impl Default for Refaults {
    fn default() -> Refaults {
        Refaults::new()
    }
}
