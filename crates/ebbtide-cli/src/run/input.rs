//! The input of a command that runs several times: each round reads the same bytes.
//!
//! A file is opened again for each round. What comes from a pipe or a socket is first copied to a file without a name. A terminal and an
//! endless device are refused, because no round could end in the same way as the round before.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ebbtide_tools::out;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// More input than this counts as endless.
const MAX_BYTES: u64 = 1 << 30;
/// After this time without an end of the input, a line says what is waited for.
const NOTE: Duration = Duration::from_secs(2);
const REMEDY: &str = "add '< FILE', or '< /dev/null' if the command needs no input";

/// The input of all rounds.
#[derive(Debug)]
pub enum Input {
    /// None.
    Null,
    /// The bytes of this file from this place on.
    File(File, u64),
}

impl Input {
    /// Takes the input of this process.
    pub fn take() -> Result<Self> {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            bail!("the input is a terminal, and every round needs the same input; {REMEDY}");
        }
        let file = File::from(stdin.as_fd().try_clone_to_owned()?);
        Self::of(file, MAX_BYTES)
    }

    fn of(mut file: File, max_bytes: u64) -> Result<Self> {
        let about = file.metadata().context("cannot read the input")?;
        let kind = about.file_type();
        if kind.is_char_device() {
            if about.rdev() == rustix::fs::makedev(1, 3) {
                return Ok(Input::Null);
            }
            bail!(
                "the input is a device that may be endless, and every round needs the same input; {REMEDY}"
            );
        }
        if !kind.is_fifo() && !kind.is_socket() {
            let place = file.stream_position().unwrap_or(0);
            let input = Input::File(file, place);
            if input.open().is_ok() {
                return Ok(input);
            }
            let Input::File(same, _) = input else {
                unreachable!("made above")
            };
            file = same;
        }
        spool(&mut file, max_bytes)
    }

    /// The input of one round.
    pub fn open(&self) -> io::Result<Stdio> {
        let Input::File(file, place) = self else {
            return Ok(Stdio::null());
        };
        // A new open file has a place of its own.
        let mut file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        file.seek(SeekFrom::Start(*place))?;
        Ok(file.into())
    }
}

/// Copies everything to a file without a name.
fn spool(from: &mut File, max_bytes: u64) -> Result<Input> {
    let failed = "cannot keep the input for all rounds";
    let mut kept = tempfile::tempfile().context(failed)?;
    let mut buffer = vec![0; 1 << 16];
    let (began, mut is_noted, mut bytes) = (Instant::now(), false, 0);
    loop {
        if !is_noted && !is_ready(from, NOTE.saturating_sub(began.elapsed())) {
            out::stderr(&format!(
                "ebbtide: reading all of the input first, because every round needs it; {REMEDY}\n"
            ));
            is_noted = true;
        }
        let len = match from.read(&mut buffer) {
            Ok(0) => return Ok(Input::File(kept, 0)),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot read the input"),
        };
        bytes += len as u64;
        if bytes > max_bytes {
            let most = out::bytes(max_bytes);
            bail!(
                "the input is endless or longer than {most}, and every round needs the same input; {REMEDY}"
            );
        }
        kept.write_all(&buffer[..len]).context(failed)?;
    }
}

/// Whether the input has bytes or its end within this time.
fn is_ready(from: &File, time: Duration) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&time)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn read(input: &Input) -> String {
        let mut cat = Command::new("cat");
        let output = cat.stdin(input.open().unwrap()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn piped(bytes: &[u8]) -> File {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(bytes).unwrap();
        File::from(std::os::fd::OwnedFd::from(reader))
    }

    #[test]
    fn every_round_reads_the_same() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"head and rest").unwrap();
        file.seek(SeekFrom::Start(9)).unwrap();
        for input in [Input::of(file, 1), Input::of(piped(b"rest"), 4)] {
            let input = input.unwrap();
            assert_eq!((read(&input), read(&input)), ("rest".into(), "rest".into()));
        }
        let null = Input::of(File::open("/dev/null").unwrap(), 0).unwrap();
        assert!(matches!(null, Input::Null) && read(&null).is_empty());
    }

    #[test]
    fn endless_input_is_refused() {
        for file in [File::open("/dev/zero").unwrap(), piped(b"longer")] {
            let told = Input::of(file, 5).unwrap_err().to_string();
            assert!(
                told.contains("endless") && told.contains("< /dev/null"),
                "{told}"
            );
        }
    }
}
