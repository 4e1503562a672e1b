//! Recounts a shard: checks every invariant of the module's header.

use super::{Chunk, Counters, NONE, PAGE_GRANULES, Shard, State, UNIT_GRANULES, UNIT_PAGES};
use crate::bits;

impl Shard<'_> {
    /// Checks every invariant of [the module](super). Reads the whole shard.
    ///
    /// # Errors
    /// The violated invariant, and its chunk.
    pub fn check_invariants(&self) -> Result<(), (&'static str, u32)> {
        let (mut counters, mut stock) = (Counters::default(), 0);
        for id in self.state.base..self.state.end {
            let chunk = &self.chunks[id as usize];
            chunk.check().map_err(|what| (what, id))?;
            if chunk.state == State::Unused {
                continue;
            }
            counters.chunks += 1;
            counters.sidelined += u32::from(chunk.state == State::Sidelined);
            counters.free += u32::from(chunk.state == State::Free);
            counters.granules += u64::from(chunk.granules);
            counters.populated += u64::from(chunk.populated.count_ones());
            let (empty, pinned) = chunk.idle(self.group);
            counters.empty += u64::from(empty);
            counters.pinned += u64::from(pinned);
            if matches!(chunk.state, State::Active | State::Free) {
                stock += empty;
            }
            let is_whole = |pages| bits::whole_groups(pages, self.group) == pages;
            if !is_whole(chunk.populated) || !is_whole(chunk.claimed) {
                return Err(("INV-PERCPU-9", id));
            }
        }
        counters.depopulated = self.state.counters.depopulated;
        if counters != self.state.counters || stock != self.state.stock {
            return Err(("INV-PERCPU-4: counters", NONE));
        }
        self.check_lists()
    }

    fn check_lists(&self) -> Result<(), (&'static str, u32)> {
        let mut listed = 0;
        let mut walk = |head: u32, fits: &dyn Fn(&Chunk) -> bool| {
            let (mut id, mut prev) = (head, NONE);
            while id != NONE {
                let chunk = &self.chunks[id as usize];
                if !fits(chunk) || chunk.prev != prev || listed > self.chunks.len() {
                    return Err(("INV-PERCPU-4: lists", id));
                }
                listed += 1;
                (prev, id) = (id, chunk.next);
            }
            Ok(())
        };
        for (kind, states) in self.state.heads.iter().enumerate() {
            for (sidelined, slots) in states.iter().enumerate() {
                let state = [State::Active, State::Sidelined][sidelined];
                for (slot, &head) in slots.iter().enumerate() {
                    walk(head, &|chunk| {
                        chunk.state == state
                            && chunk.slot() == slot
                            && usize::from(chunk.small) == kind
                    })?;
                }
            }
        }
        walk(self.state.free, &|chunk| chunk.state == State::Free)?;
        walk(self.state.unused, &|chunk| chunk.state == State::Unused)?;
        let all = &self.chunks[self.state.base as usize..self.state.end as usize];
        let isolated = all.iter().filter(|chunk| chunk.state == State::Isolated);
        if listed + isolated.count() != all.len() {
            return Err(("INV-PERCPU-4: a chunk is on no list", NONE));
        }
        Ok(())
    }
}

impl Chunk {
    fn check(&self) -> Result<(), &'static str> {
        if self.state == State::Unused {
            let bare = self.granules == 0 && self.populated == 0 && self.occupied == 0;
            return bare.then_some(()).ok_or("INV-PERCPU-4: unused");
        }
        let bit = |map: &[u64], at: u32| map[(at / 64) as usize] >> (at % 64) & 1 == 1;
        let (mut longest, mut run) = (0, 0);
        let (mut in_page, mut live, mut all) = (0, 0, 0);
        // Whether an area is open, and whether it has an owner.
        let mut open = false;
        for at in 0..UNIT_GRANULES {
            let (used, start, end) = (
                bit(&self.used, at),
                bit(&self.starts, at),
                bit(&self.ends, at),
            );
            if !used && (start || end || open) || start && open {
                return Err("INV-PERCPU-1: areas");
            }
            open = used && !end;
            (run, in_page) = if used { (0, 0) } else { (run + 1, in_page + 1) };
            live += u32::from(used);
            longest = longest.max(run);
            let page = (at / PAGE_GRANULES) as usize;
            if in_page > u32::from(self.runs[page]) || longest > u32::from(self.longest) {
                return Err("INV-PERCPU-3: hints");
            }
            if at % PAGE_GRANULES == PAGE_GRANULES - 1 {
                let occupied = self.occupied >> page & 1 == 1;
                if live != u32::from(self.live[page]) || occupied != (live > 0) {
                    return Err("INV-PERCPU-1: counts of a page");
                }
                all += live;
                (live, in_page) = (0, 0);
            }
        }
        for page in 0..UNIT_PAGES {
            for (level, pages) in self.fits.iter().enumerate() {
                if pages >> page & 1 != u64::from(u32::from(self.runs[page]) >= 1 << level) {
                    return Err("INV-PERCPU-3: levels");
                }
            }
        }
        if all != self.granules {
            return Err("INV-PERCPU-1: count of the chunk");
        }
        if self.occupied & !self.populated != 0 {
            return Err("INV-PERCPU-2");
        }
        if self.claimed & (self.occupied | !self.populated) != 0
            || (self.state != State::Isolated && self.claimed != 0)
        {
            return Err("INV-PERCPU-5");
        }
        if self.state == State::Free && self.granules != 0 {
            return Err("INV-PERCPU-4: free");
        }
        Ok(())
    }
}
