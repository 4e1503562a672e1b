//! A run of the family `neighbour`: two processes in one memory cgroup, and the second of them.
//!
//! ```text
//! warm, second alone                                      → its time
//! warm, first: fill, free, pause, warm, second beside     → its time, swap, kills
//! the same without a pause: fill, warm, free, second beside
//! ```
//! Each of these parts has a cgroup of its own, and swap of its own where the case has swap.
//! What the second process will need is touched before it, after a pause, so that the first has given back what it does,
//! and held until right before its start: a host takes back what lies free, and gives it again at a cost that varies
//! more than what is measured.

use std::io::{BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::families::neighbour::warm::Warm;
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{Starter, warm_host};
use crate::measured::content::words;
use crate::measured::link::{now_ns, page_bytes};
use crate::measured::{Output, Random, alloc};
use crate::outside::observe::mark;
use crate::outside::swap::{self, Keeper, join};

/// The second process is ended after this.
pub const WAIT: Duration = Duration::from_secs(60);
/// For the first to look at what it kept.
const LOOK_WAIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);
/// What it takes to give 3 GiB back.
const END_OF_WARM: Duration = Duration::from_millis(200);

/// Bytes of one allocation of the second process.
const PIECE_BYTES: usize = 1 << 20;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
const MIB: f64 = (1 << 20) as f64;

/// What a run consists of.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What each of the two processes has at most.
    pub size_bytes: u64,
    /// Between the first's last free and the second's start, at least.
    pub pause: Duration,
    /// Whether there is swap, as much as this size.
    pub has_swap: bool,
}

impl Pair {
    /// Of the cgroup.
    pub fn limit_bytes(&self) -> u64 {
        self.size_bytes / 3 * 4
    }

    /// What a run may touch, in the cgroup and to keep what is swapped out.
    pub fn touched_bytes(&self) -> u64 {
        self.size_bytes * 5 / 2
    }

    /// What is touched for the second process: not all of it lies in pieces that can be huge pages again.
    fn warm_bytes(&self) -> u64 {
        self.size_bytes * 3 / 2
    }
}

impl Run for Pair {
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        run(self, &|case, bytes| starter.worker(case, bytes, entry, ""))
    }

    fn idle(&self) -> Duration {
        self.pause
    }
}

/// Runs the second process alone, then beside the first. `worker` gives the command of a case and an amount.
fn run(what: &Pair, worker: &dyn Fn(&str, u64) -> Command) -> Result<Output> {
    let alone = part(what, worker, false)?.second;
    let mut output =
        alone.context("the second process does not get through even without the first")?;
    let alone_s = second_s(&output)?;
    let with = part(what, worker, true)?;
    let second_s = match &with.second {
        Some(second) => {
            ensure!(
                second.checksum == output.checksum,
                "wrong result: checksum {:x}, alone {:x}",
                second.checksum,
                output.checksum
            );
            second_s(second)?
        }
        None => f64::INFINITY,
    };
    output.metrics = [
        ("second_s", second_s),
        ("alone_s", alone_s),
        ("ratio", second_s / alone_s),
        ("swapped_mib", with.swapped_bytes as f64 / MIB),
        ("kills", f64::from(with.kills)),
        ("held_mib", with.unsplit_bytes as f64 / MIB),
        ("pause_s", with.paused.as_secs_f64()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into();
    Ok(output)
}

fn second_s(output: &Output) -> Result<f64> {
    let found = output.metrics.get("second_s").copied();
    found.context("no time from the second process")
}

/// What came of one part of a run.
struct Seen {
    /// Nothing if it was killed or did not end.
    second: Option<Output>,
    swapped_bytes: u64,
    kills: u32,
    unsplit_bytes: u64,
    /// Between the first's last free and the second's start.
    paused: Duration,
}

fn part(what: &Pair, worker: &dyn Fn(&str, u64) -> Command, has_first: bool) -> Result<Seen> {
    // Ends last: it takes the cgroup and the swap away.
    let keeper = Keeper::start(if what.has_swap { what.size_bytes } else { 0 })?;
    let group = keeper.kept.group.as_deref().context("no memory cgroup")?;
    swap::limit_group(group, Some(what.limit_bytes()))?;
    if !what.has_swap {
        swap::forbid_swap(group)?;
    }
    warm_host(what.touched_bytes())?;
    let before_bytes = swap::written_bytes()?;
    let mut first = None;
    let mut freed = Instant::now();
    if has_first {
        let command = worker("neighbour_first", what.size_bytes);
        let (process, when) = Process::first(command, group, what)?;
        (first, freed) = (Some(process), when);
    } else {
        drop(Warm::before_it_is_needed(what.warm_bytes())?);
        sleep(END_OF_WARM);
    }
    let unsplit_bytes = swap::group_usage_bytes(group)?;
    let paused = freed.elapsed();
    let second = Process::start(worker("neighbour_second", what.size_bytes), group)?;
    let mut kills = 0;
    let second = second.end(WAIT)?;
    let swapped_bytes = swap::written_bytes()?.saturating_sub(before_bytes);
    let second = match second {
        End::Said(output) => Some(output),
        End::Killed => {
            kills += 1;
            None
        }
        End::Late => None,
    };
    if let Some(first) = first {
        match first.end(LOOK_WAIT).context("the first process")? {
            End::Said(_) => {}
            End::Killed => kills += 1,
            End::Late => bail!("the first process does not end"),
        }
    }
    Ok(Seen {
        second,
        swapped_bytes,
        kills,
        unsplit_bytes,
        paused,
    })
}

/// How a process ended.
enum End {
    Said(Output),
    /// For want of memory: nobody else kills it.
    Killed,
    /// It had to be ended here.
    Late,
}

/// One of the two. It does not outlive this.
struct Process {
    child: Child,
    input: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command, group: &Path) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        join(&mut command, group)?;
        let mut child = command.spawn().context("cannot start")?;
        let input = child.stdin.take().context("no pipe")?;
        let said = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Process { child, input, said })
    }

    /// The one that has filled, freed, and done nothing for the pause when this returns; when it had freed.
    fn first(command: Command, group: &Path, what: &Pair) -> Result<(Self, Instant)> {
        let mut first = Process::start(command, group)?;
        first.next("base")?;
        first.answer()?;
        first.next("filled")?;
        let bytes = what.warm_bytes();
        let at_once = what.pause.is_zero();
        // Held throughout a pause too, so that it is soon touched again.
        let warm = if at_once {
            Warm::before_it_is_needed(bytes)?
        } else {
            Warm::start(bytes)?
        };
        first.answer()?;
        first.next("freed")?;
        let freed = Instant::now();
        if at_once {
            return Ok((first, freed));
        }
        sleep(what.pause);
        drop(warm);
        // Only now: free memory that the first has cut into pieces, and the host may have taken, is used before other.
        drop(Warm::before_it_is_needed(bytes)?);
        sleep(END_OF_WARM);
        Ok((first, freed))
    }

    fn next(&mut self, name: &str) -> Result<()> {
        mark(&mut self.said, name).context("the first process")?;
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"g")?)
    }

    /// Answers, and waits.
    fn end(mut self, wait: Duration) -> Result<End> {
        // Without a reader it was killed; the status says so.
        let _ = self.answer();
        let limit = Instant::now() + wait;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > limit {
                return Ok(End::Late);
            }
            sleep(POLL);
        };
        if status.signal() == Some(libc::SIGKILL) {
            return Ok(End::Killed);
        }
        self.output(status).map(End::Said)
    }

    fn output(&mut self, status: ExitStatus) -> Result<Output> {
        let (mut said, mut errors) = (String::new(), String::new());
        self.said.read_to_string(&mut said)?;
        let mut pipe = self.child.stderr.take().context("no pipe")?;
        pipe.read_to_string(&mut errors)?;
        let first_error = errors.lines().next().unwrap_or_default();
        ensure!(status.success(), "ends with {status} {first_error}");
        let line = said.lines().last().unwrap_or_default();
        serde_json::from_str(line).with_context(|| format!("not a worker's line: {line:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The second process: fills, then reads.
pub fn second(bytes: u64) -> Result<Output> {
    let mut pieces = vec![std::ptr::null_mut::<u8>(); bytes as usize / PIECE_BYTES];
    let mut random = Random(SEED);
    // Copied, so that the time is that of the memory.
    let pattern: Vec<u64> = words(&mut random).take(PIECE_BYTES / 8).collect();
    let page_words = page_bytes() / 8;
    let began = now_ns();
    for piece in &mut pieces {
        *piece = alloc(PIECE_BYTES);
        let words = piece.cast::<u64>();
        // SAFETY: the piece has these bytes, aligned as malloc does; it is never freed.
        unsafe {
            words.copy_from_nonoverlapping(pattern.as_ptr(), pattern.len());
            for page in (0..pattern.len()).step_by(page_words) {
                words.add(page).write(random.next());
            }
        }
    }
    let mut sum = 0u64;
    for piece in &pieces {
        // SAFETY: filled above, as long as said, and aligned as malloc does.
        let words = unsafe { std::slice::from_raw_parts(piece.cast::<u64>(), PIECE_BYTES / 8) };
        sum = words
            .iter()
            .fold(sum, |sum, word| sum.rotate_left(1) ^ word);
    }
    let second_s = (now_ns() - began) as f64 / 1e9;
    Ok(Output {
        checksum: sum,
        metrics: [("second_s".to_owned(), second_s)].into(),
        ..Output::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_idle_as_long_as_it_pauses() {
        let pause = Duration::from_secs(1);
        let neighbour = Pair {
            size_bytes: 1 << 20,
            pause,
            has_swap: false,
        };
        assert_eq!(neighbour.idle(), pause);
    }

    #[test]
    fn the_second_reads_what_it_wrote() {
        let (a, b) = (second(4 << 20).unwrap(), second(4 << 20).unwrap());
        assert_eq!(a.checksum, b.checksum);
        assert_ne!(a.checksum, second(3 << 20).unwrap().checksum);
        assert!(a.metrics["second_s"] > 0.0);
    }

    #[test]
    fn ends_are_told_apart() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            Process {
                input: child.stdin.take().unwrap(),
                said: BufReader::new(child.stdout.take().unwrap()),
                child,
            }
        };
        let long = Duration::from_secs(10);
        let killed = start("kill -9 $$").end(long).unwrap();
        assert!(matches!(killed, End::Killed));
        let late = start("exec sleep 100").end(Duration::from_millis(50));
        assert!(matches!(late.unwrap(), End::Late));
        let said = start(r#"echo '{"checksum":7,"metrics":{}}'"#).end(long);
        assert!(matches!(said.unwrap(), End::Said(o) if o.checksum == 7));
        let error = start("echo why >&2; exit 3").end(long).err().unwrap();
        assert!(error.to_string().contains("why"), "{error:#}");
    }
}
