//! Puts claimed ranges back to their zone or their span, each under its lock.
//!
//! Ranges carry no note of their origin: the class byte of a frame identifies it. A released range comes back clean. A
//! range that could not be released comes back dirty and unsplit. A range that was not tried comes back dirty. The thread
//! that puts a range back takes it out of the gather under the same lock (`INV-GATHER-1`).

use super::gather::{Gather, Range};
use crate::pages::frames::view;
use crate::pages::region::flag;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, Block, Claim, Frame, PutState};

impl Heap {
    /// Puts a gather's ranges back to where they were claimed, each under its lock. `released` is false for the
    /// gathers that a forked child finds: a range that is marked may not have been released.
    pub fn put_back(&self, gather: &mut Gather, released: bool) {
        while let Some(range) = gather.peek() {
            let outcome = match released && range.is_done() && !range.is_kept() {
                false => PutState::Dirty,
                true if range.is_lazy() => PutState::Lazy,
                true => PutState::Clean,
            };
            let end = range.first + range.frames();
            let last = Frame(end - 1);
            // SAFETY: claimed frames are opened.
            let class = unsafe { self.region().class_of(last) }.load(Ordering::Relaxed);
            if class == 0 {
                self.put_back_to_zone(gather, range, outcome);
                continue;
            }
            let start = self.span_start(last).max(range.first);
            let count = end - start;
            let clean = outcome == PutState::Clean;
            // SAFETY: claimed by a depopulation, put back once: cut off under the same lock.
            unsafe {
                let under_lock = || gather.cut(count);
                self.put_span_frames(Frame(start), count, clean, range.is_kept(), under_lock);
            }
            if range.is_kept() {
                self.unsplit.add_in_span(count);
            }
        }
    }

    fn put_back_to_zone(&self, gather: &mut Gather, range: Range, outcome: PutState) {
        let end = range.first + range.frames();
        let last = Frame(end - 1).block();
        let whole = match end % BLOCK_FRAMES {
            0 => (range.frames() / BLOCK_FRAMES).min(64),
            _ => 0,
        };
        if outcome == PutState::Clean && whole > 0 {
            self.heal(Block(last.0 + 1 - whole), whole);
        }
        let start = range.first.max(last.first_frame().0) % BLOCK_FRAMES;
        let mut data = self.zone_of(last).lock.lock();
        let mut zone = view(self.region(), &mut data.state, 0);
        // All frames of a block may also have been claimed one by one.
        let as_blocks = (0..whole)
            .take_while(|&n| zone.is_claimed_whole(Block(last.0 - n)))
            .count() as u32;
        let claim = if as_blocks > 0 {
            Claim::Blocks {
                first: Block(last.0 + 1 - as_blocks),
                count: as_blocks,
            }
        } else {
            let count = (end - 1) % BLOCK_FRAMES + 1 - start;
            Claim::Frames {
                block: last,
                mask: mask_of(start, count),
            }
        };
        let put = zone.put_claim(claim, outcome);
        if range.is_kept() {
            zone.mark_unsplit(last);
            self.unsplit.add(claim.frames());
        }
        gather.cut(claim.frames());
        if outcome == PutState::Lazy {
            data.lazied.add(u64::from(claim.frames()));
        }
        drop(data);
        self.expect_put(put.map(drop));
    }

    /// Makes special mappings of released whole blocks ordinary again.
    fn heal(&self, first: Block, count: u32) {
        for block in (first.0..first.0 + count).map(Block) {
            // SAFETY: claimed blocks are opened.
            let now = unsafe { self.region().flags(block) }.load(Ordering::Relaxed);
            let address = self.region().address(block.first_frame());
            let is_fresh = || {
                // SAFETY: claimed, and just released: there is nothing in it.
                now & flag::MOVED == 0 || unsafe { vm::remap_fresh(address, BLOCK_BYTES) }.is_ok()
            };
            if now != 0 && is_fresh() {
                self.note_fresh_blocks(block, 1);
            }
        }
    }

    /// A huge page that was resident as a whole was split. Its free frames that counted as clean count as dirty
    /// from now on.
    pub fn count_resident(&self, block: Block) {
        let mut data = self.zone_of(block).lock.lock();
        let mut zone = view(self.region(), &mut data.state, 0);
        let claim = zone.claim_free(block);
        let put = claim.map(|claim| zone.put_claim(claim, PutState::Dirty));
        drop(data);
        if let Some(put) = put {
            self.expect_put(put.map(drop));
        }
    }
}

fn mask_of(start: u32, count: u32) -> [u64; 8] {
    let mut mask = [0; 8];
    ebbtide_zone::bits::for_words(start, count, |index, bits| mask[index] = bits);
    mask
}

#[cfg(test)]
mod tests;
