//! Releases a gather's ranges to the kernel: many ranges in one call, after huge pages are split.
//!
//! Ranges that become lazy get `MADV_FREE`, in calls of their own. If that call is refused (locked memory, a filter), the
//! ranges are released like the others.
//!
//! One `process_madvise` takes up to 1,024 ranges and 1 GiB, never a part of a range: the kernel would cut a call at
//! 2 GiB, inside a huge page. After a short return, the next call continues behind the finished part. If the call is
//! refused, and for a range above 1 GiB, each range gets one `madvise`.
//!
//! `MADV_DONTNEED` on a part of a huge page lowers RSS, but the kernel gets no memory: the page stays whole. So before a
//! part of a block is released:
//! 1. The block is kept from huge pages from now on (khugepaged would fill it again within seconds).
//! 2. `MADV_COLD` on one page splits the huge page without losing content.
//! 3. The pagemap shows whether the page was split. If it could not be split (shared with a forked child, pinned), the
//!    block is *unsplit*: left as it is, not counted as released, tried again later.
//! 4. Pages that the program never touched were resident with the rest of the huge page, and must be released too. They
//!    count as dirty from now on.
//!
//! With larger pages than 4 KiB a huge page is larger than a pageblock. Then none is used, and nothing is split.
//!
//! A thread of the program opens no descriptor, so it has no pagemap: it leaves such ranges to a worker. If no worker can
//! be made, it splits huge pages without a check.

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

/// Most ranges in one call.
const MAX_RANGES: usize = 1024;
/// Most blocks that are kept from huge pages.
const MAX_SMALL_BLOCKS: usize = 8000;
/// Most bytes in one call.
const MAX_BYTES: usize = 1 << 30;

/// Releases the ranges of `gather`, and marks the ranges that could not be released. With `leave`, ranges that need
/// a huge page split are left; the others are then marked as done. Returns the bytes released, and whether ranges
/// were left.
pub fn release(heap: &Heap, gather: &mut Gather, by: Releaser, leave: bool) -> (usize, bool) {
    match by {
        // Threads of the program may have very small stacks.
        Releaser::Worker { map, .. } => release_with::<MAX_RANGES>(heap, gather, map, leave),
        _ => release_with::<32>(heap, gather, None, leave),
    }
}

/// Never inlined: otherwise every caller would have the stack frame of the larger variant.
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
    /// Bytes released by all calls so far.
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
                // The call cannot work now: the program changed a mapping, or memory is short.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => break,
                // The call was refused. Or the advice does not work for this memory, because it is locked. Ranges
                // that become lazy are called one by one, to find out which were refused.
                Err(error) => {
                    refused = (advice != MADV_FREE).then_some(error);
                    break;
                }
            }
        }
        // The call was refused, or stopped at a range: continue range by range.
        for index in start..self.count {
            let range = self.ranges[index];
            // SAFETY: as above.
            unsafe {
                if !self.one(range.iov_base as usize, range.iov_len) {
                    // The range cannot be released. It counts as clean from now on, so it must read zero.
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

    /// Releases one range by itself. `false`: it cannot be released.
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

    /// Counts `done` bytes from range `start` on. Returns the range to continue with, cut if it was done in part.
    fn resume(&mut self, start: usize, done: usize) -> usize {
        self.count(done);
        self.count - vm::behind(&mut self.ranges[start..self.count], done).len()
    }
}

/// A frame of each block of which the range covers only a part: one, or at most two blocks.
fn parts(range: Range) -> impl Iterator<Item = Frame> {
    let (first, end) = (range.first, range.first + range.frames());
    let last = (end - 1) / BLOCK_FRAMES * BLOCK_FRAMES;
    let cuts_first = !first.is_multiple_of(BLOCK_FRAMES) || range.frames() < BLOCK_FRAMES;
    // The block of the end, if it is another block.
    let cuts_last = !end.is_multiple_of(BLOCK_FRAMES) && last > first;
    let parts = [cuts_first.then_some(first), cuts_last.then_some(last)];
    parts.into_iter().flatten().map(Frame)
}

/// Whether a huge page may lie behind a frame, and the pagemap would show whether it was split.
fn must_split(heap: &Heap, page: Frame) -> bool {
    // SAFETY: blocks with claimed frames are opened.
    let flags = unsafe { heap.region().flags(page.block()) }.load(Ordering::Relaxed);
    flags & (flag::SMALL | flag::UNSPLIT) == 0
        && heap.may_be_huge(page)
        && SCAN_PAGES.may_work()
        && heap.small_blocks.load(Ordering::Relaxed) < MAX_SMALL_BLOCKS
}

/// Ensures that releasing a part of a block returns memory to the kernel. `split` is the last block that was
/// checked, and whether it can be split. `false`: the block is unsplit.
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
        // Each mark may cost two mappings. At the limit the huge page is split without a mark, and khugepaged may
        // undo the split.
        // SAFETY: our own page; the advice changes no content.
        let _ = unsafe { vm::advise(region.address(page), vm::page(), libc::MADV_COLD) };
        return true;
    }
    let full = !heap.config.basic_syscalls && vm::is_block_resident(address);
    // SAFETY: our own block; neither advice changes content.
    unsafe {
        if vm::advise(address, BLOCK_BYTES, libc::MADV_NOHUGEPAGE).is_err() {
            return hold();
        }
        let _ = vm::advise(region.address(page), vm::page(), libc::MADV_COLD);
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
