//! Moves objects between a CPU's stacks and the central lists: refill when a stack is empty, overflow when it is full.

use crate::base::size_class::{CLASS, MAX_BATCH};
use crate::objects::Objects;
use crate::pages::span::Misuse;
use core::sync::atomic::Ordering;
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::rseq::{SLAB_BYTES, SectionResult, section};
use ebbtide_sys::{process, vm};

use super::{COLD, LIVE};

/// After this many aborted sections in a row, the thread is assumed to make no progress (single-stepping).
const MAX_ABORTS: usize = 20;

/// One operation on this CPU's stacks, in either mode.
enum Operation<'a> {
    Pop(&'a mut [usize]),
    Push(&'a [usize]),
}

impl Objects {
    /// Performs an operation. [`SectionResult::Parked`]: use the central lists. Entries that an interrupted pop has
    /// written into its slice were not taken: only the first [`SectionResult::Done`] entries are the caller's.
    fn operate(&self, class: usize, mut operation: Operation) -> SectionResult {
        if !self.caches.uses_sections() {
            return self.operate_portable(class, &mut operation);
        }
        let stacks = &self.caches.place().stacks;
        for _ in 0..MAX_ABORTS {
            // SAFETY: the mode says that the offset is good; the slabs behind live table entries are mapped;
            // objects are never 0.
            let (cpu, outcome) = unsafe {
                let cpu = section::cpu_id(stacks.rseq_offset);
                let outcome = match &mut operation {
                    Operation::Pop(into) => section::pop_batch(stacks, class, into),
                    Operation::Push(objects) => {
                        let capacity = self.caches.next_capacity(cpu as usize, class);
                        section::push_batch(stacks, class, objects, capacity)
                    }
                };
                (cpu, outcome)
            };
            match outcome {
                SectionResult::Aborted => {}
                SectionResult::Parked if self.warm(cpu) => {}
                outcome => return outcome,
            }
        }
        SectionResult::Parked
    }

    fn operate_portable(&self, class: usize, operation: &mut Operation) -> SectionResult {
        let caches = &self.caches;
        let (cpu, cpus) = (process::current_cpu(), caches.place().cpus);
        // Mostly without a division.
        let cpu = if cpu < cpus { cpu } else { cpu % cpus };
        if !self.warm(cpu as i32) {
            return SectionResult::Parked;
        }
        let _held = caches.locks[cpu].lock();
        // SAFETY: the CPU's lock is held.
        let mut slab = unsafe { Slab::new(caches.place().stacks.slab(cpu)) };
        SectionResult::Done(match operation {
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

    /// Makes a cold CPU's slab usable. `false`: there is no memory, or a drain has the slab.
    #[cold]
    fn warm(&self, cpu: i32) -> bool {
        let caches = &self.caches;
        let (place, sections) = (caches.place(), caches.uses_sections());
        let Some(cpu) = usize::try_from(cpu).ok().filter(|&cpu| cpu < place.cpus) else {
            return false;
        };
        if caches.states[cpu].load(Ordering::Acquire) != COLD {
            return !sections || caches.table_entry(cpu).load(Ordering::Relaxed) != 0;
        }
        // SAFETY: our own reservation. Committing it twice does no harm, nor committing a part of a neighbour.
        if unsafe { vm::commit_around(place.stacks.slab(cpu), SLAB_BYTES) }.is_err() {
            return false;
        }
        // In the section mode a fork in progress holds the drain lock: no slab becomes live then.
        let held = match sections {
            true => caches.drain.try_lock(),
            false => Some(caches.locks[cpu].lock()),
        };
        let Some(_held) = held else { return false };
        if caches.states[cpu].load(Ordering::Acquire) == COLD {
            // SAFETY: cold slabs are touched under this lock only.
            unsafe { caches.reset(cpu) };
            caches.states[cpu].store(LIVE, Ordering::Release);
            if sections {
                caches.unpark(cpu);
            }
        }
        true
    }

    /// Puts an object back for a caller without a fast path.
    pub fn put_object(&self, class: usize, object: usize) {
        if self.caches.uses_sections() {
            let stacks = &self.caches.place().stacks;
            // SAFETY: the section mode; an object is not 0.
            if unsafe { section::push(stacks, class, object) } {
                return;
            }
        }
        if !self.push(class, object) {
            self.overflow(class, object);
        }
    }

    /// Pops an object from this CPU's stack after the fast path found none: the portable mode has no fast path, and
    /// in the section mode an interruption may have caused the miss. 0: the stack is empty.
    pub fn pop(&self, class: usize) -> usize {
        let mut object = [0];
        match self.operate(class, Operation::Pop(&mut object)) {
            SectionResult::Done(1) => object[0],
            _ => 0,
        }
    }

    /// Pops an object from this CPU's stack by one section. 0: the stack is empty, or the section was interrupted. Only for
    /// the section mode.
    #[inline]
    pub fn pop_at_once(&self, class: usize) -> usize {
        debug_assert!(self.caches.uses_sections());
        // SAFETY: by contract the section mode.
        unsafe { section::pop(&self.caches.place().stacks, class) }
    }

    /// The push of the portable mode. `false`: the stack is full, or the fast path has found that already.
    pub fn push(&self, class: usize, object: usize) -> bool {
        !self.caches.uses_sections()
            && self.operate(class, Operation::Push(&[object])) == SectionResult::Done(1)
    }

    /// Returns an object of `class` after [`Self::pop`] found none. 0: out of memory.
    pub fn refill(&self, class: usize) -> usize {
        let mut objects = [0; MAX_BATCH];
        let batch = CLASS[class].batch as usize;
        let taken = self.take_objects(class, &mut objects[..batch]);
        let Some(last) = taken.checked_sub(1) else {
            return 0;
        };
        let rest = &objects[..last];
        if !rest.is_empty() {
            let pushed = match self.operate(class, Operation::Push(rest)) {
                SectionResult::Done(count) => count,
                _ => 0,
            };
            if pushed < rest.len() {
                self.put_objects(class, &rest[pushed..]);
            }
        }
        objects[last]
    }

    /// Puts an object back after the fast path, or [`Self::push`], found the stack full.
    #[cold]
    #[inline(never)]
    pub fn overflow(&self, class: usize, object: usize) {
        let mut objects = [0; MAX_BATCH];
        let batch = &mut objects[..CLASS[class].batch as usize];
        if let SectionResult::Done(count) = self.operate(class, Operation::Pop(batch)) {
            let popped = &batch[..count];
            if popped.contains(&object) {
                Misuse::DoubleFree(object).abort(class);
            }
            self.put_objects(class, popped);
            if self.operate(class, Operation::Push(&[object])) == SectionResult::Done(1) {
                return;
            }
        }
        self.put_objects(class, &[object]);
    }
}

#[cfg(test)]
pub(super) mod tests;
