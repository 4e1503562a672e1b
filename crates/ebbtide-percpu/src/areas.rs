//! Allocate and free.

use crate::handle::{Handle, foreign};
use crate::memory;
use crate::round;
use crate::space::{self, PERCPU, Place};
use core::sync::atomic::Ordering;
use ebbtide_core::base::report::Line;
use ebbtide_core::front::{Front, started_heap};
use ebbtide_core::reclaim::Heap;
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::{
    Chunk, Counters, GRANULE_BYTES, Misuse, Putting, Shard, Taken, UNIT_BYTES,
};

/// Bytes on all CPUs that are zeroed under the shard's lock.
const ZERO_AT_ONCE: usize = 2048;

/// Why there is no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// Size 0 or above a unit, or an alignment that is no power of two or above a page.
    BadArguments,
    /// No memory, or no address space.
    NoMemory,
}

/// Figures of the per-CPU areas, in bytes over all CPUs.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Chunks with memory behind them, and those of them that serve only when others are full.
    pub chunks: usize,
    /// See `chunks`.
    pub sidelined_chunks: usize,
    /// In areas, rounded up to 8 bytes.
    pub allocated_bytes: usize,
    /// In pages that may be resident.
    pub populated_bytes: usize,
    /// In pages given back so far.
    pub depopulated_bytes: usize,
}

/// An area of `size` bytes, zeroed, for each CPU.
///
/// # Errors
/// See [`Problem`].
pub fn allocate(front: &Front, size: usize, align: usize) -> Result<Handle, Problem> {
    if size == 0 || size > UNIT_BYTES || !align.is_power_of_two() || align > FRAME_BYTES {
        return Err(Problem::BadArguments);
    }
    let heap = &front.enter_uncounted();
    if !PERCPU.start(heap) {
        return Err(Problem::NoMemory);
    }
    let granules = size.div_ceil(GRANULE_BYTES) as u32;
    let align = (align / GRANULE_BYTES).max(1) as u32;
    let first = own_shard();
    let shards = space::shards();
    for shard in (first..shards).chain(0..first) {
        if let Some(taken) = take(heap, shard, granules, align) {
            let place = Place {
                shard,
                chunk: taken.chunk,
            };
            let enough = taken.populate == 0 || {
                // SAFETY: taken just now.
                unsafe { memory::populate(place, taken.populate, taken.at, granules) }
            };
            if enough {
                let offset = taken.at as usize * GRANULE_BYTES;
                return Ok(space::handle(place, offset, size));
            }
            // Its pages stay marked, as they may be resident in part.
            let _ = put(heap, place, taken.at, false);
            return Err(Problem::NoMemory);
        }
    }
    Err(Problem::NoMemory)
}

/// The shard of the CPU that this thread is on.
fn own_shard() -> usize {
    space::current_cpu() % space::shards()
}

fn take(heap: &Heap, shard: usize, granules: u32, align: u32) -> Option<Taken> {
    loop {
        let taken = PERCPU.with(heap, shard, |shard| shard.take(granules, align));
        // Opened chunks may be taken by others first.
        if taken.is_some() || !PERCPU.open(heap, shard) {
            return taken;
        }
    }
}

/// Frees an area. Ends the process for what is none.
pub fn free(handle: Handle) {
    match started_heap() {
        Some(heap) => free_inside(&heap.enter_uncounted(), handle),
        None => foreign("ebb_percpu_free", handle),
    }
}

fn free_inside(heap: &Heap, handle: Handle) {
    let Some((place, offset)) = handle.place().and_then(space::chunk_of) else {
        foreign("ebb_percpu_free", handle)
    };
    if !offset.is_multiple_of(GRANULE_BYTES) {
        foreign("ebb_percpu_free", handle);
    }
    match put(heap, place, (offset / GRANULE_BYTES) as u32, true) {
        Ok(Some(stock)) => round::emptied(heap, stock),
        Ok(None) | Err(Misuse::Abandoned) => {}
        Err(Misuse::NotAnArea) => Line::new()
            .text("ebb_percpu_free: ")
            .address(handle.0)
            .text(" is not allocated (freed twice?)")
            .abort(),
    }
}

/// Puts an area back, zeroed unless it was never used. The shard's stock, if a page became empty.
fn put(heap: &Heap, place: Place, at: u32, used: bool) -> Result<Option<u32>, Misuse> {
    let zero = |area: Putting| {
        if used {
            // SAFETY: disowned, so nobody has it, and not yet free.
            unsafe { memory::zero(place, area.at, area.granules, Shard::pages(area)) }
        }
    };
    let large = PERCPU.with(heap, place.shard, |shard| {
        let area = shard.disown(place.chunk, at)?;
        if area.granules as usize * GRANULE_BYTES * space::units() > ZERO_AT_ONCE {
            return Ok(Err(area));
        }
        zero(area);
        Ok(Ok(shard.put(area).then(|| shard.stock())))
    })?;
    Ok(match large {
        Ok(emptied) => emptied,
        Err(area) => {
            zero(area);
            let put = |shard: &mut Shard| shard.put(area).then(|| shard.stock());
            PERCPU.with(heap, place.shard, put)
        }
    })
}

/// The figures now.
pub fn stats() -> Stats {
    started_heap().map_or_else(Stats::default, |heap| stats_inside(&heap.enter_uncounted()))
}

pub(crate) fn stats_inside(heap: &Heap) -> Stats {
    let mut stats = Stats::default();
    let units = space::units();
    for shard in 0..space::shards() {
        let (counters, end) = PERCPU.with(heap, shard, |shard| (shard.counters(), shard.end()));
        let Counters {
            chunks, sidelined, ..
        } = counters;
        let spilled: u32 = (0..end)
            .map(|chunk| space::spill(Place { shard, chunk }).load(Ordering::Relaxed))
            .map(u64::count_ones)
            .sum();
        stats.chunks += chunks as usize;
        stats.sidelined_chunks += sidelined as usize;
        stats.allocated_bytes += counters.granules as usize * GRANULE_BYTES * units;
        stats.populated_bytes +=
            (counters.populated as usize * units + spilled as usize) * FRAME_BYTES;
        stats.depopulated_bytes += counters.depopulated as usize * FRAME_BYTES * units;
    }
    stats
}

/// Bytes of the chunks' records.
pub(crate) fn record_bytes(heap: &Heap) -> usize {
    let ends = (0..space::shards()).map(|shard| PERCPU.with(heap, shard, |shard| shard.end()));
    ends.sum::<u32>() as usize * size_of::<Chunk>()
}
