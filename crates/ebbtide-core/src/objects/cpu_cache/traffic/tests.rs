//! Cold slabs, capacities, and the objects that refill and overflow move.

extern crate std;

use super::*;
use crate::alone::{CALM, PORTABLE, alone, stay_here};
use crate::base::releaser::Releaser;
use crate::base::size_class::{CLASSES, class_of};
use crate::objects::cpu_cache::{CPU_BYTES, PARKED};
use crate::reclaim::Heap;
use std::collections::HashSet;
use std::vec::Vec;

/// Whether the heap works with sections. If not, prints that the test is skipped.
pub fn has_sections(heap: &Heap) -> bool {
    let has = heap.caches.uses_sections();
    if !has {
        std::eprintln!("skipped: no restartable sections here");
    }
    has
}

/// Makes a CPU's slab live from any CPU.
pub fn warm(heap: &Heap, cpu: usize) -> bool {
    heap.warm(cpu as i32)
}

impl Objects {
    /// Takes an object of `class` for a caller without a fast path. 0: out of memory.
    pub fn take_object(&self, class: usize) -> usize {
        if self.caches.uses_sections() {
            // SAFETY: the section mode.
            let object = unsafe { section::pop(&self.caches.place().stacks, class) };
            if object != 0 {
                return object;
            }
        }
        match self.pop(class) {
            0 => self.refill(class),
            object => object,
        }
    }
}

fn state(heap: &Heap, cpu: usize) -> (u8, usize) {
    let caches = &heap.caches;
    (
        caches.states[cpu].load(Ordering::Relaxed),
        caches.table_entry(cpu).load(Ordering::Relaxed),
    )
}

/// A fork copies memory under the drain lock, and a drain holds that lock as well. A thread that finds a cold CPU
/// meanwhile uses the central lists, and the CPU stays cold: no thread has its slab alone.
#[test]
fn a_cold_slab_stays_cold_under_the_drain_lock() {
    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let cpu = stay_here();
        assert_eq!(state(heap, cpu), (COLD, 0));
        let held = heap.caches.drain.lock();
        let object = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(!heap.warm(cpu as i32));
                assert_eq!(state(heap, cpu), (COLD, 0));
                heap.take_object(class_of(64))
            });
            other.join().unwrap()
        });
        assert_ne!(object, 0, "served by the central lists");
        assert_eq!(state(heap, cpu), (COLD, 0));
        drop(held);
        heap.put_object(class_of(64), object);
        let live = heap.caches.place().stacks.live_offset(cpu);
        assert_eq!(state(heap, cpu), (LIVE, live));
    });
}

#[test]
fn no_slab_is_made_for_a_cpu_without_one_nor_while_it_is_drained() {
    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let cpu = stay_here();
        for none in [-2, -1, heap.caches.cpus() as i32, i32::MAX] {
            assert!(!heap.warm(none), "CPU {none}");
        }
        assert!(heap.warm(cpu as i32));
        let live = state(heap, cpu);
        assert!(heap.warm(cpu as i32), "live already");
        assert_eq!(state(heap, cpu), live);
        heap.caches.states[cpu].store(PARKED, Ordering::Relaxed);
        heap.caches.table_entry(cpu).store(0, Ordering::Relaxed);
        assert!(!heap.warm(cpu as i32));
        assert_eq!(state(heap, cpu), (PARKED, 0));
        let objects = CLASS[1].objects as usize;
        let object = heap.take_object(1);
        assert_eq!(places(heap, cpu, 1), [0, 0, objects - 1]);
        let other = heap.take_object(1);
        assert_eq!(places(heap, cpu, 1), [0, 0, objects - 2]);
        heap.put_object(1, object);
        assert_eq!(places(heap, cpu, 1), [0, 0, objects - 1]);
        heap.put_object(1, other);
        assert_eq!(heap.central[1].bytes(1).all, 0, "an empty span");
    });
}

#[test]
fn a_stack_doubles_until_its_capacity_or_the_budget_of_the_cpu() {
    alone(CALM, |heap| {
        let (caches, cpu) = (&heap.caches, stay_here());
        let class = class_of(64);
        let next = |class| caches.next_capacity(cpu, class);
        assert_eq!([next(class), next(class)], [64, 64], "cold: the least");
        assert!(heap.warm(cpu as i32));
        let steps = core::array::from_fn(|_| next(class));
        assert_eq!(steps, [64, 128, 256, 512, 1023, 1023]);
        let bytes = || caches.notes(cpu).bytes.load(Ordering::Relaxed);
        assert_eq!(bytes(), 1023 * 64);
        assert_eq!(caches.slab_bytes(), 2 * vm::page(), "headers and a stack");
        // Two objects at least, so that the stack of a batch of one is not always empty or full.
        assert_eq!(next(CLASSES - 1), 2);
        let before = bytes();
        assert_eq!(before, 1023 * 64 + 2 * CLASS[CLASSES - 1].size as usize);
        for _ in 0..10 {
            (1..=class_of(1024)).for_each(|class| {
                next(class);
            });
        }
        assert!(bytes() <= CPU_BYTES, "{} bytes", bytes());
        assert!(bytes() > CPU_BYTES - (256 << 10), "{} bytes", bytes());
        // A stack with capacity 0 still gets a capacity of one batch.
        assert_eq!(next(class_of(2048)), 32);
        assert_eq!(next(class_of(2048)), 32);
    });
}

/// Two threads find the same CPU cold: the second one leaves the slab unchanged.
#[test]
fn a_slab_is_made_once() {
    alone(PORTABLE, |heap| {
        let (caches, cpu) = (&heap.caches, stay_here());
        std::thread::scope(|scope| {
            let held = caches.locks[cpu].lock();
            let second = scope.spawn(|| heap.warm(cpu as i32));
            // Long enough for the thread to wait for the lock. If it is late, it finds the slab live.
            std::thread::sleep(std::time::Duration::from_millis(100));
            let slab = caches.place().stacks.slab(cpu);
            // SAFETY: our own reservation, and the CPU's lock is held.
            let mut slab = unsafe {
                vm::commit_around(slab, SLAB_BYTES).unwrap();
                caches.reset(cpu);
                Slab::new(slab)
            };
            assert_eq!(slab.push_batch(1, &[16], 2), 1);
            caches.states[cpu].store(LIVE, Ordering::Release);
            drop(held);
            assert!(second.join().unwrap());
        });
        assert_eq!(caches.cpu_bytes(cpu), 16);
    });
}

/// The places of a class's objects: CPU's stack, full batches, spans.
fn places(heap: &Heap, cpu: usize, class: usize) -> [usize; 3] {
    let bytes = heap.central[class].bytes(class);
    let all = [heap.caches.cpu_bytes(cpu), bytes.batches, bytes.in_spans];
    all.map(|bytes| bytes / CLASS[class].size as usize)
}

/// A refill keeps one object for the caller and the rest of the batch on the stack; an overflow makes space for the
/// object by moving one batch.
#[test]
fn batches_go_between_the_stack_and_the_central_lists() {
    alone(CALM, |heap| {
        if has_sections(heap) {
            batches_move(heap);
        }
    });
}

fn batches_move(heap: &Heap) {
    let (cpu, class) = (stay_here(), class_of(1024));
    let batch = CLASS[class].batch as usize;
    let span = CLASS[class].objects as usize;
    let first = heap.take_object(class);
    assert_eq!(places(heap, cpu, class), [batch - 1, 0, span - batch]);
    let mut taken: Vec<usize> = (1..batch).map(|_| heap.take_object(class)).collect();
    assert_eq!(places(heap, cpu, class), [0, 0, span - batch]);
    taken.push(first);
    let more: Vec<usize> = (0..batch).map(|_| heap.take_object(class)).collect();
    taken.extend(more);
    let all: HashSet<usize> = taken.iter().copied().collect();
    assert_eq!(all.len(), 2 * batch, "each object once");
    // The second refill gave the stack a capacity of two batches.
    for (count, object) in taken.drain(..).enumerate() {
        assert_eq!(places(heap, cpu, class)[0], count);
        heap.put_object(class, object);
    }
    // One object more than the stack's capacity.
    let mut object = [0];
    assert_eq!(heap.take_objects(class, &mut object), 1);
    heap.put_object(class, object[0]);
    let [stack, batches, _] = places(heap, cpu, class);
    assert_eq!((stack, batches), (batch + 1, batch));
    // The next refill is the full batch.
    for _ in 0..=batch {
        taken.push(heap.take_object(class));
    }
    assert_eq!(places(heap, cpu, class)[0], 0);
    taken.push(heap.take_object(class));
    assert_eq!(places(heap, cpu, class)[..2], [batch - 1, 0]);
}

/// Random requests: an object has one owner, and in the end all are in the spans again.
fn every_object_comes_back(heap: &Heap) {
    let cpu = stay_here();
    let classes = [1, class_of(64), class_of(1024), class_of(9000), CLASSES - 1];
    let (mut live, mut owned) = (Vec::new(), HashSet::new());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for step in 0..20_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let class = classes[random as usize % classes.len()];
        // Waves, so that stacks run empty and full.
        let wanted = if step / 1000 % 2 == 0 { 800 } else { 50 };
        if live.len() < wanted && random >> 32 & 3 != 0 || live.is_empty() {
            let object = heap.take_object(class);
            assert!(object != 0 && owned.insert(object), "{object:x} twice");
            live.push((class, object));
        } else {
            let (class, object) = live.swap_remove((random >> 40) as usize % live.len());
            owned.remove(&object);
            heap.put_object(class, object);
        }
    }
    for (class, object) in live {
        heap.put_object(class, object);
    }
    assert!(heap.caches.bytes() > 0);
    heap.drain_all(Releaser::Explicit);
    assert_eq!(heap.caches.bytes(), 0);
    for class in classes {
        let bytes = heap.central[class].bytes(class);
        assert_eq!((bytes.batches, bytes.in_spans), (0, bytes.all));
        assert_eq!(places(heap, cpu, class)[0], 0);
    }
}

#[test]
fn every_object_has_one_owner_and_comes_back() {
    alone(CALM, |heap| {
        every_object_comes_back(heap);
    });
}

#[test]
fn every_object_has_one_owner_and_comes_back_without_sections() {
    alone(PORTABLE, |heap| {
        every_object_comes_back(heap);
    });
}

/// A pop is aborted after it has copied the newest object, and the repetition finds the slab drained: that object
/// belongs to the draining thread, and the caller has none.
#[cfg(feature = "inject")]
#[test]
fn an_object_of_an_aborted_pop_is_not_handed_out() {
    use core::sync::atomic::AtomicUsize;
    use ebbtide_sys::rseq::section::INJECT;

    /// The table entry of the test's CPU.
    static ENTRY: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn park(_: libc::c_int) {
        INJECT.store(0, Ordering::Relaxed);
        // SAFETY: set to a word of the process's table before the first trap.
        unsafe { *(ENTRY.load(Ordering::Relaxed) as *mut usize) = 0 };
    }

    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let (cpu, class) = (stay_here(), class_of(64));
        let entry = heap.caches.table_entry(cpu);
        ENTRY.store(core::ptr::from_ref(entry) as usize, Ordering::Relaxed);
        // SAFETY: the handler stores to two words.
        unsafe { libc::signal(libc::SIGTRAP, park as *const () as libc::sighandler_t) };
        heap.put_object(class, heap.take_object(class));
        for point in [3, 4] {
            let live = entry.load(Ordering::Relaxed);
            assert_ne!(live, 0);
            let before = places(heap, cpu, class);
            INJECT.store(point, Ordering::Relaxed);
            assert_eq!(heap.pop(class), 0, "aborted at {point}");
            assert_eq!(INJECT.load(Ordering::Relaxed), 0, "reached {point}");
            assert_eq!(places(heap, cpu, class), before);
            entry.store(live, Ordering::Relaxed);
            let object = heap.pop(class);
            assert_ne!(object, 0);
            heap.put_object(class, object);
        }
    });
}
