//! A load like that of ebizzy, a web search. Each thread copies a chunk of memory, searches the copy, and frees it,
//! in a loop. Several processes do so at once.
//!
//! ```text
//! search_PxT ─┬─ searcher T: fill chunks, copy once, wait ─ go ─ T threads: copy, search, free
//!             ├─ searcher T                                  ↑
//!             └─ … P of them                           all at the same time
//! ```
//! The number of searches is the same in all cases, so the figure is the time of one search while the whole machine
//! is busy.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::time::Instant;
use std::{ptr, slice};

use anyhow::{Context, Result, anyhow, ensure};

use crate::harness::process::TIMEOUT;
use crate::measured::calls::now_ns;
use crate::measured::{Output, Random, alloc, link, release, worker};
use crate::outside::observe::{Killed, answer, mark};

/// Bytes of a chunk, and of each copy.
pub const CHUNK_BYTES: usize = 512 << 10;
const WORDS: usize = CHUNK_BYTES / 8;
/// Number of searches by all threads of all processes, for each chunk of a process.
const PER_CHUNK: u64 = 40;
const BEGAN: &str = "began_ns";
const ENDED: &str = "ended_ns";

/// The numbers in a case's name `…_8x4`: processes and threads.
pub fn shape(case: &str) -> Option<(u64, u64)> {
    let (processes, threads) = case.rsplit('_').next()?.split_once('x')?;
    Some((processes.parse().ok()?, threads.parse().ok()?))
}

/// Starts the processes, lets them search at the same time, and collects their results.
pub fn run(case: &str, chunks: u64, searches_of_chunks: u64) -> Result<Output> {
    let (processes, threads) = shape(case).context("not a case like search_8x4")?;
    let each = (searches_of_chunks * PER_CHUNK / (processes * threads)).max(1);
    let starts = (0..processes).map(|_| start(threads, each, chunks));
    let mut searchers = starts.collect::<Result<Vec<_>>>()?;
    for Killed(searcher) in &mut searchers {
        let limit = Instant::now() + TIMEOUT;
        mark(searcher, "base", limit).map_err(|_| anyhow!(how_it_ended(searcher)))?;
    }
    for Killed(searcher) in &mut searchers {
        answer(searcher)?;
    }
    let (mut began, mut ended, mut checksum) = (f64::INFINITY, 0f64, 0u64);
    for Killed(searcher) in &mut searchers {
        let output = finish(searcher)?;
        began = began.min(output.metrics[BEGAN]);
        ended = ended.max(output.metrics[ENDED]);
        checksum = checksum.wrapping_add(output.checksum);
    }
    let searches = each * processes * threads;
    let us_per_search = (ended - began) / 1e3 / searches as f64;
    Ok(Output::new(checksum, [("us_per_search", us_per_search)]))
}

/// Starts a process that searches.
fn start(threads: u64, searches: u64, chunks: u64) -> Result<Killed> {
    let child = worker(&format!("searcher_{searches}x{threads}"), chunks)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Ok(Killed(child.context("cannot start a process")?))
}

/// Reads the figures of a process that searches.
fn finish(searcher: &mut Child) -> Result<Output> {
    let mut text = String::new();
    let said = searcher.stdout.as_mut().context("no pipe")?;
    said.read_to_string(&mut text)?;
    serde_json::from_str(text.trim()).with_context(|| how_it_ended(searcher))
}

/// Describes the end of a process. Most likely the kernel killed it because memory was short.
fn how_it_ended(searcher: &mut Child) -> String {
    match searcher.wait() {
        Ok(status) => format!("a process ends with {status}"),
        Err(error) => format!("a process {error}"),
    }
}

/// Runs one process. It fills its chunks, and searches with some threads. The threads wait once each of them has made
/// its first copy.
///
/// Pages that the system must provide for a copy cost many times as much as a search. In a virtual machine they cost
/// more, because the host must provide them too. Their number depends on the processes that ran before. So all copies
/// of a process exist at the same time once, before the time is taken.
pub fn searcher(case: &str, chunks: u64) -> Result<Output> {
    let (searches, threads) = shape(case).context("not a case like searcher_100x4")?;
    ensure!(chunks > 0, "no chunks");
    let chunks: Vec<usize> = (0..chunks).map(|number| filled(number) as usize).collect();
    // Each is for the threads, and for the one that started them.
    let [all_copied, begin] = [(); 2].map(|()| Barrier::new(threads as usize + 1));
    let (began, checksum) = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|seed| {
                let (chunks, all_copied, begin) = (&chunks, &all_copied, &begin);
                scope.spawn(move || {
                    let copy = copied(chunks[seed as usize % chunks.len()]);
                    all_copied.wait();
                    // SAFETY: allocated above, freed once.
                    unsafe { release(copy) };
                    begin.wait();
                    search(chunks, searches, seed)
                })
            })
            .collect();
        all_copied.wait();
        link::base();
        let began = now_ns();
        begin.wait();
        let sum = started
            .into_iter()
            .map(|thread| thread.join().unwrap_or(0))
            .fold(0, u64::wrapping_add);
        (began, sum)
    });
    let ended = now_ns();
    for chunk in chunks {
        // SAFETY: allocated by `filled`, freed once.
        unsafe { release(chunk as *mut u8) };
    }
    let metrics = [(BEGAN, began as f64), (ENDED, ended as f64)];
    Ok(Output::new(checksum, metrics))
}

/// Copies a chunk.
fn copied(chunk: usize) -> *mut u8 {
    let copy = alloc(CHUNK_BYTES);
    // SAFETY: both have `CHUNK_BYTES` bytes, and no other thread uses the copy.
    unsafe { ptr::copy_nonoverlapping(chunk as *const u8, copy, CHUNK_BYTES) };
    copy
}

/// Allocates a chunk of ascending even numbers.
fn filled(number: u64) -> *mut u8 {
    let chunk = alloc(CHUNK_BYTES).cast::<u64>();
    for word in 0..WORDS {
        // SAFETY: inside the chunk; malloc aligns to 16.
        unsafe { chunk.add(word).write(2 * word as u64 + number) };
    }
    chunk.cast()
}

/// Copies, searches, frees. Returns the sum of the places of all hits.
fn search(chunks: &[usize], searches: u64, seed: u64) -> u64 {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ seed);
    let mut sum = 0u64;
    for _ in 0..searches {
        let chunk = (random.next() >> 20) as usize % chunks.len();
        let wanted = chunk as u64 + 2 * ((random.next() >> 20) % WORDS as u64);
        let copy = copied(chunks[chunk]);
        // SAFETY: this many words were written to it just now.
        let words = unsafe { slice::from_raw_parts(copy.cast::<u64>(), WORDS) };
        let found = words.binary_search(&wanted);
        sum = sum.wrapping_add(found.map_or(u64::MAX / 2, |place| place as u64));
        // SAFETY: allocated above, freed once.
        unsafe { release(copy) };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_search_finds() {
        let chunks: Vec<usize> = (0..3).map(|n| filled(n) as usize).collect();
        // A miss would add more than all places together.
        assert!(search(&chunks, 100, 1) < 100 * WORDS as u64);
        assert_eq!(search(&chunks, 50, 2), search(&chunks, 50, 2));
        for chunk in chunks {
            // SAFETY: allocated above.
            unsafe { release(chunk as *mut u8) };
        }
    }

    #[test]
    fn shapes() {
        assert_eq!(shape("search_limit_8x4"), Some((8, 4)));
        assert_eq!(shape("searcher_100x1"), Some((100, 1)));
        assert_eq!(shape("search_8"), None);
    }
}
