//! Sources of memory pressure: limits, the headroom below them, and events.
//!
//! Each reading opens, reads and closes a small file: raw calls, no allocation, and no descriptor that stays (except
//! those of [`Level`] and [`EventChannel`]). The reading thread should have a descriptor table of its own, as workers
//! have: otherwise the program would see a descriptor number come and go. The helper may open no file later, so
//! [`Kept`] keeps its files open.
//!
//! | module | what it is |
//! |---|---|
//! | [`group`] | the memory cgroup of this process, version 1 or 2: limits, usage, hits |
//! | [`kept`] | the same files, kept open for a process that may open none later |
//! | [`source`] | PSI counters, `memory.pressure_level`, event channels of systemd's protocol |
//!
//! PSI is read, never waited for. A process that ends while it holds a trigger would end milliseconds later, because
//! the kernel waits until no reader of the trigger is left.

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

/// The memory that is available on the machine without swapping. `None`: `/proc/meminfo` does not say.
pub fn machine() -> Option<Room> {
    machine_in(MEMINFO)
}

pub(crate) fn machine_in(meminfo: impl Text) -> Option<Room> {
    let (mut total, mut available) = (None, None);
    meminfo.lines(|line| {
        let kib = |key: &[u8]| {
            let rest = line.strip_prefix(key)?;
            crate::file::parse_number(rest)?.checked_mul(1024)
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
    crate::file::parse_number(&text[second..]).map(|pages| pages * crate::vm::kernel_page() as u64)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn the_machine_has_some() {
        let room = machine().unwrap();
        let total = crate::process::memory_total().unwrap().0 as u64;
        assert!(room.left > 0 && room.left <= room.limit);
        assert!(room.limit <= total + (1 << 20));
        assert!(resident().unwrap() > 100 << 10);
    }

    /// A container can show any text.
    #[test]
    fn a_size_that_no_machine_has_is_not_taken() {
        let text = "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n";
        let path =
            std::env::temp_dir().join(std::format!("ebbtide-meminfo-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        assert_eq!(machine_in(name.as_c_str()), None);
        std::fs::remove_file(&path).unwrap();
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
