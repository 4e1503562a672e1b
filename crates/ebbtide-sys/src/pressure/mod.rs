//! What tells of need for memory: limits and how far away they are, and events.
//!
//! All of it is read from small files, each opened, read and closed: raw calls, no allocation, no
//! descriptor that stays (but those of [`Level`] and [`EventChannel`]). Whoever looks should have a descriptor
//! table of its own, as workers have: the program's would otherwise see a number come and go. The helper may open
//! nothing later: [`Kept`] has its files open.
//!
//! | module | what it is |
//! |---|---|
//! | [`group`] | the memory cgroup of this process, version 1 or 2: limits, usage, hits |
//! | [`kept`] | what of it a process keeps open that may open nothing later |
//! | [`source`] | PSI counters, `memory.pressure_level`, what systemd's protocol names |
//!
//! PSI is read, never waited for: a process that ends while it holds a trigger ends milliseconds later,
//! because the kernel waits for readers of it to be gone.

pub mod group;
pub mod kept;
pub mod source;

use crate::file::Text;
use core::ffi::CStr;

pub use ebbtide_zone::plan::pressure::Room;
pub use group::{Group, Groups};
pub use kept::Kept;
pub use source::{EventChannel, Level, PressureEnvironment, Psi, Watch};

const MEMINFO: &CStr = c"/proc/meminfo";

/// What the machine has available without swapping. `None`: `/proc/meminfo` does not say.
pub fn machine() -> Option<Room> {
    machine_in(MEMINFO)
}

fn machine_in(meminfo: impl Text) -> Option<Room> {
    let (mut total, mut available) = (None, None);
    meminfo.lines(|line| {
        let kib = |key: &[u8]| {
            let rest = line.strip_prefix(key)?;
            crate::file::parse_number(rest).map(|kib| kib * 1024)
        };
        total = total.or_else(|| kib(b"MemTotal:"));
        available = available.or_else(|| kib(b"MemAvailable:"));
        total.is_none() || available.is_none()
    });
    Some(Room::new(available?, total?))
}

/// Bytes of this process that are resident.
pub fn resident() -> Option<u64> {
    let mut buffer = [0; 128];
    let text = crate::file::read(c"/proc/self/statm", &mut buffer).ok()?;
    let second = text.iter().position(|&byte| byte == b' ')?;
    crate::file::parse_number(&text[second..]).map(|pages| pages * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_some() {
        let room = machine().unwrap();
        let total = crate::process::memory_total().unwrap().0 as u64;
        assert!(room.left > 0 && room.left <= room.limit);
        assert!(room.limit <= total + (1 << 20));
        assert!(resident().unwrap() > 100 << 10);
    }

    #[test]
    fn low_marks() {
        let low_mark = |limit| Room::new(0, limit).low_mark();
        assert_eq!(low_mark(16 << 20), 4 << 20);
        assert_eq!(low_mark(64 << 20), 8 << 20);
        assert_eq!(low_mark(4 << 30), 256 << 20);
        assert_eq!(low_mark(64 << 30), 512 << 20);
    }

    #[test]
    fn the_nearer_one_counts() {
        let room = |left| Room::new(left, 100);
        assert_eq!(room(5).nearer(Some(room(3))), room(3));
        assert_eq!(room(5).nearer(Some(room(7))), room(5));
        assert_eq!(room(5).nearer(None), room(5));
        // 236 MiB above its low mark, and 112 MiB below it.
        let room = |left: u64, limit: u64| Room::new(left << 20, limit << 20);
        let (small, large) = (room(300, 1024), room(400, 8192));
        let both = Room {
            least: 300 << 20,
            ..large
        };
        assert_eq!(small.nearer(Some(large)), both);
        assert_eq!(large.nearer(Some(small)), both);
    }
}
