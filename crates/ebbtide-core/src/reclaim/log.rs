//! A log of decisions, for the tests of the planner: a line for each tick and each round. Compiled in with the feature
//! `plan-log` alone, and never part of a product: it writes to the standard error of the program. `scripts/thin-plan-log`
//! reads it.

use crate::base::report::Line;
use core::fmt::{Debug, Write};

/// A line of `kind`: all that a decision was made from, and the decision.
pub fn line(kind: &str, parts: &[&dyn Debug]) {
    let mut line = Line::new().text("plan ").text(kind);
    for part in parts {
        let _ = write!(line, " {part:?}");
    }
    line.write();
}
