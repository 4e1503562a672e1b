//! Memory that is short: limits, events, the owner's limit. `c/near_limit.c`, `c/pressure_events.c` and
//! `c/pressure_group.c` work inside them.

mod events;
mod groups;
mod limits;
mod seen;
mod sources;

use ebbtide_tests::{Cgroup, Outcome, Run, c_program, only_ebbtide};

const MIB: u64 = 1 << 20;
const PROMISE: &str = "watches for pressure";

fn run(program: &str, mode: &str, conf: &str) -> Run {
    Run::new(c_program(program)).args(mode).conf(conf)
}

/// Runs it in a group with this limit, whose directory it is told.
fn in_group(bytes: u64, program: &str, mode: &str, conf: &str) -> Option<Outcome> {
    if !only_ebbtide(PROMISE) {
        return None;
    }
    let name = format!("{mode}-{conf}").replace(['=', ',', ' ', '/'], "-");
    let group = Cgroup::limited(&name, bytes)?;
    let run = run(program, mode, conf).env("GROUP", group.dir());
    Some(run.cgroup(&group).run())
}

/// The same, and it must end well.
fn ok_in_group(bytes: u64, program: &str, mode: &str, conf: &str) {
    if let Some(outcome) = in_group(bytes, program, mode, conf) {
        outcome.ok();
    }
}

/// A positive control: the same must fail.
fn fails_in_group(bytes: u64, program: &str, mode: &str, conf: &str) {
    if let Some(outcome) = in_group(bytes, program, mode, conf) {
        assert!(
            !outcome.status.success(),
            "{}",
            outcome.describe("succeeds")
        );
    }
}
