//! What to do with free memory, and when: decisions without memory, locks or clocks.
//!
//! ```text
//!   slow path ──▶ Tick ─┬─ decide ──▶ nothing | a little in place | wake a worker, or do it alone
//!                       └─ asks_outside: whether more than the zones is worth asking
//!   worker ─────▶ round ────────────▶ what goes now, dirty or lazy first
//!   request ────▶ request ──────────▶ with workers, or by the caller alone
//!                 Remaining ── next ────▶ when to look again
//!                 Iteration ── sleep ───▶ how the worker sleeps, or that it ends
//! ```
//!
//! The caller fills a snapshot, asks, and carries the decision out. The same snapshot gives the same decision, so a
//! log of both can be replayed (`tests/plan`). Amounts are frames, times are milliseconds of one monotonic clock.
//!
//! * `INV-PLAN-1` At most [`HELP_FRAMES`] of each kind of frame go in place at once.
//! * `INV-PLAN-2` Where no worker may be, none is called. A worker that looks in time is not called for little.
//! * `INV-PLAN-3` While more than [`FLOOR_FRAMES`] wait, the next look has a time.

pub mod pressure;

use crate::FRAME_BYTES;

/// Frames always kept for reuse: 1 MiB.
pub const FLOOR_FRAMES: u64 = 256;
/// Up to this, slow paths release it: 8 MiB.
pub const IN_PLACE_FRAMES: u64 = 2048;
/// Frames released in place at once: 1 MiB, some 30 µs.
pub const STEP_FRAMES: u64 = 256;
/// Frames that a thread takes when the backlog is too long, or no worker can be had: 16 MiB.
pub const HELP_FRAMES: u64 = 4096;
/// Without a window, freed memory goes back from this on: every large allocation.
const AT_ONCE_BYTES: usize = 256 << 10;
/// Milliseconds between ticks.
pub const TICK_MS: u64 = 10;
/// Milliseconds between the times at which ticks ask what is kept outside the zones.
pub const OUTSIDE_CHECK_MS: u64 = 100;
/// Milliseconds after which a worker that watches pressure looks again by itself.
pub const WATCH_MS: u64 = 40;

/// A worker without work ends after this.
pub const IDLE_MS: u64 = 10_000;
/// A worker that watches while another one coordinates comes back after this.
const WATCH_RETRY_MS: u64 = 200;

/// Free frames that the zones hold.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Dirty frames.
    pub dirty: u64,
    /// Those that are due: the recent peak does not explain them.
    pub due: u64,
    /// Lazy frames.
    pub lazy: u64,
    /// Those that are due to become clean.
    pub lazy_due: u64,
}

impl Backlog {
    fn kept(&self) -> u64 {
        self.dirty + self.lazy
    }
}

/// How much free memory may stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// How long free memory is kept after a peak; 0: not at all.
    pub window_ms: u64,
    /// Memory is short now.
    pub is_short: bool,
    /// The owner has set a limit.
    pub is_limited: bool,
    /// Dirty frames that may be kept, by what memory is left and by the owner's limit.
    pub cap_frames: u64,
}

impl Bounds {
    /// Whether freed memory goes back at once.
    pub fn keeps_nothing(&self) -> bool {
        self.window_ms == 0
    }

    /// Due frames that stay all the same: none while memory is short, or under a limit.
    pub fn floor_frames(&self) -> u64 {
        if self.keeps_nothing() || self.is_short || self.is_limited {
            0
        } else {
            FLOOR_FRAMES
        }
    }
}

/// The workers of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workers {
    /// How many there are.
    pub count: u64,
    /// How many there may be.
    pub most: u64,
    /// Threads can be made, as far as is known.
    pub can_be_made: bool,
    /// When one looks again by itself; `u64::MAX`: when it is called.
    pub next_ms: u64,
    /// One watches pressure now, or pressure is not to be watched.
    pub are_watching: bool,
}

/// Whether a tick has something to do now. `freed_bytes` were freed since the last one, at `last_ms`.
#[inline]
pub fn tick_is_due(now_ms: u64, last_ms: u64, freed_bytes: usize, keeps_nothing: bool) -> bool {
    let much = if keeps_nothing {
        AT_ONCE_BYTES
    } else {
        IN_PLACE_FRAMES as usize * FRAME_BYTES
    };
    freed_bytes >= much || now_ms.wrapping_sub(last_ms) >= TICK_MS
}

/// A slow path of the program passes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tick {
    /// Now.
    pub now_ms: u64,
    /// When a tick last asked what is kept outside the zones.
    pub asked_ms: u64,
    /// Bytes freed since the last tick.
    pub freed_bytes: usize,
    /// What the zones hold.
    pub backlog: Backlog,
}

/// Who may act on a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actors {
    /// The workers.
    pub workers: Workers,
    /// This process has forked: a huge page may be shared, which only a worker sees.
    pub has_forked: bool,
    /// Memory may lie in huge pages.
    pub has_huge_pages: bool,
}

/// Whether a worker is to be woken, or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// There may be none.
    Never,
    /// One looks soon enough by itself.
    NotNeeded,
    /// Yes.
    Call,
}

/// What a tick does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TickPlan {
    /// Nothing.
    Nothing,
    /// Releases so many due frames in place.
    Little {
        /// Frames.
        frames: u64,
        /// A worker may be made for it: to split huge pages that may be shared.
        may_make_worker: bool,
    },
    /// More waits than slow paths take care of.
    Much {
        /// Whether a worker is woken for it.
        wake: Wake,
        /// Due frames that this thread releases beside a worker.
        beside: u64,
        /// Due frames that it releases where there is no worker.
        alone: u64,
        /// Lazy frames, there: a worker made them lazy and has ended since.
        alone_lazy: u64,
    },
}

impl Tick {
    /// Whether what is kept outside the zones may change the decision: then the caller asks, and notes when.
    pub fn asks_outside(&self) -> bool {
        let much = self.freed_bytes >= IN_PLACE_FRAMES as usize * FRAME_BYTES;
        self.backlog.kept() <= IN_PLACE_FRAMES
            && (much || self.now_ms.wrapping_sub(self.asked_ms) >= OUTSIDE_CHECK_MS)
    }

    /// Whether nothing is to be done, whoever could do it.
    pub fn is_quiet(&self, spare: u64, waiting: u64, bounds: &Bounds) -> bool {
        let Backlog { due, lazy, .. } = self.backlog;
        lazy <= FLOOR_FRAMES && due <= bounds.floor_frames() && !self.is_much(spare, waiting)
    }

    fn is_much(&self, spare: u64, waiting: u64) -> bool {
        waiting.max(self.backlog.kept() + spare) > IN_PLACE_FRAMES
    }

    /// What to do. `spare` frames are kept to be used again as they are, `waiting` in half-used spans; both 0 where
    /// nobody asked.
    pub fn decide(&self, spare: u64, waiting: u64, bounds: &Bounds, actors: &Actors) -> TickPlan {
        let Backlog { due, lazy, .. } = self.backlog;
        let workers = &actors.workers;
        let floor = bounds.floor_frames();
        let is_unwatched = lazy > FLOOR_FRAMES && workers.count == 0;
        if self.is_much(spare, waiting) || is_unwatched {
            let help = due > bounds.cap_frames / 2;
            return TickPlan::Much {
                wake: self.wake(bounds, workers),
                beside: if help { HELP_FRAMES } else { 0 },
                alone: due.saturating_sub(floor).min(HELP_FRAMES),
                alone_lazy: self.backlog.lazy_due.min(HELP_FRAMES),
            };
        }
        match actors.small_release(floor == 0) {
            Some(may_make_worker) if due > floor => TickPlan::Little {
                frames: (due - floor).min(STEP_FRAMES),
                may_make_worker,
            },
            _ => TickPlan::Nothing,
        }
    }

    /// A worker waits for the window. It is woken when the window is over already, or when no worker watches or looks
    /// soon.
    fn wake(&self, bounds: &Bounds, workers: &Workers) -> Wake {
        let soon = if workers.are_watching {
            bounds.window_ms.max(OUTSIDE_CHECK_MS)
        } else {
            WATCH_MS
        };
        let looks_soon = workers.count > 0 && workers.next_ms <= self.now_ms + soon;
        match workers.most {
            0 => Wake::Never,
            _ if looks_soon && self.backlog.due <= IN_PLACE_FRAMES => Wake::NotNeeded,
            _ => Wake::Call,
        }
    }
}

impl Actors {
    /// Who splits huge pages for the little that slow paths release, where no worker was called. `None`: nobody, because
    /// a huge page that is shared with a child cannot be split, and only a worker would see that. Where nothing is kept,
    /// a worker is made for it (`true`).
    pub fn small_release(&self, keeps_nothing: bool) -> Option<bool> {
        let workers = &self.workers;
        let is_unseen = self.has_forked
            && self.has_huge_pages
            && workers.most > 0
            && workers.can_be_made
            && workers.count == 0;
        match (is_unseen, keeps_nothing) {
            (false, _) => Some(false),
            (true, true) => Some(true),
            (true, false) => None,
        }
    }
}

/// How a request to release everything is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestPlan {
    /// By the caller and workers, one of which is made if there is none.
    WithWorkers,
    /// By the caller alone: no worker is made for as little as slow paths take care of, as the program may want to stay
    /// without.
    InPlace,
}

/// Who carries out a request to release everything. `kept` frames are dirty or lazy, `waiting` in half-used spans.
pub fn request(kept: u64, waiting: u64, actors: &Actors) -> RequestPlan {
    let is_little = actors.workers.count == 0 && kept + waiting <= IN_PLACE_FRAMES;
    match actors.small_release(true) {
        Some(false) if is_little => RequestPlan::InPlace,
        _ => RequestPlan::WithWorkers,
    }
}

/// What a round releases from the zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundPlan {
    /// Dirty frames.
    pub due: u64,
    /// They become lazy first, where the zone's experience says so.
    pub lazy_first: bool,
    /// Lazy frames, to clean.
    pub lazy: u64,
}

/// What the coordinating worker releases now. `may_be_lazy`: a worker asks, and the kernel and the owner allow it.
pub fn round(backlog: &Backlog, bounds: &Bounds, may_be_lazy: bool) -> RoundPlan {
    RoundPlan {
        due: backlog.due.saturating_sub(bounds.floor_frames()),
        lazy_first: may_be_lazy && backlog.kept() <= bounds.cap_frames,
        lazy: backlog.lazy_due,
    }
}

/// What goes back where the owner has set a limit to what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitPlan {
    /// Nothing.
    Nothing,
    /// What half-used spans have.
    Spans,
    /// What caches keep, through the spans.
    CachesAndSpans,
}

/// Frames that caches keep, and half-used spans, against the owner's limit; zones have a bound of their own.
pub fn limit(cached: u64, in_spans: u64, limit: u64) -> LimitPlan {
    match cached + in_spans > limit {
        false => LimitPlan::Nothing,
        true if cached > limit / 2 => LimitPlan::CachesAndSpans,
        true => LimitPlan::Spans,
    }
}

/// What a round has left, in frames.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Remaining {
    /// Dirty frames of the zones, and spare runs.
    pub dirty: u64,
    /// Lazy ones.
    pub lazy: u64,
    /// Bytes in caches that were used lately.
    pub cached_bytes: u64,
    /// The largest of what other sources keep and may give later.
    pub elsewhere: u64,
    /// Bytes in quarantine: writes to them are found when it is emptied.
    pub quarantined_bytes: u64,
    /// Frames that could not be released at the last try.
    pub unsplit: u64,
    /// When they are tried again; `None`: seldom.
    pub unsplit_retry_ms: Option<u64>,
    /// A worker was made in advance, and nothing has come of it yet.
    pub is_expecting: bool,
}

/// How often a coordinator looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// How long free memory is kept.
    pub window_ms: u64,
    /// How long a frame stays lazy.
    pub lazy_ms: u64,
    /// The program is at work: its own ticks call a worker when something is due.
    pub is_active: bool,
}

/// What a coordinator waits for after its round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// For more than slow paths release: look again after so many milliseconds.
    Much(u64),
    /// For as little as they would: the same, but no worker stays for that alone. A program that comes back now and then
    /// always leaves a little behind.
    Little(u64),
    /// For nothing.
    Nothing,
}

impl Pace {
    /// Milliseconds between looks at lazy frames.
    fn lazy_part_ms(&self) -> u64 {
        (self.lazy_ms / 16).max(10)
    }
}

impl Remaining {
    /// A source that is neither a zone nor a cache keeps so many frames that it may give later.
    pub fn note(&mut self, frames: u64) {
        self.elsewhere = self.elsewhere.max(frames);
    }

    /// When to look again.
    pub fn next(&self, pace: &Pace) -> Next {
        let cached = self.cached_bytes / FRAME_BYTES as u64;
        let most = self.dirty.max(cached).max(self.elsewhere);
        let part = (pace.window_ms / 8).max(10);
        let ms = if pace.is_active { part * 4 } else { part };
        match most {
            most if most > IN_PLACE_FRAMES => Next::Much(ms),
            // Lazy memory goes without a call of the program's.
            most if self.lazy > FLOOR_FRAMES => Next::Much(if most > FLOOR_FRAMES {
                ms
            } else {
                pace.lazy_part_ms()
            }),
            most if most > FLOOR_FRAMES => Next::Little(ms),
            _ if self.lazy > 0 => Next::Little(pace.lazy_part_ms()),
            _ if self.quarantined_bytes > 0 => Next::Little(part),
            _ if self.unsplit > IN_PLACE_FRAMES => {
                self.unsplit_retry_ms.map_or(Next::Nothing, Next::Much)
            }
            _ if self.is_expecting => Next::Little(part * 8),
            _ => Next::Nothing,
        }
    }
}

/// What a worker has found out in its turn, when nothing was queued for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// It may not stay.
    MustEnd,
    /// It coordinated, and its round says this.
    Round(Next),
    /// Another one coordinates.
    NotCoordinating {
        /// This one watches pressure.
        watches: bool,
    },
}

/// How a worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// For so many milliseconds, or until it is called, with an eye on what comes meanwhile.
    Watching {
        /// Milliseconds.
        ms: u64,
        /// It goes on watching pressure, if it did.
        keeps_watcher: bool,
    },
    /// For so many milliseconds, or until it is called.
    Resting(u64),
    /// It ends.
    End,
}

impl Iteration {
    /// How the worker sleeps now that it has been without work for so long.
    pub fn sleep(self, idle_ms: u64) -> Sleep {
        let rest_ms = IDLE_MS.saturating_sub(idle_ms);
        match self {
            Self::Round(Next::Much(ms)) => Sleep::Watching {
                ms,
                keeps_watcher: true,
            },
            Self::NotCoordinating { watches: true } => Sleep::Watching {
                ms: WATCH_RETRY_MS,
                keeps_watcher: true,
            },
            // Whoever calls next makes another one.
            Self::MustEnd => Sleep::End,
            _ if rest_ms == 0 => Sleep::End,
            Self::Round(Next::Little(ms)) => Sleep::Watching {
                ms: ms.min(rest_ms),
                keeps_watcher: false,
            },
            Self::Round(Next::Nothing) | Self::NotCoordinating { watches: false } => {
                Sleep::Resting(rest_ms)
            }
        }
    }
}
