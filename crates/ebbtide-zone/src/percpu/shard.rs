//! A shard: takes and puts areas, and keeps its chunks on their lists.

use super::area::{Pages, for_pages};
use super::chunk::{SLOTS, slot};
use super::{Chunk, HIGH, NONE, SMALL_GRANULES, State, UNIT_GRANULES, UNIT_PAGES};
use crate::bits;
use crate::low_water::LowWater;

/// Most chunks of a slot that are tried although their hints guarantee no place.
const TRIES: u32 = 4;

/// The state of one shard, beside its chunks.
#[derive(Clone, Debug)]
pub struct ShardState {
    /// By kind and state (active, sidelined): lists by slot.
    pub(super) heads: [[[u32; SLOTS]; 2]; 2],
    pub(super) free: u32,
    pub(super) unused: u32,
    /// Chunks below this number belong to a parent's threads.
    pub(super) base: u32,
    /// Set together with `base`: those threads may have begun records behind `end`.
    pub(super) given_up: bool,
    /// Chunks that were ever opened.
    pub(super) end: u32,
    /// Where the round continues, and whether it is in its second pass.
    pub(super) cursor: u32,
    pub(super) trim: bool,
    /// Empty populated pages of active and free chunks; the least of them since the last round; and how many of
    /// them this round may take.
    pub(super) stock: u32,
    pub(super) low: LowWater<u32>,
    pub(super) budget: u32,
    pub(super) counters: Counters,
}

/// The counts of a shard.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Chunks with memory behind them.
    pub chunks: u32,
    /// The sidelined ones among them.
    pub sidelined: u32,
    /// The ones without areas among them.
    pub free: u32,
    /// Granules in areas.
    pub granules: u64,
    /// Pages marked populated.
    pub populated: u64,
    /// Of these, those in groups without a part of an area.
    pub empty: u64,
    /// Of these, those without a part of an area in groups that hold one.
    pub pinned: u64,
    /// Pages released so far.
    pub depopulated: u64,
}

/// An area taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Its chunk.
    pub chunk: u32,
    /// Its first granule.
    pub at: u32,
    /// Pages of it to populate, as a mask: marked already, each with its group.
    pub populate: u64,
}

/// An area without an owner that is not free yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Putting {
    /// Its chunk.
    pub chunk: u32,
    /// Its first granule.
    pub at: u32,
    /// Its length.
    pub granules: u32,
}

/// The address that was put is no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// No area begins there: there never was one, or it was freed.
    NotAnArea,
    /// The area was given up at a fork without handlers.
    Abandoned,
}

impl ShardState {
    /// Nothing opened.
    pub const NEW: Self = Self {
        heads: [[[NONE; SLOTS]; 2]; 2],
        free: NONE,
        unused: NONE,
        base: 0,
        given_up: false,
        end: 0,
        cursor: 0,
        trim: false,
        stock: 0,
        low: LowWater(0),
        budget: 0,
        counters: Counters {
            chunks: 0,
            sidelined: 0,
            free: 0,
            granules: 0,
            populated: 0,
            empty: 0,
            pinned: 0,
            depopulated: 0,
        },
    };

    /// Chunks from this on were never opened.
    pub fn end(&self) -> u32 {
        self.end
    }
}

/// A shard with its chunks, for as long as its lock is held.
pub struct Shard<'a> {
    pub(super) state: &'a mut ShardState,
    pub(super) chunks: &'a mut [Chunk],
    /// Pages that are populated and released together: those of a page of the kernel.
    pub(super) group: u32,
}

impl<'a> Shard<'a> {
    /// `chunks`: at least those below [`ShardState::end`]. Each page is populated and released by itself.
    pub fn new(state: &'a mut ShardState, chunks: &'a mut [Chunk]) -> Self {
        Self::with_group(state, chunks, 1)
    }

    /// As [`Self::new`], for a kernel whose pages have `group` of these pages: a power of two, always the same one.
    pub fn with_group(state: &'a mut ShardState, chunks: &'a mut [Chunk], group: u32) -> Self {
        debug_assert!(state.end as usize <= chunks.len());
        debug_assert!(group.is_power_of_two() && group as usize <= UNIT_PAGES);
        Self {
            state,
            chunks,
            group,
        }
    }

    /// Populated empty pages that rounds leave in the shard: whole groups.
    pub(super) fn high(&self) -> u32 {
        HIGH.next_multiple_of(self.group)
    }

    /// Takes an area of `n` granules at a multiple of `align` granules, a power of two up to a page. `None`:
    /// another chunk is needed, see [`Self::wanted`].
    pub fn take(&mut self, n: u32, align: u32) -> Option<Taken> {
        self.take_in(n, align, Pages::Any)
    }

    /// The same in populated pages only. The search is short, so it may miss a place.
    pub fn take_populated(&mut self, n: u32, align: u32) -> Option<Taken> {
        let taken = self.take_in(n, align, Pages::Populated);
        debug_assert!(taken.is_none_or(|taken| taken.populate == 0));
        taken
    }

    fn take_in(&mut self, n: u32, align: u32, within: Pages) -> Option<Taken> {
        debug_assert!((1..=UNIT_GRANULES).contains(&n) && align.is_power_of_two());
        let small = n <= SMALL_GRANULES;
        let found = self
            .search(small, false, n, align, within)
            .or_else(|| self.search(small, true, n, align, within));
        let (id, at) = found.or_else(|| self.take_free(small, n, align, within))?;
        let chunk = &mut self.chunks[id as usize];
        let (empty, pinned) = chunk.idle(self.group);
        let pages = chunk.mark(at, n);
        chunk.occupied |= pages;
        let populate = pages & !chunk.populated;
        let before = chunk.populated.count_ones();
        chunk.populated |= bits::touched_groups(pages, self.group);
        let populated = chunk.populated.count_ones() - before;
        let (left, pinned_now) = chunk.idle(self.group);
        let state = &mut self.state;
        state.stock -= empty - left;
        state.low.note(state.stock, false);
        let counters = &mut state.counters;
        counters.granules += u64::from(n);
        counters.empty -= u64::from(empty - left);
        counters.pinned = counters.pinned + u64::from(pinned_now) - u64::from(pinned);
        counters.populated += u64::from(populated);
        Some(Taken {
            chunk: id,
            at,
            populate,
        })
    }

    /// Searches the active or sidelined chunks of a kind. The chunk that is found becomes active.
    fn search(
        &mut self,
        small: bool,
        sidelined: bool,
        n: u32,
        align: u32,
        within: Pages,
    ) -> Option<(u32, u32)> {
        let lowest = slot(n);
        // No hint guarantees a place in populated pages.
        let sure = match within {
            Pages::Any => n + align - 1,
            Pages::Populated => u32::MAX,
        };
        for slot in lowest..SLOTS {
            let mut id = self.state.heads[usize::from(small)][usize::from(sidelined)][slot];
            let mut tries = 0;
            while id != NONE && tries < TRIES {
                let chunk = &mut self.chunks[id as usize];
                tries += u32::from(slot == lowest || u32::from(chunk.longest) < sure);
                let next = chunk.next;
                let listed = chunk.slot();
                let found = chunk.find(n, align, within);
                if let Some(at) = found {
                    if sidelined {
                        self.remove(id);
                        self.list(id, State::Active);
                    } else if self.chunks[id as usize].granules + n == UNIT_GRANULES {
                        self.unlink(id, listed);
                        self.chunks[id as usize].longest = 0;
                        self.link(id);
                    }
                    return Some((id, at));
                }
                if chunk.slot() != listed {
                    self.unlink(id, listed);
                    self.link(id);
                }
                id = next;
            }
        }
        None
    }

    fn take_free(&mut self, small: bool, n: u32, align: u32, within: Pages) -> Option<(u32, u32)> {
        let mut id = self.state.free;
        let mut tries = 0;
        let at = loop {
            if id == NONE || tries == TRIES {
                return None;
            }
            let chunk = &mut self.chunks[id as usize];
            if let Some(at) = chunk.find(n, align, within) {
                break at;
            }
            id = chunk.next;
            tries += 1;
        };
        self.remove(id);
        self.chunks[id as usize].small = small;
        if n == UNIT_GRANULES {
            self.chunks[id as usize].longest = 0;
        }
        self.list(id, State::Active);
        Some((id, at))
    }

    /// The number of the next chunk to open, if there are any left. Its memory and its record must be usable before
    /// [`Self::open`].
    pub fn wanted(&self, limit: u32) -> Option<u32> {
        let id = match self.state.unused {
            NONE => self.state.end,
            id => id,
        };
        (id < limit).then_some(id)
    }

    /// Opens chunk `id`, which was [`Self::wanted`], if it still is. `resident`: its memory is resident already.
    /// Returns whether it was opened.
    pub fn open(&mut self, id: u32, resident: bool) -> bool {
        if self.state.unused == id {
            self.unlink(id, 0);
        } else if self.state.unused == NONE && self.state.end == id {
            self.state.end += 1;
            if self.state.given_up {
                self.chunks[id as usize].reset();
            }
        } else {
            return false;
        }
        let chunk = &mut self.chunks[id as usize];
        chunk.begin();
        if resident {
            chunk.populated = u64::MAX;
            self.state.counters.populated += UNIT_PAGES as u64;
            self.state.counters.empty += UNIT_PAGES as u64;
        }
        self.state.counters.chunks += 1;
        self.list(id, State::Free);
        true
    }

    /// Takes an area from its owner. It has no owner and is not free until [`Self::put`], so that it can be zeroed
    /// without the lock.
    ///
    /// # Errors
    /// It is no area.
    pub fn disown(&mut self, id: u32, at: u32) -> Result<Putting, Misuse> {
        if id < self.state.base {
            return Err(Misuse::Abandoned);
        }
        if id >= self.state.end || at >= UNIT_GRANULES {
            return Err(Misuse::NotAnArea);
        }
        let chunk = &mut self.chunks[id as usize];
        let granules = match chunk.state {
            State::Unused => None,
            _ => chunk.area(at),
        };
        let granules = granules.ok_or(Misuse::NotAnArea)?;
        chunk.disown(at);
        Ok(Putting {
            chunk: id,
            at,
            granules,
        })
    }

    /// Frees an area that was disowned and is zeroed by now. Returns whether a group of pages became empty.
    pub fn put(&mut self, area: Putting) -> bool {
        let id = area.chunk;
        let chunk = &mut self.chunks[id as usize];
        let listed = chunk.slot();
        let (before, pinned) = chunk.idle(self.group);
        chunk.clear(area.at, area.granules);
        let (empty, pinned_now) = chunk.idle(self.group);
        let (state, slot, granules) = (chunk.state, chunk.slot(), chunk.granules);
        let counters = &mut self.state.counters;
        counters.granules -= u64::from(area.granules);
        counters.empty += u64::from(empty - before);
        counters.pinned = counters.pinned + u64::from(pinned_now) - u64::from(pinned);
        if state == State::Active {
            self.state.stock += empty - before;
        }
        match state {
            State::Active | State::Sidelined if granules == 0 => {
                self.unlink(id, listed);
                self.leave(id);
                self.list(id, State::Free);
            }
            State::Active | State::Sidelined if slot != listed => {
                self.unlink(id, listed);
                self.link(id);
            }
            _ => {}
        }
        empty != before
    }

    /// The counts of the shard.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Chunks from this on were never opened.
    pub fn end(&self) -> u32 {
        self.state.end
    }

    /// Pages of a chunk that may be resident, as a mask.
    pub fn populated(&self, id: u32) -> u64 {
        self.chunks[id as usize].populated
    }

    /// Empty populated pages that allocation finds first.
    pub fn stock(&self) -> u32 {
        self.state.stock
    }

    /// The pages of an area, as a mask.
    pub fn pages(area: Putting) -> u64 {
        for_pages(area.at, area.granules, |_, _| {})
    }

    /// Leaves all chunks so far to their owners: after a fork that skipped the handlers while other threads ran. A
    /// chunk that such a thread was opening was not counted yet, and no owner has an area of it. Chunks from the
    /// returned number on were never opened.
    pub fn abandon(&mut self) -> u32 {
        let base = self.state.end;
        *self.state = ShardState {
            base,
            given_up: true,
            end: base,
            cursor: base,
            ..ShardState::NEW
        };
        base
    }

    /// Puts a chunk that is on no list on the list of `state`.
    pub(super) fn list(&mut self, id: u32, state: State) {
        self.chunks[id as usize].state = state;
        let empty = self.chunks[id as usize].empty(self.group).count_ones();
        match state {
            State::Active | State::Free => self.state.stock += empty,
            State::Sidelined => self.state.counters.sidelined += 1,
            State::Isolated | State::Unused => {}
        }
        if state == State::Free {
            self.state.counters.free += 1;
        }
        self.link(id);
    }

    /// Takes a chunk off its list; undoes [`Self::list`].
    pub(super) fn remove(&mut self, id: u32) {
        self.unlink(id, self.chunks[id as usize].slot());
        self.leave(id);
    }

    /// Updates the counts when a chunk leaves a state.
    fn leave(&mut self, id: u32) {
        let chunk = &self.chunks[id as usize];
        let empty = chunk.empty(self.group).count_ones();
        match chunk.state {
            State::Active | State::Free => self.state.stock -= empty,
            State::Sidelined => self.state.counters.sidelined -= 1,
            State::Isolated | State::Unused => {}
        }
        if chunk.state == State::Free {
            self.state.counters.free -= 1;
        }
    }

    fn head(&mut self, id: u32, slot: usize) -> Option<&mut u32> {
        let chunk = &self.chunks[id as usize];
        let kind = usize::from(chunk.small);
        match chunk.state {
            State::Active => Some(&mut self.state.heads[kind][0][slot]),
            State::Sidelined => Some(&mut self.state.heads[kind][1][slot]),
            State::Free => Some(&mut self.state.free),
            State::Unused => Some(&mut self.state.unused),
            State::Isolated => None,
        }
    }

    fn link(&mut self, id: u32) {
        let slot = self.chunks[id as usize].slot();
        let Some(head) = self.head(id, slot) else {
            return;
        };
        let next = core::mem::replace(head, id);
        if next != NONE {
            self.chunks[next as usize].prev = id;
        }
        let chunk = &mut self.chunks[id as usize];
        (chunk.next, chunk.prev) = (next, NONE);
    }

    fn unlink(&mut self, id: u32, slot: usize) {
        let chunk = &self.chunks[id as usize];
        let (next, prev) = (chunk.next, chunk.prev);
        if next != NONE {
            self.chunks[next as usize].prev = prev;
        }
        if prev != NONE {
            self.chunks[prev as usize].next = next;
        } else if let Some(head) = self.head(id, slot) {
            *head = next;
        }
    }
}
