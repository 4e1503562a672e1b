//! A log of decisions, for the tests of the planner: a line for each tick and each round, with all numbers that the
//! decision was made from. Compiled in with the feature `plan-log` alone, and never part of a product: it writes to the
//! standard error of the program.

use ebbtide_sys::file::write_stderr;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::plan::{
    Actors, Backlog, Bounds, Left, Next, Pace, RoundPlan, Tick, TickPlan, Wake,
};

/// One line: a letter, then numbers.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// Of such a kind.
    fn new(kind: u8) -> Self {
        let mut line = Self {
            bytes: [0; 512],
            len: 0,
        };
        line.put(b"plan ");
        line.put(&[kind]);
        line
    }

    /// Adds numbers. Those that find no room are lost.
    fn add(&mut self, numbers: &[u64]) {
        for &number in numbers {
            let mut digits = [0; 20];
            let mut at = digits.len();
            let mut left = number;
            loop {
                at -= 1;
                digits[at] = b'0' + (left % 10) as u8;
                left /= 10;
                if left == 0 {
                    break;
                }
            }
            self.put(b" ");
            self.put(&digits[at..]);
        }
    }

    /// The decision begins here.
    fn decide(&mut self) {
        self.put(b" :");
    }

    fn put(&mut self, text: &[u8]) {
        if self.len + text.len() < self.bytes.len() {
            self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
            self.len += text.len();
        }
    }

    /// Writes it.
    fn write(mut self) {
        self.bytes[self.len] = b'\n';
        write_stderr(&self.bytes[..=self.len]);
    }
}

/// A tick, and what was decided; `called`: there is a worker for it.
pub fn tick(
    tick: &Tick,
    (spare, waiting): (u64, u64),
    bounds: &Bounds,
    actors: &Actors,
    plan: &TickPlan,
    called: bool,
) {
    let mut line = Line::new(b't');
    let Backlog {
        dirty,
        due,
        lazy,
        lazy_due,
    } = tick.backlog;
    line.add(&[
        tick.now_ms,
        tick.freed_bytes as u64,
        tick.asked_ms,
        dirty,
        due,
        lazy,
        lazy_due,
    ]);
    line.add(&[tick.asks_outside().into(), spare, waiting]);
    let workers = &actors.workers;
    line.add(&[
        workers.are_watching.into(),
        1,
        bounds.window_ms,
        workers.count,
        workers.most,
        workers.next_ms,
    ]);
    line.add(&[
        bounds.is_short.into(),
        bounds.is_limited.into(),
        bounds.cap_frames,
    ]);
    line.add(&[
        actors.has_forked.into(),
        actors.has_huge_pages.into(),
        workers.can_be_made.into(),
    ]);
    line.decide();
    line.add(&[tick.asks_outside().into()]);
    match *plan {
        TickPlan::Nothing => {}
        TickPlan::Little {
            frames,
            may_make_worker,
        } => line.add(&[2, frames, may_make_worker.into()]),
        TickPlan::Much {
            wake,
            beside,
            alone,
            alone_lazy,
        } => {
            line.add(&[1, (wake == Wake::Call).into(), called.into()]);
            match called {
                true if beside > 0 => line.add(&[beside]),
                true => {}
                false => line.add(&[alone, alone_lazy]),
            }
        }
    }
    line.write();
}

/// A round: what it released, what was left, and when the next look is.
pub fn round(
    before: (u64, &Backlog, &Bounds, bool),
    plan: &RoundPlan,
    left: &Left,
    pace: &Pace,
    next: Next,
) {
    let mut line = Line::new(b'r');
    let (
        now,
        &Backlog {
            dirty,
            due,
            lazy,
            lazy_due,
        },
        bounds,
        may_be_lazy,
    ) = before;
    line.add(&[now, dirty, due, lazy, lazy_due]);
    line.add(&[
        bounds.is_short.into(),
        bounds.is_limited.into(),
        bounds.cap_frames,
        bounds.window_ms,
    ]);
    line.add(&[1, may_be_lazy.into()]);
    line.decide();
    line.add(&[
        (plan.due > 0).into(),
        plan.due,
        (plan.due > 0 && plan.lazy_first).into(),
        plan.lazy,
    ]);
    let cached = left.cached_bytes / FRAME_BYTES as u64;
    line.add(&[left.dirty, left.lazy, 0, cached, left.elsewhere, 0, 0]);
    line.add(&[
        pace.is_active.into(),
        (pace.lazy_ms / 16).max(10),
        left.quarantined_bytes,
    ]);
    line.add(&[
        left.held,
        left.held_ms.unwrap_or(0),
        left.is_expecting.into(),
    ]);
    line.decide();
    line.add(&match next {
        Next::Much(ms) => [2, ms],
        Next::Little(ms) => [1, ms],
        Next::Nothing => [0, 0],
    });
    line.write();
}
