//! Retain by demand: computes how many dirty frames to keep, from the demand of the recent past.
//!
//! The peak of frames in use over a sliding window predicts how many frames will be needed again. These are kept; the rest
//! is due. The peak is stored in sub-windows of an eighth of the window, so it may count up to an eighth too long and
//! never too short.
//!
//! * `INV-RETAIN-1` While the peak inside the window covers the dirty frames, none is due.
//! * `INV-RETAIN-2` A window after the last [`Retain::observe`] all dirty frames are due.

/// Sub-windows of a window; the current one is kept beside them.
const PARTS: u64 = 8;
const SLOTS: usize = PARTS as usize + 1;
const DEFAULT_WINDOW_MS: u64 = 1000;

/// The demand of the recent past. Plain data.
#[derive(Clone, Copy, Debug)]
pub struct Retain {
    window_ms: u64,
    /// The number of the current sub-window: `now_ms / part`.
    now_part: u64,
    /// Peak of each sub-window, and the time of its last update. Slot: number modulo `SLOTS`.
    peaks: [(u64, u64); SLOTS],
    /// The most frames in use since the last observation, including that observation. This level counts until the
    /// next one.
    level: u64,
}

impl Retain {
    /// Nothing observed. The window is one second until [`Retain::due`] sets another.
    pub const fn new() -> Retain {
        Retain {
            window_ms: DEFAULT_WINDOW_MS,
            now_part: 0,
            peaks: [(0, 0); SLOTS],
            level: 0,
        }
    }

    /// Notes, between observations, that more frames are in use: for callers without a clock.
    #[inline]
    pub fn rise(&mut self, in_use: u64) {
        self.level = self.level.max(in_use);
    }

    /// Notes the frames in use. Call it where they change much, or at each tick. The highest level since the last
    /// call counts as held until this one. `now_ms` must not run backwards (earlier times count as the latest
    /// seen).
    pub fn observe(&mut self, now_ms: u64, in_use: u64) {
        let part = now_ms / self.part_ms();
        if part > self.now_part {
            // The slots in between are stale: their times show it.
            self.peaks[(part % SLOTS as u64) as usize] = (0, 0);
            self.now_part = part;
        }
        let slot = &mut self.peaks[(self.now_part % SLOTS as u64) as usize];
        // The level of the last call lasted until now.
        slot.0 = slot.0.max(self.level).max(in_use);
        slot.1 = slot.1.max(now_ms);
        self.level = in_use;
    }

    /// The highest number of frames in use in the window that ends now.
    pub fn peak(&self, now_ms: u64) -> u64 {
        self.peak_within(now_ms, self.window_ms)
    }

    /// How many of `dirty` frames are due for release: all beyond `peak - in_use`. `cap_frames` bounds the frames
    /// that stay.
    ///
    /// A `window_ms` other than the last one starts new sub-windows; the peak so far is carried over.
    pub fn due(
        &mut self,
        now_ms: u64,
        window_ms: u64,
        in_use: u64,
        dirty: u64,
        cap_frames: Option<u64>,
    ) -> u64 {
        if window_ms != self.window_ms {
            self.set_window(now_ms, window_ms);
        }
        let keep = self.peak(now_ms).saturating_sub(in_use);
        dirty.saturating_sub(keep.min(cap_frames.unwrap_or(u64::MAX)))
    }

    fn peak_within(&self, now_ms: u64, window_ms: u64) -> u64 {
        let fresh = self
            .peaks
            .iter()
            .filter(|(_, at)| at.saturating_add(window_ms) > now_ms);
        fresh.map(|&(peak, _)| peak).max().unwrap_or(0)
    }

    fn part_ms(&self) -> u64 {
        (self.window_ms / PARTS).max(1)
    }

    fn set_window(&mut self, now_ms: u64, window_ms: u64) {
        let last = self.peaks.iter().map(|p| p.1).max().unwrap_or(0);
        let peak = self.peak_within(now_ms, window_ms.max(self.window_ms));
        self.window_ms = window_ms;
        self.now_part = last / self.part_ms();
        self.peaks = [(0, 0); SLOTS];
        self.peaks[(self.now_part % SLOTS as u64) as usize] = (peak, last);
    }
}

impl Default for Retain {
    fn default() -> Retain {
        Retain::new()
    }
}
