//! The one static that holds everything, and its start.
//!
//! The first call can come from the dynamic loader, before libc is ready, and from several threads at
//! once: one of them starts the heap with raw system calls only, the others wait. Until then the fast
//! paths fail their first compare ([`Fast`]) and come to the slow paths, which call [`heap_of`].
//!
//! [`heap_of`] gives the [`Front`] alone. A thread that needs more enters first ([`crate::fork`]), and gets a [`Heap`].

use crate::allowance::Allowance;
use crate::central::Central;
use crate::central::news::News;
use crate::central::transfer::Nodes;
use crate::config::{Config, MAX_ZONES};
use crate::cpu_cache::CpuCaches;
use crate::domains::Domains;
use crate::figures::Figures;
use crate::fork::gate::Gate;
use crate::frames::{ZoneSlot, zone_range};
use crate::harden::quarantine::Quarantine;
use crate::known::{self, Known};
use crate::ranks;
use crate::region::Region;
use crate::release::held::Held;
use crate::release::pacing::Pacing;
use crate::release::pressure::Pressure;
use crate::release::slots::Slots;
use crate::release::workers::Workers;
use crate::report::Line;
use crate::reserve::Reserve;
use crate::size_class::CLASSES;
use crate::sources::Parts;
use crate::span::SpanTable;
use crate::spare::SpareRuns;
use crate::stats::{self, Stats};
use core::cell::UnsafeCell;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use ebbtide_sys::lock::{Lock, futex_wait, futex_wake};

/// Exit status of a process that cannot work here: the loader's own for a program that it cannot start.
const REFUSED_STATUS: i32 = 127;

/// What a thread may use before it has looked for forks.
pub struct Front {
    settings: UnsafeCell<Settings>,
    /// Closed to other threads while one forks.
    pub gate: Gate,
    /// Serves them meanwhile.
    pub reserve: Reserve,
    /// Threads that release memory.
    pub workers: Workers,
}

/// Everything that one process has once. A `&Heap` proves that the thread has looked for forks: its holder may take locks.
pub struct Heap {
    front: Front,
    /// Set in a child of a fork that skipped the handlers: parts of the heap are given up.
    pub abandoned: AtomicBool,
    /// Whether this process has forked, or is a fork's child: others may share its pages.
    pub forked: AtomicBool,
    /// Frames that large allocations own and do not use: slack, and the rest of a last block.
    pub slack: AtomicUsize,
    /// Places that pages were moved to and that are not ordinary again yet.
    pub moves: AtomicUsize,
    /// Blocks that are kept from huge pages.
    pub small_blocks: AtomicUsize,
    /// Blocks that could not be split at the last try.
    pub held: Held,
    /// The largest step that a zone has grown by since the last tick, in blocks; 0: none has.
    pub grown: AtomicU32,
    /// Bytes freed since the last tick.
    pub freed: AtomicUsize,
    /// CPUs that were allowed at the last look; `usize::MAX`: not to be asked.
    pub cpus: AtomicUsize,
    /// Zones in use are the first [`Settings::zones`].
    pub zones: [ZoneSlot; MAX_ZONES],
    /// By class.
    pub central: [Central; CLASSES],
    /// Where their full batches are.
    pub nodes: Nodes,
    /// Which of them have spans to look at.
    pub news: News,
    /// Span records.
    pub records: Lock<SpanTable>,
    /// What the page says and what not yet.
    pub figures: Figures,
    /// What may be kept and taken.
    pub allowance: Allowance,
    /// When ticks and rounds did what they do seldom.
    pub pacing: Pacing,
    /// Ranges on their way to the kernel.
    pub slots: Slots,
    /// Whether memory is short.
    pub pressure: Pressure,
    /// Objects freed lately, with `harden=on`.
    pub quarantine: Quarantine,
    /// Runs freed lately.
    pub spares: SpareRuns,
    /// Per-CPU caches.
    pub caches: CpuCaches,
}

/// Constant after the start.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Its sources and hooks.
    pub parts: &'static Parts,
    /// As configured.
    pub config: Config,
    /// Where everything is.
    pub region: Region,
    /// Number of zones.
    pub zones: usize,
    /// Which of them is home to which CPU.
    pub domains: Domains,
    /// RAM plus swap, the bound of a single request; `usize::MAX` when unknown or not to be obeyed.
    pub request_limit: usize,
    /// Bytes of RAM; `usize::MAX` when unknown.
    pub ram: usize,
}

// SAFETY: `settings` is written once, before `STATE` says so; the rest guards itself.
unsafe impl Sync for Front {}

static HEAP: Heap = Heap {
    front: Front {
        settings: UnsafeCell::new(Settings {
            parts: &Parts::NONE,
            config: Config::DEFAULT,
            region: Region::NONE,
            zones: 0,
            domains: Domains::ONE,
            request_limit: usize::MAX,
            ram: usize::MAX,
        }),
        gate: Gate::new(),
        reserve: Reserve::new(),
        workers: Workers::new(),
    },
    abandoned: AtomicBool::new(false),
    forked: AtomicBool::new(false),
    slack: AtomicUsize::new(0),
    moves: AtomicUsize::new(0),
    small_blocks: AtomicUsize::new(0),
    held: Held::new(),
    grown: AtomicU32::new(0),
    freed: AtomicUsize::new(0),
    cpus: AtomicUsize::new(1),
    zones: [const { ZoneSlot::new() }; MAX_ZONES],
    central: [const { Central::new() }; CLASSES],
    nodes: Nodes::new(),
    news: News::new(),
    records: Lock::new(ranks::RECORDS, SpanTable::NEW),
    figures: Figures::new(),
    allowance: Allowance::new(),
    pacing: Pacing::new(),
    slots: Slots::new(),
    pressure: Pressure::new(),
    quarantine: Quarantine::new(),
    spares: SpareRuns::new(),
    caches: CpuCaches::new(),
};

/// What the fast paths read: few words, one cache line, zero until the heap has started.
///
/// The limits are stored last (release) and read first (acquire): whoever passes a compare with
/// them sees the rest. They stay zero in the portable mode and with `harden=on`.
#[repr(C, align(64))]
pub struct Fast {
    /// Requests below this size may be popped at once: [`crate::size_class::TABLE_MAX`] + 1, or 0.
    pub sizes: AtomicUsize,
    /// Multiples of 16 less `base` below 16 times this may be pushed at once: sixteenths of the region, or 0.
    pub units: AtomicUsize,
    /// [`Region::base`].
    pub base: AtomicUsize,
    /// [`Region::classes`].
    pub classes: AtomicUsize,
    /// See [`ebbtide_sys::rseq::Stacks`].
    pub table: AtomicUsize,
    /// See there.
    pub parked: AtomicUsize,
    /// See there.
    pub rseq_offset: AtomicUsize,
}

/// The fast paths' words.
pub static FAST: Fast = Fast {
    sizes: AtomicUsize::new(0),
    units: AtomicUsize::new(0),
    base: AtomicUsize::new(0),
    classes: AtomicUsize::new(0),
    table: AtomicUsize::new(0),
    parked: AtomicUsize::new(0),
    rseq_offset: AtomicUsize::new(0),
};

const COLD: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;
const FAILED: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(COLD);

/// The heap, started by the first call, and then of those parts. `None`: it cannot work here, and a filter refuses even
/// to end the process.
#[inline]
pub fn heap_of(parts: &'static Parts) -> Option<&'static Front> {
    if STATE.load(Ordering::Acquire) == READY {
        Some(&HEAP.front)
    } else {
        start_or_wait(parts)
    }
}

/// The same, of the parts that are here, for tests.
#[cfg(test)]
pub fn heap() -> Option<&'static Front> {
    static HERE: Parts = Parts {
        caches: &[
            &crate::harden::quarantine::Quarantined,
            &crate::spare::Spares,
            &crate::cpu_cache::drain::CpuStacks,
            &crate::central::transfer::Batches,
        ],
        keepers: &[
            &crate::release::depopulate::Spans,
            &crate::release::zones::Zones,
        ],
        hooks: &[],
    };
    heap_of(&HERE)
}

/// The heap, for those who came through it.
pub fn the_heap() -> &'static Front {
    &HEAP.front
}

/// The heap, if it has started.
pub fn started_heap() -> Option<&'static Front> {
    (STATE.load(Ordering::Acquire) == READY).then_some(&HEAP.front)
}

impl Stats {
    /// The figures now. Walks the CPUs' caches; a few microseconds to a millisecond.
    pub fn collect() -> Self {
        started_heap().map_or_else(Self::default, |heap| heap.enter_uncounted().stats().0)
    }
}

/// The process ends in order: parts of the heap are told, and the last figures are written.
pub fn end() {
    let Some(heap) = started_heap() else { return };
    let heap = &heap.enter_uncounted();
    stats::ends();
    heap.drain_quarantine();
    heap.parts().hooks.iter().for_each(|hook| hook.ends(heap));
    let config = &heap.settings().config;
    if !config.stats_dir.as_bytes().is_empty() {
        heap.write_page();
        stats::publish_last(config);
    }
}

#[cold]
fn start_or_wait(parts: &'static Parts) -> Option<&'static Front> {
    match STATE.compare_exchange(COLD, STARTING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: only this thread is here, once.
            let started = unsafe { start(parts) };
            STATE.store(if started { READY } else { FAILED }, Ordering::Release);
            futex_wake(&STATE, u32::MAX >> 1);
            if started {
                // As early as that, so that other handlers run outside ours.
                crate::fork::register();
                parts.hooks.iter().for_each(|hook| hook.started(&HEAP));
            }
        }
        Err(_) => {
            while STATE.load(Ordering::Acquire) == STARTING {
                futex_wait(&STATE, STARTING);
            }
        }
    }
    started_heap()
}

/// # Safety
/// Called once.
unsafe fn start(parts: &'static Parts) -> bool {
    let config = Config::from_environment();
    if !ebbtide_sys::vm::has_small_pages() {
        return refuse(&known::PAGES);
    }
    if config.basic_syscalls {
        for feature in ebbtide_sys::features::ALL {
            use ebbtide_sys::features::{HUGE_PAGES, RELEASE, WIPE_ON_FORK};
            if ![&HUGE_PAGES, &RELEASE, &WIPE_ON_FORK]
                .iter()
                .any(|basic| core::ptr::eq(feature, *basic))
            {
                feature.refuse();
            }
        }
    }
    // The small one first: under a limit, the region takes most of what is left.
    // SAFETY: once, before any other use.
    let Some(stacks) = (unsafe { HEAP.caches.start(&config) }) else {
        return refuse(&known::ADDRESS_SPACE);
    };
    if HEAP.nodes.start().is_none() {
        return refuse(&known::ADDRESS_SPACE);
    }
    let Ok(region) = Region::reserve(config.harden) else {
        return refuse(&known::ADDRESS_SPACE);
    };
    if config.harden && !HEAP.quarantine.start() {
        return refuse(&known::ADDRESS_SPACE);
    }
    HEAP.spares.start(&config, HEAP.caches.cpus());
    let most = region.blocks / ebbtide_zone::ZONE_ALIGN_BLOCKS;
    let domains = Domains::of_machine(config.zones, most as usize);
    let zones = domains.zones();
    let memory = ebbtide_sys::process::memory_total();
    let request_limit = memory.map_or(usize::MAX, |(ram, swap)| ram.saturating_add(swap));
    let ram = memory.map_or(usize::MAX, |(ram, _)| ram);
    let cpus = match config.basic_syscalls {
        true => usize::MAX,
        false => ebbtide_sys::process::allowed_cpus(),
    };
    HEAP.cpus.store(cpus, Ordering::Relaxed);
    // SAFETY: nobody reads before READY.
    unsafe {
        *HEAP.settings.get() = Settings {
            parts,
            config,
            region,
            zones,
            domains,
            request_limit,
            ram,
        };
    }
    for index in 0..zones {
        let (first, limit) = zone_range(&region, zones, index);
        HEAP.zones[index].begin(first, limit, config.lazy_ms);
    }
    HEAP.workers.begin();
    if let Some(holds) = config.lockstat {
        ebbtide_sys::lockstat::start(holds);
    }
    // SAFETY: as above.
    unsafe { HEAP.pressure.start(&config, ram, &HEAP.allowance) };
    crate::stats::start(&config);
    FAST.base.store(region.base, Ordering::Relaxed);
    FAST.classes.store(region.classes, Ordering::Relaxed);
    FAST.table.store(stacks.table, Ordering::Relaxed);
    FAST.parked.store(stacks.parked, Ordering::Relaxed);
    FAST.rseq_offset
        .store(stacks.rseq_offset as usize, Ordering::Relaxed);
    if HEAP.caches.uses_sections() && !config.harden {
        FAST.units.store(
            region.blocks as usize * (ebbtide_zone::BLOCK_BYTES / crate::size_class::MIN_ALIGN),
            Ordering::Release,
        );
        FAST.sizes
            .store(crate::size_class::TABLE_MAX + 1, Ordering::Release);
    }
    true
}

/// Says what cannot work here, and ends the process: every request would fail, and the program would die of one of
/// them later, without a word. Returns, with `false`, only where a filter refuses `exit_group`.
#[cold]
fn refuse(why: &Known) -> bool {
    Line::new()
        .text(known::REFUSED)
        .text(why.what)
        .text(": ")
        .text(why.happens)
        .text("; ")
        .text(why.remedy)
        .write();
    ebbtide_sys::process::exit_at_once(REFUSED_STATUS);
    false
}

impl Front {
    /// The constants of this process.
    #[inline]
    pub fn settings(&self) -> &Settings {
        // SAFETY: a `&Front` is only handed out after the start (`heap`), or used by the start itself
        // after it wrote them.
        unsafe { &*self.settings.get() }
    }

    /// Its sources and hooks.
    pub fn parts(&self) -> &'static Parts {
        self.settings().parts
    }

    /// Where everything is.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.settings().region
    }

    /// The rest of the heap, for a thread that enters in no other way.
    ///
    /// # Safety
    /// The thread has looked for forks itself ([`crate::fork`]), or is a worker: no child has one, and it may wait for a fork.
    #[inline]
    pub unsafe fn inside(&self) -> &'static Heap {
        &HEAP
    }
}

impl Deref for Heap {
    type Target = Front;

    #[inline]
    fn deref(&self) -> &Front {
        &self.front
    }
}

impl Heap {
    /// The zones in use.
    pub fn live_zones(&self) -> &[ZoneSlot] {
        &self.zones[..self.settings().zones]
    }

    /// Whether a frame is in a part of the heap given up after a fork without handlers.
    #[inline]
    pub fn is_abandoned(&self, frame: ebbtide_zone::Frame) -> bool {
        self.abandoned.load(Ordering::Relaxed) && self.is_frozen(frame)
    }
}

/// A lock as the fork handlers see it.
pub trait ForkLock {
    /// Takes it.
    fn take(&self);
    /// Frees it.
    ///
    /// # Safety
    /// This thread took it before the fork.
    unsafe fn free(&self);
    /// Makes it free whoever held it.
    ///
    /// # Safety
    /// No other thread exists.
    unsafe fn force_free(&self);
}

impl<T> ForkLock for Lock<T> {
    fn take(&self) {
        self.lock_for_fork();
    }

    unsafe fn free(&self) {
        // SAFETY: by contract.
        unsafe { self.unlock_after_fork() };
    }

    unsafe fn force_free(&self) {
        // SAFETY: by contract.
        unsafe { self.reset() };
    }
}
