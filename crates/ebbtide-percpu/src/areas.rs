//! Allocates and frees areas.

use crate::handle::{FOREIGN, Handle, refuse};
use crate::memory;
use crate::space::{self, PERCPU, Place};
use core::sync::atomic::Ordering;
use ebbtide_core::front::{Front, started_heap};
use ebbtide_core::reclaim::Heap;
use ebbtide_sys::process;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::{Chunk, GRANULE_BYTES, Misuse, Putting, Shard, Taken, UNIT_BYTES};

/// Areas of up to this many bytes, over all CPUs, are zeroed under the shard's lock.
const ZERO_AT_ONCE: usize = 2048;

const FREE: &str = "ebb_percpu_free";

/// The reason why there is no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// Size 0 or above a unit, or an alignment that is not a power of two or is above a page.
    BadArguments,
    /// No memory, or no address space.
    NoMemory,
}

/// Figures of the per-CPU areas, in bytes over all CPUs.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Chunks with memory behind them, and the sidelined ones among them.
    pub chunks: usize,
    /// See [`Self::chunks`].
    pub sidelined_chunks: usize,
    /// In areas, rounded up to 8 bytes.
    pub allocated_bytes: usize,
    /// In pages that may be resident.
    pub populated_bytes: usize,
    /// In pages released so far.
    pub depopulated_bytes: usize,
    /// In empty pages that may be resident, in pages of the kernel with a part of an area.
    pub pinned_bytes: usize,
}

/// Allocates an area of `size` bytes, zeroed, for each CPU.
///
/// # Errors
/// See [`Problem`].
pub fn allocate(front: &Front, size: usize, align: usize) -> Result<Handle, Problem> {
    let (granules, align) = in_granules(size, align)?;
    let heap = &front.enter_uncounted();
    if !PERCPU.start(heap) {
        return Err(Problem::NoMemory);
    }
    let shards = space::shards();
    let first = process::current_cpu() % shards;
    for shard in (first..shards).chain(0..first) {
        if let Some(taken) = take(heap, shard, granules, align) {
            let (chunk, at, pages) = (taken.chunk, taken.at, taken.populate);
            let place = Place { shard, chunk };
            // SAFETY: the area was taken just now.
            if pages == 0 || unsafe { memory::populate(place, pages, at, granules) } {
                return Ok(handle_of(place, at, size));
            }
            // Its pages stay marked, as they may be resident in part.
            let _ = put(heap, place, at, false);
            return Err(Problem::NoMemory);
        }
    }
    Err(Problem::NoMemory)
}

/// The same, but only in pages that are populated already. Makes no system call and waits for no lock, so a signal
/// handler may call it. If a thread began to wait for a shard's lock meanwhile, it is woken.
///
/// # Errors
/// See [`Problem`]. `NoMemory`: no such page has space, or another thread holds the locks. [`allocate`] may succeed.
pub fn allocate_nowait(size: usize, align: usize) -> Result<Handle, Problem> {
    let (granules, align) = in_granules(size, align)?;
    let heap = started_heap().and_then(Front::enter_nowait);
    let heap = heap
        .filter(|_| space::is_started())
        .ok_or(Problem::NoMemory)?;
    let shards = space::shards();
    let first = space::cpu_unasked() % shards;
    for shard in (first..shards).chain(0..first) {
        let take = |shard: &mut Shard| shard.take_populated(granules, align);
        if let Some(taken) = PERCPU.try_with(&heap, shard, take).flatten() {
            let chunk = taken.chunk;
            return Ok(handle_of(Place { shard, chunk }, taken.at, size));
        }
    }
    Err(Problem::NoMemory)
}

/// A size and an alignment in granules.
fn in_granules(size: usize, align: usize) -> Result<(u32, u32), Problem> {
    if size == 0 || size > UNIT_BYTES || !align.is_power_of_two() || align > FRAME_BYTES {
        return Err(Problem::BadArguments);
    }
    let granules = size.div_ceil(GRANULE_BYTES) as u32;
    Ok((granules, (align / GRANULE_BYTES).max(1) as u32))
}

fn handle_of(place: Place, at: u32, size: usize) -> Handle {
    let start = space::address(place, 0) - space::base();
    Handle::new(start + at as usize * GRANULE_BYTES, size)
}

fn take(heap: &Heap, shard: usize, granules: u32, align: u32) -> Option<Taken> {
    loop {
        let taken = PERCPU.with(heap, shard, |shard| shard.take(granules, align));
        // Other threads may take areas of the opened chunk first.
        if taken.is_some() || !PERCPU.open(heap, shard) {
            return taken;
        }
    }
}

/// Frees an area. Ends the process if `handle` is no area.
pub fn free(handle: Handle) {
    let area = handle.place().and_then(space::chunk_of);
    let area = area.filter(|area| area.1.is_multiple_of(GRANULE_BYTES));
    let (Some(front), Some((place, offset))) = (started_heap(), area) else {
        refuse(FREE, handle, FOREIGN)
    };
    let heap = &front.enter_uncounted();
    match put(heap, place, (offset / GRANULE_BYTES) as u32, true) {
        Ok(Some(stock)) => PERCPU.emptied(heap, stock),
        Ok(None) | Err(Misuse::Abandoned) => {}
        Err(Misuse::NotAnArea) => refuse(FREE, handle, " is not allocated (freed twice?)"),
    }
}

/// Puts an area back, zeroed unless it was never used. Returns the shard's stock, if a page became empty.
fn put(heap: &Heap, place: Place, at: u32, used: bool) -> Result<Option<u32>, Misuse> {
    let zero = |area: Putting| {
        if used {
            // SAFETY: the area is disowned, so no caller has it, and it is not free yet.
            unsafe { memory::zero(place, area) }
        }
    };
    let put = |shard: &mut Shard, area| shard.put(area).then(|| shard.stock());
    let small = PERCPU.with(heap, place.shard, |shard| {
        let area = shard.disown(place.chunk, at)?;
        if area.granules as usize * GRANULE_BYTES * space::units() > ZERO_AT_ONCE {
            return Ok(Err(area));
        }
        zero(area);
        Ok(Ok(put(shard, area)))
    })?;
    Ok(small.unwrap_or_else(|large| {
        zero(large);
        PERCPU.with(heap, place.shard, |shard| put(shard, large))
    }))
}

/// The figures now.
pub fn stats() -> Stats {
    let figures = |front: &Front| stats_inside(&front.enter_uncounted()).0;
    started_heap().map(figures).unwrap_or_default()
}

/// The figures, together with the bytes of the chunks' records.
pub(crate) fn stats_inside(heap: &Heap) -> (Stats, usize) {
    let (mut stats, mut record_bytes) = (Stats::default(), 0);
    let units = space::units();
    for shard in 0..space::shards() {
        let (counters, end) = PERCPU.with(heap, shard, |shard| (shard.counters(), shard.end()));
        let spilled: u32 = (0..end)
            .map(|chunk| space::spill(Place { shard, chunk }).load(Ordering::Relaxed))
            .map(u64::count_ones)
            .sum();
        stats.chunks += counters.chunks as usize;
        stats.sidelined_chunks += counters.sidelined as usize;
        stats.allocated_bytes += counters.granules as usize * GRANULE_BYTES * units;
        stats.populated_bytes +=
            (counters.populated as usize * units + spilled as usize) * FRAME_BYTES;
        stats.pinned_bytes += counters.pinned as usize * FRAME_BYTES * units;
        stats.depopulated_bytes += counters.depopulated as usize * FRAME_BYTES * units;
        record_bytes += end as usize * size_of::<Chunk>();
    }
    (stats, record_bytes)
}
