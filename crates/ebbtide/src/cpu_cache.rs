//! Per-CPU caches of objects: the slow side of the fast paths.
//!
//! The stacks and their operations are [`ebbtide_sys::rseq`]; here is who calls them when: refill on
//! a miss, overflow on a full stack, drain by anyone.
//!
//! The mode is chosen once, before the first push, and never changes:
//! - **sections**: restartable sections on the CPU's slab. A thread without registration, and a
//!   `vfork` child, finds its slab parked and is served by the central lists.
//! - **portable**: the same operations in plain Rust under a lock per CPU.
//!
//! States of a slab in the section mode, in [`CpuCaches::states`]:
//!
//! | state | table entry | who leads into it |
//! |---|---|---|
//! | [`COLD`] | 0 | initial; a fork without handlers |
//! | [`LIVE`] | its offset | [`Heap::warm`] from cold, the drainer from parked |
//! | [`PARKED`] | 0 | a drainer, under its lock; it alone touches the slab after its fence |
//!
//! Capacity is bounded per class and, over all classes, per CPU ([`CPU_BYTES`]): a stack starts with
//! room for one batch and doubles when it is refilled empty, while the CPU's budget lasts. A drain
//! starts that anew.

use crate::central::{Misuse, NODES_BYTES};
use crate::config::Config;
use crate::heap::{ForkLock, Heap};
use crate::ranks;
use crate::size_class::{CLASS, CLASSES, MAX_BATCH};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering};
use ebbtide_sys::features::{MEMBARRIER, WIPE_ON_FORK};
use ebbtide_sys::lock::Lock;
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::rseq::{
    self, Outcome, Registration, SLAB_BYTES, SLAB_SKEW, SLAB_USER_OFFSET, STACK_BYTES, Stacks,
};
use ebbtide_sys::{membarrier, process, vm};

/// CPUs with a cache of their own; higher ones share them in the portable mode and go without in
/// the section mode.
const MAX_CPUS: usize = 1024;
/// Most bytes of objects that one CPU's stacks may hold.
const CPU_BYTES: usize = 4 << 20;
/// So many aborted sections in a row mean that they cannot get through (single-stepping).
const MAX_ABORTS: usize = 20;

/// Rounds of the release engine without use after which a cache is drained: about a second when calm.
const IDLE_ROUNDS: usize = 6;

const COLD: u8 = 0;
const LIVE: u8 = 1;
const PARKED: u8 = 2;

/// Value of the word that a fork wipes.
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
    stacks: Stacks,
    /// Batch nodes of the central lists: not of the CPUs, but made with them.
    nodes: usize,
    cpus: usize,
    sections: bool,
    /// Why the portable mode was chosen.
    reason: &'static str,
    /// Address of the word that is zero in a forked child that nobody has told of it.
    wipe_word: usize,
}

// SAFETY: `place` is written once, by the start of the heap; the rest is atomics and locks.
unsafe impl Sync for CpuCaches {}

/// What this process keeps about a slab in its header page.
#[repr(C)]
struct SlabNotes {
    /// Room of each stack at its next refill.
    capacity: [AtomicU16; CLASSES],
    /// Bytes of objects that all stacks have room for.
    bytes: AtomicUsize,
    /// What the headers added up to at the last round, and for how many rounds they have.
    seen: AtomicUsize,
    idle_rounds: AtomicUsize,
}

const _: () = assert!(SLAB_USER_OFFSET + size_of::<SlabNotes>() <= 4096 - 8);
const _: () = assert!(CLASSES * 8 <= SLAB_USER_OFFSET);

impl CpuCaches {
    /// Of no use before [`Self::start`].
    pub const fn new() -> Self {
        let stacks = Stacks {
            table: 0,
            parked: 0,
            rseq_offset: 0,
        };
        let place = Place {
            stacks,
            nodes: 0,
            cpus: 0,
            sections: false,
            reason: "",
            wipe_word: 0,
        };
        Self {
            place: UnsafeCell::new(place),
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
        // The wipe word, a spare one, two entries for threads without registration, and one per CPU.
        // The parked slab follows, at a slab's odd alignment.
        let table_bytes = ((4 + all.min(MAX_CPUS)) * 8).next_multiple_of(STACK_BYTES) + SLAB_SKEW;
        // Under a limit, the higher CPUs go without a slab: their table entries stay parked.
        let mut cpus = all.clamp(1, MAX_CPUS);
        let start = loop {
            match vm::reserve(table_bytes + (cpus + 1) * SLAB_BYTES, STACK_BYTES) {
                Ok(start) => break start,
                Err(_) if cpus > 1 => cpus /= 2,
                Err(_) => return None,
            }
        };
        let nodes = vm::map(NODES_BYTES.next_multiple_of(vm::GRANULE)).ok()?;
        // SAFETY: our own reservation; the parked slab is one header page.
        unsafe {
            vm::commit(start, table_bytes + vm::GRANULE).ok()?;
            let advised = vm::advise(start, table_bytes, libc::MADV_WIPEONFORK);
            let _ = WIPE_ON_FORK.latch(advised);
            rseq::reset_slab(start + table_bytes);
            (start as *mut usize).write(NOT_WIPED);
        }
        let (rseq_offset, reason) = choose_mode(config, all);
        let stacks = Stacks {
            table: start + 4 * 8,
            parked: start + table_bytes,
            rseq_offset: rseq_offset.unwrap_or(0),
        };
        let sections = rseq_offset.is_some();
        // SAFETY: by contract.
        unsafe {
            *self.place.get() = Place {
                stacks,
                nodes,
                cpus,
                sections,
                reason,
                wipe_word: start,
            };
        }
        #[cfg(target_arch = "x86_64")]
        if sections && config.vfork_guard {
            rseq::VFORK_GUARD_OFFSET.store(stacks.rseq_offset, Ordering::Relaxed);
        }
        Some(stacks)
    }

    fn place(&self) -> &Place {
        // SAFETY: written once, before the heap is handed out.
        unsafe { &*self.place.get() }
    }

    /// Whether restartable sections are in use.
    pub fn uses_sections(&self) -> bool {
        self.place().sections
    }

    /// Why the portable mode is in use, empty when it is not.
    pub fn portable_reason(&self) -> &'static str {
        self.place().reason
    }

    /// Address of the batch nodes.
    pub fn nodes(&self) -> usize {
        self.place().nodes
    }

    /// Whether this process was forked and nobody has told the allocator.
    #[inline]
    pub fn was_forked(&self) -> bool {
        // SAFETY: the word is mapped from the start on.
        unsafe { (*(self.place().wipe_word as *const AtomicUsize)).load(Ordering::Relaxed) == 0 }
    }

    /// Sets the word that a fork wipes.
    pub fn forget_fork(&self) {
        // SAFETY: as in `was_forked`.
        let word = unsafe { &*(self.place().wipe_word as *const AtomicUsize) };
        word.store(NOT_WIPED, Ordering::Relaxed);
    }

    fn table_entry(&self, cpu: usize) -> &AtomicUsize {
        // SAFETY: the table has an entry for each CPU below `cpus`.
        unsafe { &*((self.place().stacks.table + cpu * 8) as *const AtomicUsize) }
    }

    fn notes(&self, cpu: usize) -> &SlabNotes {
        // SAFETY: only called for slabs that have been warmed; all fields are atomics.
        unsafe { &*((self.place().stacks.slab(cpu) + SLAB_USER_OFFSET) as *const SlabNotes) }
    }

    fn is_warm(&self, cpu: usize) -> bool {
        cpu < self.place().cpus && self.states[cpu].load(Ordering::Acquire) != COLD
    }

    /// Room for the stack of `class` at its next refill on `cpu`: twice as much each time.
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
        // Two threads may both pass: the bound is a budget, not a promise to the byte.
        if more == 0 || (now != 0 && notes.bytes.load(Ordering::Relaxed) + more > CPU_BYTES) {
            return now.max(least);
        }
        notes.bytes.fetch_add(more, Ordering::Relaxed);
        notes.capacity[class].store(wanted as u16, Ordering::Relaxed);
        wanted
    }

    /// Bytes of objects in all caches: exact when nothing runs.
    pub fn bytes(&self) -> usize {
        (0..self.place().cpus).map(|cpu| self.cpu_bytes(cpu)).sum()
    }

    /// Bytes of objects in one CPU's cache: exact when nothing runs there.
    fn cpu_bytes(&self, cpu: usize) -> usize {
        if !self.is_warm(cpu) {
            return 0;
        }
        // SAFETY: only read; a torn look gives a wrong count at worst.
        let slab = unsafe { Slab::new(self.place().stacks.slab(cpu)) };
        (1..CLASSES)
            .map(|class| slab.len(class) * CLASS[class].size as usize)
            .sum()
    }

    /// Bytes of memory that the slabs themselves take, a page per stack in use.
    pub fn slab_bytes(&self) -> usize {
        let cpus = (0..self.place().cpus).filter(|&cpu| self.is_warm(cpu));
        let used = |cpu| {
            let used =
                |class: &usize| self.notes(cpu).capacity[*class].load(Ordering::Relaxed) != 0;
            1 + (1..CLASSES).filter(used).count()
        };
        cpus.map(used).sum::<usize>() * vm::GRANULE
    }

    /// The lock before all others, for the fork handlers.
    pub fn drain_lock(&self) -> &dyn ForkLock {
        &self.drain
    }

    /// The portable mode's locks, for the fork handlers.
    pub fn for_each_lock(&self, mut each: impl FnMut(&dyn ForkLock)) {
        if !self.uses_sections() {
            self.locks[..self.place().cpus]
                .iter()
                .for_each(|lock| each(lock));
        }
    }

    /// Stops every CPU's sections, for a fork: returns when none is running. `false`: the fence was
    /// refused, and the child must not use what is in the stacks.
    pub fn park_all(&self) -> bool {
        if !self.uses_sections() {
            return true;
        }
        for cpu in 0..self.place().cpus {
            self.table_entry(cpu).store(0, Ordering::Relaxed);
        }
        MEMBARRIER.latch(membarrier::fence_all()).is_ok()
    }

    /// Undoes [`Self::park_all`] where the state is live.
    pub fn unpark_all(&self) {
        if !self.uses_sections() {
            return;
        }
        for cpu in 0..self.place().cpus {
            if self.states[cpu].load(Ordering::Acquire) == LIVE {
                self.table_entry(cpu)
                    .store(self.place().stacks.live_offset(cpu), Ordering::Release);
            }
        }
    }

    /// Empties all stacks by forgetting what is in them.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn forget_all(&self) {
        for cpu in 0..self.place().cpus {
            if self.states[cpu].load(Ordering::Relaxed) == COLD {
                continue;
            }
            // SAFETY: by contract nobody else uses the slab.
            unsafe { self.reset(cpu) };
            self.states[cpu].store(LIVE, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// The caller holds the slab alone (`INV-RSEQ-3`).
    unsafe fn reset(&self, cpu: usize) {
        // SAFETY: by contract.
        unsafe { rseq::reset_slab(self.place().stacks.slab(cpu)) };
        let notes = self.notes(cpu);
        notes
            .capacity
            .iter()
            .for_each(|capacity| capacity.store(0, Ordering::Relaxed));
        notes.bytes.store(0, Ordering::Relaxed);
    }
}

/// The rseq offset for the section mode, or why it is not to be.
fn choose_mode(config: &Config, cpus: usize) -> (Option<isize>, &'static str) {
    if cpus > MAX_CPUS {
        return (None, "more CPUs than the table has entries");
    }
    if !config.rseq {
        return (None, "switched off (rseq=off)");
    }
    if config.basic_syscalls {
        return (None, "switched off (syscalls=basic)");
    }
    match rseq::registration() {
        Registration::None(reason) => (None, reason),
        Registration::At(offset) => match MEMBARRIER.latch(membarrier::register()) {
            Ok(()) => (Some(offset), ""),
            Err(_) => (
                None,
                "membarrier(PRIVATE_EXPEDITED_RSEQ) is refused (Linux 5.10)",
            ),
        },
    }
}

/// One operation on this CPU's stacks, in whichever mode.
enum Operation<'a> {
    Pop(&'a mut [usize]),
    Push(&'a [usize]),
}

impl Heap {
    /// Performs an operation. [`Outcome::Parked`]: use the central lists.
    fn operate(&self, class: usize, mut operation: Operation) -> Outcome {
        let place = self.caches.place();
        if !place.sections {
            return self.operate_portable(class, &mut operation);
        }
        #[cfg(target_arch = "x86_64")]
        for _ in 0..MAX_ABORTS {
            // SAFETY: the mode says that the offset is good; the slabs behind live table entries are
            // mapped; objects are never 0.
            let (cpu, outcome) = unsafe {
                let cpu = rseq::section::cpu_id(place.stacks.rseq_offset);
                (
                    cpu,
                    match &mut operation {
                        Operation::Pop(into) => {
                            rseq::section::pop_batch(&place.stacks, class, into)
                        }
                        Operation::Push(objects) => {
                            let capacity = self.caches.next_capacity(cpu as usize, class);
                            rseq::section::push_batch(&place.stacks, class, objects, capacity)
                        }
                    },
                )
            };
            match outcome {
                Outcome::Aborted => {}
                Outcome::Parked if self.warm(cpu) => {}
                outcome => return outcome,
            }
        }
        Outcome::Parked
    }

    fn operate_portable(&self, class: usize, operation: &mut Operation) -> Outcome {
        let caches = &self.caches;
        let cpu = process::current_cpu() % caches.place().cpus;
        if !self.warm(cpu as i32) {
            return Outcome::Parked;
        }
        let _held = caches.locks[cpu].lock();
        // SAFETY: the CPU's lock is held.
        let mut slab = unsafe { Slab::new(caches.place().stacks.slab(cpu)) };
        Outcome::Done(match operation {
            Operation::Pop(into) => slab.pop_batch(class, into),
            Operation::Push(objects) => {
                if slab.is_empty(class) {
                    slab.push_batch(class, objects, caches.next_capacity(cpu, class))
                } else if let [object] = objects {
                    usize::from(slab.push(class, *object))
                } else {
                    slab.push_batch(class, objects, 1)
                }
            }
        })
    }

    /// Makes a cold CPU's slab usable. `false`: there is none to be had, or a drain has it.
    #[cold]
    fn warm(&self, cpu: i32) -> bool {
        let caches = &self.caches;
        let place = caches.place();
        let Some(cpu) = usize::try_from(cpu).ok().filter(|&cpu| cpu < place.cpus) else {
            return false;
        };
        if caches.states[cpu].load(Ordering::Acquire) != COLD {
            return !place.sections || caches.table_entry(cpu).load(Ordering::Relaxed) != 0;
        }
        // SAFETY: our own reservation. Twice does no harm.
        if unsafe { vm::commit(place.stacks.slab(cpu), SLAB_BYTES) }.is_err() {
            return false;
        }
        // In the section mode a fork in progress holds the drain lock: no slab becomes live then.
        let _held = if place.sections {
            let Some(held) = caches.drain.try_lock() else {
                return false;
            };
            held
        } else {
            caches.locks[cpu].lock()
        };
        if caches.states[cpu].load(Ordering::Acquire) == COLD {
            // SAFETY: cold slabs are touched under this lock only.
            unsafe { caches.reset(cpu) };
            caches.states[cpu].store(LIVE, Ordering::Release);
            if place.sections {
                caches
                    .table_entry(cpu)
                    .store(place.stacks.live_offset(cpu), Ordering::Release);
            }
        }
        true
    }

    /// An object of `class` after the fast path found none. 0: out of memory.
    #[cold]
    #[inline(never)]
    pub fn refill(&self, class: usize) -> usize {
        crate::fork::notice(self);
        let mut objects = [0; MAX_BATCH];
        let batch = CLASS[class].batch as usize;
        // The portable mode has no fast path: here is its pop. In the section mode, the miss may have
        // been an interruption.
        if let Outcome::Done(1) = self.operate(class, Operation::Pop(&mut objects[..1])) {
            return objects[0];
        }
        let taken = self.take_objects(class, &mut objects[..batch]);
        let Some(last) = taken.checked_sub(1) else {
            return self.refill_after_release(class);
        };
        let rest = &objects[..last];
        if !rest.is_empty() {
            let pushed = match self.operate(class, Operation::Push(rest)) {
                Outcome::Done(count) => count,
                _ => 0,
            };
            if pushed < rest.len() {
                self.put_objects(class, &rest[pushed..]);
            }
        }
        self.tick();
        objects[last]
    }

    /// Out of memory: everything free is given back and asked for once more.
    #[cold]
    fn refill_after_release(&self, class: usize) -> usize {
        crate::release::release_everything(self);
        let mut object = [0];
        self.take_objects(class, &mut object);
        object[0]
    }

    /// Takes an object back after the fast path had no room for it.
    #[cold]
    #[inline(never)]
    pub fn overflow(&self, class: usize, object: usize) {
        crate::fork::notice(self);
        let mut objects = [0; MAX_BATCH];
        let batch = &mut objects[..CLASS[class].batch as usize];
        // The portable mode has no fast path: here is its push.
        if !self.caches.uses_sections()
            && self.operate(class, Operation::Push(&[object])) == Outcome::Done(1)
        {
            return;
        }
        match self.operate(class, Operation::Pop(batch)) {
            Outcome::Done(count) => {
                let popped = &batch[..count];
                if popped.contains(&object) {
                    Misuse::DoubleFree(object).abort(class);
                }
                self.put_objects(class, popped);
                if self.operate(class, Operation::Push(&[object])) != Outcome::Done(1) {
                    self.put_objects(class, &[object]);
                }
            }
            _ => self.put_objects(class, &[object]),
        }
        self.tick();
    }

    /// Takes everything out of a CPU's cache, from whatever thread. `false`: the fence was
    /// refused; the cache is as it was.
    pub fn drain_cpu(&self, cpu: usize) -> bool {
        let caches = &self.caches;
        let place = caches.place();
        if !caches.is_warm(cpu) {
            return true;
        }
        if !place.sections {
            return self.drain_portable(cpu);
        }
        let _draining = caches.drain.lock();
        let state = &caches.states[cpu];
        state.store(PARKED, Ordering::Relaxed);
        let entry = caches.table_entry(cpu);
        entry.store(0, Ordering::SeqCst);
        let fenced = MEMBARRIER.may_work() && MEMBARRIER.latch(membarrier::fence_cpu(cpu)).is_ok();
        if fenced {
            // SAFETY: `INV-RSEQ-3`: parked, and fenced after that.
            let mut slab = unsafe { Slab::new(place.stacks.slab(cpu)) };
            for class in 1..CLASSES {
                let mut objects = [0; MAX_BATCH];
                loop {
                    let count = slab.pop_batch(class, &mut objects);
                    if count == 0 {
                        break;
                    }
                    self.put_in_spans(class, &objects[..count]);
                }
            }
            // SAFETY: as above.
            unsafe { caches.reset(cpu) };
        }
        state.store(LIVE, Ordering::Release);
        entry.store(place.stacks.live_offset(cpu), Ordering::Release);
        fenced
    }

    fn drain_portable(&self, cpu: usize) -> bool {
        for class in 1..CLASSES {
            let mut objects = [0; MAX_BATCH];
            loop {
                let count = {
                    let _held = self.caches.locks[cpu].lock();
                    // SAFETY: the CPU's lock is held.
                    let mut slab = unsafe { Slab::new(self.caches.place().stacks.slab(cpu)) };
                    slab.pop_batch(class, &mut objects)
                };
                if count == 0 {
                    break;
                }
                self.put_in_spans(class, &objects[..count]);
            }
        }
        true
    }

    /// Drains the caches of CPUs, and the full batches of classes, that have not been used for
    /// [`IDLE_ROUNDS`] rounds. Bytes of objects in the others.
    pub fn drain_idle(&self) -> usize {
        let cpus = 0..self.caches.place().cpus;
        let in_use = cpus.map(|cpu| {
            if self.drain_if_idle(cpu) {
                0
            } else {
                self.caches.cpu_bytes(cpu)
            }
        });
        let mut bytes: usize = in_use.sum();
        for (class, about) in CLASS.iter().enumerate().skip(1) {
            let idle = self.central[class].transfer.lock().idle();
            match idle {
                Some((rounds, _)) if rounds >= IDLE_ROUNDS => self.drain_transfer(class),
                Some((_, batches)) => {
                    bytes += batches * about.batch as usize * about.size as usize;
                }
                None => {}
            }
        }
        bytes
    }

    /// Whether a CPU's cache is cold, or was idle and has been drained.
    fn drain_if_idle(&self, cpu: usize) -> bool {
        let caches = &self.caches;
        if !caches.is_warm(cpu) {
            return true;
        }
        let slab = caches.place().stacks.slab(cpu);
        let unused = slab + vm::GRANULE;
        let (mut sum, mut used) = (0usize, false);
        for class in 1..CLASSES {
            // SAFETY: headers are words of a mapped page; a torn sum only delays.
            let header =
                unsafe { &*((slab + class * 8) as *const AtomicUsize) }.load(Ordering::Relaxed);
            sum = sum.wrapping_mul(31).wrapping_add(header);
            used |= header != unused;
        }
        let notes = caches.notes(cpu);
        if notes.seen.swap(sum, Ordering::Relaxed) != sum {
            notes.idle_rounds.store(0, Ordering::Relaxed);
            return false;
        }
        !used
            || notes.idle_rounds.fetch_add(1, Ordering::Relaxed) >= IDLE_ROUNDS
                && self.drain_cpu(cpu)
    }

    /// Drains all CPUs' caches and the full batches into the spans.
    pub fn drain_all(&self) {
        for cpu in 0..self.caches.place().cpus {
            self.drain_cpu(cpu);
        }
        for class in 1..CLASSES {
            self.drain_transfer(class);
        }
    }
}
