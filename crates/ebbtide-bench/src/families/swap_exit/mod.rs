//! The swap-exit family: many processes, mostly swapped out, are killed together while a process starts in the
//! foreground. It measures the cost of their end for the foreground process.

mod crowd;
mod phone;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ebbtide_tools::{machine, out, values};

use crate::families::family::{self, Family};
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{ANY, Entry};
use crate::harness::{self, Results};
use crate::measured::{Output, WorkerArgs};
use crate::outside::swap::Keeper;
use crowd::Crowd;
use phone::CPUS;

const PROCESSES: (u32, u32) = (15, 8);
const SIZE_BYTES: (u64, u64) = (450 << 20, 128 << 20);
// Start and loop together should be shorter than the kernel needs to end the others.
const FOREGROUND_BYTES: (u64, u64) = (64 << 20, 16 << 20);
const FILE_BYTES: (usize, usize) = (32 << 20, 8 << 20);
const WAIT: Duration = Duration::from_secs(60);

/// The entry in which no process is killed.
const NOBODY: &str = "nobody dies";
const CALM: &str = "calm";

/// The entries: Ebbtide by default (inline), with the helper, the C library's allocator, and no killed processes.
fn entries(args: &SwapExitArgs) -> Result<Vec<Entry>> {
    let mut entries = family::entries(&args.bench, false, &[("exit=detached", ANY)])?;
    if args.bench.against.is_empty() {
        entries.retain(|e| e.is_own() || e.name == "glibc");
    }
    let mut nobody = Entry::plain(NOBODY);
    nobody.takes = |case| case == CALM;
    entries.push(nobody);
    Ok(entries)
}

/// `ebbtide bench swap-exit`.
#[derive(Debug, Args)]
pub struct SwapExitArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Memory that each process fills, such as 200M
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// Number of processes that are killed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub processes: Option<u32>,
}

/// The family.
pub struct SwapExit;

impl Family for SwapExit {
    type Flags = SwapExitArgs;
    const NAME: &'static str = "swap-exit";
    const TEXT: &'static str = include_str!("cases.txt");
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 18.0;

    fn measure(args: &SwapExitArgs) -> Result<Results> {
        let bench = &args.bench;
        let processes = args.processes.unwrap_or(bench.pick(PROCESSES));
        let size_bytes = args.size.unwrap_or(bench.pick(SIZE_BYTES)) >> 20 << 20;
        let rounds = bench.rounds_or(Self::ROUNDS);
        let all_bytes = u64::from(processes) * size_bytes;
        let available = machine::available_bytes().unwrap_or(u64::MAX);
        ensure!(
            all_bytes <= available / 10 * 6,
            "{processes} processes of {} are more than 60 % of the available memory; see --size and --processes",
            out::bytes(size_bytes)
        );
        let entries = entries(args)?;
        let dir = tempfile::tempdir().context("cannot make a temporary directory; set TMPDIR")?;
        let file = dir.path().join("read");
        let content = (0..bench.pick(FILE_BYTES)).map(|i| (i >> 12) as u8);
        fs::write(&file, content.collect::<Vec<u8>>())?;
        // The memory that is swapped out, and more that pressure may add.
        let keeper = Keeper::start(all_bytes.max(64 << 20))?;
        let crowd = Crowd {
            processes,
            size_bytes,
            foreground_bytes: bench.pick(FOREGROUND_BYTES),
            file,
            group: None,
            wait: WAIT,
        };
        let group = &keeper.kept.group;
        if group.is_none() {
            out::warning("no memory cgroup can be made: 'pressure' is left out");
        }
        let cases = Self::cases(&bench.only, |id| {
            let group = match id {
                CALM => None,
                _ => Some(group.clone()?),
            };
            Some(Box::new(Crowd {
                group,
                ..crowd.clone()
            }))
        })?;
        let mut results = harness::run(&cases, entries, rounds, all_bytes)?;
        results.wait = WAIT;
        results.notes.push(format!(
            "{processes} processes of {}, 60 % of it swapped out to {}; all processes share {CPUS} CPUs",
            out::bytes(size_bytes),
            keeper.kept.swap
        ));
        drop(keeper);
        Ok(results)
    }

    fn process(args: &WorkerArgs) -> Option<Result<Output>> {
        match args.case.as_str() {
            "app" => Some(phone::app(args.amount)),
            "foreground" => {
                let file = args.more();
                Some(file.and_then(|file| phone::foreground(args.amount, file.as_ref())))
            }
            _ => None,
        }
    }
}
