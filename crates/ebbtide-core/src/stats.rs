//! What is known of the process's memory, and the page that tells others.
//!
//! live + cached + in spans + dirty + lazy + pending + metadata is what the kernel counts, within the
//! slack that [`Stats`] names part by part.

mod layout;
mod locks;
mod page;

pub use locks::{LockTotals, locks};

use crate::config::Config;
use crate::heap::{Heap, started_heap};
use crate::size_class::CLASSES;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::lockstat;
use ebbtide_zone::FRAME_BYTES;
use layout::*;
use page::{set, word};

pub use page::{publish, publish_released};

/// Bytes, taken part by part while the process runs: each is right, the sum is as of no one moment.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// With the program, rounded up to size classes and frames. Resident as far as touched.
    pub live: usize,
    /// Objects in the CPUs' caches, in full batches, and in quarantine (`harden=on`), and spare runs. Resident if used before.
    pub cached: usize,
    /// Free objects in spans, with what objects leave over in them. Resident as far as used before.
    pub in_spans: usize,
    /// Free frames that may be resident.
    pub dirty: usize,
    /// Free frames that the kernel may take.
    pub lazy: usize,
    /// Frames on their way to the kernel.
    pub pending: usize,
    /// Records, class bytes, span indices, slabs, batch nodes: what of it may be resident.
    pub metadata: usize,
    /// Whole-frame allocations, part of `live`.
    pub large: usize,
    /// Address space made usable so far.
    pub opened: usize,
    /// Given back to the kernel since the process began.
    pub released: usize,
    /// Frames of spans that were given back and then needed again.
    pub refaulted: usize,
    /// Free, but in huge pages that could not be split.
    pub held: usize,
    /// Nanoseconds that workers spent releasing.
    pub worker_ns: u64,
    /// The longest time that the program itself spent releasing at once, in nanoseconds.
    pub longest_stall_ns: u64,
    /// Made lazy since the process began.
    pub lazied: usize,
    /// Zones whose due frames become lazy first, by what was measured.
    pub lazy_zones: usize,
    /// What decides it: bytes given up lately and soon wanted again, and those that were not. Older evidence
    /// counts less.
    pub reused: usize,
    /// See [`Self::reused`].
    pub unused: usize,
    /// Runs of frames that another zone than the CPU's own gave.
    pub fallovers: u64,
    /// Per-CPU data of the program, in pages that may be resident.
    pub percpu: usize,
    /// What the locks of all ranks cost; zero without `lockstat`. See [`locks`].
    pub locks: LockTotals,
    /// Looks at which memory was found to be short.
    pub pressure_events: u64,
    /// Whether it is: 0 nobody has looked, 1 calm, 2 short.
    pub pressure_state: u64,
    /// Bytes left of the nearest limit at the last look, and the limit; both 0 when none is known.
    pub limit_left: u64,
    /// See there.
    pub limit: u64,
    /// The zones' part of it.
    pub zone_locks: LockTotals,
    /// Frames that were given memory ahead of need (`populate=on`).
    pub populated: usize,
}

impl Stats {
    /// The figures now. Walks the CPUs' caches; a few microseconds to a millisecond.
    pub fn collect() -> Self {
        started_heap().map_or_else(Self::default, |heap| heap.enter_uncounted().stats().0)
    }
}

impl Heap {
    /// The figures, and those of frames with them.
    fn stats(&self) -> (Stats, FrameBytes) {
        let (mut batches, mut in_spans, mut objects, mut span_bytes) = (0, 0, 0, 0);
        let mut claimed = 0;
        for class in 1..CLASSES {
            let bytes = self.central[class].bytes(class);
            batches += bytes.batches;
            in_spans += bytes.in_spans + bytes.claimed;
            claimed += bytes.claimed;
            objects += bytes.all;
            span_bytes += bytes.frames * FRAME_BYTES;
        }
        let cached = self.cached().objects;
        let mut stats = Stats::default();
        for zone in self.live_zones() {
            let refaults = zone.lock.lock().refaults;
            let (reused, unused) = refaults.evidence();
            stats.reused += reused as usize * FRAME_BYTES;
            stats.unused += unused as usize * FRAME_BYTES;
            stats.lazy_zones += usize::from(refaults.lazy_first());
        }
        let frames = self.frame_bytes();
        (stats.dirty, stats.lazy) = (frames.dirty, frames.lazy);
        (stats.pending, stats.opened) = (frames.claimed, frames.opened);
        stats.large = frames.used.saturating_sub(span_bytes);
        let small = objects.saturating_sub(in_spans + cached);
        stats.live = small + stats.large + self.reserve.live_bytes();
        stats.in_spans = span_bytes.saturating_sub(small + cached + claimed);
        stats.pending += claimed;
        // Spare runs are read once: the page's figures subtract them again.
        stats.cached = cached + frames.spare;
        stats.metadata = self
            .region()
            .array_bytes(stats.opened / ebbtide_zone::BLOCK_BYTES)
            + self.record_bytes()
            + self.caches.slab_bytes()
            + batches / 64;
        let hooks = self.parts().hooks.iter();
        hooks.for_each(|hook| hook.account(self, &mut stats));
        stats.released = word(RELEASED) as usize;
        stats.refaulted = word(REFAULTED) as usize;
        stats.held = self.held.all() * FRAME_BYTES;
        stats.worker_ns = word(WORKER_NS);
        stats.longest_stall_ns = word(LONGEST_STALL_NS);
        stats.lazied = word(LAZIED) as usize;
        stats.fallovers = word(FALLOVERS);
        stats.pressure_events = word(PRESSURE_EVENTS);
        stats.pressure_state = word(PRESSURE_STATE);
        if stats.pressure_state == SHORT && !self.allowance.is_short(ebbtide_sys::clock::now_ms()) {
            stats.pressure_state = CALM;
        }
        stats.limit_left = word(LIMIT_LEFT);
        stats.limit = word(LIMIT);
        stats.populated = word(POPULATED) as usize;
        locks().for_each(|(_, rank)| stats.locks.add(&rank));
        stats.zone_locks.add(&lockstat::figures(crate::ranks::ZONE));
        (stats, frames)
    }
}

/// Bytes of the zones' frames, by state.
#[derive(Default)]
struct FrameBytes {
    dirty: usize,
    lazy: usize,
    claimed: usize,
    opened: usize,
    /// With spans and large allocations, less what the latter own and do not use, and spare runs.
    used: usize,
    spare: usize,
}

impl Heap {
    fn frame_bytes(&self) -> FrameBytes {
        let mut sum = FrameBytes::default();
        for zone in self.live_zones() {
            let counters = zone.counters();
            let bytes = |frames: u64| frames as usize * FRAME_BYTES;
            sum.dirty += bytes(counters.dirty);
            sum.lazy += bytes(counters.lazy);
            sum.claimed += bytes(counters.claimed);
            sum.opened += bytes(counters.open);
            sum.used += bytes(counters.in_use);
        }
        let slack = self.slack.load(Ordering::Relaxed) * FRAME_BYTES;
        sum.spare = self.spares.bytes();
        sum.used = sum.used.saturating_sub(slack + sum.spare);
        sum
    }

    /// Span records ever used, and the words of their objects.
    fn record_bytes(&self) -> usize {
        let records = self.records.lock().bytes();
        if !self.is_hardened() {
            return records;
        }
        records + records / size_of::<crate::span::Span>() * crate::region::STATES_BYTES
    }
}

static WANTS_FILE: AtomicBool = AtomicBool::new(false);
static LAST_MS: AtomicU64 = AtomicU64::new(0);
/// Bytes of objects that were freed since the page was written.
static CHANGED: AtomicUsize = AtomicUsize::new(0);
/// Bytes of large allocations that came, went, or changed since the page's figures of frames were written; and those of
/// them in [`Heap::freed`].
static LARGE_CHANGED: AtomicUsize = AtomicUsize::new(0);
static LARGE_FREED: AtomicUsize = AtomicUsize::new(0);
/// Live bytes less [`FrameBytes::used`], when the page was written.
static LIVE_LESS_USED: AtomicUsize = AtomicUsize::new(0);
/// What was cached beside spare runs.
static CACHED_OBJECTS: AtomicUsize = AtomicUsize::new(0);
/// What had been given back when the page was written.
static RELEASED_THEN: AtomicU64 = AtomicU64::new(0);
const REFRESH_MS: u64 = 100;
/// So much is told at once: nothing else may follow.
const CHANGED_BYTES: usize = 16 << 20;

/// Adds to a word that any thread may add to at any time.
#[inline]
fn count(place: usize, value: u64) {
    page::at(place).fetch_add(value, Ordering::Relaxed);
}

/// Called once, by the start of the heap.
pub fn start(config: &Config) {
    if !config.stats_dir.as_bytes().is_empty() {
        page::open(config);
    }
}

/// A forked child counts anew, in a file of its own, made at its first tick.
pub fn forked(heap: &Heap) {
    page::forget();
    lockstat::forget();
    let wanted = !heap.settings().config.stats_dir.as_bytes().is_empty();
    WANTS_FILE.store(wanted, Ordering::Relaxed);
}

/// Bytes given back since the process began.
pub fn released() -> usize {
    word(RELEASED) as usize
}

/// Memory came ahead of need.
pub fn count_populated(bytes: usize) {
    count(POPULATED, bytes as u64);
}

/// A zone other than the CPU's own gave a run of frames.
pub fn count_fallover() {
    count(FALLOVERS, 1);
}

/// Memory was found to be short.
pub fn count_pressure() {
    count(PRESSURE_EVENTS, 1);
}

/// What the last look at pressure found.
pub fn set_pressure(is_short: bool, room: Option<ebbtide_sys::pressure::Room>) {
    let (left, limit) = room.map_or((0, 0), |room| (room.left, room.limit));
    set(LIMIT_LEFT, left as usize);
    set(LIMIT, limit as usize);
    set(PRESSURE_STATE, if is_short { SHORT } else { CALM } as usize);
}

/// What is looked at.
pub fn set_pressure_sources(sources: u64) {
    set(PRESSURE_SOURCES, sources as usize);
}

/// A call released so much, as it had taken more than there was room for.
pub fn count_paid(bytes: usize) {
    count(PAID, bytes as u64);
}

/// Frames of spans were needed again.
pub fn count_refaulted(bytes: usize) {
    count(REFAULTED, bytes as u64);
}

/// A worker has released for so long.
pub fn count_worker(ns: u64) {
    count(WORKER_NS, ns);
}

/// A piece of releasing that the program itself had to do.
pub fn count_stall(ns: u64) {
    page::at(LONGEST_STALL_NS).fetch_max(ns, Ordering::Relaxed);
}

/// So much became lazy.
pub fn count_lazied(bytes: usize) {
    count(LAZIED, bytes as u64);
}

/// A call to the kernel gave so much back.
pub fn count_released(bytes: usize) {
    count(RELEASED, bytes as u64);
    count(CALLS, 1);
}

/// Whether others can see the page, or soon will.
fn is_shown() -> bool {
    page::is_open() || WANTS_FILE.load(Ordering::Relaxed)
}

/// A tick: so much was freed since the last one. No lock may be held.
pub fn freed(heap: &Heap, bytes: usize) {
    if !is_shown() {
        return;
    }
    let bytes = bytes.saturating_sub(LARGE_FREED.swap(0, Ordering::Relaxed));
    if CHANGED.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES {
        write_page(heap);
    }
}

/// A large allocation of so many bytes was freed, and counted in [`Heap::freed`].
#[inline]
pub fn large_freed(bytes: usize) {
    if is_shown() {
        LARGE_FREED.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A large allocation came or went, or changed by so much. The whole page takes microseconds, so only what this changes is
/// written. No lock may be held.
#[inline]
pub fn large_changed(heap: &Heap, bytes: usize) {
    if is_shown() && LARGE_CHANGED.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES {
        write_frames(heap);
    }
}

/// Brings the page up to date, now and then.
pub fn refresh(heap: &Heap, now: u64) {
    if !is_shown() {
        return;
    }
    let last = LAST_MS.load(Ordering::Relaxed);
    // After a large release all may be idle for long.
    let released = word(RELEASED).wrapping_sub(RELEASED_THEN.load(Ordering::Relaxed));
    if now.wrapping_sub(last) >= REFRESH_MS || released >= CHANGED_BYTES as u64 {
        LAST_MS.store(now, Ordering::Relaxed);
        write_page(heap);
    }
}

/// Writes the last figures: called when the process ends in order.
pub fn finish() {
    let Some(heap) = started_heap() else { return };
    let heap = &heap.enter_uncounted();
    set(END_NS, ebbtide_sys::clock::precise_ns() as usize);
    heap.drain_quarantine();
    heap.parts().hooks.iter().for_each(|hook| hook.ends(heap));
    if !heap.settings().config.stats_dir.as_bytes().is_empty() {
        write_page(heap);
        page::publish_last();
    }
}

/// Names the helper that was made.
pub fn set_helper(id: u32) {
    page::tell(HELPER, id as usize);
}

/// The program's end, as its helper saw it: by the helper, with a call of those that it may make.
pub fn set_left(ns: u64) {
    page::tell(LEFT_NS, ns as usize);
}

/// The figures of frames, and what follows from them: so many more or fewer are live than when the page was written.
#[cold]
fn write_frames(heap: &Heap) {
    if WANTS_FILE.load(Ordering::Relaxed) || word(WRITTEN_MS) == 0 {
        return write_page(heap);
    }
    LARGE_CHANGED.store(0, Ordering::Relaxed);
    set(WRITTEN_MS, ebbtide_sys::clock::now_ms() as usize);
    let frames = heap.frame_bytes();
    let live = LIVE_LESS_USED.load(Ordering::Relaxed);
    set(
        LIVE,
        (live.wrapping_add(frames.used) as isize).max(0) as usize,
    );
    let objects = CACHED_OBJECTS.load(Ordering::Relaxed);
    set(CACHED, objects + frames.spare);
    set(DIRTY, frames.dirty);
    set(LAZY, frames.lazy);
    set(OPENED, frames.opened);
    publish();
}

fn write_page(heap: &Heap) {
    set(MODE, usize::from(heap.caches.uses_sections()));
    if WANTS_FILE.swap(false, Ordering::Relaxed) {
        page::open(&heap.settings().config);
    }
    CHANGED.store(0, Ordering::Relaxed);
    LARGE_CHANGED.store(0, Ordering::Relaxed);
    RELEASED_THEN.store(word(RELEASED), Ordering::Relaxed);
    set(WRITTEN_MS, ebbtide_sys::clock::now_ms() as usize);
    let (stats, frames) = heap.stats();
    LIVE_LESS_USED.store(stats.live.wrapping_sub(frames.used), Ordering::Relaxed);
    CACHED_OBJECTS.store(stats.cached - frames.spare, Ordering::Relaxed);
    set(LIVE, stats.live);
    set(DIRTY, stats.dirty);
    set(OPENED, stats.opened);
    set(CACHED, stats.cached);
    set(METADATA, stats.metadata);
    set(LAZY, stats.lazy);
    set(PENDING, stats.pending);
    set(IN_SPANS, stats.in_spans);
    set(HELD, stats.held);
    set(LAZY_ZONES, stats.lazy_zones);
    set(REUSED, stats.reused);
    set(UNUSED, stats.unused);
    set(PERCPU, stats.percpu);
    write_features();
    if lockstat::is_on() {
        locks::write_locks();
    }
    publish();
}

/// What became of each optional kernel call so far.
fn write_features() {
    let mask = |answer: bool| {
        let all = ebbtide_sys::features::ALL.iter().enumerate();
        all.filter(|(_, feature)| feature.known() == Some(answer))
            .fold(0, |mask, (bit, _)| mask | 1 << bit)
    };
    set(WORKED, mask(true));
    set(REFUSED, mask(false));
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Otherwise the page's figure of objects would be what is left below zero.
    #[test]
    fn spare_runs_that_come_and_go_are_read_once() {
        let ends = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        let heap = crate::heap::heap().unwrap().enter_uncounted();
                        let run = heap.allocate_large(900 << 10, 1).unwrap();
                        crate::requests::free_inside(&heap, run.address);
                    }
                });
            }
            let heap = started_heap().or_else(crate::heap::heap).unwrap();
            let inside = heap.enter_uncounted();
            let is_whole = (0..5000).all(|_| {
                let (stats, frames) = inside.stats();
                stats.cached >= frames.spare
            });
            ends.store(true, Ordering::Relaxed);
            assert!(is_whole);
        });
    }
}
