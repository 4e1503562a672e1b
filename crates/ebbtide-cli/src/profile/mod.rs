//! `ebbtide profile`: which code allocated the memory of a process.
//!
//! ```text
//!  process ─┐                           ┌▶ text
//!  command ─┼▶ raw ── symbols ──▶ model ┼▶ flame: SVG
//!  dump ────┘                      ▲    └▶ pprof: protobuf
//!  stored pprof ───────────────────┘
//! ```
//!
//! The library samples allocations, and keeps stacks with counts in its memory ([`raw`]). This program names the stacks and estimates what
//! all allocations were ([`model`]).
//!
//! | module | what it does |
//! |---|---|
//! | `process` | reads the samples of a running process; switches sampling on and off |
//! | `command` | runs a command with sampling |
//! | `files` | reads what was stored |
//! | `report` | writes a profile in the wanted form |

mod command;
mod files;
mod flame;
mod model;
mod pprof;
mod process;
pub mod raw;
mod report;
mod symbols;
mod text;

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;

use crate::cli::ProfileArgs;
use report::Report;

/// The mean distance of two samples, if nothing else is said.
const RATE: &str = "512K";

/// Takes a profile and writes it.
pub fn main(args: &ProfileArgs) -> Result<u8> {
    let mut report = Report::open(args)?;
    let Some(source) = &args.source else {
        return command::profile(args, &mut report);
    };
    match source.to_str().and_then(|text| text.parse().ok()) {
        Some(pid) => process::profile(args, pid, &mut report)?,
        None => files::profile(Path::new(source), &mut report)?,
    }
    Ok(0)
}

/// For each size class with sampled live objects, the place that allocated most of them. Empty if the process takes no samples.
pub fn places_by_size(pid: u32) -> HashMap<u64, String> {
    match process::read(pid) {
        Ok(Some(raw)) => text::places_by_size(&symbols::name(&raw, Some(pid), &mut Vec::new())),
        _ => HashMap::new(),
    }
}
