//! A log of decisions, for the tests of the planner: a line for each tick and each round, with all numbers that the
//! decision was made from. Compiled in with the feature `plan-log` alone, and never part of a product: it writes to the
//! standard error of the program.

use crate::base::report::Line;
use core::fmt::Write;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::plan::{
    Actors, Backlog, Bounds, Left, Next, Pace, RoundPlan, Tick, TickPlan, Wake,
};

/// Adds numbers to a line.
fn add(line: &mut Line, numbers: &[u64]) {
    for &number in numbers {
        let _ = write!(line, " {number}");
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
    let mut line = Line::new().text("plan t");
    let Backlog {
        dirty,
        due,
        lazy,
        lazy_due,
    } = tick.backlog;
    add(
        &mut line,
        &[
            tick.now_ms,
            tick.freed_bytes as u64,
            tick.asked_ms,
            dirty,
            due,
            lazy,
            lazy_due,
        ],
    );
    add(&mut line, &[tick.asks_outside().into(), spare, waiting]);
    let workers = &actors.workers;
    add(
        &mut line,
        &[
            workers.are_watching.into(),
            1,
            bounds.window_ms,
            workers.count,
            workers.most,
            workers.next_ms,
        ],
    );
    add(
        &mut line,
        &[
            bounds.is_short.into(),
            bounds.is_limited.into(),
            bounds.cap_frames,
        ],
    );
    add(
        &mut line,
        &[
            actors.has_forked.into(),
            actors.has_huge_pages.into(),
            workers.can_be_made.into(),
        ],
    );
    line = line.text(" :");
    add(&mut line, &[tick.asks_outside().into()]);
    match *plan {
        TickPlan::Nothing => {}
        TickPlan::Little {
            frames,
            may_make_worker,
        } => add(&mut line, &[2, frames, may_make_worker.into()]),
        TickPlan::Much {
            wake,
            beside,
            alone,
            alone_lazy,
        } => {
            add(&mut line, &[1, (wake == Wake::Call).into(), called.into()]);
            match called {
                true if beside > 0 => add(&mut line, &[beside]),
                true => {}
                false => add(&mut line, &[alone, alone_lazy]),
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
    let mut line = Line::new().text("plan r");
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
    add(&mut line, &[now, dirty, due, lazy, lazy_due]);
    add(
        &mut line,
        &[
            bounds.is_short.into(),
            bounds.is_limited.into(),
            bounds.cap_frames,
            bounds.window_ms,
        ],
    );
    add(&mut line, &[1, may_be_lazy.into()]);
    line = line.text(" :");
    add(
        &mut line,
        &[
            (plan.due > 0).into(),
            plan.due,
            (plan.due > 0 && plan.lazy_first).into(),
            plan.lazy,
        ],
    );
    let cached = left.cached_bytes / FRAME_BYTES as u64;
    add(
        &mut line,
        &[left.dirty, left.lazy, 0, cached, left.elsewhere, 0, 0],
    );
    add(
        &mut line,
        &[
            pace.is_active.into(),
            (pace.lazy_ms / 16).max(10),
            left.quarantined_bytes,
        ],
    );
    add(
        &mut line,
        &[
            left.held,
            left.held_ms.unwrap_or(0),
            left.is_expecting.into(),
        ],
    );
    line = line.text(" :");
    add(
        &mut line,
        &match next {
            Next::Much(ms) => [2, ms],
            Next::Little(ms) => [1, ms],
            Next::Nothing => [0, 0],
        },
    );
    line.write();
}
