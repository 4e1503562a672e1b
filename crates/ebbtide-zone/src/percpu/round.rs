//! Depopulation: chooses the pages to release, and the state of their chunks afterwards.

use super::{Chunk, Shard, State};
use crate::bits;

/// The second pass leaves one empty page for each this many populated pages.
const TRIM: u64 = 20;

/// Pages of an isolated chunk on their way to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Claimed {
    /// The chunk.
    pub chunk: u32,
    /// The pages, as a mask.
    pub pages: u64,
    /// The chunk stays active: only the stock was too large.
    stays: bool,
}

/// The pages that a round may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Free chunks only.
    FreeChunks,
    /// Pages that have been empty since the last round, as far as the stock is above [`HIGH`](super::HIGH).
    Due,
    /// Every empty page.
    Everything,
}

impl Shard<'_> {
    /// Begins a round.
    pub fn begin_round(&mut self, scope: Scope) {
        let high = self.high();
        let state = &mut *self.state;
        let unused = state.low.note(state.stock, true);
        state.budget = match scope {
            Scope::Everything => u32::MAX,
            _ => unused.saturating_sub(high),
        };
        state.cursor = state.base;
        state.trim = false;
    }

    /// Isolates the next chunk and claims pages of it: at most `runs` runs, from the end. `None`: the round is
    /// over.
    pub fn claim(&mut self, scope: Scope, runs: u32) -> Option<Claimed> {
        self.claim_free(runs).or_else(|| match scope {
            Scope::FreeChunks => None,
            _ => self.claim_next(scope, runs),
        })
    }

    /// One of the chunks without areas may stay.
    fn claim_free(&mut self, runs: u32) -> Option<Claimed> {
        while self.state.counters.free > 1 {
            let id = self.state.free;
            let chunk = &self.chunks[id as usize];
            let populated = chunk.populated;
            if populated != 0 && self.state.budget == 0 {
                return None;
            }
            self.remove(id);
            if populated != 0 {
                return Some(self.isolate(id, last_runs(populated, runs), false));
            }
            self.retire(id);
        }
        None
    }

    fn claim_next(&mut self, scope: Scope, runs: u32) -> Option<Claimed> {
        loop {
            if self.state.cursor >= self.state.end {
                if self.state.trim || scope == Scope::Everything {
                    return None;
                }
                (self.state.trim, self.state.cursor) = (true, self.state.base);
                continue;
            }
            let id = self.state.cursor;
            if let Some(pages) = self.due(id, scope) {
                self.remove(id);
                let stays = self.state.trim;
                return Some(self.isolate(id, last_runs(pages, runs), stays));
            }
            self.state.cursor += 1;
        }
    }

    /// The pages of a chunk that may be released.
    fn due(&self, id: u32, scope: Scope) -> Option<u64> {
        let chunk = &self.chunks[id as usize];
        let empty = chunk.empty(self.group);
        let count = empty.count_ones();
        let stocked = match chunk.state {
            State::Active | State::Free => true,
            State::Sidelined => false,
            State::Isolated | State::Unused => return None,
        };
        if scope == Scope::Everything || count == 0 {
            return (count > 0).then_some(empty);
        }
        let (state, high) = (&*self.state, self.high());
        let (keep, most) = if stocked {
            let many = count * 4 >= chunk.populated.count_ones();
            let trim = state.trim && u64::from(state.stock) * TRIM > state.counters.populated;
            if state.stock <= high || !(many || trim) {
                return None;
            }
            (high.saturating_sub(state.stock - count), state.budget)
        } else {
            (high.saturating_sub(state.stock), u32::MAX)
        };
        // The low ones stay, so that areas collect at the front.
        let pages = last_bits(without_first(empty, keep), most);
        (pages != 0).then_some(pages)
    }

    fn isolate(&mut self, id: u32, pages: u64, stays: bool) -> Claimed {
        let chunk = &mut self.chunks[id as usize];
        if chunk.state != State::Sidelined {
            self.state.budget = self.state.budget.saturating_sub(pages.count_ones());
        }
        chunk.state = State::Isolated;
        chunk.claimed = pages;
        Claimed {
            chunk: id,
            pages,
            stays,
        }
    }

    /// Puts a claimed chunk back; `released` of its claimed pages were released.
    pub fn finish(&mut self, claimed: Claimed, released: u64) {
        let id = claimed.chunk;
        let chunk = &mut self.chunks[id as usize];
        debug_assert!(chunk.state == State::Isolated && chunk.claimed == claimed.pages);
        debug_assert!(released & !claimed.pages == 0 && released & chunk.occupied == 0);
        let released = released & chunk.populated;
        chunk.populated &= !released;
        chunk.claimed = 0;
        let (free, populated) = (chunk.granules == 0, chunk.populated);
        let empty = chunk.empty(self.group);
        let count = u64::from(released.count_ones());
        let counters = &mut self.state.counters;
        counters.populated -= count;
        counters.empty -= count;
        counters.depopulated += count;
        // The stock fell below its required minimum, or no more of it is due.
        let short = self.state.stock < self.high() || self.state.budget == 0;
        if free && populated == 0 && self.state.counters.free > 0 {
            self.retire(id);
        } else if free {
            self.list(id, State::Free);
        } else if claimed.stays || empty != 0 && short {
            self.list(id, State::Active);
        } else {
            self.list(id, State::Sidelined);
        }
    }

    /// A chunk without areas and pages becomes unused.
    fn retire(&mut self, id: u32) {
        self.chunks[id as usize].begin();
        self.state.counters.chunks -= 1;
        self.list(id, State::Unused);
    }

    /// About how many pages a later round will find; 0: none.
    pub fn due_pages(&self, scope: Scope) -> u64 {
        let counters = &self.state.counters;
        let stock = u64::from(self.state.stock);
        let due = match scope {
            Scope::FreeChunks => counters.free > 1,
            _ => {
                stock > u64::from(self.high()).max(counters.populated / TRIM)
                    || counters.free > 1
                    || counters.empty > stock
            }
        };
        if due { counters.empty.max(1) } else { 0 }
    }

    /// Called in a forked child: chunks that the parent's threads had isolated come back, as populated as before.
    pub fn take_back(&mut self) {
        for id in self.state.base..self.state.end {
            let Chunk { state, claimed, .. } = self.chunks[id as usize];
            if state == State::Isolated {
                let claimed = Claimed {
                    chunk: id,
                    pages: claimed,
                    stays: true,
                };
                self.finish(claimed, 0);
            }
        }
    }
}

/// `bits` without the `n` lowest ones.
fn without_first(mut bits: u64, n: u32) -> u64 {
    for _ in 0..n {
        bits &= bits.wrapping_sub(1);
    }
    bits
}

/// The `n` highest bits.
fn last_bits(bits: u64, n: u32) -> u64 {
    without_first(bits, bits.count_ones().saturating_sub(n))
}

/// The `n` highest runs of bits.
fn last_runs(bits: u64, n: u32) -> u64 {
    let last = runs(bits).take(n as usize);
    last.fold(0, |all, (first, count)| all | bits::mask(first, count))
}

/// The runs of a mask of pages, the last one first: first page and number of pages.
pub fn runs(mut pages: u64) -> impl Iterator<Item = (u32, u32)> {
    core::iter::from_fn(move || {
        let lead = pages.leading_zeros();
        let count = pages.checked_shl(lead)?.leading_ones();
        let first = u64::BITS - lead - count;
        pages &= !bits::mask(first, count);
        Some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_runs_of_a_mask() {
        assert_eq!(last_runs(0b1011_0110, 1), 0b1000_0000);
        assert_eq!(last_runs(0b1011_0110, 2), 0b1011_0000);
        assert_eq!(last_runs(0b1011_0110, 9), 0b1011_0110);
        assert_eq!(last_runs(u64::MAX, 1), u64::MAX);
        assert_eq!(last_runs(0, 3), 0);
        assert_eq!(last_bits(0b1011, 2), 0b1010);
        assert_eq!(last_bits(0b1011, 9), 0b1011);
    }

    #[test]
    fn runs_come_from_the_end() {
        assert!(runs(0b1011_0110).eq([(7, 1), (4, 2), (1, 2)]));
        assert!(runs(u64::MAX).eq([(0, 64)]));
        assert!(runs(0).next().is_none());
    }
}
