//! The lazyfree family: programs that free memory which they soon need again. Many processes and threads run, with
//! enough memory for all, and within a limit.

mod search;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ebbtide_tools::out;

use crate::families::family::{Family, entries};
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{ANY, Entry, Takes};
use crate::harness::process::{Starter, finish};
use crate::harness::{self, Case, Results, Run};
use crate::measured::{Output, WorkerArgs};
use crate::outside::swap::{Keeper, join, limit_group};
use search::CHUNK_BYTES;

/// Number of chunks of a process, and in a quick run.
const CHUNKS: (u64, u64) = (512, 64);
/// Limit of the cgroup, and in a quick run.
const LIMIT_BYTES: (u64, u64) = (2 << 30, 512 << 20);
/// Part of the limit that is not for chunks: 64 copies, eight programs, and memory that allocators keep.
const REST_BYTES: u64 = 256 << 20;

/// Variants: freed memory is released at once; is made lazy at once; is made lazy if that was seen to be worth it.
const VARIANTS: [(&str, Takes); 3] = [
    ("retain_ms=0,lazyfree=off", ANY),
    ("retain_ms=0,lazyfree=always", ANY),
    ("retain_ms=0,lazyfree=auto", ANY),
];

/// Number of chunks that each process can have within the limit.
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
    /// The number of chunks from which the number of searches is computed.
    searches_of_chunks: u64,
    /// The cgroup of all processes.
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

fn cases(
    only: &[String],
    chunks: u64,
    limit_bytes: u64,
    group: Option<&Path>,
) -> Result<Vec<Case>> {
    Lazyfree::cases(only, |case| {
        let (processes, _) = search::shape(case)?;
        let is_limited = case.starts_with("search_limit_");
        let (group, most) = match is_limited {
            true => (Some(group?), most_chunks(limit_bytes, processes)),
            false => (None, chunks),
        };
        Some(Box::new(Search {
            case,
            chunks: chunks.min(most),
            searches_of_chunks: chunks,
            group: group.map(Path::to_path_buf),
        }))
    })
}

/// The family.
pub struct Lazyfree;

impl Family for Lazyfree {
    type Flags = BenchArgs;
    const NAME: &'static str = "lazyfree";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (3, 1);
    const QUICK_ROUND_S: f64 = 27.0;

    fn measure(args: &BenchArgs) -> Result<Results> {
        let (chunks, limit_bytes) = (args.pick(CHUNKS), args.pick(LIMIT_BYTES));
        let rounds = args.rounds_or(Self::ROUNDS);
        let entries = entries(args, false, &VARIANTS)?;
        let keeper = limited(limit_bytes)
            .inspect_err(|error| out::warning(&format!("without a limit only: {error:#}")))
            .ok();
        let group = keeper.as_ref().and_then(|keeper| keeper.group().ok());
        let cases = cases(&args.only, chunks, limit_bytes, group)?;
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
            let more = args.more().and_then(|text| {
                let number = text.to_str().and_then(|text| text.parse().ok());
                number.context("not a number")
            });
            return Some(more.and_then(|of| search::run(case, chunks, of)));
        }
        let is_searcher = case.starts_with("searcher_");
        is_searcher.then(|| search::searcher(case, chunks))
    }
}

/// Makes a cgroup with a limit, for the time of the run.
fn limited(bytes: u64) -> Result<Keeper> {
    let keeper = Keeper::start(0)?;
    limit_group(keeper.group()?, Some(bytes))?;
    Ok(keeper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_fits_into_the_limit() {
        let group = Some(Path::new("/x"));
        let cases = cases(&[], CHUNKS.0, LIMIT_BYTES.0, group).unwrap();
        assert_eq!(cases.len(), 18);
        for case in cases {
            let (processes, _) = search::shape(case.id).unwrap();
            let chunks = CHUNKS.0.min(most_chunks(LIMIT_BYTES.0, processes));
            assert!(chunks * processes * CHUNK_BYTES as u64 <= LIMIT_BYTES.0 - REST_BYTES);
            assert!(chunks >= CHUNKS.0 / 8 * 7);
        }
    }
}
