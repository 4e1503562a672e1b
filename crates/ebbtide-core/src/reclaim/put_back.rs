//! Claimed ranges back to where they came from, each under its lock: to a zone or to a span.
//!
//! Ranges carry no note of their origin: the class byte of a frame tells. What was released is clean, what could not be is
//! dirty and held, what nobody came to is dirty. Whoever puts a range back takes it out of the gather under the same lock
//! (`INV-GATHER-1`).

use super::gather::{Gather, Range};
use crate::pages::frames::view;
use crate::pages::region::flag;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_sys::vm;
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, Block, Claim, Frame, Outcome};

impl Heap {
    /// Puts a gather's ranges back to where they were claimed, each under its lock. `released` is false for
    /// what a forked child finds: what was noted may not have come to pass.
    pub fn put_back(&self, gather: &mut Gather, released: bool) {
        while let Some(range) = gather.peek() {
            let outcome = match released && range.is_done() && !range.is_kept() {
                false => Outcome::Dirty,
                true if range.is_lazy() => Outcome::Lazy,
                true => Outcome::Clean,
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
            let clean = outcome == Outcome::Clean;
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

    fn put_back_to_zone(&self, gather: &mut Gather, range: Range, outcome: Outcome) {
        let end = range.first + range.frames();
        let last = Frame(end - 1).block();
        let whole = match end % BLOCK_FRAMES {
            0 => (range.frames() / BLOCK_FRAMES).min(64),
            _ => 0,
        };
        if outcome == Outcome::Clean && whole > 0 {
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
        if outcome == Outcome::Lazy {
            data.lazied.add(u64::from(claim.frames()));
        }
        drop(data);
        self.expect_put(put.map(drop));
    }

    /// Whole blocks that were released: special mappings become ordinary ones again.
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

    /// A huge page was split that was resident as a whole: free frames in it that were clean so far are dirty.
    pub fn count_resident(&self, block: Block) {
        let mut data = self.zone_of(block).lock.lock();
        let mut zone = view(self.region(), &mut data.state, 0);
        let claim = zone.claim_free(block);
        let put = claim.map(|claim| zone.put_claim(claim, Outcome::Dirty));
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
