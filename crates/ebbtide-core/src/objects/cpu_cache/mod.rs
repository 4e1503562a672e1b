//! Per-CPU caches of objects: the slow side of the fast paths.
//!
//! The stacks and their operations are in [`ebbtide_sys::rseq`]. This file has the slabs, their states and their bounds.
//! [`traffic`] refills empty stacks and takes the overflow of full ones. [`drain`] empties caches from any thread.
//!
//! The mode is chosen once, before the first push, and never changes:
//! - **sections**: restartable sections on the CPU's slab. A thread without an rseq registration, and a `vfork` child,
//!   find the slab parked; the central lists serve them.
//! - **portable**: the same operations in plain Rust, under a lock for each CPU.
//!
//! States of a slab in the section mode, in [`CpuCaches::states`]:
//!
//! | state | table entry | set by |
//! |---|---|---|
//! | [`COLD`] | 0 | initial state; a fork without handlers |
//! | [`LIVE`] | its offset | [`Objects::warm`](crate::objects::Objects) from cold, the draining thread from parked |
//! | [`PARKED`] | 0 | a draining thread, under its lock; after its fence no other thread touches the slab |
//!
//! Capacity is bounded for each class and, over all classes, for each CPU ([`CPU_BYTES`]). A stack starts with the
//! capacity of one batch. The capacity doubles when an empty stack is refilled, while the CPU's budget lasts. A drain
//! resets all capacities.
//!
//! With `harden=on` each slab has one more stack ([`freed`]), for objects that the program freed.
//!
//! - `INV-CLASS-1`: no object has class 0 or [`LARGE`](crate::pages::region::LARGE). The stacks of these two are always
//!   empty and full in every slab, because nothing is added to them in batches. So `free` pushes without a check of the
//!   class.

pub mod drain;
pub mod freed;
mod traffic;

use crate::base::config::Config;
use crate::base::ranks;
use crate::base::size_class::{CLASS, CLASSES};
use crate::base::stats::{self, Owner};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use ebbtide_interface::records::slab;
use ebbtide_sys::features::{MEMBARRIER, WIPE_ON_FORK};
use ebbtide_sys::lock::Lock;
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::rseq::{
    self, HEADER_BYTES, Registration, SLAB_BYTES, SLAB_SKEW, SLAB_USER_OFFSET, STACK_BYTES, Stacks,
};
use ebbtide_sys::{membarrier, process, vm};

/// CPUs with a cache of their own. Higher CPUs share these caches in the portable mode, and have none in the
/// section mode.
const MAX_CPUS: usize = 1024;
/// Entries of the table: no kernel for x86-64 or aarch64 has a CPU number above 8,191, whatever `/sys` reports.
const TABLE_CPUS: usize = 8192;
/// The part before the entry of CPU 0: the wipe word, a spare one, and two entries for threads without an rseq
/// registration.
const TABLE_HEAD_BYTES: usize = 4 * 8;
/// Bytes of the table. Pages of missing CPUs are only ever read, and so take no memory.
const TABLE_BYTES: usize = TABLE_HEAD_BYTES + TABLE_CPUS * 8;
/// Most bytes of objects that one CPU's stacks may hold.
const CPU_BYTES: usize = 4 << 20;

const COLD: u8 = 0;
const LIVE: u8 = 1;
const PARKED: u8 = 2;

/// Value of the word that the kernel wipes at a fork.
const NOT_WIPED: usize = 1;

/// All CPUs' caches.
pub struct CpuCaches {
    place: UnsafeCell<Place>,
    /// See the module's header.
    states: [AtomicU8; MAX_CPUS],
    /// One drain at a time.
    drain: Lock<()>,
    /// The portable mode's locks.
    locks: [Lock<()>; MAX_CPUS],
}

/// Constant after the start.
#[derive(Clone, Copy)]
struct Place {
    /// Their rseq offset is 0 in the portable mode.
    stacks: Stacks,
    cpus: usize,
}

// SAFETY: `place` is written once, by the start of the heap; the rest is atomics and locks.
unsafe impl Sync for CpuCaches {}

/// Ebbtide's notes about a slab, in its header page.
#[repr(C)]
struct SlabNotes {
    /// Capacity of each stack at its next refill.
    capacity: [AtomicU16; CLASSES],
    /// The fewest objects in each stack at the rounds of this window.
    low: [AtomicU16; CLASSES],
    /// Sum of all stacks' capacities, in bytes of objects.
    bytes: AtomicUsize,
    /// The sum of the headers at the last round, and the number of rounds with this sum.
    seen: AtomicUsize,
    idle_rounds: AtomicUsize,
    /// The header of the stack of freed objects when it was last seen, and when that was: see [`freed`].
    freed_seen: AtomicUsize,
    freed_seen_ms: AtomicU64,
    /// Since when that header has not changed.
    freed_since_ms: AtomicU64,
}

const _: () = assert!(MAX_CPUS <= TABLE_CPUS);
const _: () = assert!(SLAB_BYTES as u64 == slab::BYTES && STACK_BYTES as u64 == slab::STACK_BYTES);
const _: () = assert!(SLAB_USER_OFFSET + size_of::<SlabNotes>() <= HEADER_BYTES - 8);
const _: () = assert!(rseq::STACKS * 8 <= SLAB_USER_OFFSET);

impl CpuCaches {
    /// Not usable before [`Self::start`].
    pub const fn new() -> Self {
        let stacks = Stacks {
            table: 0,
            parked: 0,
            rseq_offset: 0,
        };
        Self {
            place: UnsafeCell::new(Place { stacks, cpus: 0 }),
            states: [const { AtomicU8::new(COLD) }; MAX_CPUS],
            drain: Lock::new(ranks::DRAIN, ()),
            locks: [const { Lock::new(ranks::CPU, ()) }; MAX_CPUS],
        }
    }

    /// Reserves the slabs and chooses the mode. `None`: no address space.
    ///
    /// # Safety
    /// Called once, before any other use.
    pub unsafe fn start(&self, config: &Config) -> Option<Stacks> {
        let all = process::cpu_limit();
        // Higher CPUs have no slab, and under a limit of address space more CPUs have none: their table entries
        // stay parked.
        let mut cpus = all.clamp(1, MAX_CPUS);
        let (table_end, parked) = places(vm::page());
        let start = loop {
            let bytes = vm::whole_pages(parked + (cpus + 1) * SLAB_BYTES);
            match vm::reserve(bytes, STACK_BYTES.max(vm::page())) {
                Ok(start) => break start,
                Err(_) if cpus > 1 => cpus /= 2,
                Err(_) => return None,
            }
        };
        stats::note_range(Owner::Records, start, parked + (cpus + 1) * SLAB_BYTES);
        let (table_end, parked) = (start + table_end, start + parked);
        // SAFETY: our own reservation; of the parked slab, only the headers are used.
        unsafe {
            vm::commit_around(start, parked + HEADER_BYTES - start).ok()?;
            let advised = vm::advise(start, table_end - start, libc::MADV_WIPEONFORK);
            let _ = WIPE_ON_FORK.latch(advised);
            rseq::reset_slab(parked);
        }
        let stacks = Stacks {
            table: table_end - TABLE_CPUS * 8,
            parked,
            rseq_offset: choose_mode(config, all).unwrap_or(0),
        };
        // SAFETY: by contract.
        unsafe { *self.place.get() = Place { stacks, cpus } };
        self.forget_fork();
        if self.uses_sections() && config.vfork_guard {
            rseq::guard_vfork(stacks.rseq_offset);
        }
        Some(stacks)
    }

    #[inline]
    fn place(&self) -> &Place {
        // SAFETY: written once, before the heap is handed out.
        unsafe { &*self.place.get() }
    }

    /// The address of CPU 0's slab.
    pub fn first_slab(&self) -> usize {
        self.place().stacks.slab(0)
    }

    /// CPUs that have a slab: all that the kernel may ever bring up, or fewer under a limit of address space.
    pub fn cpus(&self) -> usize {
        self.place().cpus
    }

    /// Whether restartable sections are in use.
    #[inline]
    pub fn uses_sections(&self) -> bool {
        self.place().stacks.rseq_offset != 0
    }

    /// See [`rseq::section::was_switched`]. Only for the section mode.
    #[inline]
    pub fn was_switched(&self) -> bool {
        debug_assert!(self.uses_sections());
        // SAFETY: by contract the section mode.
        unsafe { rseq::section::was_switched(self.place().stacks.rseq_offset) }
    }

    /// Registers this thread for sections, if it has no registration and the C library makes none. For slow paths that
    /// hold no lock: a filter may kill the thread for the call.
    #[inline]
    pub fn join_sections(&self) {
        if self.uses_sections() {
            rseq::join_if_unregistered(self.place().stacks.rseq_offset);
        }
    }

    /// Whether this process was forked without fork handlers.
    #[inline]
    pub fn was_forked(&self) -> bool {
        self.wipe_word().load(Ordering::Relaxed) == 0
    }

    /// Sets the word that the kernel wipes at a fork.
    pub fn forget_fork(&self) {
        self.wipe_word().store(NOT_WIPED, Ordering::Relaxed);
    }

    fn wipe_word(&self) -> &AtomicUsize {
        // SAFETY: the word is mapped from the start on.
        unsafe { &*((self.place().stacks.table - TABLE_HEAD_BYTES) as *const AtomicUsize) }
    }

    fn table_entry(&self, cpu: usize) -> &AtomicUsize {
        // SAFETY: the table has an entry for each CPU below `TABLE_CPUS`, and `cpus` is no more than that.
        unsafe { &*((self.place().stacks.table + cpu * 8) as *const AtomicUsize) }
    }

    fn notes(&self, cpu: usize) -> &SlabNotes {
        // SAFETY: only called for slabs that have been warmed; all fields are atomics.
        unsafe { &*((self.place().stacks.slab(cpu) + SLAB_USER_OFFSET) as *const SlabNotes) }
    }

    fn is_warm(&self, cpu: usize) -> bool {
        cpu < self.place().cpus && self.states[cpu].load(Ordering::Acquire) != COLD
    }

    /// Capacity of the stack of `class` at its next refill on `cpu`: doubled each time.
    fn next_capacity(&self, cpu: usize, class: usize) -> usize {
        let about = &CLASS[class];
        let least = (about.batch as usize).max(2);
        if !self.is_warm(cpu) {
            return least;
        }
        let notes = self.notes(cpu);
        let now = notes.capacity[class].load(Ordering::Relaxed) as usize;
        let wanted = if now == 0 {
            least
        } else {
            (now * 2).min(about.capacity as usize)
        };
        let more = wanted.saturating_sub(now) * about.size as usize;
        // Two threads may both pass this check: the bound is a budget, not an exact limit.
        if more == 0 || (now != 0 && notes.bytes.load(Ordering::Relaxed) + more > CPU_BYTES) {
            return now.max(least);
        }
        notes.bytes.fetch_add(more, Ordering::Relaxed);
        notes.capacity[class].store(wanted as u16, Ordering::Relaxed);
        wanted
    }

    /// Bytes of objects in all caches. Exact when no thread runs.
    pub fn bytes(&self) -> usize {
        (0..self.place().cpus).map(|cpu| self.cpu_bytes(cpu)).sum()
    }

    /// Bytes of objects in one CPU's cache. Exact when no thread runs on that CPU.
    fn cpu_bytes(&self, cpu: usize) -> usize {
        if !self.is_warm(cpu) {
            return 0;
        }
        // SAFETY: only read; a torn read gives a wrong count at worst.
        let slab = unsafe { Slab::new(self.place().stacks.slab(cpu)) };
        (1..CLASSES)
            .map(|class| slab.len(class) * CLASS[class].size as usize)
            .sum()
    }

    /// Bytes of memory that the slabs themselves take: a page for the headers and for each stack in use.
    pub fn slab_bytes(&self) -> usize {
        let cpus = (0..self.place().cpus).filter(|&cpu| self.is_warm(cpu));
        let used = |cpu| {
            let used =
                |class: &usize| self.notes(cpu).capacity[*class].load(Ordering::Relaxed) != 0;
            1 + (1..CLASSES).filter(used).count()
        };
        cpus.map(|cpu| (used(cpu) * vm::page()).min(SLAB_BYTES))
            .sum()
    }

    /// Whether the fence may be tried. Called before a lock is taken for a fence: a filter that kills the thread
    /// for the call does so here, and leaves no locked lock behind.
    pub fn may_fence(&self) -> bool {
        self.uses_sections() && MEMBARRIER.may_work() && MEMBARRIER.latch(membarrier::ask()).is_ok()
    }

    /// Stops every CPU's sections, for a fork: returns when none is running. `false`: the fence was refused, and
    /// the child must not use the objects in the stacks.
    pub fn park_all(&self) -> bool {
        if !self.uses_sections() {
            return true;
        }
        for cpu in 0..self.place().cpus {
            self.table_entry(cpu).store(0, Ordering::Relaxed);
        }
        MEMBARRIER.latch(membarrier::fence_all()).is_ok()
    }

    /// Undoes [`Self::park_all`] for live slabs.
    pub fn unpark_all(&self) {
        if !self.uses_sections() {
            return;
        }
        for cpu in 0..self.place().cpus {
            if self.states[cpu].load(Ordering::Acquire) == LIVE {
                self.unpark(cpu);
            }
        }
    }

    fn unpark(&self, cpu: usize) {
        let offset = self.place().stacks.live_offset(cpu);
        self.table_entry(cpu).store(offset, Ordering::Release);
    }

    /// Empties all stacks by forgetting their objects.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn forget_all(&self) {
        for cpu in (0..self.place().cpus).filter(|&cpu| self.is_warm(cpu)) {
            // SAFETY: by contract no other thread uses the slab.
            unsafe { self.reset(cpu) };
            self.states[cpu].store(LIVE, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// Only the caller has the slab (`INV-RSEQ-3`).
    unsafe fn reset(&self, cpu: usize) {
        // SAFETY: by contract.
        unsafe { rseq::reset_slab(self.place().stacks.slab(cpu)) };
        let notes = self.notes(cpu);
        let words = notes.capacity.iter().chain(&notes.low);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        notes.bytes.store(0, Ordering::Relaxed);
    }
}

/// Offsets from the reservation's start to the end of the table and to the parked slab. The table ends with a page,
/// because the kernel wipes its pages at a fork, and those of the slab not. The slab follows at its odd alignment.
const fn places(page: usize) -> (usize, usize) {
    let table_end = TABLE_BYTES.next_multiple_of(page);
    let slab = (table_end - SLAB_SKEW).next_multiple_of(STACK_BYTES) + SLAB_SKEW;
    (table_end, slab)
}

/// The rseq offset for the section mode. `None`: the portable mode.
fn choose_mode(config: &Config, cpus: usize) -> Option<isize> {
    if cpus > MAX_CPUS || !config.rseq || config.basic_syscalls {
        return None;
    }
    match rseq::registration() {
        // Linux from 5.10 on has the fence for sections.
        Registration::At(offset) if MEMBARRIER.latch(membarrier::register()).is_ok() => {
            Some(offset)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
