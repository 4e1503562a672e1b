//! A load like that of ebizzy, a web search: each thread copies a chunk of memory, searches
//! the copy, and frees it, again and again; several processes do so at once.
//!
//! ```text
//! search_PxT ─┬─ searcher T: fill chunks, copy once, wait ─ go ─ T threads: copy, search, free
//!             ├─ searcher T                                  ↑
//!             └─ … P of them                           all at the same time
//! ```
//! The number of searches is the same for all cases, so the figure is the time of one
//! search with everything that the machine has at work.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::{ptr, slice};

use anyhow::{Context, Result, bail, ensure};

use crate::measured::link::{self, now_ns};
use crate::measured::{Output, Random, alloc, release};

/// Bytes of a chunk, and of each copy.
pub const CHUNK_BYTES: usize = 512 << 10;
const WORDS: usize = CHUNK_BYTES / 8;
/// Searches in all, by all threads of all processes, for each chunk of a process.
const PER_CHUNK: u64 = 40;
const BEGAN: &str = "began_ns";
const ENDED: &str = "ended_ns";

/// Numbers of a case `…_8x4`: processes and threads.
fn shape(case: &str) -> Option<(u64, u64)> {
    let (processes, threads) = case.rsplit('_').next()?.split_once('x')?;
    Some((processes.parse().ok()?, threads.parse().ok()?))
}

/// Starts the processes, lets them search at the same time, and collects what they say.
pub fn run(case: &str, chunks: u64, searches_of_chunks: u64) -> Result<Output> {
    let (processes, threads) = shape(case).context("not a case like search_8x4")?;
    let each = (searches_of_chunks * PER_CHUNK / (processes * threads)).max(1);
    let mut searchers = Vec::new();
    for _ in 0..processes {
        searchers.push(Searcher::start(threads, each, chunks)?);
    }
    for searcher in &mut searchers {
        searcher.wait_until_filled()?;
    }
    for searcher in &mut searchers {
        searcher.input.write_all(b"g")?;
    }
    let (mut began, mut ended, mut checksum) = (f64::INFINITY, 0f64, 0u64);
    for searcher in searchers {
        let output = searcher.finish()?;
        began = began.min(output.metrics[BEGAN]);
        ended = ended.max(output.metrics[ENDED]);
        checksum = checksum.wrapping_add(output.checksum);
    }
    let searches = each * processes * threads;
    Ok(Output {
        checksum,
        metrics: [(
            "us_per_search".to_owned(),
            (ended - began) / 1e3 / searches as f64,
        )]
        .into(),
        ..Output::default()
    })
}

struct Searcher {
    child: Child,
    input: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Searcher {
    fn start(threads: u64, searches: u64, chunks: u64) -> Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program")?;
        let case = format!("searcher_{searches}x{threads}");
        let mut child = Command::new(exe)
            .args(["worker", &case, &chunks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process")?;
        Ok(Searcher {
            input: child.stdin.take().context("no pipe")?,
            said: BufReader::new(child.stdout.take().context("no pipe")?),
            child,
        })
    }

    fn wait_until_filled(&mut self) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line.trim() != "@base" {
            bail!("a process {}", self.how_it_ended());
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Output> {
        let mut text = String::new();
        self.said.read_to_string(&mut text)?;
        serde_json::from_str(text.trim())
            .with_context(|| format!("a process {}", self.how_it_ended()))
    }

    /// Killed for memory, most likely.
    fn how_it_ended(&mut self) -> String {
        self.child
            .wait()
            .map_or_else(|e| e.to_string(), |status| format!("ends with {status}"))
    }
}

impl Drop for Searcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One process: fills its chunks, and searches with some threads, which wait when each of them has
/// made its first copy.
///
/// A copy's pages that the system has to provide cost many times what a search costs, more so in a
/// virtual machine whose host has to provide them in turn; how many of them there are differs by
/// what ran before. So all copies of a process are there at the same time once, before the time is taken.
pub fn searcher(case: &str, chunks: u64) -> Result<Output> {
    let (searches, threads) = shape(case).context("not a case like searcher_100x4")?;
    ensure!(chunks > 0, "no chunks");
    let chunks: Vec<usize> = (0..chunks).map(|number| filled(number) as usize).collect();
    let gate = Gate::new(threads);
    let (began, checksum) = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|seed| {
                let (chunks, gate) = (&chunks, &gate);
                scope.spawn(move || {
                    let copy = copied(chunks[seed as usize % chunks.len()]);
                    gate.copied.wait();
                    // SAFETY: allocated above, freed once.
                    unsafe { release(copy) };
                    gate.begin.wait();
                    search(chunks, searches, seed)
                })
            })
            .collect();
        gate.copied.wait();
        link::base();
        let began = now_ns();
        gate.begin.wait();
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
    Ok(Output {
        checksum,
        metrics: [(BEGAN, began), (ENDED, ended)]
            .map(|(name, value)| (name.to_owned(), value as f64))
            .into(),
        ..Output::default()
    })
}

/// Where threads wait for each other, and for the one that started them.
struct Gate {
    /// Every thread has made a copy.
    copied: Barrier,
    begin: Barrier,
}

impl Gate {
    fn new(threads: u64) -> Self {
        let all = threads as usize + 1;
        Gate {
            copied: Barrier::new(all),
            begin: Barrier::new(all),
        }
    }
}

/// A copy of a chunk.
fn copied(chunk: usize) -> *mut u8 {
    let copy = alloc(CHUNK_BYTES);
    // SAFETY: both have so many bytes, and the copy is this thread's alone.
    unsafe { ptr::copy_nonoverlapping(chunk as *const u8, copy, CHUNK_BYTES) };
    copy
}

/// A chunk of ascending even numbers.
fn filled(number: u64) -> *mut u8 {
    let chunk = alloc(CHUNK_BYTES).cast::<u64>();
    for word in 0..WORDS {
        // SAFETY: inside the chunk; malloc aligns to 16.
        unsafe { chunk.add(word).write(2 * word as u64 + number) };
    }
    chunk.cast()
}

/// Copies, searches, frees. The sum of the places where something was found.
fn search(chunks: &[usize], searches: u64, seed: u64) -> u64 {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ seed);
    let mut sum = 0u64;
    for _ in 0..searches {
        let chunk = (random.next() >> 20) as usize % chunks.len();
        let wanted = chunk as u64 + 2 * ((random.next() >> 20) % WORDS as u64);
        let copy = copied(chunks[chunk]);
        // SAFETY: so many words were written to it just now.
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
