//! A shard: areas taken and put, chunks on their lists.

use super::area::for_pages;
use super::chunk::{SLOTS, slot};
use super::{Chunk, NONE, SMALL_GRANULES, State, UNIT_GRANULES, UNIT_PAGES};
use crate::low_water::LowWater;

/// Chunks of a slot whose hints promise nothing, tried at most.
const TRIES: u32 = 4;

/// What one shard has beside its chunks.
#[derive(Clone, Debug)]
pub struct ShardState {
    /// By kind and state (active, sidelined): lists by slot.
    pub(super) heads: [[[u32; SLOTS]; 2]; 2],
    pub(super) free: u32,
    pub(super) unused: u32,
    /// Chunks below this are left to a parent's threads.
    pub(super) base: u32,
    /// Set with it: those threads may have begun records behind `end`.
    pub(super) given_up: bool,
    /// Chunks that were ever opened.
    pub(super) end: u32,
    /// Where the round goes on, and whether it is at its second pass.
    pub(super) cursor: u32,
    pub(super) trim: bool,
    /// Empty populated pages of active and free chunks; the fewest since the round before; and how many of them
    /// this round may take.
    pub(super) stock: u32,
    pub(super) low: LowWater<u32>,
    pub(super) budget: u32,
    pub(super) counters: Counters,
}

/// What a shard holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Chunks with memory behind them.
    pub chunks: u32,
    /// Of those, sidelined ones.
    pub sidelined: u32,
    /// Of those, ones without areas.
    pub free: u32,
    /// Granules in areas.
    pub granules: u64,
    /// Pages marked populated.
    pub populated: u64,
    /// Of those, pages without a part of an area.
    pub empty: u64,
    /// Pages given back so far.
    pub depopulated: u64,
}

/// An area taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Its chunk.
    pub chunk: u32,
    /// Its first granule.
    pub at: u32,
    /// Pages of it to populate, as a mask: marked already.
    pub populate: u64,
}

/// An area that nobody has any more and that is not free yet.
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

/// What was put is no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// No area begins there: never one, or freed.
    NotAnArea,
    /// It was given up at a fork without handlers.
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
}

impl<'a> Shard<'a> {
    /// `chunks`: at least those below [`ShardState::end`].
    pub fn new(state: &'a mut ShardState, chunks: &'a mut [Chunk]) -> Self {
        debug_assert!(state.end as usize <= chunks.len());
        Self { state, chunks }
    }

    /// Takes an area of `n` granules at a multiple of `align` of them, a power of two up to a page. `None`: a
    /// chunk is wanted, see [`Self::wanted`].
    pub fn take(&mut self, n: u32, align: u32) -> Option<Taken> {
        debug_assert!((1..=UNIT_GRANULES).contains(&n) && align.is_power_of_two());
        let small = n <= SMALL_GRANULES;
        let found = self
            .search(small, false, n, align)
            .or_else(|| self.search(small, true, n, align));
        let (id, at) = found.or_else(|| self.take_free(small, n, align))?;
        let chunk = &mut self.chunks[id as usize];
        let before = chunk.occupied;
        let pages = chunk.mark(at, n);
        chunk.occupied |= pages;
        let stocked = chunk.populated & pages & !before;
        let populate = pages & !chunk.populated;
        chunk.populated |= populate;
        let state = &mut self.state;
        state.stock -= stocked.count_ones();
        state.low.note(state.stock, false);
        state.counters.granules += u64::from(n);
        state.counters.empty -= u64::from(stocked.count_ones());
        state.counters.populated += u64::from(populate.count_ones());
        Some(Taken {
            chunk: id,
            at,
            populate,
        })
    }

    /// Looks through the active or sidelined chunks of a kind. What is found is active.
    fn search(&mut self, small: bool, sidelined: bool, n: u32, align: u32) -> Option<(u32, u32)> {
        let lowest = slot(n);
        let sure = n + align - 1;
        for slot in lowest..SLOTS {
            let mut id = self.state.heads[usize::from(small)][usize::from(sidelined)][slot];
            let mut tries = 0;
            while id != NONE && tries < TRIES {
                let chunk = &mut self.chunks[id as usize];
                tries += u32::from(slot == lowest || u32::from(chunk.longest) < sure);
                let next = chunk.next;
                let listed = chunk.slot();
                let found = chunk.find(n, align);
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

    fn take_free(&mut self, small: bool, n: u32, align: u32) -> Option<(u32, u32)> {
        let id = self.state.free;
        if id == NONE {
            return None;
        }
        let at = self.chunks[id as usize].find(n, align)?;
        self.remove(id);
        self.chunks[id as usize].small = small;
        if n == UNIT_GRANULES {
            self.chunks[id as usize].longest = 0;
        }
        self.list(id, State::Active);
        Some((id, at))
    }

    /// The number that the next opened chunk gets, if there are any left: its memory and its record must be
    /// usable before [`Self::open`].
    pub fn wanted(&self, limit: u32) -> Option<u32> {
        let id = match self.state.unused {
            NONE => self.state.end,
            id => id,
        };
        (id < limit).then_some(id)
    }

    /// Opens chunk `id`, which was [`Self::wanted`], if it still is. `resident`: its memory is there already.
    /// Whether it was opened.
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

    /// Takes an area from whoever has it: it is neither its nor free until [`Self::put`], so that it can be
    /// zeroed without the lock.
    ///
    /// # Errors
    /// It is none.
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

    /// Frees what was disowned, zeroed by now. Whether a page became empty.
    pub fn put(&mut self, area: Putting) -> bool {
        let id = area.chunk;
        let chunk = &mut self.chunks[id as usize];
        let listed = chunk.slot();
        let empty = chunk.clear(area.at, area.granules);
        let (state, slot, granules) = (chunk.state, chunk.slot(), chunk.granules);
        let counters = &mut self.state.counters;
        counters.granules -= u64::from(area.granules);
        counters.empty += u64::from(empty.count_ones());
        if state == State::Active {
            self.state.stock += empty.count_ones();
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
        empty != 0
    }

    /// What it holds.
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

    /// Leaves all chunks so far to whoever has them: after a fork that skipped the handlers while other threads
    /// ran. What such a thread was opening was not counted yet, and nobody has an area of it. Chunks from the number that
    /// this returns on were never opened.
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

    /// Puts a chunk that is on no list on that of `state`.
    pub(super) fn list(&mut self, id: u32, state: State) {
        self.chunks[id as usize].state = state;
        let empty = self.chunks[id as usize].empty().count_ones();
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

    /// The accounts of leaving a state.
    fn leave(&mut self, id: u32) {
        let chunk = &self.chunks[id as usize];
        let empty = chunk.empty().count_ones();
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
