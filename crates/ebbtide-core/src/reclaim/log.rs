//! A log of decisions, for the tests of the planner: a line for each tick and each round. Compiled in with the feature
//! `plan-log` alone, and never part of a product: it writes to the standard error of the program. `scripts/thin-plan-log`
//! reads it.

use crate::base::message::Message;
use core::fmt::{Debug, Write};

/// A line of `kind`: what was seen, then what was decided.
pub fn line(kind: &str, seen: impl Debug, decided: impl Debug) {
    let mut line = Message::new().text("plan ").text(kind);
    let _ = write!(line, " {seen:?} {decided:?}");
    line.write();
}
