//! Drains CPU caches: any thread can move all objects of any CPU's cache to the central lists. Caches are drained when
//! everything is released, and when they have been idle.
//!
//! The draining thread parks the slab (its table entry becomes 0), waits with `membarrier` until no section runs on it,
//! empties it, and makes it live again.

use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::{CLASS, CLASSES, MAX_BATCH};
use crate::base::source::{Cached, Round, Source};
use crate::objects::Objects;
use crate::objects::central::transfer::IDLE_ROUNDS;
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::features::MEMBARRIER;
use ebbtide_sys::lock::Rank;
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::{membarrier, rseq};
use ebbtide_zone::low_water::LowWater;
use ebbtide_zone::plan::Remaining;

use super::freed::{FREED_MAX, take_freed};
use super::{LIVE, PARKED};

/// A CPU's stacks are left alone if fewer surplus bytes than this are in them.
const SURPLUS_BYTES: usize = 256 << 10;

/// The number of objects of each class to take out of a CPU's cache.
type Counts = [u16; CLASSES];

impl Objects {
    /// Takes all objects out of a CPU's cache, from any thread. `false`: the fence was refused; the cache is
    /// unchanged.
    pub fn drain_cpu(&self, cpu: usize) -> bool {
        self.take_out(cpu, None)
    }

    /// As [`Self::drain_cpu`], for at most `most` objects of each class.
    fn take_out(&self, cpu: usize, most: Option<&Counts>) -> bool {
        let caches = &self.caches;
        let place = caches.place();
        if !caches.is_warm(cpu) {
            return true;
        }
        if !caches.uses_sections() {
            self.empty_stacks(most, |class, objects| {
                let _held = caches.locks[cpu].lock();
                // SAFETY: the CPU's lock is held.
                unsafe { Slab::new(place.stacks.slab(cpu)) }.pop_batch(class, objects)
            });
            return true;
        }
        let mut freed = [0; FREED_MAX];
        let taken = self.with_parked(cpu, |slab| {
            self.empty_stacks(most, |class, objects| slab.pop_batch(class, objects));
            if most.is_some() {
                return 0;
            }
            let count = take_freed(slab, &mut freed);
            // SAFETY: this thread has the slab, whose stacks are empty now.
            unsafe { caches.reset(cpu) };
            count
        });
        if let Some(count) = taken {
            // Not under the lock: places may need system calls.
            self.end_quarantine_of(&freed[..count]);
        }
        taken.is_some()
    }

    /// Stops the sections of a warm CPU while `work` has its slab. `None`: the fence was refused, and nothing was done.
    pub(super) fn with_parked<R>(
        &self,
        cpu: usize,
        work: impl FnOnce(&mut Slab) -> R,
    ) -> Option<R> {
        let caches = &self.caches;
        if !caches.may_fence() {
            return None;
        }
        let _draining = caches.drain.lock();
        let state = &caches.states[cpu];
        state.store(PARKED, Ordering::Relaxed);
        caches.table_entry(cpu).store(0, Ordering::SeqCst);
        let fenced = MEMBARRIER.may_work() && MEMBARRIER.latch(membarrier::fence_cpu(cpu)).is_ok();
        let done = fenced.then(|| {
            // SAFETY: `INV-RSEQ-3`: parked, and fenced after that.
            work(&mut unsafe { Slab::new(caches.place().stacks.slab(cpu)) })
        });
        state.store(LIVE, Ordering::Release);
        caches.unpark(cpu);
        done
    }

    /// Puts the objects that `pop` takes from a stack into the spans, class by class: `most` objects of each, or
    /// all.
    fn empty_stacks(
        &self,
        most: Option<&Counts>,
        mut pop: impl FnMut(usize, &mut [usize]) -> usize,
    ) {
        for class in 1..CLASSES {
            let mut left = most.map_or(usize::MAX, |most| most[class] as usize);
            while left > 0 {
                let mut objects = [0; MAX_BATCH];
                let count = pop(class, &mut objects[..left.min(MAX_BATCH)]);
                if count == 0 {
                    break;
                }
                self.put_in_spans(class, &objects[..count]);
                left -= count;
            }
        }
    }

    /// Reads how many objects are in the stacks of an active CPU. At the end of a window, takes out the surplus: a
    /// stack that never had fewer objects than a number does not need these.
    fn drain_surplus(&self, cpu: usize, ends: bool) {
        let caches = &self.caches;
        let notes = caches.notes(cpu);
        // SAFETY: only read; a torn read gives a wrong count at worst.
        let slab = unsafe { Slab::new(caches.place().stacks.slab(cpu)) };
        let (mut surplus, mut bytes): (Counts, _) = ([0; CLASSES], 0);
        for (class, low) in notes.low.iter().enumerate().skip(1) {
            let mut least = LowWater(low.load(Ordering::Relaxed));
            surplus[class] = least.note(slab.len(class) as u16, ends);
            bytes += surplus[class] as usize * CLASS[class].size as usize;
            low.store(least.0, Ordering::Relaxed);
        }
        if ends && bytes >= SURPLUS_BYTES {
            self.take_out(cpu, Some(&surplus));
        }
    }

    /// Whether a CPU's cache is cold, or was idle and has been drained.
    fn drain_if_idle(&self, cpu: usize) -> bool {
        let caches = &self.caches;
        if !caches.is_warm(cpu) {
            return true;
        }
        let slab = caches.place().stacks.slab(cpu);
        let unused = rseq::unused_header(slab);
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
}

/// The stacks of all CPUs. Stacks that were not used for [`IDLE_ROUNDS`] rounds are drained. The others lose the
/// objects that were not needed in the last window: these go to the spans.
pub struct CpuStacks;

impl<H: AsRef<Objects>> Source<H> for CpuStacks {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        let caches = &heap.as_ref().caches;
        match rank {
            ranks::DRAIN => each(&caches.drain),
            // The locks of the portable mode.
            ranks::CPU if !caches.uses_sections() => {
                let locks = caches.locks[..caches.cpus()].iter();
                locks.for_each(|lock| each(lock));
            }
            _ => {}
        }
    }

    fn cached(&self, heap: &H, sum: &mut Cached) {
        sum.objects += heap.as_ref().caches.bytes();
    }

    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining) {
        let heap = heap.as_ref();
        for cpu in 0..heap.caches.cpus() {
            if !heap.drain_if_idle(cpu) {
                heap.drain_surplus(cpu, round.ends_window);
                left.cached_bytes += heap.caches.cpu_bytes(cpu) as u64;
            }
        }
    }

    fn give_all(&self, heap: &H, _by: Releaser) {
        let heap = heap.as_ref();
        for cpu in 0..heap.caches.cpus() {
            heap.drain_cpu(cpu);
        }
    }

    /// The fork itself stops and starts the sections.
    unsafe fn abandon(&self, heap: &H) {
        // SAFETY: by contract.
        unsafe { heap.as_ref().caches.forget_all() };
    }
}

#[cfg(test)]
mod tests;
