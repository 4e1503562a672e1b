//! The plan: which free memory is released, how, and when. It makes decisions without memory, locks or clocks.
//!
//! ```text
//!   slow path ──▶ Tick ─┬─ decide ──▶ nothing | a little in place | wake a worker, or do it alone
//!                       └─ asks_outside: whether more than the zones is worth asking
//!   worker ─────▶ round ────────────▶ what is released now, dirty or lazy first
//!   request ────▶ request ──────────▶ with workers, or by the caller alone
//!                 Remaining ── next ────▶ when to check again
//!                 Iteration ── sleep ───▶ how the worker sleeps, or that it ends
//! ```
//!
//! The caller fills a snapshot, calls the plan, and carries the decision out. The same snapshot gives the same decision,
//! so a log of both can be replayed (`tests/plan`). Amounts are frames, times are milliseconds of one monotonic clock.
//!
//! * `INV-PLAN-1` At most [`HELP_FRAMES`] of each kind of frame are released in place at once.
//! * `INV-PLAN-2` Where no worker may exist, none is called. A worker that will check in time is not called for a small
//!   backlog.
//! * `INV-PLAN-3` While more than [`FLOOR_FRAMES`] wait, the next check has a time.

pub mod pressure;

use crate::FRAME_BYTES;

/// Frames always kept for reuse: 1 MiB.
pub const FLOOR_FRAMES: u64 = 256;
/// Slow paths release up to this many frames: 8 MiB.
pub const IN_PLACE_FRAMES: u64 = 2048;
/// Frames released in place at once: 1 MiB, some 30 µs.
pub const STEP_FRAMES: u64 = 256;
/// Frames that a thread releases when the backlog is too long, or no worker can be made: 16 MiB.
pub const HELP_FRAMES: u64 = 4096;
/// Without a window, freed memory of this size or more is released at once: every large allocation.
const AT_ONCE_BYTES: usize = 256 << 10;
/// Milliseconds between ticks.
pub const TICK_MS: u64 = 10;
/// Milliseconds between checks, by ticks, of the memory kept outside the zones.
pub const OUTSIDE_CHECK_MS: u64 = 100;
/// Milliseconds after which a worker that watches pressure checks again by itself.
pub const WATCH_MS: u64 = 40;

/// A worker without work ends after this.
pub const IDLE_MS: u64 = 10_000;
/// Retry interval of a worker that watches pressure but does not coordinate.
const WATCH_RETRY_MS: u64 = 200;

/// Free frames that the zones hold.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Dirty frames.
    pub dirty: u64,
    /// Dirty frames that are due: the recent peak does not explain them.
    pub due: u64,
    /// Lazy frames.
    pub lazy: u64,
    /// Lazy frames that are due to become clean.
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
    /// The user has set a limit.
    pub is_limited: bool,
    /// Dirty frames that may be kept, by the headroom and by the user's limit.
    pub cap_frames: u64,
}

impl Bounds {
    /// Whether freed memory is released at once.
    pub fn keeps_nothing(&self) -> bool {
        self.window_ms == 0
    }

    /// Due frames that are kept nevertheless: none while memory is short, or under a limit.
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
    /// Number of workers.
    pub count: u64,
    /// Most workers.
    pub most: u64,
    /// Threads can be made, as far as is known.
    pub can_be_made: bool,
    /// When a worker checks again by itself; `u64::MAX`: only when it is called.
    pub next_ms: u64,
    /// A worker watches pressure now, or pressure should not be watched.
    pub are_watching: bool,
}

/// Whether a tick has work now. `freed_bytes` were freed since the last tick, at `last_ms`.
#[inline]
pub fn tick_is_due(now_ms: u64, last_ms: u64, freed_bytes: usize, keeps_nothing: bool) -> bool {
    let much = if keeps_nothing {
        AT_ONCE_BYTES
    } else {
        IN_PLACE_FRAMES as usize * FRAME_BYTES
    };
    freed_bytes >= much || now_ms.wrapping_sub(last_ms) >= TICK_MS
}

/// The state at a slow path of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tick {
    /// Now.
    pub now_ms: u64,
    /// When a tick last checked the memory kept outside the zones.
    pub asked_ms: u64,
    /// Bytes freed since the last tick.
    pub freed_bytes: usize,
    /// The free frames of the zones.
    pub backlog: Backlog,
}

/// The threads that may act on a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actors {
    /// The workers.
    pub workers: Workers,
    /// This process has forked: a huge page may be shared, and only a worker can see that.
    pub has_forked: bool,
    /// Memory may lie in huge pages.
    pub has_huge_pages: bool,
}

/// Whether a worker must be woken, or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// No worker may exist.
    Never,
    /// A worker checks soon enough by itself.
    NotNeeded,
    /// Yes.
    Call,
}

/// The action of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TickPlan {
    /// Nothing.
    Nothing,
    /// Releases a number of due frames in place.
    Little {
        /// Frames.
        frames: u64,
        /// A worker may be made for it, to split huge pages that may be shared.
        may_make_worker: bool,
    },
    /// More is due than slow paths release.
    Much {
        /// Whether a worker is woken.
        wake: Wake,
        /// Due frames that this thread releases beside a worker.
        beside: u64,
        /// Due frames that this thread releases if there is no worker.
        alone: u64,
        /// Lazy frames that this thread releases if there is no worker: a worker made them lazy and has ended
        /// since.
        alone_lazy: u64,
    },
}

impl Tick {
    /// Whether the memory kept outside the zones may change the decision. If so, the caller reads it, and notes the
    /// time.
    pub fn asks_outside(&self) -> bool {
        let much = self.freed_bytes >= IN_PLACE_FRAMES as usize * FRAME_BYTES;
        self.backlog.kept() <= IN_PLACE_FRAMES
            && (much || self.now_ms.wrapping_sub(self.asked_ms) >= OUTSIDE_CHECK_MS)
    }

    /// Whether there is nothing to do, for any thread.
    pub fn is_quiet(&self, spare: u64, waiting: u64, bounds: &Bounds) -> bool {
        let Backlog { due, lazy, .. } = self.backlog;
        lazy <= FLOOR_FRAMES && due <= bounds.floor_frames() && !self.is_much(spare, waiting)
    }

    fn is_much(&self, spare: u64, waiting: u64) -> bool {
        waiting.max(self.backlog.kept() + spare) > IN_PLACE_FRAMES
    }

    /// Decides what to do. `spare` frames are kept to be reused unchanged, `waiting` frames in half-used spans.
    /// Both are 0 if the caller has not read them.
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

    /// A worker waits for the window. It is woken when the window is already over, or when no worker watches
    /// pressure or checks soon.
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
    /// Chooses who splits huge pages for small backlogs when no worker was called. `None`: no thread does, because
    /// a huge page that is shared with a child cannot be split, and only a worker would see that. If nothing is
    /// kept, a worker is made for it (`true`).
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
    /// By the caller alone: slow paths release so little without a worker, and the program may want to have
    /// none.
    InPlace,
}

/// Decides how a request to release everything is carried out. `kept` frames are dirty or lazy, `waiting` in half-used spans.
pub fn request(kept: u64, waiting: u64, actors: &Actors) -> RequestPlan {
    let is_little = actors.workers.count == 0 && kept + waiting <= IN_PLACE_FRAMES;
    match actors.small_release(true) {
        Some(false) if is_little => RequestPlan::InPlace,
        _ => RequestPlan::WithWorkers,
    }
}

/// The frames that a round releases from the zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundPlan {
    /// Dirty frames.
    pub due: u64,
    /// They become lazy first, if the zone's experience favours it.
    pub lazy_first: bool,
    /// Lazy frames, to clean.
    pub lazy: u64,
}

/// Decides what the coordinating worker releases now. `may_be_lazy`: a worker asks, and the kernel and the user
/// allow lazy frames.
pub fn round(backlog: &Backlog, bounds: &Bounds, may_be_lazy: bool) -> RoundPlan {
    RoundPlan {
        due: backlog.due.saturating_sub(bounds.floor_frames()),
        lazy_first: may_be_lazy && backlog.kept() <= bounds.cap_frames,
        lazy: backlog.lazy_due,
    }
}

/// The memory that is released because the user has set a limit on kept memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitPlan {
    /// Nothing.
    Nothing,
    /// Empty frames of half-used spans.
    Spans,
    /// Memory of the caches, through the spans.
    CachesAndSpans,
}

/// Compares the frames kept by caches and half-used spans with the user's limit. The zones have a bound of their
/// own.
pub fn limit(cached: u64, in_spans: u64, limit: u64) -> LimitPlan {
    match cached + in_spans > limit {
        false => LimitPlan::Nothing,
        true if cached > limit / 2 => LimitPlan::CachesAndSpans,
        true => LimitPlan::Spans,
    }
}

/// The memory that is left after a round, in frames unless a field says otherwise.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Remaining {
    /// Dirty frames of the zones, and spare runs.
    pub dirty: u64,
    /// Lazy frames.
    pub lazy: u64,
    /// Bytes in caches that were used lately.
    pub cached_bytes: u64,
    /// The largest amount that any other source keeps and may release later.
    pub elsewhere: u64,
    /// Bytes in quarantine. Writes to them are found when it is emptied.
    pub quarantined_bytes: u64,
    /// Frames that could not be released at the last try.
    pub unsplit: u64,
    /// When they are tried again; `None`: rarely.
    pub unsplit_retry_ms: Option<u64>,
    /// A worker was made in advance, and has found no large backlog yet.
    pub is_expecting: bool,
}

/// The intervals between a coordinator's checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// How long free memory is kept.
    pub window_ms: u64,
    /// How long a frame stays lazy.
    pub lazy_ms: u64,
    /// The program is active: its own ticks call a worker when memory is due.
    pub is_active: bool,
}

/// What a coordinator waits for after its round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// More than slow paths release: check again after this many milliseconds.
    Much(u64),
    /// As little as slow paths release: check again after this many milliseconds. But no worker stays for that
    /// alone, because a program that is active now and then always leaves a small backlog.
    Little(u64),
    /// Nothing.
    Nothing,
}

impl Pace {
    /// Milliseconds between checks of lazy frames.
    fn lazy_part_ms(&self) -> u64 {
        (self.lazy_ms / 16).max(10)
    }
}

impl Remaining {
    /// Notes that a source other than zones and caches keeps `frames` that it may release later.
    pub fn note(&mut self, frames: u64) {
        self.elsewhere = self.elsewhere.max(frames);
    }

    /// Decides when to check again.
    pub fn next(&self, pace: &Pace) -> Next {
        let cached = self.cached_bytes / FRAME_BYTES as u64;
        let most = self.dirty.max(cached).max(self.elsewhere);
        let part = (pace.window_ms / 8).max(10);
        let ms = if pace.is_active { part * 4 } else { part };
        match most {
            most if most > IN_PLACE_FRAMES => Next::Much(ms),
            // Lazy memory must be released without a call of the program.
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

/// The result of one loop iteration of a worker, when no gather was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// The worker may not stay.
    MustEnd,
    /// The worker coordinated, and its round returned this.
    Round(Next),
    /// Another worker coordinates.
    NotCoordinating {
        /// This worker watches pressure.
        watches: bool,
    },
}

/// How a worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Sleeps for a number of milliseconds, or until it is called. Meanwhile it checks for new events and backlog.
    Watching {
        /// Milliseconds.
        ms: u64,
        /// The worker continues to watch pressure, if it did.
        keeps_watcher: bool,
    },
    /// Sleeps for this many milliseconds, or until it is called.
    Resting(u64),
    /// It ends.
    End,
}

impl Iteration {
    /// Decides how the worker sleeps, after it has been without work for `idle_ms`.
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
            // The next thread that calls makes another worker.
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
