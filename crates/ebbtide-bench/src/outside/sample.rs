//! Takes samples of a process and of the system, from files that stay open.
//!
//! `MemFree` alone would mislead: since Linux 6.7 the kernel keeps up to an eighth of the
//! memory in lists of each CPU, where freed pages stay for a minute and count neither
//! as used nor as free (512 MiB unmapped: `MemFree` +0, the lists +512). So the lists
//! are counted too, from `/proc/zoneinfo`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use ebbtide_tools::proc::kib_field;

use crate::measured::calls::{now_ns, page_bytes};

/// Minimum time between two reads of the zones: a read takes a lock in the kernel, and about 0.2 ms.
pub const SYSTEM_NS: u64 = 5_000_000;

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time.
    pub at_ns: u64,
    /// Resident size of the process.
    pub rss_bytes: u64,
    /// Free memory of the system, including the CPUs' lists; at most 5 ms old.
    pub free_bytes: u64,
}

impl Sample {
    /// Whether a fill since `before` took much more or less from the system than it added to the process. Then other
    /// processes were at work, and the system's free memory means little.
    pub fn is_disturbed_since(&self, before: &Sample) -> bool {
        let grown = self.rss_bytes as i64 - before.rss_bytes as i64;
        let taken = before.free_bytes as i64 - self.free_bytes as i64;
        (taken - grown).abs() > grown / 10 + (4 << 20)
    }
}

/// The open files for samples of a process and the system.
pub struct Probe {
    statm: File,
    page_bytes: u64,
    text: Vec<u8>,
    system: System,
}

impl Probe {
    /// Opens the files of one process.
    pub fn new(pid: u32) -> Result<Self> {
        Ok(Probe {
            statm: statm(pid)?,
            page_bytes: page_bytes() as u64,
            text: vec![0; 256],
            system: System::new()?,
        })
    }

    /// Continues with another process that has the same memory.
    pub fn turn_to(&mut self, pid: u32) -> Result<()> {
        self.statm = statm(pid)?;
        Ok(())
    }

    /// Takes a sample. It includes the system if the last system sample is old, or if `is_exact`.
    pub fn look(&mut self, is_exact: bool) -> Result<Sample> {
        let sample = self.look_or_gone(is_exact)?;
        sample.context("no resident size: the process has ended")
    }

    /// The same; `None` if the process is gone.
    fn look_or_gone(&mut self, is_exact: bool) -> Result<Option<Sample>> {
        let at_ns = now_ns();
        let pages = match read(&self.statm, &mut self.text) {
            Ok(text) => text.split_whitespace().nth(1).and_then(|t| t.parse().ok()),
            Err(_) => None,
        };
        let free_bytes = self.system.free_bytes(is_exact)?;
        Ok(pages.map(|pages: u64| Sample {
            at_ns,
            rss_bytes: pages * self.page_bytes,
            free_bytes,
        }))
    }

    /// The same; resident memory is 0 if the process is gone.
    pub fn look_beyond(&mut self, is_exact: bool) -> Result<Sample> {
        let at_ns = now_ns();
        Ok(self.look_or_gone(is_exact)?.unwrap_or(Sample {
            at_ns,
            rss_bytes: 0,
            free_bytes: self.system.free_bytes(false)?,
        }))
    }
}

fn statm(pid: u32) -> Result<File> {
    let path = format!("/proc/{pid}/statm");
    File::open(&path).with_context(|| format!("cannot open {path}"))
}

/// The open files for samples of the system.
pub struct System {
    /// `zoneinfo`, or `meminfo` if that cannot be read.
    zoneinfo: File,
    is_meminfo: bool,
    page_bytes: u64,
    text: Vec<u8>,
    /// Time and result of the last read.
    last: (u64, u64),
}

impl System {
    /// Opens the files of this machine.
    pub fn new() -> Result<Self> {
        let (zoneinfo, is_meminfo) = match File::open("/proc/zoneinfo") {
            Ok(file) => (file, false),
            Err(_) => (
                File::open("/proc/meminfo").context("cannot open /proc/meminfo")?,
                true,
            ),
        };
        Ok(System {
            zoneinfo,
            is_meminfo,
            page_bytes: page_bytes() as u64,
            text: vec![0; 1 << 16],
            last: (0, 0),
        })
    }

    /// Free memory including the CPUs' lists: exact if `is_exact`, else at most 5 ms old.
    pub fn free_bytes(&mut self, is_exact: bool) -> Result<u64> {
        let now = now_ns();
        if is_exact || now >= self.last.0 + SYSTEM_NS {
            let text = read(&self.zoneinfo, &mut self.text)?;
            let free_bytes = if self.is_meminfo {
                kib_field(text, "MemFree")
            } else {
                free_pages(text).map(|pages| pages * self.page_bytes)
            };
            self.last = (now, free_bytes.context("no free pages in zoneinfo")?);
        }
        Ok(self.last.1)
    }
}

/// Reads the whole file from its beginning.
fn read<'a>(file: &File, text: &'a mut Vec<u8>) -> Result<&'a str> {
    let mut len = 0;
    loop {
        if len == text.len() {
            text.resize(2 * len, 0);
        }
        match file.read_at(&mut text[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(std::str::from_utf8(&text[..len])?)
}

/// Free pages of all zones, and in the CPUs' lists.
fn free_pages(zoneinfo: &str) -> Option<u64> {
    let mut zones = 0;
    let mut sum = 0;
    for line in zoneinfo.lines() {
        let line = line.trim_start();
        if let Some(free) = line.strip_prefix("pages free") {
            zones += 1;
            sum += free.trim().parse::<u64>().ok()?;
        } else if let Some(listed) = line.strip_prefix("count:") {
            sum += listed.trim().parse::<u64>().ok()?;
        }
    }
    (zones > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_and_lists_are_summed() {
        let text = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n  pagesets\n    \
                    cpu: 0\n              count:    0\n              high:     0\nNode 0, zone   Normal\n  \
                    pages free     100\n      nr_free_pages 100\n    cpu: 1\n              count:    7\n";
        assert_eq!(free_pages(text), Some(3947));
        assert_eq!(free_pages("nothing\n"), None);
    }

    #[test]
    fn looks_at_this_process() {
        let mut probe = Probe::new(std::process::id()).unwrap();
        let first = probe.look(true).unwrap();
        assert!(first.rss_bytes > 0 && first.free_bytes > 0);
        let next = probe.look(false).unwrap();
        assert!(next.at_ns >= first.at_ns && next.rss_bytes > 0);
    }

    #[test]
    fn long_files_are_read_in_full() {
        let file = File::open("/proc/self/smaps").unwrap();
        let mut text = vec![0; 16];
        assert!(read(&file, &mut text).unwrap().contains("VmFlags"));
    }
}
