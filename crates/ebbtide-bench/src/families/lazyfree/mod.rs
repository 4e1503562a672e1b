//! The lazyfree family: programs that free what they soon want again, in as many processes
//! and threads as the machine has to bear, with memory for all and within a limit.

mod search;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ebbtide_tools::out;

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::process::{Starter, finish};
use crate::harness::{self, Case, Metric, Results, Run, metric};
use crate::measured::{Output, WorkerArgs};
use crate::outside::swap::{Keeper, join, limit_group};
use search::CHUNK_BYTES;

/// Chunks of a process, and in a quick run.
const CHUNKS: (u64, u64) = (512, 64);
/// The limit of the cgroup.
const LIMIT_BYTES: (u64, u64) = (2 << 30, 512 << 20);
/// Of that, for everything that is not a chunk: 64 copies, eight programs, and what allocators keep.
const REST_BYTES: u64 = 256 << 20;

const METRICS: &[Metric] = &[metric(
    "us_per_search",
    "µs a search, with all processes at work",
)];

const PLENTY: &str = "copy a chunk of 512 KiB, search it, free it; memory for all";
const LIMITED: &str = "the same within a memory cgroup";

/// Cases, processes.
const SHAPES: [(&str, &str, u64); 9] = [
    ("search_1x1", "search_limit_1x1", 1),
    ("search_1x4", "search_limit_1x4", 1),
    ("search_1x8", "search_limit_1x8", 1),
    ("search_4x1", "search_limit_4x1", 4),
    ("search_4x4", "search_limit_4x4", 4),
    ("search_4x8", "search_limit_4x8", 4),
    ("search_8x1", "search_limit_8x1", 8),
    ("search_8x4", "search_limit_8x4", 8),
    ("search_8x8", "search_limit_8x8", 8),
];

/// What is freed goes back at once; is lazy at once; is lazy where that was seen to be worth it.
const VARIANTS: [&str; 3] = [
    "retain_ms=0,lazyfree=off",
    "retain_ms=0,lazyfree=always",
    "retain_ms=0,lazyfree=auto",
];

/// How many chunks each of the processes can have within the limit.
fn most_chunks(limit_bytes: u64, processes: u64) -> u64 {
    (limit_bytes - REST_BYTES) / CHUNK_BYTES as u64 / processes
}

/// A measured process that starts processes that search.
#[derive(Debug)]
struct Search {
    /// Its case.
    case: &'static str,
    /// Chunks of a process.
    chunks: u64,
    /// Chunks for which the searches are counted.
    searches_of_chunks: u64,
    /// All processes are in this cgroup.
    group: Option<PathBuf>,
}

impl Run for Search {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let mut command = starter.worker(self.case, self.chunks, entry, "");
        command.arg(self.searches_of_chunks.to_string());
        if let Some(group) = &self.group {
            join(&mut command, group)?;
        }
        Ok(finish(command)?.0)
    }
}

fn cases(chunks: u64, limit_bytes: u64, group: Option<&Path>) -> Vec<Case> {
    let case = |id, about, chunks_each, group: Option<&Path>| Case {
        id,
        about,
        run: Box::new(Search {
            case: id,
            chunks: chunks_each,
            searches_of_chunks: chunks,
            group: group.map(Path::to_path_buf),
        }),
        metrics: METRICS,
    };
    let mut cases: Vec<Case> = SHAPES
        .iter()
        .map(|(id, _, _)| case(id, PLENTY, chunks, None))
        .collect();
    if let Some(group) = group {
        cases.extend(SHAPES.iter().map(|(_, id, processes)| {
            let most = most_chunks(limit_bytes, *processes);
            case(id, LIMITED, chunks.min(most), Some(group))
        }));
    }
    cases
}

/// Beside the peers: Ebbtide when it keeps nothing.
fn entries(args: &BenchArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(args, false)?;
    let own = entries[0].clone();
    entries.splice(2..2, VARIANTS.map(|conf| own.variant(conf, &[])));
    Ok(entries)
}

/// The family.
pub struct Lazyfree;

impl Family for Lazyfree {
    type Flags = BenchArgs;
    const NAME: &'static str = "lazyfree";
    const ABOUT: &'static str = "Programs that free what they soon want again: copy, search, free, in processes and \
        threads, with memory for all and within a limit (as root); an hour with all peers; \
        see --quick, --only, --against";
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 27.0;

    fn measure(args: &BenchArgs) -> Result<Results> {
        let pick = |(full, quick)| if args.quick { quick } else { full };
        let (chunks, limit_bytes) = (pick(CHUNKS), pick(LIMIT_BYTES));
        let rounds = args.rounds_or(Self::ROUNDS);
        let entries = entries(args)?;
        let (keeper, group) = match limited(limit_bytes) {
            Ok(keeper) => {
                let group = keeper.kept.group.clone();
                (Some(keeper), group)
            }
            Err(error) => {
                out::warning(&format!("without a limit only: {error:#}"));
                (None, None)
            }
        };
        let mut cases = cases(chunks, limit_bytes, group.as_deref());
        harness::select(&mut cases, &args.only)?;
        let largest = 8 * chunks * CHUNK_BYTES as u64;
        let mut results = harness::run(&cases, entries, rounds, largest)?;
        results.notes.push(format!(
            "{chunks} chunks in each process; search_PxT: P processes of T threads"
        ));
        if keeper.is_some() {
            results.notes.push(format!(
                "search_limit_PxT: all processes in a memory cgroup of {}, with as many of the chunks as fit and leave {}",
                out::bytes(limit_bytes),
                out::bytes(REST_BYTES)
            ));
        }
        drop(keeper);
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        let (case, chunks) = (args.case.as_str(), args.amount);
        if case.starts_with("search_") {
            let searches_of_chunks = args.more().and_then(|text| {
                let text = text.to_str().context("not a number")?;
                text.parse().context("not a number")
            });
            return Some(searches_of_chunks.and_then(|of| search::run(case, chunks, of)));
        }
        let is_searcher = case.starts_with("searcher_");
        is_searcher.then(|| search::searcher(case, chunks))
    }
}

/// A cgroup with a limit, for the time of the run.
fn limited(bytes: u64) -> Result<Keeper> {
    let keeper = Keeper::start(0)?;
    let group = keeper.kept.group.as_deref();
    match group {
        Some(group) => limit_group(group, Some(bytes))?,
        None => anyhow::bail!(
            "no memory cgroup can be made here (version 1, or 2 with the memory controller)"
        ),
    }
    Ok(keeper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_fits_into_the_limit() {
        let cases = cases(CHUNKS.0, LIMIT_BYTES.0, Some(Path::new("/x")));
        assert_eq!(cases.len(), 18);
        for (_, _, processes) in SHAPES {
            let chunks = CHUNKS.0.min(most_chunks(LIMIT_BYTES.0, processes));
            assert!(chunks * processes * CHUNK_BYTES as u64 <= LIMIT_BYTES.0 - REST_BYTES);
            assert!(chunks >= CHUNKS.0 / 8 * 7);
        }
    }
}
