//! One run of the family `neighbour`: two processes in one memory cgroup. It also holds the second process.
//!
//! ```text
//! warm, second alone                                      → its time
//! warm, first: fill, free, pause, warm, second beside     → its time, swap, kills
//! the same without a pause: fill, warm, free, second beside
//! ```
//! Each of these parts has a cgroup of its own. If the case has swap, each part has swap of its own too.
//!
//! Another process touches the memory that the second process will need, and holds it until right before the second
//! process starts. It does so after the pause, when the first process has released its memory. The reason is the
//! host: it takes back free memory, and provides it again at a cost that varies more than the measured effect.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::families::neighbour::warm::{held, held_before_it_is_needed};
use crate::harness::Run;
use crate::harness::peers::Entry;
use crate::harness::process::{self, Starter, TIMEOUT, parse, piped, warm_host};
use crate::measured::calls::{now_ns, page_bytes};
use crate::measured::content::words;
use crate::measured::{MIB, Output, Random, alloc};
use crate::outside::observe::{Killed, answer, mark};
use crate::outside::swap::{self, Keeper, join};

/// Maximum run time of the second process; then it is killed.
pub const WAIT: Duration = Duration::from_secs(60);
/// Time for the first process to check the memory that it kept.
const LOOK_WAIT: Duration = Duration::from_secs(60);
/// Time that the warm process needs to return 3 GiB.
const END_OF_WARM: Duration = Duration::from_millis(200);

/// Bytes of one allocation of the second process.
const PIECE_BYTES: usize = 1 << 20;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Peak memory of each of the two processes.
    pub size_bytes: u64,
    /// Minimum time between the first process's last free and the second's start.
    pub pause: Duration,
    /// Whether there is swap, of this size.
    pub has_swap: bool,
}

impl Pair {
    /// The limit of the cgroup.
    pub fn limit_bytes(&self) -> u64 {
        self.size_bytes / 3 * 4
    }

    /// Bytes that a run may touch, in the cgroup and for memory that is swapped out.
    pub fn touched_bytes(&self) -> u64 {
        self.size_bytes * 5 / 2
    }

    /// Bytes that are touched for the second process: not all of them lie in ranges that can become huge pages again.
    fn warm_bytes(&self) -> u64 {
        self.size_bytes * 3 / 2
    }

    /// Runs the second process alone, or beside the first.
    fn part(&self, starter: &Starter, entry: &Entry, has_first: bool) -> Result<Seen> {
        let worker = |case| starter.worker(case, self.size_bytes, entry, "");
        // Dropped last, because that removes the cgroup and the swap.
        let keeper = Keeper::start(if self.has_swap { self.size_bytes } else { 0 })?;
        let group = keeper.group()?;
        swap::limit_group(group, Some(self.limit_bytes()))?;
        if !self.has_swap {
            swap::forbid_swap(group)?;
        }
        warm_host(self.touched_bytes())?;
        let before_bytes = swap::written_bytes()?;
        let mut first = None;
        let mut freed = Instant::now();
        if has_first {
            let (process, when) = self.start_first(worker("neighbour_first"), group)?;
            (first, freed) = (Some(process), when);
        } else {
            drop(held_before_it_is_needed(self.warm_bytes())?);
            sleep(END_OF_WARM);
        }
        let unsplit_bytes = swap::group_usage_bytes(group)?;
        let paused = freed.elapsed();
        let second = start(worker("neighbour_second"), group)?;
        let mut kills = 0;
        let second = end(second, WAIT)?;
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
            match end(first, LOOK_WAIT).context("the first process")? {
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

    /// Starts the first process. When this returns, it has filled, freed, and done nothing for the pause. Also
    /// returns the time of its last free.
    fn start_first(&self, command: Command, group: &Path) -> Result<(Killed, Instant)> {
        let mut first = start(command, group)?;
        let next = |first: &mut Killed, name: &str| {
            mark(&mut first.0, name, Instant::now() + TIMEOUT).context("the first process")
        };
        next(&mut first, "base")?;
        answer(&mut first.0)?;
        next(&mut first, "filled")?;
        let bytes = self.warm_bytes();
        let at_once = self.pause.is_zero();
        // Held throughout a pause too, so that the memory can soon be touched again.
        let warm = if at_once {
            held_before_it_is_needed(bytes)?
        } else {
            held(bytes)?
        };
        answer(&mut first.0)?;
        next(&mut first, "freed")?;
        let freed = Instant::now();
        if at_once {
            return Ok((first, freed));
        }
        sleep(self.pause);
        drop(warm);
        // Not before this point. Free memory that the first process has split up, and that the host may have taken,
        // is then used first.
        drop(held_before_it_is_needed(bytes)?);
        sleep(END_OF_WARM);
        Ok((first, freed))
    }
}

impl Run for Pair {
    /// Runs the second process alone, then beside the first.
    fn measure(&self, starter: &Starter, entry: &Entry) -> Result<Output> {
        let alone = self.part(starter, entry, false)?.second;
        let mut output =
            alone.context("the second process does not get through even without the first")?;
        let alone_s = second_s(&output)?;
        let with = self.part(starter, entry, true)?;
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
        output.add([
            ("second_s", second_s),
            ("alone_s", alone_s),
            ("ratio", second_s / alone_s),
            ("swapped_mib", with.swapped_bytes as f64 / MIB),
            ("kills", f64::from(with.kills)),
            ("held_mib", with.unsplit_bytes as f64 / MIB),
            ("pause_s", with.paused.as_secs_f64()),
        ]);
        Ok(output)
    }

    fn idle(&self) -> Duration {
        self.pause
    }
}

fn second_s(output: &Output) -> Result<f64> {
    let found = output.metrics.get("second_s").copied();
    found.context("no time from the second process")
}

/// The observations of one part of a run.
struct Seen {
    /// The second process's output; none if it was killed or did not end.
    second: Option<Output>,
    swapped_bytes: u64,
    kills: u32,
    unsplit_bytes: u64,
    /// Time between the first process's last free and the second's start.
    paused: Duration,
}

/// The way in which a process ended.
enum End {
    Said(Output),
    /// Killed because memory was short: nothing else kills it.
    Killed,
    /// It took too long and was killed by this program.
    Late,
}

/// Starts one of the two processes in the cgroup.
fn start(mut command: Command, group: &Path) -> Result<Killed> {
    piped(&mut command);
    join(&mut command, group)?;
    Ok(Killed(command.spawn().context("cannot start")?))
}

/// Answers a process and waits for it.
fn end(mut process: Killed, most: Duration) -> Result<End> {
    let child = &mut process.0;
    // If nothing reads the answer, the process was killed, and its status shows that.
    let _ = answer(child);
    match process::wait(child, most)? {
        None => Ok(End::Late),
        Some(status) if status.signal() == Some(libc::SIGKILL) => Ok(End::Killed),
        Some(status) => {
            let (said, _) = process::rest(child, status, false)?;
            parse(said.lines().last().unwrap_or_default()).map(End::Said)
        }
    }
}

/// Runs the second process: fills, then reads.
pub fn second(bytes: u64) -> Result<Output> {
    let mut pieces = vec![std::ptr::null_mut::<u8>(); bytes as usize / PIECE_BYTES];
    let mut random = Random(SEED);
    // The content is copied, so that the time is that of the memory.
    let pattern: Vec<u64> = words(&mut random).take(PIECE_BYTES / 8).collect();
    let page_words = page_bytes() / 8;
    let began = now_ns();
    for piece in &mut pieces {
        *piece = alloc(PIECE_BYTES);
        let words = piece.cast::<u64>();
        // SAFETY: the piece has these bytes and malloc's alignment; it is never freed.
        unsafe {
            words.copy_from_nonoverlapping(pattern.as_ptr(), pattern.len());
            for page in (0..pattern.len()).step_by(page_words) {
                words.add(page).write(random.next());
            }
        }
    }
    let mut sum = 0u64;
    for piece in &pieces {
        // SAFETY: filled above, with this length and malloc's alignment.
        let words = unsafe { std::slice::from_raw_parts(piece.cast::<u64>(), PIECE_BYTES / 8) };
        sum = words
            .iter()
            .fold(sum, |sum, word| sum.rotate_left(1) ^ word);
    }
    let second_s = (now_ns() - began) as f64 / 1e9;
    Ok(Output::new(sum, [("second_s", second_s)]))
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
            command.args(["-c", script]);
            piped(&mut command);
            Killed(command.spawn().unwrap())
        };
        let long = Duration::from_secs(10);
        let killed = end(start("kill -9 $$"), long).unwrap();
        assert!(matches!(killed, End::Killed));
        let late = end(start("exec sleep 100"), Duration::from_millis(50));
        assert!(matches!(late.unwrap(), End::Late));
        let said = end(start(r#"echo '{"checksum":7,"metrics":{}}'"#), long);
        assert!(matches!(said.unwrap(), End::Said(o) if o.checksum == 7));
        let error = end(start("echo why >&2; exit 3"), long).err().unwrap();
        assert!(error.to_string().contains("why"), "{error:#}");
    }
}
