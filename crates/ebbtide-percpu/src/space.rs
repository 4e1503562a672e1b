//! Address space of the per-CPU areas: one reservation, made at the first use.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::base::ranks;
use ebbtide_core::base::stats::{self, Owner};
use ebbtide_core::front::FAST;
use ebbtide_core::pages::Settings;
use ebbtide_core::reclaim::Heap;
use ebbtide_sys::lock::Lock;
use ebbtide_sys::rseq::section;
use ebbtide_sys::{process, vm};
use ebbtide_zone::percpu::{Chunk, Shard, ShardState, UNIT_BYTES};

/// The largest address range that a handle can hold.
pub const LIMIT_BYTES: usize = 1 << 40;
/// Most shards.
const MAX_SHARDS: usize = 16;
/// Most chunks in a shard.
const MAX_CHUNKS: usize = 1 << 15;

const _: () = assert!(UNIT_BYTES == 1 << ebbtide_sys::rseq::UNIT_SHIFT);

/// Per-CPU data of the program.
pub struct PerCpuData {
    words: Words,
    /// Set if memory behind the chunks may have content that could not be removed: no chunk is opened then.
    is_closed: AtomicBool,
    shards: [Padded; MAX_SHARDS],
    /// The last round, and the last call for a worker.
    pub(crate) last_round_ms: AtomicU64,
    /// See [`Self::last_round_ms`].
    pub(crate) last_call_ms: AtomicU64,
}

/// The per-CPU data of this process.
pub static PERCPU: PerCpuData = PerCpuData {
    words: Words {
        base: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        units: AtomicUsize::new(0),
        rseq_offset: AtomicUsize::new(0),
        plan: AtomicUsize::new(0),
    },
    is_closed: AtomicBool::new(false),
    shards: [const { Padded(Lock::new(ranks::PERCPU, ShardState::NEW)) }; MAX_SHARDS],
    last_round_ms: AtomicU64::new(0),
    last_call_ms: AtomicU64::new(0),
};

/// The words that additions read: one cache line, set once.
#[repr(C, align(64))]
struct Words {
    /// 0 before the first use.
    base: AtomicUsize,
    bytes: AtomicUsize,
    units: AtomicUsize,
    /// 0: sections are not in use.
    rseq_offset: AtomicUsize,
    /// The address of the [`Plan`], in memory of its own. The plan is complete before its address is stored here.
    /// 0: no thread has begun.
    plan: AtomicUsize,
}

/// The plan of the start. A thread that finds it carries it out, so that no thread waits for the one that made it.
#[derive(Clone, Copy, Default)]
struct Plan {
    base: usize,
    bytes: usize,
    units: usize,
    rseq_offset: usize,
    shards: usize,
    /// Chunks in a shard, as a shift.
    shift: usize,
    records: usize,
    spills: usize,
}

impl Plan {
    fn index(&self, place: Place) -> usize {
        place.shard << self.shift | place.chunk as usize
    }
}

/// The valid plan; zeros before there is one.
fn plan() -> Plan {
    let place = PERCPU.words.plan.load(Ordering::Acquire) as *const Plan;
    // SAFETY: there is none, or it was written before its address was published, and never again.
    unsafe { place.as_ref() }.copied().unwrap_or_default()
}

/// Carries out the plan that any thread has made, also a thread of a forked child's parent. Several threads may do
/// so at once: all write the same values, the length last. `false`: there is no plan.
pub fn finish_start() -> bool {
    let (plan, words) = (plan(), &PERCPU.words);
    if plan.bytes == 0 {
        return false;
    }
    words.base.store(plan.base, Ordering::Relaxed);
    words.units.store(plan.units, Ordering::Relaxed);
    words.rseq_offset.store(plan.rseq_offset, Ordering::Relaxed);
    words.bytes.store(plan.bytes, Ordering::Release);
    true
}

/// Whether the address space is reserved. Carries out a plan that there is.
pub fn is_started() -> bool {
    bytes() != 0 || finish_start()
}

/// Releases the memory behind a shard's last chunk: another thread of a forked child's parent may have opened
/// chunks there and written to them (INV-PERCPU-7).
///
/// # Safety
/// No other thread exists, and no area lies there.
pub unsafe fn empty_behind(shard: usize, end: u32) {
    let limit = 1 << plan().shift;
    if end < limit {
        let first = address(Place { shard, chunk: end }, 0);
        let bytes = (limit - end) as usize * (units() + 1) * UNIT_BYTES;
        // SAFETY: a part of our own reservation; by contract.
        if unsafe { vm::release(first, bytes) }.is_err() {
            PERCPU.is_closed.store(true, Ordering::Relaxed);
        }
    }
}

/// The start of the reservation.
#[inline]
pub fn base() -> usize {
    PERCPU.words.base.load(Ordering::Relaxed)
}

/// The length of the reservation; 0 before the first use.
#[inline]
pub fn bytes() -> usize {
    PERCPU.words.bytes.load(Ordering::Acquire)
}

/// Number of copies of an area, without the spill unit.
#[inline]
pub fn units() -> usize {
    PERCPU.words.units.load(Ordering::Relaxed)
}

/// Number of copies of an area, also before the first use. CPU numbers are below it.
pub fn cpus(settings: &Settings) -> usize {
    match units() {
        0 => process::cpu_limit().max(settings.config.percpu_units),
        units => units,
    }
}

/// The offset of `struct rseq`; 0 when additions are atomic instructions.
#[inline]
pub fn rseq_offset() -> isize {
    PERCPU.words.rseq_offset.load(Ordering::Relaxed) as isize
}

/// Whether this thread's CPU has a unit. For a registered thread, the kernel stores the CPU's number. Sections are
/// in use.
pub fn has_unit() -> bool {
    // SAFETY: sections are in use, so `struct rseq` lies there.
    let cpu = unsafe { section::cpu_id(rseq_offset()) };
    usize::try_from(cpu).is_ok_and(|cpu| cpu < units())
}

/// The CPU of this thread, as far as it is known without a system call; else 0. Another number than the CPU's does no
/// harm to a caller that only chooses a shard.
pub fn cpu_unasked() -> usize {
    match rseq_offset() {
        0 => 0,
        // SAFETY: sections are in use, so `struct rseq` lies there.
        offset => usize::try_from(unsafe { section::cpu_id(offset) }).unwrap_or(0),
    }
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct Padded(Lock<ShardState>);

/// A chunk, named by its shard and its number there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub shard: usize,
    pub chunk: u32,
}

impl PerCpuData {
    /// The locks of all shards, in use or not: a fork frees the locks that it has taken, and another thread may
    /// start more shards meanwhile.
    pub fn locks(&self) -> impl Iterator<Item = &Lock<ShardState>> {
        self.shards.iter().map(|shard| &shard.0)
    }

    /// Reserves the address space, once. `false`: there is none. No thread waits for another one: each reserves,
    /// the first thread's plan is valid, and all carry out that plan.
    pub fn start(&self, heap: &Heap) -> bool {
        is_started() || self.make_plan(heap) && finish_start()
    }

    /// Makes a plan for as many chunks as there is address space for, unless another thread is faster. `false`:
    /// there is not enough for one chunk in each shard.
    fn make_plan(&self, heap: &Heap) -> bool {
        let units = cpus(heap);
        let shards = units.min(MAX_SHARDS);
        let ram = process::memory_total().map_or(4 << 30, |(ram, _)| ram);
        let limit = process::soft_limit(process::Resource::AddressSpace)
            .map_or(LIMIT_BYTES, |limit| limit / 16);
        let wanted = ram.saturating_mul(4).min(LIMIT_BYTES).min(limit);
        let chunks = wanted / ((units + 1) * UNIT_BYTES) / shards;
        // Powers of two, so that a chunk's number shows its shard.
        let most = chunks.clamp(1, MAX_CHUNKS).ilog2() as usize;
        let mut shifts = (0..=most).rev();
        shifts.any(|shift| self.reserve(units, shards, shift))
    }

    /// Reserves address space for `1 << shift` chunks in each shard, and writes the plan into it. The data come
    /// first, then the plan, the records, the spills. `false`: there is no address space.
    fn reserve(&self, units: usize, shards: usize, shift: usize) -> bool {
        let count = shards << shift;
        let bytes = count * (units + 1) * UNIT_BYTES;
        let records = bytes + vm::page();
        let spills = records + vm::whole_pages(count * size_of::<Chunk>());
        let all_bytes = spills + vm::whole_pages(count * 8);
        let Ok(base) = vm::reserve(all_bytes, UNIT_BYTES) else {
            return false;
        };
        let place = base + bytes;
        let plan = Plan {
            base,
            bytes,
            units,
            rseq_offset: FAST.rseq_offset.load(Ordering::Relaxed),
            shards,
            shift,
            records: base + records,
            spills: base + spills,
        };
        // SAFETY: our own reservation, without content; the plan has a page of its own.
        let is_written = unsafe {
            // Only needed pages should be populated, so no huge pages.
            let _ = vm::advise(base, bytes, libc::MADV_NOHUGEPAGE);
            let page = vm::commit(place, vm::page());
            page.map(|()| (place as *mut Plan).write(plan)).is_ok()
        };
        let (word, order) = (&self.words.plan, Ordering::AcqRel);
        let counts = || word.compare_exchange(0, place, order, Ordering::Acquire);
        if is_written && counts().is_ok() {
            stats::note_range(Owner::PerCpu, base, all_bytes);
        } else {
            vm::unmap(base, all_bytes);
        }
        is_written
    }

    /// Calls `work` with a shard, under its lock, in a thread that has checked for forks.
    pub fn with<R>(&self, _inside: &Heap, shard: usize, work: impl FnOnce(&mut Shard) -> R) -> R {
        work_on(shard, &mut self.shards[shard].0.lock(), work)
    }

    /// The same, unless another thread has the lock.
    pub fn try_with<R>(
        &self,
        _inside: &Heap,
        shard: usize,
        work: impl FnOnce(&mut Shard) -> R,
    ) -> Option<R> {
        let mut state = self.shards[shard].0.try_lock()?;
        Some(work_on(shard, &mut state, work))
    }

    /// Opens the next chunk of a shard. `false`: no memory, or no address space.
    pub fn open(&self, heap: &Heap, shard: usize) -> bool {
        let limit = 1 << plan().shift;
        let Some(chunk) = self.with(heap, shard, |shard| shard.wanted(limit)) else {
            return false;
        };
        let place = Place { shard, chunk };
        // SAFETY: a part of our own reservation; opening twice does no harm.
        let commit = |from, bytes| unsafe { vm::commit_around(from, bytes) }.is_ok();
        let is_committed = commit(record(place), size_of::<Chunk>())
            && commit(spill(place).as_ptr() as usize, 8)
            && commit(address(place, 0), (units() + 1) * UNIT_BYTES);
        if !is_committed || self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        // The memory is untouched. If it is resident, the program locks its memory when it is mapped, so all of it
        // is resident.
        let resident = !heap.config.basic_syscalls && vm::is_resident(address(place, 0));
        let mut state = self.shards[shard].0.lock();
        // SAFETY: as in `with`; the record behind the end was opened just now.
        let chunks = unsafe { records(shard, state.end().max(chunk + 1)) };
        if Shard::with_group(&mut state, chunks, vm::page_frames()).open(chunk, resident) {
            let spilled = if resident { u64::MAX } else { 0 };
            spill(place).store(spilled, Ordering::Relaxed);
        }
        true
    }
}

/// `state` is behind the lock of this shard.
fn work_on<R>(shard: usize, state: &mut ShardState, work: impl FnOnce(&mut Shard) -> R) -> R {
    // SAFETY: the lock is held, and the records below the end were opened.
    let chunks = unsafe { records(shard, state.end()) };
    work(&mut Shard::with_group(state, chunks, vm::page_frames()))
}

/// The number of shards.
pub fn shards() -> usize {
    plan().shards
}

fn record(place: Place) -> usize {
    let plan = plan();
    plan.records + plan.index(place) * size_of::<Chunk>()
}

/// The records of a shard's chunks below `end`. Zeroed memory is a valid one (INV-PERCPU-6).
///
/// # Safety
/// Its lock is held, and they were opened.
unsafe fn records<'a>(shard: usize, end: u32) -> &'a mut [Chunk] {
    let first = record(Place { shard, chunk: 0 }) as *mut Chunk;
    // SAFETY: by contract; those of a shard are touched under its lock only.
    unsafe { core::slice::from_raw_parts_mut(first, end as usize) }
}

/// Pages of a chunk's spill unit that may be resident. Its memory is opened with the chunk.
pub fn spill(place: Place) -> &'static AtomicU64 {
    let plan = plan();
    let address = plan.spills + plan.index(place) * 8;
    // SAFETY: an entry of the table, which is never unmapped; all access is atomic.
    unsafe { &*(address as *const AtomicU64) }
}

/// The address of a chunk's unit. The unit with the number [`units`] is the spill unit.
pub fn address(place: Place, unit: usize) -> usize {
    let plan = plan();
    plan.base + (plan.index(place) * (plan.units + 1) + unit) * UNIT_BYTES
}

/// The chunk at a handle's place, and the offset in it. `None`: the place is not in the unit of CPU 0.
pub fn chunk_of(place: usize) -> Option<(Place, usize)> {
    let unit = place / UNIT_BYTES;
    let plan = plan();
    let (index, unit) = (unit / (plan.units + 1), unit % (plan.units + 1));
    let found = Place {
        shard: index >> plan.shift,
        chunk: (index & ((1 << plan.shift) - 1)) as u32,
    };
    (unit == 0).then_some((found, place % UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use ebbtide_core::front::heap_of;
    use ebbtide_core::reclaim::sources::Parts;

    /// No other test of this binary starts it. A thread that had to wait for the first thread would wait for ever:
    /// the first thread has been killed, or belongs to a forked child's parent.
    #[test]
    fn what_another_thread_has_begun_is_carried_out_by_anybody() {
        static PARTS: Parts = Parts {
            caches: &[],
            holders: &[&PERCPU],
            hooks: &[],
        };
        let heap: &Heap = &heap_of(&PARTS).unwrap().enter_uncounted();
        let locks = PERCPU.locks().count();
        // The thread ends here: nothing is stored in the words yet.
        assert!(PERCPU.make_plan(heap));
        let begun = plan();
        assert_eq!((base(), bytes(), units()), (0, 0, 0));
        // The thread ends in the middle of the words.
        PERCPU.words.units.store(begun.units, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(PERCPU.start(heap)));
            }
        });
        assert_eq!(
            (base(), bytes(), units()),
            (begun.base, begun.bytes, begun.units)
        );
        // A thread that comes too late with a plan of its own drops it.
        assert!(PERCPU.make_plan(heap) && plan().base == begun.base);
        finish_start();
        assert_eq!((base(), units()), (begun.base, begun.units));
        // A fork that began before this frees as many locks as it took.
        assert_eq!(PERCPU.locks().count(), locks);
    }
}
