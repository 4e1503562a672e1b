//! Taking everything out of CPUs' caches, from whatever thread: for a release of everything, and for what
//! has been idle.
//!
//! A drainer parks the slab (its table entry becomes 0), waits with `membarrier` until no section runs on
//! it, empties it, and lets it live again.

use crate::heap::Heap;
use crate::size_class::{CLASS, CLASSES, MAX_BATCH};
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::features::MEMBARRIER;
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::{clock, membarrier, vm};

use super::{LIVE, PARKED};

/// Rounds of the release engine without use after which a cache is drained: about a second when calm.
const IDLE_ROUNDS: usize = 6;

impl Heap {
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
        if !caches.may_fence() {
            return false;
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

    /// Drains the caches of CPUs, and the full batches of classes, that have not been used for [`IDLE_ROUNDS`] rounds,
    /// and idle quarantines. Bytes of objects in the others.
    pub fn drain_idle(&self) -> usize {
        let cpus = 0..self.caches.place().cpus;
        let in_use = cpus.map(|cpu| {
            if self.drain_if_idle(cpu) {
                0
            } else {
                self.caches.cpu_bytes(cpu)
            }
        });
        let mut bytes = self.drain_idle_quarantine(clock::now_ms()) + in_use.sum::<usize>();
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

    /// Drains all CPUs' caches, the quarantine and the full batches into the spans.
    pub fn drain_all(&self) {
        self.drain_quarantine();
        for cpu in 0..self.caches.place().cpus {
            self.drain_cpu(cpu);
        }
        for class in 1..CLASSES {
            self.drain_transfer(class);
        }
    }
}
