//! The recount: every invariant of the crate's header, checked the slow way.

use crate::bits;
use crate::frame::{BLOCK_FRAMES, Block, Frame};
use crate::state::{BUCKETS, Zone, bit_of};

/// An invariant that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant, and how it is violated.
    pub what: &'static str,
    /// The block, or the zone's first block if the whole zone is concerned.
    pub block: Block,
}

/// The state of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameState {
    /// Free and not resident.
    Clean,
    /// Free, resident, with old content.
    Dirty,
    /// Free, and given `MADV_FREE`.
    Lazy,
    /// With its owner, or one of the frames of a claim in a partial block.
    Taken,
    /// In a claimed whole block.
    Claimed,
    /// In a frozen block.
    Frozen,
    /// Not opened, or not in this zone.
    Unopened,
}

#[derive(Default)]
struct Recount {
    free: u64,
    dirty: u64,
    lazy: u64,
    claimed: u64,
    pinned_dirty: u64,
    pinned_lazy: u64,
    free_blocks: u32,
    resident_blocks: u32,
    listed: u32,
}

impl Zone<'_> {
    /// The state of `frame`. O(1); for tests and reports.
    pub fn frame_state(&self, frame: Frame) -> FrameState {
        let Some(index) = self.index(frame.block()) else {
            return if self.is_frozen(frame) {
                FrameState::Frozen
            } else {
                FrameState::Unopened
            };
        };
        let (i, bit) = bit_of(index);
        let (w, b) = (&self.words[i], &self.blocks[index as usize]);
        let (at, frame_bit) = (
            (frame.in_block() / 64) as usize,
            1 << (frame.in_block() % 64),
        );
        let (dirty, lazy) = if w.claimed & bit != 0 {
            return FrameState::Claimed;
        } else if w.partial & bit != 0 {
            if b.free[at] & frame_bit == 0 {
                return FrameState::Taken;
            }
            (b.dirty[at] & frame_bit != 0, b.lazy[at] & frame_bit != 0)
        } else if w.free & bit == 0 {
            return FrameState::Taken;
        } else if w.all & bit != 0 || (w.dirty | w.lazy) & bit == 0 {
            (w.dirty & bit != 0, w.lazy & bit != 0)
        } else {
            (b.dirty[at] & frame_bit != 0, b.lazy[at] & frame_bit != 0)
        };
        match (dirty, lazy) {
            (true, _) => FrameState::Dirty,
            (_, true) => FrameState::Lazy,
            _ => FrameState::Clean,
        }
    }

    /// Recounts everything. O(limit of the view): for tests and `doctor`, not for normal use under the lock.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let s = &*self.state;
        let at = |what, index: u32| Violation {
            what,
            block: Block(s.first_block + index),
        };
        let ensure = |holds: bool, what, index| if holds { Ok(()) } else { Err(at(what, index)) };
        let mut sum = Recount::default();
        let words_end = (self.words.len() * 64).min(s.limit as usize) as u32;
        // Words below the base are stale, except the word that contains the base.
        for index in s.base / 64 * 64..words_end {
            let (i, bit) = bit_of(index);
            let w = &self.words[i];
            let set = w.free | w.dirty | w.lazy | w.all | w.partial | w.claimed;
            if index < s.base || index >= s.open_end {
                ensure(
                    set & bit == 0,
                    "INV-ZONE-9: bit of an unopened block",
                    index,
                )?;
                continue;
            }
            let kinds = (w.free & bit != 0) as u32
                + (w.partial & bit != 0) as u32
                + (w.claimed & bit != 0) as u32;
            ensure(kinds <= 1, "INV-ZONE-3: two kinds", index)?;
            let (dirty, lazy, all) = (w.dirty & bit != 0, w.lazy & bit != 0, w.all & bit != 0);
            let resident = dirty | lazy;
            if resident {
                ensure(
                    (i as u32) < s.high_resident,
                    "INV-ZONE-8: high_resident",
                    index,
                )?;
            }
            let b = &self.blocks[index as usize];
            if w.partial & bit != 0 {
                ensure(!all, "INV-ZONE-5: all on a partial block", index)?;
                ensure(
                    dirty == (b.dirty_count != b.pinned_dirty),
                    "INV-ZONE-4: dirty bit",
                    index,
                )?;
                ensure(
                    lazy == (b.lazy_count != b.pinned_lazy),
                    "INV-ZONE-4: lazy bit",
                    index,
                )?;
                ensure(
                    b.pinned(s.group) == (b.pinned_dirty, b.pinned_lazy),
                    "INV-ZONE-10: pinned frames of a block",
                    index,
                )?;
                sum.pinned_dirty += u64::from(b.pinned_dirty);
                sum.pinned_lazy += u64::from(b.pinned_lazy);
                self.check_partial(index).map_err(|what| at(what, index))?;
                sum.free += u64::from(b.free_count);
                sum.dirty += u64::from(b.dirty_count);
                sum.lazy += u64::from(b.lazy_count);
                sum.claimed += u64::from(b.claimed_count);
                sum.listed += u32::from(b.free_count != 0);
            } else if w.free & bit != 0 {
                ensure(i as u32 >= s.low_free, "INV-ZONE-8: low_free", index)?;
                sum.free += u64::from(BLOCK_FRAMES);
                sum.free_blocks += 1;
                if all {
                    ensure(dirty != lazy, "INV-ZONE-5: all without one state", index)?;
                    sum.dirty += if dirty { u64::from(BLOCK_FRAMES) } else { 0 };
                    sum.lazy += if lazy { u64::from(BLOCK_FRAMES) } else { 0 };
                } else if resident {
                    ensure(
                        dirty == (b.dirty_count != 0),
                        "INV-ZONE-5: dirty of a mixed block",
                        index,
                    )?;
                    ensure(
                        lazy == (b.lazy_count != 0),
                        "INV-ZONE-5: lazy of a mixed block",
                        index,
                    )?;
                    let counts = bits::count(&b.dirty) == u32::from(b.dirty_count)
                        && bits::count(&b.lazy) == u32::from(b.lazy_count)
                        && (0..8).all(|i| b.dirty[i] & b.lazy[i] == 0);
                    ensure(counts, "INV-ZONE-5: words of a mixed block", index)?;
                    sum.dirty += u64::from(b.dirty_count);
                    sum.lazy += u64::from(b.lazy_count);
                }
                if resident {
                    sum.resident_blocks += 1;
                    ensure(
                        i as u32 >= s.low_resident,
                        "INV-ZONE-8: low_resident",
                        index,
                    )?;
                }
            } else {
                ensure(
                    !all && !resident,
                    "INV-ZONE-4: state of a block that is not free",
                    index,
                )?;
                if w.claimed & bit != 0 {
                    sum.claimed += u64::from(BLOCK_FRAMES);
                }
            }
        }
        ensure(sum.free == s.free, "INV-ZONE-7: free", 0)?;
        ensure(sum.dirty == s.dirty, "INV-ZONE-7: dirty", 0)?;
        ensure(sum.lazy == s.lazy, "INV-ZONE-7: lazy", 0)?;
        ensure(sum.claimed == s.claimed, "INV-ZONE-7: claimed", 0)?;
        ensure(
            (sum.pinned_dirty, sum.pinned_lazy) == (s.pinned_dirty, s.pinned_lazy),
            "INV-ZONE-10: pinned",
            0,
        )?;
        ensure(
            sum.free_blocks == s.free_blocks,
            "INV-ZONE-7: free_blocks",
            0,
        )?;
        ensure(
            sum.resident_blocks == s.resident_blocks,
            "INV-ZONE-7: resident_blocks",
            0,
        )?;
        let open = u64::from(s.open_end - s.base) * u64::from(BLOCK_FRAMES);
        ensure(
            sum.free + sum.claimed <= open,
            "INV-ZONE-7: more than open",
            0,
        )?;
        self.check_lists(sum.listed)
            .map_err(|(what, index)| at(what, index))
    }

    fn check_partial(&self, index: u32) -> Result<(), &'static str> {
        let b = &self.blocks[index as usize];
        for i in 0..8 {
            if (b.dirty[i] | b.lazy[i]) & !b.free[i] != 0 {
                return Err("INV-ZONE-2: resident but not free");
            }
            if b.dirty[i] & b.lazy[i] != 0 {
                return Err("INV-ZONE-2: dirty and lazy");
            }
            if (b.free[i] == u64::MAX) != (b.clusters >> i & 1 == 1) {
                return Err("INV-ZONE-6: clusters");
            }
        }
        let counts = [
            (&b.free, b.free_count),
            (&b.dirty, b.dirty_count),
            (&b.lazy, b.lazy_count),
        ];
        if counts
            .iter()
            .any(|(map, n)| bits::count(map) != u32::from(*n))
        {
            return Err("INV-ZONE-6: counts");
        }
        if u32::from(b.free_count) >= BLOCK_FRAMES {
            return Err("INV-ZONE-3: partial and whole");
        }
        if u32::from(b.free_count) + u32::from(b.claimed_count) > BLOCK_FRAMES {
            return Err("INV-ZONE-1: free and claimed");
        }
        if bits::longest_run(&b.free, BLOCK_FRAMES) != u32::from(b.max_run) {
            return Err("INV-ZONE-6: max_run");
        }
        let bucket = if b.max_run == 0 {
            0
        } else {
            b.max_run.ilog2() as u8 + 1
        };
        if b.bucket != bucket {
            return Err("INV-ZONE-6: bucket");
        }
        Ok(())
    }

    fn check_lists(&self, listed: u32) -> Result<(), (&'static str, u32)> {
        let mut seen = 0;
        for bucket in 0..BUCKETS {
            let (mut prev, mut at) = (0, self.state.heads[bucket]);
            while at != 0 {
                let index = at - 1;
                let b = &self.blocks[index as usize];
                seen += 1;
                if seen > listed {
                    return Err(("INV-ZONE-6: a list is too long", index));
                }
                let fine =
                    self.is_partial(index) && b.bucket as usize == bucket + 1 && b.prev == prev;
                if !fine {
                    return Err(("INV-ZONE-6: a list's link", index));
                }
                (prev, at) = (at, b.next);
            }
        }
        if seen == listed {
            Ok(())
        } else {
            Err(("INV-ZONE-6: a block is on no list", 0))
        }
    }
}
