//! The swap-exit family: many processes, mostly swapped out, are killed together while one
//! starts in the foreground. What does their end cost it?

mod crowd;
mod phone;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ebbtide_tools::{machine, out, values};

use crate::families::Family;
use crate::harness::flags::BenchArgs;
use crate::harness::peers::{self, Entry};
use crate::harness::{self, Case, Metric, Results, metric};
use crate::measured::{Output, WorkerArgs};
use crate::outside::swap::Keeper;
use crowd::Crowd;
use phone::CPUS;

const PROCESSES: (u32, u32) = (15, 8);
const SIZE_BYTES: (u64, u64) = (450 << 20, 128 << 20);
// Start and loop together should be shorter than the kernel takes to end the others.
const FOREGROUND_BYTES: (u64, u64) = (64 << 20, 16 << 20);
const FILE_BYTES: (usize, usize) = (32 << 20, 8 << 20);
const WAIT: Duration = Duration::from_secs(60);

const METRICS: &[Metric] = &[
    metric(
        "start_ms",
        "ms from the kill until the foreground process has started",
    ),
    metric("frame_ms", "ms a round of its loop, mean"),
    metric("frame_p95_ms", "ms a round of its loop, 95 %"),
    metric(
        "dying_cpu_ms",
        "ms of CPU that the killed and their helpers use from then on",
    ),
    metric("seen_ms", "ms until the last of the killed was waited for"),
    metric(
        "gone_ms",
        "ms until nobody holds their memory, a helper neither",
    ),
    metric("swap_back_ms", "ms until 99 % of their swap are free"),
];

/// The foreground process without anybody who dies.
const NOBODY: &str = "nobody dies";
const CALM: &str = "calm";

fn cases(crowd: &Crowd, group: Option<&Path>) -> Vec<Case> {
    let case = |id, about, group: Option<&Path>| Case {
        id,
        about,
        run: Box::new(Crowd {
            group: group.map(Path::to_path_buf),
            ..crowd.clone()
        }),
        metrics: METRICS,
    };
    let mut cases = vec![case(
        CALM,
        "killed together while a program starts; memory for all",
        None,
    )];
    match group {
        Some(group) => cases.push(case(
            "pressure",
            "the same in a memory cgroup where the program needs what the killed hold",
            Some(group),
        )),
        None => out::warning("no memory cgroup can be made: 'pressure' is left out"),
    }
    cases
}

/// Ebbtide as it is by default, inline; with the helper; the C library's allocator; nobody.
fn entries(args: &SwapExitArgs) -> Result<Vec<Entry>> {
    let mut entries = peers::rotation(&args.bench, false)?;
    if args.bench.against.is_empty() {
        entries.retain(|e| e.is_own() || e.name == "glibc");
    }
    let own = entries[0].clone();
    entries.insert(2, own.variant("exit=detached", &[]));
    let mut nobody = Entry::plain(NOBODY);
    nobody.only = &[CALM];
    entries.push(nobody);
    Ok(entries)
}

/// `ebbtide bench swap-exit`.
#[derive(Debug, Args)]
pub struct SwapExitArgs {
    /// The common ones.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// What each process fills, such as 200M
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub size: Option<u64>,
    /// How many processes are killed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub processes: Option<u32>,
}

impl AsRef<BenchArgs> for SwapExitArgs {
    fn as_ref(&self) -> &BenchArgs {
        &self.bench
    }
}

/// The family.
pub struct SwapExit;

impl Family for SwapExit {
    type Flags = SwapExitArgs;
    const NAME: &'static str = "swap-exit";
    const ABOUT: &'static str = "Many processes, mostly swapped out, killed together while a program starts; as \
        root, as it sets up swap for its time (see --quick, --size, --processes)";
    const ROUNDS: (u32, u32) = (5, 1);
    const QUICK_ROUND_S: f64 = 18.0;

    fn measure(args: &SwapExitArgs) -> Result<Results> {
        let quick = args.bench.quick;
        let pick = |(full, short)| if quick { short } else { full };
        let processes = args
            .processes
            .unwrap_or(if quick { PROCESSES.1 } else { PROCESSES.0 });
        let size_bytes = args.size.unwrap_or(pick(SIZE_BYTES)) >> 20 << 20;
        let rounds = args.bench.rounds_or(Self::ROUNDS);
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
        let content: Vec<u8> = (0..if quick { FILE_BYTES.1 } else { FILE_BYTES.0 })
            .map(|i| (i >> 12) as u8)
            .collect();
        File::create(&file)?.write_all(&content)?;
        drop(content);
        // What is swapped out, and what pressure may add to it.
        let keeper = Keeper::start(all_bytes.max(64 << 20))?;
        let crowd = Crowd {
            processes,
            size_bytes,
            foreground_bytes: pick(FOREGROUND_BYTES),
            file,
            group: None,
            wait: WAIT,
        };
        let mut cases = cases(&crowd, keeper.kept.group.as_deref());
        harness::select(&mut cases, &args.bench.only)?;
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
