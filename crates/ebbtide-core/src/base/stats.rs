//! What is known of the process's memory, and the page that tells others.
//!
//! live + cached + in spans + dirty + lazy + pending + metadata is what the kernel counts, within the
//! slack that [`Stats`] names part by part.

mod layout;
mod locks;
mod page;

pub use locks::{LockTotals, locks};

use crate::base::config::Config;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ebbtide_sys::lockstat;
use layout::*;
use page::{set, word};

pub use page::{publish, publish_last, publish_released};

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
}

static WANTS_FILE: AtomicBool = AtomicBool::new(false);
/// Bytes of large allocations that were freed, and are in what the next tick counts.
static LARGE_FREED: AtomicUsize = AtomicUsize::new(0);

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

/// Bytes given back since the process began.
pub fn released() -> usize {
    word(RELEASED) as usize
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

/// In a forked child, which counts anew, in a file of its own: made when the page is written.
pub fn forked(config: &Config) {
    page::forget();
    lockstat::forget();
    let wanted = !config.stats_dir.as_bytes().is_empty();
    WANTS_FILE.store(wanted, Ordering::Relaxed);
}

/// Whether the page has no file yet that it shall have.
pub fn wants_file() -> bool {
    WANTS_FILE.load(Ordering::Relaxed)
}

/// See [`large_freed`]: so much of it, once.
pub fn take_large_freed() -> usize {
    LARGE_FREED.swap(0, Ordering::Relaxed)
}

/// What the page counts by itself, and what it says of memory that is short.
pub fn fill(stats: &mut Stats, is_short: bool) {
    stats.released = released();
    stats.refaulted = word(REFAULTED) as usize;
    stats.worker_ns = word(WORKER_NS);
    stats.longest_stall_ns = word(LONGEST_STALL_NS);
    stats.lazied = word(LAZIED) as usize;
    stats.fallovers = word(FALLOVERS);
    stats.pressure_events = word(PRESSURE_EVENTS);
    stats.pressure_state = match word(PRESSURE_STATE) {
        SHORT if !is_short => CALM,
        state => state,
    };
    stats.limit_left = word(LIMIT_LEFT);
    stats.limit = word(LIMIT);
    locks().for_each(|(_, rank)| stats.locks.add(&rank));
    stats
        .zone_locks
        .add(&lockstat::figures(crate::base::ranks::ZONE));
}

/// Writes the figures, all of them, and copies the page.
pub fn write(stats: &Stats, is_by_sections: bool, config: &Config) {
    set(MODE, usize::from(is_by_sections));
    if WANTS_FILE.swap(false, Ordering::Relaxed) {
        page::open(config);
    }
    set(WRITTEN_MS, ebbtide_sys::clock::now_ms() as usize);
    set(METADATA, stats.metadata);
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
    write_some(stats, config);
}

/// Writes what large allocations change, and copies the page.
pub fn write_some(stats: &Stats, config: &Config) {
    set(WRITTEN_MS, ebbtide_sys::clock::now_ms() as usize);
    set(LIVE, stats.live);
    set(CACHED, stats.cached);
    set(DIRTY, stats.dirty);
    set(LAZY, stats.lazy);
    set(OPENED, stats.opened);
    publish(config);
}

/// Whether the page was ever written whole.
pub fn is_written() -> bool {
    word(WRITTEN_MS) != 0
}

/// The process ends in order.
pub fn ends() {
    set(END_NS, ebbtide_sys::clock::precise_ns() as usize);
}

/// Whether others can see the page, or soon will.
pub fn is_shown() -> bool {
    page::is_open() || WANTS_FILE.load(Ordering::Relaxed)
}

/// A large allocation of so many bytes was freed, and is counted for the next tick.
#[inline]
pub fn large_freed(bytes: usize) {
    if is_shown() {
        LARGE_FREED.fetch_add(bytes, Ordering::Relaxed);
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
