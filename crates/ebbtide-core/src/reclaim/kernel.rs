//! A gather's ranges to the kernel: many at a time, huge pages split first.
//!
//! Ranges that become lazy get `MADV_FREE`, in calls of their own; where that is refused (locked memory, a
//! filter) they are released like the others.
//!
//! One `process_madvise` takes up to 1,024 ranges and 1 GiB, never a part of a range: the kernel would
//! cut a call at 2 GiB, inside a huge page. Short returns are resumed behind what was done. Where the
//! call is refused, and for a range above 1 GiB, one madvise a range.
//!
//! `MADV_DONTNEED` on a part of a huge page lowers RSS and gives nothing back: the page stays whole. So
//! before part of a block is released,
//! 1. the block is kept from huge pages from now on (khugepaged would fill it again within seconds),
//! 2. `MADV_COLD` on one page splits the huge page without losing content,
//! 3. the pagemap tells whether it did. What could not be split (shared with a forked child, pinned) is
//!    *held*: left as it is, not counted as released, tried again later,
//! 4. what nobody has touched was resident with the rest and has to go too: it counts as dirty from now on.
//!
//! A thread of the program opens no descriptor, so it has no pagemap: it leaves such ranges to a worker. Where
//! none can be had it splits them without looking.

use super::gather::{Gather, Range};
use crate::base::releaser::Releaser;
use crate::base::stats::{self, word};
use crate::pages::region::flag;
use crate::reclaim::Heap;
use core::sync::atomic::Ordering;
use ebbtide_sys::features::{LAZY_FREE, RELEASE_MANY, SCAN_PAGES};
use ebbtide_sys::pages::PageMap;
use ebbtide_sys::{Errno, vm};
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, Block, FRAME_BYTES, Frame};
use libc::{MADV_DONTNEED, MADV_FREE};

/// Ranges of a call.
const MAX_RANGES: usize = 1024;
/// Blocks kept from huge pages at most.
const MAX_SMALL_BLOCKS: usize = 8000;
/// Bytes of a call.
const MAX_BYTES: usize = 1 << 30;

/// Releases what `gather` holds and marks what was kept. With `leave`, not the ranges for which a huge page must be
/// split: the others are marked as done then. Bytes released, and whether ranges were left.
pub fn release(heap: &Heap, gather: &mut Gather, by: Releaser, leave: bool) -> (usize, bool) {
    match by {
        // Threads of programs may have the smallest of stacks.
        Releaser::Worker { map, .. } => release_with::<MAX_RANGES>(heap, gather, map, leave),
        _ => release_with::<32>(heap, gather, None, leave),
    }
}

/// Never inlined: the larger one's frame must not become everybody's.
#[inline(never)]
fn release_with<const N: usize>(
    heap: &Heap,
    gather: &mut Gather,
    map: Option<&PageMap>,
    leave: bool,
) -> (usize, bool) {
    let mut call = Call::<N> {
        ranges: [vm::NO_RANGE; N],
        count: 0,
        bytes: 0,
        advice: MADV_DONTNEED,
        released: 0,
        lazied: 0,
    };
    let batched = heap.config.gather;
    let mut split = None;
    let mut left = false;
    gather.for_each(|range| {
        if range.is_done() {
            return;
        }
        if leave && parts(*range).any(|frame| must_split(heap, frame)) {
            left = true;
            return;
        }
        if !prepare(heap, *range, &mut split, map) {
            return Gather::keep(range);
        }
        let address = heap.region().address(Frame(range.first));
        let bytes = range.frames() as usize * FRAME_BYTES;
        let is_lazy = range.is_lazy() && LAZY_FREE.may_work();
        let advice = if is_lazy { MADV_FREE } else { MADV_DONTNEED };
        if call.advice != advice {
            call.flush();
            call.advice = advice;
        }
        Gather::done(range);
        if !batched || bytes > MAX_BYTES || !RELEASE_MANY.may_work() {
            call.flush();
            // SAFETY: claimed frames.
            if !unsafe { call.one(address, bytes) } {
                Gather::keep(range);
            }
            return;
        }
        if call.count == N || call.bytes + bytes > MAX_BYTES {
            call.flush();
        }
        call.ranges[call.count] = vm::Range {
            iov_base: address as *mut _,
            iov_len: bytes,
        };
        call.count += 1;
        call.bytes += bytes;
    });
    call.flush();
    if call.released > 0 {
        stats::count_released(call.released);
    }
    stats::count(word!(lazied_bytes), call.lazied as u64);
    (call.released, left)
}

/// The ranges of one call.
struct Call<const N: usize> {
    ranges: [vm::Range; N],
    count: usize,
    bytes: usize,
    advice: i32,
    /// What came of all calls so far.
    released: usize,
    lazied: usize,
}

impl<const N: usize> Call<N> {
    fn flush(&mut self) {
        let (mut start, mut refused) = (0, None);
        let advice = match self.advice {
            MADV_FREE => MADV_FREE,
            _ => vm::release_advice(),
        };
        while start < self.count && RELEASE_MANY.may_work() {
            // SAFETY: claimed frames.
            match unsafe { vm::advise_many(&self.ranges[start..self.count], advice) } {
                Ok(done) if done > 0 => {
                    let _ = RELEASE_MANY.latch(Ok::<_, Errno>(()));
                    start = self.resume(start, done);
                }
                // Not now: the program changed a mapping, or memory is short.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => break,
                // Refused, or else it is the advice that is wrong, for memory that is locked. What becomes lazy goes one
                // by one, to know what was refused.
                Err(error) => {
                    refused = (advice != MADV_FREE).then_some(error);
                    break;
                }
            }
        }
        // Refused, or stopped at a range: one by one.
        for index in start..self.count {
            let range = self.ranges[index];
            // SAFETY: as above.
            unsafe {
                if !self.one(range.iov_base as usize, range.iov_len) {
                    // Nothing gives it back. It goes on as clean, so it must read zero.
                    range.iov_base.cast::<u8>().write_bytes(0, range.iov_len);
                }
            }
        }
        if let Some(error) = refused
            && (error != Errno::EINVAL || vm::release_advice() == advice)
        {
            RELEASE_MANY.refuse();
        }
        (self.count, self.bytes) = (0, 0);
    }

    /// One range by itself. `false`: nothing gives it back.
    ///
    /// # Safety
    /// Claimed frames.
    unsafe fn one(&mut self, address: usize, bytes: usize) -> bool {
        // SAFETY: by contract.
        unsafe {
            if self.advice == MADV_FREE {
                match vm::advise(address, bytes, MADV_FREE) {
                    Ok(()) => {
                        self.count(bytes);
                        return true;
                    }
                    Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => {}
                    Err(_) => LAZY_FREE.refuse(),
                }
            }
            let released = vm::release(address, bytes).is_ok();
            self.released += if released { bytes } else { 0 };
            released
        }
    }

    fn count(&mut self, bytes: usize) {
        if self.advice == MADV_FREE {
            let _ = LAZY_FREE.latch(Ok::<_, Errno>(()));
            self.lazied += bytes;
        } else {
            self.released += bytes;
        }
    }

    /// Counts `done` bytes from range `start` on; the range to go on with, cut if it was done in part.
    fn resume(&mut self, start: usize, done: usize) -> usize {
        self.count(done);
        self.count - vm::behind(&mut self.ranges[start..self.count], done).len()
    }
}

/// A frame of each block that the range is a part of: one, or two at most.
fn parts(range: Range) -> impl Iterator<Item = Frame> {
    let (first, end) = (range.first, range.first + range.frames());
    let last = (end - 1) / BLOCK_FRAMES * BLOCK_FRAMES;
    let cuts_first = !first.is_multiple_of(BLOCK_FRAMES) || range.frames() < BLOCK_FRAMES;
    // The block of the end, if it is another one.
    let cuts_last = !end.is_multiple_of(BLOCK_FRAMES) && last > first;
    let parts = [cuts_first.then_some(first), cuts_last.then_some(last)];
    parts.into_iter().flatten().map(Frame)
}

/// Whether a huge page may lie behind a frame, and the pagemap would tell whether it was split.
fn must_split(heap: &Heap, page: Frame) -> bool {
    // SAFETY: blocks with claimed frames are opened.
    let flags = unsafe { heap.region().flags(page.block()) }.load(Ordering::Relaxed);
    flags & (flag::SMALL | flag::UNSPLIT) == 0
        && heap.may_be_huge(page)
        && SCAN_PAGES.may_work()
        && heap.small_blocks.load(Ordering::Relaxed) < MAX_SMALL_BLOCKS
}

/// Makes sure that releasing a part of a block gives memory back. `split` is the block last looked at and
/// whether it can be. `false`: held.
fn prepare(
    heap: &Heap,
    range: Range,
    split: &mut Option<(Block, bool)>,
    map: Option<&PageMap>,
) -> bool {
    parts(range).all(|frame| {
        let block = frame.block();
        if split.is_none_or(|(last, _)| last != block) {
            *split = Some((block, split_block(heap, block, frame, map)));
        }
        split.is_some_and(|(_, done)| done)
    })
}

fn split_block(heap: &Heap, block: Block, page: Frame, map: Option<&PageMap>) -> bool {
    // SAFETY: blocks with claimed frames are opened.
    let flags = unsafe { heap.region().flags(block) };
    let now = flags.load(Ordering::Relaxed);
    if now & flag::SMALL != 0 || !heap.may_be_huge(page) {
        return true;
    }
    if now & flag::UNSPLIT != 0 {
        return false;
    }
    let hold = || {
        flags.fetch_or(flag::UNSPLIT, Ordering::Relaxed);
        false
    };
    let region = heap.region();
    let address = region.address(block.first_frame());
    if heap.small_blocks.load(Ordering::Relaxed) >= MAX_SMALL_BLOCKS {
        // Each may cost two mappings: split without a mark, then, and khugepaged may undo it.
        // SAFETY: our own page; the advice changes no content.
        let _ = unsafe { vm::advise(region.address(page), vm::GRANULE, libc::MADV_COLD) };
        return true;
    }
    let full = !heap.config.basic_syscalls && vm::is_block_resident(address);
    // SAFETY: our own block; neither advice changes content.
    unsafe {
        if vm::advise(address, BLOCK_BYTES, libc::MADV_NOHUGEPAGE).is_err() {
            return hold();
        }
        let _ = vm::advise(region.address(page), vm::GRANULE, libc::MADV_COLD);
    }
    let is_huge = |map: &PageMap| SCAN_PAGES.latch(map.has_huge_page(address, BLOCK_BYTES));
    if map.is_some_and(|map| SCAN_PAGES.may_work() && is_huge(map).unwrap_or(false)) {
        // SAFETY: as above.
        let _ = unsafe { vm::advise(address, BLOCK_BYTES, libc::MADV_HUGEPAGE) };
        return hold();
    }
    if flags.fetch_or(flag::SMALL, Ordering::Relaxed) & flag::SMALL == 0 {
        heap.small_blocks.fetch_add(1, Ordering::Relaxed);
        if full {
            heap.count_resident(block);
        }
    }
    true
}

#[cfg(test)]
mod tests;
