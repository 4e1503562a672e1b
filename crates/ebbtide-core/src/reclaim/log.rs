//! A log of decisions, for the tests of the planner: a line for each tick and each round. Only the feature `plan-log`
//! compiles it in, and no product has that feature: the log writes to the program's standard error.
//! `scripts/thin-plan-log` reads it.

use crate::base::message::Message;
use core::fmt::{Debug, Write};

/// Writes a line of `kind`: the input of a decision, then the decision.
pub fn line(kind: &str, seen: impl Debug, decided: impl Debug) {
    let mut line = Message::new().text("plan ").text(kind);
    let _ = write!(line, " {seen:?} {decided:?}");
    line.write();
}
