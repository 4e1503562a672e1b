//! The record of a chunk.

use super::{NONE, PAGE_GRANULES, UNIT_GRANULES, UNIT_PAGES};
use crate::bits;

/// Levels of hints: runs of a page are 1 to 512 granules.
pub(super) const LEVELS: usize = PAGE_GRANULES.ilog2() as usize + 1;
/// Slots of lists: runs of a chunk are 0, or 1 to 32,768 granules.
pub(super) const SLOTS: usize = UNIT_GRANULES.ilog2() as usize + 2;

/// The state of a chunk, see [the module](super).
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// There is no memory behind it.
    #[default]
    Unused = 0,
    /// Areas are taken from it.
    Active,
    /// It was depopulated, and provides areas when no active chunk fits.
    Sidelined,
    /// It holds no area.
    Free,
    /// Its empty pages are on their way to the kernel.
    Isolated,
}

/// One chunk.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Chunk {
    pub(super) state: State,
    /// 1: for small areas.
    pub(super) small: bool,
    /// No free run is longer (`INV-PERCPU-3`).
    pub(super) longest: u16,
    pub(super) granules: u32,
    pub(super) next: u32,
    pub(super) prev: u32,
    /// Pages that may be resident: whole groups.
    pub(super) populated: u64,
    /// Pages that hold a part of an area.
    pub(super) occupied: u64,
    /// Of an isolated chunk: the pages that are being released.
    pub(super) claimed: u64,
    /// By level: pages with a hint of at least `1 << level`.
    pub(super) fits: [u64; LEVELS],
    /// By page: no free run inside it is longer.
    pub(super) runs: [u16; UNIT_PAGES],
    /// By page: granules in areas.
    pub(super) live: [u16; UNIT_PAGES],
    /// Granules in areas.
    pub(super) used: [u64; UNIT_GRANULES as usize / 64],
    /// First granules of areas that a caller has.
    pub(super) starts: [u64; UNIT_GRANULES as usize / 64],
    /// Last granules of areas.
    pub(super) ends: [u64; UNIT_GRANULES as usize / 64],
}

impl Chunk {
    /// Unused.
    pub const ZERO: Self = Self {
        state: State::Unused,
        small: false,
        longest: 0,
        granules: 0,
        next: 0,
        prev: 0,
        populated: 0,
        occupied: 0,
        claimed: 0,
        fits: [0; LEVELS],
        runs: [0; UNIT_PAGES],
        live: [0; UNIT_PAGES],
        used: [0; UNIT_GRANULES as usize / 64],
        starts: [0; UNIT_GRANULES as usize / 64],
        ends: [0; UNIT_GRANULES as usize / 64],
    };

    /// The current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Pages that may be resident, as a mask.
    pub fn populated(&self) -> u64 {
        self.populated
    }

    /// Populated pages in groups of `group` pages without a part of an area.
    pub(super) fn empty(&self, group: u32) -> u64 {
        bits::whole_groups(self.populated & !self.occupied, group)
    }

    /// How many populated pages are without a part of an area: in groups of such pages, and in other groups.
    pub(super) fn idle(&self, group: u32) -> (u32, u32) {
        let all = (self.populated & !self.occupied).count_ones();
        let empty = self.empty(group).count_ones();
        (empty, all - empty)
    }

    /// As [`Self::ZERO`], in place: a record is too large for a small stack.
    pub(super) fn reset(&mut self) {
        (self.state, self.small, self.granules) = (State::Unused, false, 0);
        (self.populated, self.occupied, self.claimed) = (0, 0, 0);
        self.live.fill(0);
        for map in [&mut self.used, &mut self.starts, &mut self.ends] {
            map.fill(0);
        }
    }

    /// The hints of a chunk without areas.
    pub(super) fn begin(&mut self) {
        self.longest = UNIT_GRANULES as u16;
        self.fits = [u64::MAX; LEVELS];
        self.runs = [PAGE_GRANULES as u16; UNIT_PAGES];
        (self.next, self.prev) = (NONE, NONE);
    }

    /// The slot of the chunk, among the lists of its state.
    pub(super) fn slot(&self) -> usize {
        slot(u32::from(self.longest))
    }
}

/// The slot of a run: 0 for none.
pub(super) fn slot(run: u32) -> usize {
    run.checked_ilog2().map_or(0, |level| level as usize + 1)
}
