//! The one static that holds the whole heap, and its start.
//!
//! The first call can come from the dynamic loader, before libc is ready, and from several threads at once. One thread
//! starts the heap with raw system calls only; the others wait. Until the heap has started, the first compare of the fast
//! paths fails ([`Fast`](crate::base::fast::Fast)), and they take the slow paths, which call [`heap_of`].
//!
//! [`heap_of`] returns only the [`Front`]. A thread that needs more enters first ([`crate::front::fork`]), and gets a
//! [`Heap`].

mod at_once;
pub mod fork;
pub mod requests;

pub use crate::base::fast::FAST;

use crate::base::config::Config;
use crate::base::domains::Domains;
use crate::base::message::Message;
use crate::base::owner;
use crate::base::size_class::{MIN_ALIGN, TABLE_MAX};
use crate::base::stats::{self, Figures};
use crate::front::fork::Forks;
use crate::front::fork::gate::Gate;
use crate::objects::find::Allocation;
use crate::objects::harden::empty::Empties;
use crate::objects::reserve::Reserve;
use crate::pages::Settings;
use crate::pages::region::Region;
use crate::reclaim::sources::Parts;
use crate::reclaim::workers::Workers;
use crate::reclaim::{Heap, the_heap};
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use ebbtide_interface::known::{self, Known};
use ebbtide_interface::records::Places;
use ebbtide_sys::features::{self, HUGE_PAGES, RELEASE, WIPE_ON_FORK};
use ebbtide_sys::lock::{futex_wait, futex_wake};
use ebbtide_sys::{process, vm};
use ebbtide_zone::BLOCK_BYTES;

/// Exit status of a process in which the heap cannot work: the loader's own status for a program that it cannot
/// start.
const REFUSED_STATUS: i32 = 127;

/// The part of the heap that a thread may use before it has checked for forks: constants, and what needs no lock of
/// the heap.
pub struct Front {
    /// The gate: closed to other threads while one forks.
    pub gate: Gate,
    /// The state of forks.
    forks: Forks,
}

pub(crate) static FRONT: Front = Front {
    gate: Gate::new(),
    forks: Forks::new(),
};

const COLD: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;
const FAILED: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(COLD);

/// The heap. The first call starts it with these parts. `None`: the heap cannot work here, and a filter refuses
/// even to end the process.
#[inline]
pub fn heap_of(parts: &'static Parts) -> Option<&'static Front> {
    if STATE.load(Ordering::Acquire) == READY {
        Some(&FRONT)
    } else {
        start_or_wait(parts)
    }
}

/// The heap with this crate's own parts, for tests.
#[cfg(test)]
pub fn heap() -> Option<&'static Front> {
    static HERE: Parts = Parts {
        caches: &[
            &crate::objects::harden::quarantine::Quarantined,
            &crate::pages::spare::Spares,
            &crate::objects::cpu_cache::drain::CpuStacks,
            &crate::objects::central::transfer::Batches,
        ],
        holders: &[
            &crate::reclaim::depopulate::Spans,
            &crate::reclaim::zones::Zones,
            &crate::objects::guarded::Slots,
            &crate::pages::samples::Profile,
        ],
        hooks: &[],
    };
    heap_of(&HERE)
}

/// The heap, if it has started.
#[inline]
pub fn started_heap() -> Option<&'static Front> {
    (STATE.load(Ordering::Acquire) == READY).then_some(&FRONT)
}

/// The statistics now, without the last two figures, which only the kernel knows. Walks the CPUs' caches; takes a
/// few microseconds to a millisecond.
pub fn figures() -> Figures {
    started_heap().map_or_else(
        || stats::counted(false),
        |heap| heap.enter_uncounted().figures().0,
    )
}

/// The process ends in order: calls the hooks, and writes the last statistics.
pub fn end() {
    let Some(heap) = started_heap() else { return };
    let heap = &heap.enter_uncounted();
    stats::ends();
    heap.leave_unattended();
    heap.dump_at_end();
    heap.parts()
        .hooks
        .iter()
        .for_each(|hook| hook.on_exit(heap));
    let config = &heap.config;
    stats::want_no_page(config);
    if heap.page_is_due() && stats::is_this_process(config) {
        heap.write_page();
        stats::end(config);
    }
}

#[cold]
fn start_or_wait(parts: &'static Parts) -> Option<&'static Front> {
    let before = STATE.compare_exchange(COLD, STARTING, Ordering::Acquire, Ordering::Acquire);
    if before.is_ok() {
        // SAFETY: only this thread is here, once.
        let started = unsafe { start(parts) };
        let state = started.map_or_else(refuse, |()| READY);
        STATE.store(state, Ordering::Release);
        futex_wake(&STATE, u32::MAX >> 1);
        if state == READY {
            // Registered this early, so that other handlers run outside ours.
            fork::register();
            // SAFETY: the heap has just started.
            let heap = unsafe { the_heap() };
            parts.hooks.iter().for_each(|hook| hook.on_start(heap));
        }
    }
    while STATE.load(Ordering::Acquire) == STARTING {
        futex_wait(&STATE, STARTING);
    }
    started_heap()
}

/// # Safety
/// Called once.
unsafe fn start(parts: &'static Parts) -> Result<(), &'static Known> {
    // SAFETY: no other thread has the heap before READY.
    let heap = unsafe { the_heap() };
    let mut config = Config::from_environment();
    if !vm::has_known_pages() {
        return Err(&known::PAGES);
    }
    // A huge page of another size than a pageblock could not be released with it.
    config.thp &= vm::has_small_huge_pages();
    if config.basic_syscalls {
        let basic = [&HUGE_PAGES, &RELEASE, &WIPE_ON_FORK];
        let is_basic = |feature| basic.iter().any(|basic| ptr::eq(*basic, feature));
        let others = features::ALL.iter().filter(|feature| !is_basic(**feature));
        others.for_each(|feature| feature.refuse());
    }
    let no_room = &known::ADDRESS_SPACE;
    // The slabs are reserved first, because they are small: under a limit, the region takes most of the remaining
    // address space.
    // SAFETY: once, before any other use.
    let stacks = unsafe { heap.caches.start(&config) }.ok_or(no_room)?;
    heap.nodes.start().ok_or(no_room)?;
    let region = Region::reserve(config.harden).map_err(|_| no_room)?;
    let has_guard_pages =
        config.harden && config.guard_pages && vm::page_frames() == 1 && vm::can_close();
    if config.harden && !(heap.quarantine.start(has_guard_pages) && heap.empties.start()) {
        return Err(no_room);
    }
    heap.spares.start(&config, heap.caches.cpus());
    let most = region.blocks / ebbtide_zone::ZONE_ALIGN_BLOCKS;
    let domains = Domains::of_machine(config.zones, most as usize);
    let (ram, swap) = process::memory_total().unwrap_or((usize::MAX, 0));
    if !config.basic_syscalls {
        heap.cpus.store(process::allowed_cpus(), Ordering::Relaxed);
    }
    let settings = Settings {
        config,
        region,
        domains,
        request_limit: ram.saturating_add(swap),
        ram,
        has_guard_pages,
    };
    // SAFETY: no thread reads before READY.
    unsafe { heap.begin(parts, settings) };
    owner::begin();
    heap.workers.begin();
    if let Some(holds) = config.lockstat {
        ebbtide_sys::lockstat::start(holds);
    }
    heap.control.start(&config);
    // SAFETY: as above.
    unsafe { heap.pressure.start(&config, ram, &heap.allowance) };
    stats::start(&config);
    stats::set_places(&Places {
        slabs: heap.caches.first_slab() as u64,
        cpus: heap.caches.cpus() as u64,
        ..region.places()
    });
    // Without this, the optimiser would make a variable of each word, and place them anywhere.
    core::hint::black_box(&FAST);
    FAST.base.store(region.base, Ordering::Relaxed);
    FAST.classes.store(region.classes, Ordering::Relaxed);
    FAST.table.store(stacks.table, Ordering::Relaxed);
    FAST.parked.store(stacks.parked, Ordering::Relaxed);
    FAST.rseq_offset
        .store(stacks.rseq_offset as usize, Ordering::Relaxed);
    if heap.caches.uses_sections() && !config.harden {
        let units = region.blocks as usize * (BLOCK_BYTES / MIN_ALIGN);
        FAST.units.store(units, Ordering::Release);
        FAST.sizes.store(TABLE_MAX + 1, Ordering::Release);
    }
    if config.guard != 0 {
        heap.guarded.start(config.guard as usize);
    }
    if config.profile_rate != 0 {
        heap.sample(config.profile_rate);
    }
    heap.take_dump_signal();
    Ok(())
}

/// Reports what does not work here, and ends the process. Otherwise every request would fail, and the program would
/// crash later without a message. Returns [`FAILED`] only if a filter refuses `exit_group`.
#[cold]
fn refuse(why: &Known) -> u32 {
    Message::new()
        .text(known::REFUSED)
        .text(why.what)
        .text(": ")
        .text(why.happens)
        .text("; ")
        .text(why.remedy)
        .write();
    process::exit_at_once(REFUSED_STATUS);
    FAILED
}

impl Front {
    /// The reserve: serves requests while another thread forks.
    pub fn reserve(&self) -> &'static Reserve {
        &self.heap().reserve
    }

    /// Allocations of 0 bytes, with `harden=on`.
    pub fn empties(&self) -> &'static Empties {
        &self.heap().empties
    }

    /// Threads that release memory.
    pub fn workers(&self) -> &'static Workers {
        &self.heap().workers
    }

    /// Finds which kind of allocation an address is.
    pub fn find(&self, address: usize) -> Allocation {
        self.heap().find(address)
    }

    /// The requested bytes of a guarded object.
    pub fn size_guarded(&self, address: usize, what: &str) -> usize {
        self.heap().guarded.size(address, what)
    }

    /// Ends the process over a pointer that is no allocation, with a message that describes the address.
    pub fn mistaken(&self, address: usize, what: &str) -> ! {
        self.heap().mistaken(address, what)
    }

    /// The heap, for uses that take no lock.
    #[inline]
    fn heap(&self) -> &'static Heap {
        // SAFETY: a `&Front` is only handed out after the start, and no use here takes a lock.
        unsafe { the_heap() }
    }
}

impl Deref for Front {
    type Target = Settings;

    #[inline]
    fn deref(&self) -> &Settings {
        self.heap()
    }
}
