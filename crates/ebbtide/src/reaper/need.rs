//! Whether memory is short, for the machine or for the cgroup that the dying process is in.
//!
//! Read from files opened before the helper locked itself in: time lost to waiting for memory (PSI), what the
//! machine has available, and the distance of the cgroup and its parents to their limits.

use super::maps::Text;
use core::ffi::CStr;
use ebbtide_sys::file::{self, parse_number};
use ebbtide_sys::helper::Descriptor;

/// Time that tasks lost since the last look, in microseconds, from which on memory is short.
const LOST_US: u64 = 2000;
/// The same on the average of the last ten seconds.
const AVERAGE_PERCENT: u64 = 5;
/// A sixteenth of a limit left is short.
const PART: u64 = 16;
/// Limits at most: the cgroup, and its parents.
const GROUPS: usize = 6;

/// What it reads.
pub struct Need {
    pressure: Option<Descriptor>,
    lost_us: Option<u64>,
    machine: Option<Descriptor>,
    groups: [Option<(u64, Descriptor)>; GROUPS],
}

impl Need {
    /// Opens what there is.
    pub fn open() -> Self {
        let mut need = Self {
            pressure: Descriptor::open(c"/proc/pressure/memory").ok(),
            lost_us: None,
            machine: Descriptor::open(c"/proc/meminfo").ok(),
            groups: [None; GROUPS],
        };
        need.open_groups();
        need
    }

    /// Begins to look: what was lost long before does not count.
    pub fn begin(&mut self) {
        self.lost_us = None;
        self.has_lost_time();
    }

    fn open_groups(&mut self) {
        let mut buffer = [0; 2048];
        let Ok(text) = file::read(c"/proc/self/cgroup", &mut buffer) else {
            return;
        };
        let mut places = self.groups.iter_mut();
        for line in text.split(|&byte| byte == b'\n') {
            // "0::/path" is version 2, "7:memory:/path" is version 1.
            let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
            let (Some(controllers), Some(mut path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let mut named = controllers.split(|&byte| byte == b',');
            let (root, limit, usage): (&[u8], &[u8], &[u8]) = if controllers.is_empty() {
                (b"/sys/fs/cgroup", b"/memory.max", b"/memory.current")
            } else if named.any(|name| name == b"memory") {
                (
                    b"/sys/fs/cgroup/memory",
                    b"/memory.limit_in_bytes",
                    b"/memory.usage_in_bytes",
                )
            } else {
                continue;
            };
            while path.len() > 1 {
                if let Some(found) = open_group(root, path, limit, usage) {
                    let Some(place) = places.next() else { return };
                    *place = Some(found);
                }
                let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                path = &path[..slash];
            }
        }
    }

    /// Whether memory is short now.
    pub fn is_pressing(&mut self) -> bool {
        self.has_lost_time() || self.machine_is_full() || self.a_group_is_full()
    }

    fn has_lost_time(&mut self) -> bool {
        let mut buffer = [0; 256];
        let pressure = self.pressure.as_ref();
        let Some(text) = pressure.and_then(|pressure| pressure.read_start(&mut buffer)) else {
            return false;
        };
        let lost = number_after(text, b"total=");
        let before = core::mem::replace(&mut self.lost_us, lost);
        number_after(text, b"avg10=").is_some_and(|percent| percent >= AVERAGE_PERCENT)
            || lost
                .zip(before)
                .is_some_and(|(now, before)| now.saturating_sub(before) >= LOST_US)
    }

    fn machine_is_full(&self) -> bool {
        let mut buffer = [0; 512];
        let text = self
            .machine
            .as_ref()
            .and_then(|machine| machine.read_start(&mut buffer));
        text.is_some_and(|text| {
            number_after(text, b"MemAvailable:")
                .zip(number_after(text, b"MemTotal:"))
                .is_some_and(|(available, total)| available < total / PART)
        })
    }

    fn a_group_is_full(&self) -> bool {
        self.groups.iter().flatten().any(|(limit, usage)| {
            let mut buffer = [0; 64];
            usage
                .read_start(&mut buffer)
                .and_then(parse_number)
                .is_some_and(|usage| limit.saturating_sub(usage) < limit / PART)
        })
    }
}

/// A group with a limit: the limit, and where its usage stands.
fn open_group(root: &[u8], path: &[u8], limit: &[u8], usage: &[u8]) -> Option<(u64, Descriptor)> {
    let name = |file: &[u8]| {
        let mut name = Text::<512>::new();
        name.push(root)?;
        name.push(path)?;
        name.push(file)?;
        name.push(b"\0")?;
        Some(name)
    };
    let limit = name(limit)?;
    let limit = file::read_number(CStr::from_bytes_until_nul(limit.bytes()).ok()?)?;
    // Version 1 says "no limit" with a number near the top.
    if limit >= 1 << 60 {
        return None;
    }
    let usage = name(usage)?;
    let usage = Descriptor::open(CStr::from_bytes_until_nul(usage.bytes()).ok()?).ok()?;
    Some((limit, usage))
}

/// The number behind the first `key`.
fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let at = text.windows(key.len()).position(|window| window == key)?;
    parse_number(&text[at + key.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_keys() {
        let text = b"some avg10=0.12 avg60=0.00 avg300=0.00 total=4711\nfull total=3\n";
        assert_eq!(number_after(text, b"total="), Some(4711));
        assert_eq!(
            number_after(b"MemAvailable:   12 kB\n", b"MemAvailable:"),
            Some(12)
        );
        assert_eq!(number_after(text, b"none="), None);
    }
}
