//! Reads what a command writes, keeps only its length and a hash, and compares rounds by them.
//!
//! A command may leave processes behind that hold its pipes open. So a reader ends with its round, not with the pipe: it takes what is there,
//! and closes the pipe.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::process::Command;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

/// The streams that are read.
pub const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// Length and hash (FNV-1a) of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    bytes: u64,
    hash: u64,
}

impl Digest {
    const EMPTY: Self = Digest {
        bytes: 0,
        hash: 0xcbf2_9ce4_8422_2325,
    };

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// What a command wrote to each of [`STREAMS`].
pub type Written = [Digest; STREAMS.len()];

/// The readers of a command's output.
pub struct Captured {
    stop: PipeWriter,
    readers: [JoinHandle<Digest>; STREAMS.len()],
}

impl Captured {
    /// Lets the command write to pipes.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let reader = |stopped: PipeReader| -> io::Result<_> {
            let (from, to) = io::pipe()?;
            let named = std::thread::Builder::new().name("output".into());
            Ok((named.spawn(move || digest(from, &stopped))?, to))
        };
        let (stdout, to_stdout) = reader(stopped.try_clone()?)?;
        let (stderr, to_stderr) = reader(stopped)?;
        command.stdout(to_stdout).stderr(to_stderr);
        Ok(Captured {
            stop,
            readers: [stdout, stderr],
        })
    }

    /// Ends the readers, after the command has ended.
    pub fn finish(self) -> Written {
        drop(self.stop);
        self.readers
            .map(|reader| reader.join().unwrap_or(Digest::EMPTY))
    }
}

/// Reads until the end of the pipe, or until `stopped` was closed and the pipe is empty.
fn digest(mut from: PipeReader, stopped: &PipeReader) -> Digest {
    let mut digest = Digest::EMPTY;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let mut fds = [
            PollFd::new(&from, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        let polled = poll(&mut fds, None);
        let (is_ready, is_stopped) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        match polled {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return digest,
            Ok(_) if is_ready => match from.read(&mut buffer) {
                Ok(0) => return digest,
                Ok(len) => digest.add(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return digest,
            },
            Ok(_) if is_stopped => return digest,
            Ok(_) => {}
        }
    }
}

/// How a stream of the rounds with Ebbtide differs from the same stream without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// All rounds wrote the same.
    None,
    /// All rounds of a kind wrote the same, and the two kinds did not.
    WithEbbtide,
    /// Rounds of one kind differ from each other, so a difference between the kinds tells nothing.
    BetweenRounds,
    /// They differ, and with one round of each kind the reason is not known.
    Unknown,
}

impl Difference {
    /// Compares a stream of all rounds.
    pub fn of(with: &[Digest], without: &[Digest]) -> Self {
        let is_one = |digests: &[Digest]| digests.windows(2).all(|pair| pair[0] == pair[1]);
        match (
            is_one(with) && is_one(without),
            with.first() == without.first(),
        ) {
            (true, true) => Difference::None,
            (true, false) if with.len() > 1 => Difference::WithEbbtide,
            (true, false) => Difference::Unknown,
            (false, _) => Difference::BetweenRounds,
        }
    }

    /// A sentence about it; `None` without a difference.
    pub fn sentence(self, stream: &str) -> Option<String> {
        let text = match self {
            Difference::None => return None,
            Difference::WithEbbtide => {
                "with Ebbtide differs from that without, in the same way in each round"
            }
            Difference::BetweenRounds => {
                "differs from round to round, also between rounds of the same kind"
            }
            Difference::Unknown => {
                "differs between the two rounds; --rounds 3 shows whether it always does"
            }
        };
        Some(format!("the output on {stream} {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    fn written_by(script: &str) -> Written {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let captured = Captured::start(&mut command).unwrap();
        command.spawn().unwrap().wait().unwrap();
        drop(command);
        captured.finish()
    }

    #[test]
    fn all_output_counts() {
        let [stdout, stderr] = written_by("echo abc; echo x >&2");
        let mut want = Digest::EMPTY;
        want.add(b"ab");
        want.add(b"c\n");
        assert_eq!((stdout, stderr.bytes), (want, 2));
        // More than a pipe holds.
        let [long, none] = written_by("head -c 3000000 /dev/zero");
        assert_eq!((long.bytes, none), (3_000_000, Digest::EMPTY));
    }

    #[test]
    fn a_process_left_behind_does_not_hold_up() {
        let began = Instant::now();
        let [stdout, _] = written_by("echo abc; sleep 20 &");
        assert_eq!(stdout.bytes, 4);
        assert!(began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn a_difference_has_its_reason() {
        let digest = |hash| Digest { bytes: 1, hash };
        let of = |with: &[u64], without: &[u64]| {
            let digests = |hashes: &[u64]| hashes.iter().copied().map(digest).collect::<Vec<_>>();
            Difference::of(&digests(with), &digests(without))
        };
        assert_eq!(of(&[1, 1], &[1, 1]), Difference::None);
        assert_eq!(of(&[1, 1], &[2, 2]), Difference::WithEbbtide);
        assert_eq!(of(&[1, 2], &[3, 4]), Difference::BetweenRounds);
        assert_eq!(of(&[1], &[2]), Difference::Unknown);
        assert_eq!(of(&[], &[]), Difference::None);
        assert!(
            Difference::WithEbbtide
                .sentence("stdout")
                .unwrap()
                .contains("on stdout with")
        );
        assert_eq!(Difference::None.sentence("stdout"), None);
    }
}
