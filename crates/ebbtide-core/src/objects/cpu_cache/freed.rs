//! A stack of each CPU for objects that the program freed, with `harden=on`: the front of the
//! [quarantine](crate::objects::harden::quarantine), which alone knows what its entries mean.
//!
//! It is one of the slab's stacks, but no class has its number. So the sections push and pop it without a lock, and a drain or a
//! fork stops it like the others (`INV-RSEQ-3`). There is none in the portable mode. Every function here is for the section
//! mode, or does nothing without it.

use super::CpuCaches;
use crate::base::size_class::MAX_BATCH;
use crate::objects::Objects;
use crate::pages::region::LARGE;
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::rseq::model::Slab;
use ebbtide_sys::rseq::{self, SectionResult, section};

/// The number of the stack.
const FREED: usize = rseq::STACKS - 1;
/// Its capacity. One operation takes all of it.
pub const FREED_MAX: usize = MAX_BATCH;

/// The entries of a stack.
pub type FreedEntries = [usize; FREED_MAX];

const _: () = assert!(FREED > LARGE as usize);

impl Objects {
    /// Puts an entry on this CPU's stack. `false`: it is full or not in use, or the section was interrupted.
    #[inline]
    pub fn push_freed(&self, entry: usize) -> bool {
        debug_assert!(self.caches.uses_sections() && entry != 0);
        // SAFETY: by contract the section mode.
        unsafe { section::push(&self.caches.place().stacks, FREED, entry) }
    }

    /// Takes the newest entries from this CPU's stack, newest first. Returns their number: 0 also if the section was
    /// interrupted.
    pub fn pop_freed(&self, into: &mut FreedEntries) -> usize {
        debug_assert!(self.caches.uses_sections());
        // SAFETY: as above.
        match unsafe { section::pop_batch(&self.caches.place().stacks, FREED, into) } {
            SectionResult::Done(count) => count,
            _ => 0,
        }
    }

    /// Gives this CPU's stack its capacity, if it is empty, and puts an entry on it. `false`: not done.
    pub fn begin_freed(&self, entry: usize, now: u64) -> bool {
        debug_assert!(self.caches.uses_sections() && entry != 0);
        let stacks = &self.caches.place().stacks;
        // SAFETY: as above.
        let (cpu, pushed) = unsafe {
            let cpu = section::cpu_id(stacks.rseq_offset) as usize;
            (cpu, section::push_batch(stacks, FREED, &[entry], FREED_MAX))
        };
        let is_done = pushed == SectionResult::Done(1);
        // A thread that has moved to another CPU meanwhile notes it there: a hint.
        if is_done && self.caches.is_warm(cpu) {
            let notes = self.caches.notes(cpu);
            notes.freed_seen.store(0, Ordering::Relaxed);
            notes.freed_seen_ms.store(now, Ordering::Relaxed);
        }
        is_done
    }

    /// Takes all entries from a CPU's stack, from any thread. Returns their number: 0 also if the fence was refused.
    pub fn drain_freed(&self, cpu: usize, into: &mut FreedEntries) -> usize {
        if self.caches.peek_freed(cpu, into) == 0 {
            return 0;
        }
        let taken = self.with_parked(cpu, |slab| take_freed(slab, into));
        taken.unwrap_or(0)
    }
}

/// Takes all entries out of a slab that the caller has alone.
pub(super) fn take_freed(slab: &mut Slab, into: &mut FreedEntries) -> usize {
    slab.pop_batch(FREED, into)
}

impl CpuCaches {
    /// Copies the entries of a CPU's stack: a hint, unless no thread runs there. Returns their number.
    pub fn peek_freed(&self, cpu: usize, into: &mut FreedEntries) -> usize {
        if !self.uses_sections() || !self.is_warm(cpu) {
            return 0;
        }
        // SAFETY: only read, and entries are plain numbers.
        unsafe { Slab::new(self.place().stacks.slab(cpu)) }.peek(FREED, into)
    }

    /// Since when a CPU's stack has not been used, or a little earlier: the last time at which this function, or
    /// [`Objects::begin_freed`], saw another state. 0: there is no stack.
    pub fn freed_unused_since(&self, cpu: usize, now: u64) -> u64 {
        if !self.uses_sections() || !self.is_warm(cpu) {
            return 0;
        }
        let notes = self.notes(cpu);
        let slab = self.place().stacks.slab(cpu);
        // SAFETY: headers are words of a mapped page.
        let header = unsafe { &*((slab + FREED * 8) as *const AtomicUsize) };
        let header = header.load(Ordering::Relaxed);
        if header == rseq::unused_header(slab) {
            return 0;
        }
        let before = notes.freed_seen_ms.swap(now, Ordering::Relaxed);
        if notes.freed_seen.swap(header, Ordering::Relaxed) != header {
            let since = if before == 0 { now } else { before };
            notes.freed_since_ms.store(since, Ordering::Relaxed);
        }
        notes.freed_since_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::alone::{alone, stay_here};
    use crate::objects::cpu_cache::traffic::tests::{has_sections, warm};
    use crate::objects::harden::tests::HARDENED;
    use std::thread;
    use std::vec::Vec;

    /// Puts an entry on the stack, which has room, although sections may be interrupted.
    fn push(objects: &Objects, entry: usize) {
        let done = (0..1000).any(|_| objects.push_freed(entry) || objects.begin_freed(entry, 1500));
        assert!(done, "no room for {entry}");
    }

    fn pop(objects: &Objects) -> Vec<usize> {
        let mut into = [0; FREED_MAX];
        let count = (0..1000).map(|_| objects.pop_freed(&mut into));
        let count = count.into_iter().find(|&count| count > 0).unwrap_or(0);
        into[..count].to_vec()
    }

    #[test]
    fn one_operation_takes_all_of_a_full_stack() {
        alone(HARDENED, |heap| {
            if !has_sections(heap) {
                return;
            }
            let cpu = stay_here();
            assert!(warm(heap, cpu) && !heap.push_freed(1), "not in use");
            for round in 0..3 {
                (1..=FREED_MAX).for_each(|entry| push(heap, round + entry));
                let refused = (0..10).all(|_| !heap.push_freed(999) && !heap.begin_freed(999, 0));
                assert!(refused, "full");
                let newest_first = (1..=FREED_MAX).rev().map(|entry| round + entry);
                assert_eq!(pop(heap), newest_first.collect::<Vec<_>>());
                assert!(pop(heap).is_empty());
            }
        });
    }

    /// Entries are in exactly one place, whatever the orders of pushes, full pops and drains.
    #[test]
    fn a_drain_from_another_thread_loses_nothing() {
        alone(HARDENED, |heap| {
            if !has_sections(heap) {
                return;
            }
            const LAST: usize = 200_000;
            let objects: &Objects = heap;
            let done = core::sync::atomic::AtomicBool::new(false);
            let drained = || {
                let mut all = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    for cpu in 0..objects.caches.cpus() {
                        let mut into = [0; FREED_MAX];
                        let count = objects.drain_freed(cpu, &mut into);
                        all.extend_from_slice(&into[..count]);
                    }
                }
                all
            };
            let mut seen = thread::scope(|scope| {
                let drainer = scope.spawn(drained);
                let mut all = Vec::new();
                let cpu = ebbtide_sys::process::current_cpu();
                warm(heap, cpu);
                for entry in 1..=LAST {
                    if objects.push_freed(entry) {
                        continue;
                    }
                    let mut into = [0; FREED_MAX];
                    let count = objects.pop_freed(&mut into);
                    all.extend_from_slice(&into[..count]);
                    if !objects.push_freed(entry) && !objects.begin_freed(entry, 0) {
                        all.push(entry);
                    }
                }
                done.store(true, Ordering::Relaxed);
                all.extend(drainer.join().unwrap());
                for cpu in 0..objects.caches.cpus() {
                    let mut into = [0; FREED_MAX];
                    let count = objects.drain_freed(cpu, &mut into);
                    all.extend_from_slice(&into[..count]);
                }
                all
            });
            seen.sort_unstable();
            assert!(seen.into_iter().eq(1..=LAST));
        });
    }

    #[test]
    fn a_stack_is_unused_since_its_last_change_was_seen() {
        alone(HARDENED, |heap| {
            if !has_sections(heap) {
                return;
            }
            let cpu = stay_here();
            let since = |now| heap.caches.freed_unused_since(cpu, now);
            assert_eq!(since(7), 0, "cold");
            warm(heap, cpu);
            assert_eq!(since(1000), 0, "not begun");
            push(heap, 5);
            // It was begun at 1500.
            assert_eq!((since(2000), since(2100)), (1500, 1500));
            assert_eq!(pop(heap), [5]);
            assert_eq!((since(2200), since(2900)), (2100, 2100));
        });
    }
}
