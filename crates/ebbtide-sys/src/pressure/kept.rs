//! Pressure files that stay open from the start, for the exit helper: it may open no file later.
//!
//! These are the same files that workers read, found and read in the same way. A process that is moved to another
//! group still reads the files of its old group.

use super::group::{Figure, Level, Version, nearest};
use super::source::{Stalled, stalled_in};
use super::{Groups, MEMINFO, Psi, Room, machine_in};
use crate::file::{Descriptor, PathText, Text};

/// Maximum number of levels: the own group, and the groups above it with a limit.
const LEVELS: usize = 8;

/// See the module's header.
pub struct Kept {
    machine: Option<Descriptor>,
    levels: [Option<KeptLevel>; LEVELS],
    psi: Option<Descriptor>,
    psi_is_machines: bool,
}

struct KeptLevel {
    version: Version,
    files: [Option<Descriptor>; 4],
}

impl Kept {
    /// Opens the files that exist.
    pub fn open() -> Self {
        let groups = Groups::find();
        let mut levels = [const { None }; LEVELS];
        if let Some(group) = &groups.memory {
            let version = group.version();
            for (place, paths) in levels.iter_mut().zip(group.to_keep()) {
                let files = paths.map(|path| path.as_ref().and_then(open));
                *place = Some(KeptLevel { version, files });
            }
        }
        let psi = Psi::own(groups.unified.as_ref());
        Self {
            machine: Descriptor::open(MEMINFO, libc::O_RDONLY).ok(),
            levels,
            psi_is_machines: psi.as_ref().is_some_and(|(_, is_machines)| *is_machines),
            psi: psi.and_then(|(psi, _)| open(psi.path())),
        }
    }

    /// The machine's available memory.
    pub fn machine(&self) -> Option<Room> {
        machine_in(self.machine.as_ref()?)
    }

    /// The limit with the least headroom of the process's groups.
    pub fn group(&self) -> Option<Room> {
        nearest(self.levels.iter().flatten())
    }

    /// Microseconds for which tasks of the process's group, or of the machine, have stalled.
    pub fn stalled_us(&self, who: Stalled) -> Option<u64> {
        stalled_in(&self.psi.as_ref()?, who)
    }

    /// Whether the stalls are those of the whole machine.
    pub fn stalls_are_machines(&self) -> bool {
        self.psi_is_machines
    }
}

impl Level for &KeptLevel {
    fn text(&self, figure: Figure) -> Option<impl Text> {
        self.files[figure as usize].as_ref()
    }

    fn version(&self) -> Version {
        self.version
    }
}

fn open(path: &PathText) -> Option<Descriptor> {
    Descriptor::open(path.as_c_str(), libc::O_RDONLY).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both readers return the same, except for changes in between.
    #[test]
    fn what_is_kept_says_what_is_read() {
        let kept = Kept::open();
        for _ in 0..2 {
            let (machine, read) = (kept.machine().unwrap(), crate::pressure::machine().unwrap());
            assert_eq!(machine.limit, read.limit);
            assert!(machine.left.abs_diff(read.left) < read.limit / 4);
            let read = Groups::find().memory.and_then(|group| group.nearest());
            assert_eq!(
                kept.group().map(|room| room.limit),
                read.map(|room| room.limit)
            );
        }
        let psi = Psi::own(Groups::find().unified.as_ref());
        let (first, second) = (
            kept.stalled_us(Stalled::Some),
            kept.stalled_us(Stalled::Some),
        );
        assert_eq!(first.is_some(), psi.is_some());
        assert!(first <= second);
    }
}
