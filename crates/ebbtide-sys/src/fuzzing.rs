//! The readers of the kernel's text, over text that the caller passes in place of a file. For fuzz targets only.

use crate::file::{LINE_BYTES, PathText, Text, each_line};
use crate::pressure::group::{Figure, Level, Version, nearest, parse_mount};
use crate::pressure::source::{Stalled, Trigger, decode, stalled_in};
use crate::pressure::{Room, machine_in};
use crate::process::CpuSet;

/// A text that reading returns in pieces.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The text.
    pub text: &'a [u8],
    /// Bytes of a piece, at least 1.
    pub piece: usize,
}

impl Text for Given<'_> {
    fn lines(&self, each: impl FnMut(&[u8]) -> bool) -> bool {
        let mut rest = self.text;
        let fill = |buffer: &mut [u8]| {
            let (now, later) = rest.split_at(self.piece.min(rest.len()).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
            Ok(now.len())
        };
        each_line(&mut [0; LINE_BYTES], fill, each)
    }
}

/// The files of a cgroup: limit, high, usage and `memory.stat`.
pub struct GivenLevel<'a>(pub Version, pub [Given<'a>; 4]);

impl Level for GivenLevel<'_> {
    fn text(&self, figure: Figure) -> Option<impl Text> {
        let at = Figure::ALL.iter().position(|&other| other == figure);
        at.map(|at| self.1[at])
    }

    fn version(&self) -> Version {
        self.0
    }
}

/// The limit with the least headroom.
pub fn room(levels: [GivenLevel; 2]) -> Option<Room> {
    nearest(levels.into_iter())
}

/// `/proc/meminfo`.
pub fn machine(meminfo: Given) -> Option<Room> {
    machine_in(meminfo)
}

/// A PSI file: the stalls of some and of all tasks.
pub fn stalled_us(psi: Given) -> [Option<u64>; 2] {
    [Stalled::Some, Stalled::Full].map(|who| stalled_in(&psi, who))
}

/// A PSI trigger.
pub fn trigger(text: &[u8]) -> Option<Trigger> {
    Trigger::parse(text)
}

/// Base64.
pub fn decoded(text: &[u8]) -> Option<PathText> {
    decode(text)
}

/// A line of `/proc/self/mountinfo`: root and mount point.
pub fn mount(line: &[u8], version: Version) -> Option<(&[u8], &[u8])> {
    parse_mount(line, version)
}

/// A list of CPUs.
pub fn cpus(list: &[u8]) -> CpuSet {
    CpuSet::parse(list)
}
