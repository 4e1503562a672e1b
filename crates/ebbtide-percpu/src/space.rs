//! Address space of the per-CPU areas: one reservation, made at the first use.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ebbtide_core::base::ranks;
use ebbtide_core::front::FAST;
use ebbtide_core::pages::Settings;
use ebbtide_core::reclaim::Heap;
use ebbtide_sys::lock::Lock;
use ebbtide_sys::rseq::section;
use ebbtide_sys::{process, vm};
use ebbtide_zone::FRAME_BYTES;
use ebbtide_zone::percpu::{Chunk, Shard, ShardState, UNIT_BYTES};

/// A handle has room for that.
pub const LIMIT_BYTES: usize = 1 << 40;
/// Shards at most.
const MAX_SHARDS: usize = 16;
/// Chunks of a shard at most.
const MAX_CHUNKS: usize = 1 << 15;

const _: () = assert!(UNIT_BYTES == 1 << ebbtide_sys::rseq::UNIT_SHIFT);

/// Per-CPU data of the program.
pub struct PerCpuData {
    words: Words,
    /// Set where memory behind the chunks may have content that nobody could take away: none is opened then.
    is_closed: AtomicBool,
    shards: [Padded; MAX_SHARDS],
    /// The last round, and the last call for a worker.
    pub(crate) last_round_ms: AtomicU64,
    /// See there.
    pub(crate) last_call_ms: AtomicU64,
}

/// The one of this process.
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

/// What additions read: one cache line, set once.
#[repr(C, align(64))]
struct Words {
    /// 0 before the first use.
    base: AtomicUsize,
    bytes: AtomicUsize,
    units: AtomicUsize,
    /// 0: no sections.
    rseq_offset: AtomicUsize,
    /// Where the [`Plan`] is, in memory of its own: complete before its address stands here. 0: nobody has begun.
    plan: AtomicUsize,
}

/// What all threads start by. Whoever finds it carries it out, so that nobody waits for the thread that made it.
#[derive(Clone, Copy, Default)]
struct Plan {
    base: usize,
    bytes: usize,
    units: usize,
    rseq_offset: usize,
    shards: usize,
    /// Chunks of a shard, as a shift.
    shift: usize,
    records: usize,
    spills: usize,
}

impl Plan {
    fn index(&self, place: Place) -> usize {
        place.shard << self.shift | place.chunk as usize
    }
}

/// The plan that counts; zeros before there is one.
fn plan() -> Plan {
    let place = PERCPU.words.plan.load(Ordering::Acquire) as *const Plan;
    // SAFETY: none, or written before its address was published, and never again.
    unsafe { place.as_ref() }.copied().unwrap_or_default()
}

/// Carries out what any thread has begun, of a forked child's parent too. Several may do so at once: all write the same,
/// the length last. `false`: nobody has.
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

/// Takes the memory behind a shard's last chunk away: another thread of a forked child's parent may have opened
/// chunks there and written to them (INV-PERCPU-7).
///
/// # Safety
/// No other thread exists, and nobody has an area there.
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

/// Its length; 0 before the first use.
#[inline]
pub fn bytes() -> usize {
    PERCPU.words.bytes.load(Ordering::Acquire)
}

/// Copies of an area, without the spill unit.
#[inline]
pub fn units() -> usize {
    PERCPU.words.units.load(Ordering::Relaxed)
}

/// How many CPUs areas have copies for, also before the first use: CPU numbers are below it.
pub fn cpus(settings: &Settings) -> usize {
    match units() {
        0 => process::cpu_limit().max(settings.config.percpu_units),
        units => units,
    }
}

/// Where `struct rseq` is; 0 when additions are atomic instructions.
#[inline]
pub fn rseq_offset() -> isize {
    PERCPU.words.rseq_offset.load(Ordering::Relaxed) as isize
}

/// Whether the CPU that this thread is on has a unit, by the kernel's word for a registered thread. Sections are in use.
pub fn has_unit() -> bool {
    // SAFETY: sections are in use, so `struct rseq` lies there.
    let cpu = unsafe { section::cpu_id(rseq_offset()) };
    usize::try_from(cpu).is_ok_and(|cpu| cpu < units())
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct Padded(Lock<ShardState>);

/// A chunk by shard and number in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub shard: usize,
    pub chunk: u32,
}

impl PerCpuData {
    /// The locks of all shards, in use or not: a fork frees what it has taken, and another thread may start the
    /// shards meanwhile.
    pub fn locks(&self) -> impl Iterator<Item = &Lock<ShardState>> {
        self.shards.iter().map(|shard| &shard.0)
    }

    /// Reserves the address space, once. `false`: there is none to be had. No thread waits for another one: each
    /// reserves, the first one's plan counts, and all carry that one out.
    pub fn start(&self, heap: &Heap) -> bool {
        bytes() != 0 || finish_start() || self.make_plan(heap) && finish_start()
    }

    /// Makes a plan for as many chunks as there is address space for, unless another thread is faster. `false`: there is not
    /// enough for one chunk of each shard.
    fn make_plan(&self, heap: &Heap) -> bool {
        let units = cpus(heap);
        let shards = units.min(MAX_SHARDS);
        let ram = process::memory_total().map_or(4 << 30, |(ram, _)| ram);
        let limit = process::soft_limit(libc::RLIMIT_AS).map_or(LIMIT_BYTES, |limit| limit / 16);
        let wanted = ram.saturating_mul(4).min(LIMIT_BYTES).min(limit);
        let chunks = wanted / ((units + 1) * UNIT_BYTES) / shards;
        // Powers of two, so that a chunk's number says its shard.
        let most = chunks.clamp(1, MAX_CHUNKS).ilog2() as usize;
        let mut shifts = (0..=most).rev();
        shifts.any(|shift| self.reserve(units, shards, shift))
    }

    /// Reserves address space for `1 << shift` chunks in each shard, and writes the plan into it. The data come first, then
    /// the plan, the records, the spills. `false`: there is none.
    fn reserve(&self, units: usize, shards: usize, shift: usize) -> bool {
        let count = shards << shift;
        let bytes = count * (units + 1) * UNIT_BYTES;
        let records = bytes + FRAME_BYTES;
        let spills = records + (count * size_of::<Chunk>()).next_multiple_of(FRAME_BYTES);
        let all_bytes = spills + (count * 8).next_multiple_of(FRAME_BYTES);
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
            // What is populated shall be what is needed.
            let _ = vm::advise(base, bytes, libc::MADV_NOHUGEPAGE);
            let page = vm::commit(place, FRAME_BYTES);
            page.map(|()| (place as *mut Plan).write(plan)).is_ok()
        };
        let (word, order) = (&self.words.plan, Ordering::AcqRel);
        let counts = || word.compare_exchange(0, place, order, Ordering::Acquire);
        if !is_written || counts().is_err() {
            vm::unmap(base, all_bytes);
        }
        is_written
    }

    /// Calls `work` with a shard, under its lock, in a thread that has looked for forks.
    pub fn with<R>(&self, _inside: &Heap, shard: usize, work: impl FnOnce(&mut Shard) -> R) -> R {
        let mut state = self.shards[shard].0.lock();
        // SAFETY: the lock is held, and the records below the end were opened.
        let chunks = unsafe { records(shard, state.end()) };
        work(&mut Shard::new(&mut state, chunks))
    }

    /// Opens the next chunk of a shard. `false`: no memory, or no address space.
    pub fn open(&self, heap: &Heap, shard: usize) -> bool {
        let limit = 1 << plan().shift;
        let Some(chunk) = self.with(heap, shard, |shard| shard.wanted(limit)) else {
            return false;
        };
        let place = Place { shard, chunk };
        let commit = |from: usize, bytes: usize| {
            let start = from / FRAME_BYTES * FRAME_BYTES;
            let end = (from + bytes).next_multiple_of(FRAME_BYTES);
            // SAFETY: a part of our own reservation; opening twice does no harm.
            unsafe { vm::commit(start, end - start) }.is_ok()
        };
        let is_committed = commit(record(place), size_of::<Chunk>())
            && commit(spill(place).as_ptr() as usize, 8)
            && commit(address(place, 0), (units() + 1) * UNIT_BYTES);
        if !is_committed || self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        // Untouched, so it is there only if the program locks its memory as it comes: all of it, then.
        let resident = !heap.config.basic_syscalls && vm::is_resident(address(place, 0));
        let mut state = self.shards[shard].0.lock();
        // SAFETY: as in `with`; the record behind the end was opened just now.
        let chunks = unsafe { records(shard, state.end().max(chunk + 1)) };
        if Shard::new(&mut state, chunks).open(chunk, resident) {
            let spilled = if resident { u64::MAX } else { 0 };
            spill(place).store(spilled, Ordering::Relaxed);
        }
        true
    }
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

/// Pages of a chunk's spill unit that may be resident. Opened with the chunk.
pub fn spill(place: Place) -> &'static AtomicU64 {
    let plan = plan();
    let address = plan.spills + plan.index(place) * 8;
    // SAFETY: an entry of the table, which is never unmapped; all access is atomic.
    unsafe { &*(address as *const AtomicU64) }
}

/// The address of a chunk's unit; that with the number [`units`] is the spill unit.
pub fn address(place: Place, unit: usize) -> usize {
    let plan = plan();
    plan.base + (plan.index(place) * (plan.units + 1) + unit) * UNIT_BYTES
}

/// The chunk of a handle's place, and the offset in it. `None`: it is not in the unit of CPU 0.
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

    /// No other test of this binary starts it. A thread that had to wait for the one that began would wait for good:
    /// that one has been killed, or is the thread of a forked child's parent.
    #[test]
    fn what_another_thread_has_begun_is_carried_out_by_anybody() {
        static PARTS: Parts = Parts {
            caches: &[],
            holders: &[&PERCPU],
            hooks: &[],
        };
        let heap: &Heap = &heap_of(&PARTS).unwrap().enter_uncounted();
        let locks = PERCPU.locks().count();
        // The thread ends here: nothing stands in the words yet.
        assert!(PERCPU.make_plan(heap));
        let begun = plan();
        assert_eq!((base(), bytes(), units()), (0, 0, 0));
        // Or in the middle of them.
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
        // One that comes too late with a plan of its own drops it.
        assert!(PERCPU.make_plan(heap) && plan().base == begun.base);
        finish_start();
        assert_eq!((base(), units()), (begun.base, begun.units));
        // A fork that began before this frees as many locks as it took.
        assert_eq!(PERCPU.locks().count(), locks);
    }
}
