//! Turns: while memory is not short, few helpers of a user work at a time.
//!
//! A file of locks in a directory that is the user's alone: one byte a slot, half as many as there are CPUs. A
//! helper takes a free slot, or waits in the kernel for one. The locks go with their holder. No such file to be
//! had: no turns.

use crate::maps::Text;
use core::ffi::CStr;
use ebbtide_sys::file;
use ebbtide_sys::helper::{self, Descriptor};

const NAME: &CStr = c"ebbtide-exit.lock";

/// The slots.
#[derive(Clone, Copy)]
pub struct Turns {
    file: Option<Descriptor>,
    slots: u64,
}

impl Turns {
    /// Opens the file, or makes it.
    pub fn open() -> Self {
        Self {
            file: open(),
            slots: (online_cpus() / 2).max(1),
        }
    }

    /// Waits for a slot. `at`: where to look first.
    pub fn wait(&self, at: u64) {
        let Some(file) = self.file else { return };
        let mut slots = (0..self.slots).map(|turn| (at + turn) % self.slots);
        if !slots.any(|slot| file.lock_byte(slot, false)) {
            file.lock_byte(at % self.slots, true);
        }
    }
}

fn open() -> Option<Descriptor> {
    let given = ebbtide_sys::process::environment(b"XDG_RUNTIME_DIR", |value| {
        let mut path = Text::<256>::new();
        path.push(value)?;
        path.push(b"\0")?;
        (value.first() == Some(&b'/')).then_some(path)
    });
    if let Some(file) = given.flatten().and_then(|path| open_in(&path, false)) {
        return Some(file);
    }
    let user = u64::from(helper::user());
    let places: [(&[u8], bool); 3] = [
        (b"/run/user/", false),
        (b"/dev/shm/ebbtide-", true),
        (b"/tmp/ebbtide-", true),
    ];
    places.iter().find_map(|&(start, make)| {
        let mut path = Text::<64>::new();
        path.push(start)?;
        path.push_number(user)?;
        path.push(b"\0")?;
        open_in(&path, make)
    })
}

fn open_in<const N: usize>(path: &Text<N>, make: bool) -> Option<Descriptor> {
    let path = CStr::from_bytes_until_nul(path.bytes()).ok()?;
    helper::open_private(path, NAME, make).ok()
}

fn online_cpus() -> u64 {
    let mut buffer = [0; 1024];
    file::read(c"/sys/devices/system/cpu/online", &mut buffer).map_or(2, count)
}

/// CPUs in a list like `0-3,7`.
fn count(list: &[u8]) -> u64 {
    list.split(|&byte| byte == b',')
        .filter_map(|range| {
            let first = file::parse_number(range)?;
            let dash = range.iter().position(|&byte| byte == b'-');
            let last = dash.map_or(Some(first), |at| file::parse_number(&range[at + 1..]))?;
            Some(last.saturating_sub(first) + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_cpus() {
        assert_eq!(super::count(b"0\n"), 1);
        assert_eq!(super::count(b"0-3,7,9-10\n"), 7);
        assert_eq!(super::count(b""), 0);
    }
}
