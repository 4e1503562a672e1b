//! Rings: first in, first out, bounded in objects and in bytes, emptied when idle.

extern crate std;

use super::*;
use crate::alone::{alone, stay_here};
use crate::base::size_class::{CLASSES, class_of};
use crate::front::heap as front;
use crate::objects::harden::tests::HARDENED;
use crate::reclaim::Heap;
use std::vec;
use std::vec::Vec;

/// A ring with memory of its own.
fn ring() -> Ring {
    let entries = vm::map(ENTRIES * size_of::<Entry>()).unwrap();
    Ring {
        entries,
        ..Ring::NEW
    }
}

fn taken(ring: &mut Ring, room: usize) -> std::vec::Vec<usize> {
    let mut into = vec![Entry::NONE; room];
    let count = ring.take_while(&mut into, |ring| ring.is_over(0));
    into[..count].iter().map(|entry| entry.object()).collect()
}

#[test]
fn an_entry_is_an_object_and_its_class() {
    for class in [1, CLASSES - 1] {
        for front in [0, 32, 32752] {
            for object in [front + 16, 0x7fff_ffff_fff0] {
                let entry = Entry::new(class, object, front, front > 0);
                assert_eq!((entry.class(), entry.object()), (class, object));
                assert_eq!((entry.front(), entry.place()), (front, object - front));
                assert_eq!(entry.is_closed(), front > 0);
            }
        }
    }
}

#[test]
fn the_oldest_objects_leave_a_full_ring_round_and_round() {
    let mut ring = ring();
    let mut next = 0;
    for n in 0..3 * ENTRIES {
        ring.put(Entry::new(1, 16 * (n + 1), 0, false), n as u64);
        let left = taken(&mut ring, LEAVING);
        assert!(ring.count < ENTRIES && ring.bytes == ring.count * 16);
        assert_eq!(left.len(), usize::from(n >= ENTRIES - 1));
        for object in left {
            assert_eq!(object, 16 * (next + 1));
            next += 1;
        }
        assert_eq!(ring.used_ms, n as u64);
    }
    while let Some(entry) = ring.take() {
        assert_eq!(entry.object(), 16 * (next + 1));
        next += 1;
    }
    assert_eq!((next, ring.count, ring.bytes), (3 * ENTRIES, 0, 0));
}

#[test]
fn a_ring_is_bounded_in_bytes_as_well() {
    let mut ring = ring();
    let class = class_of(BYTES / 4);
    for n in 1..=4 {
        ring.put(Entry::new(class, 16 * n, 0, false), 0);
        assert!(taken(&mut ring, LEAVING).is_empty());
    }
    assert_eq!(ring.bytes, BYTES);
    ring.put(Entry::new(1, 80, 0, false), 0);
    assert_eq!(taken(&mut ring, LEAVING), [16]);
    for n in 6..9 {
        ring.put(Entry::new(class, 16 * n, 0, false), 0);
    }
    // At most as many as the caller's slice can hold.
    assert_eq!(
        (taken(&mut ring, 1), taken(&mut ring, 9)),
        (vec![32], vec![48, 64])
    );
    assert_eq!(ring.count, 4);
}

fn objects_of_rings(heap: &Heap) -> usize {
    heap.quarantine.rings().map(|ring| ring.lock().count).sum()
}

#[test]
fn a_freed_object_waits_before_it_is_handed_out_again() {
    alone(HARDENED, |heap| {
        let class = class_of(50 + 64);
        let first = heap.allocate_hardened(50, 1);
        heap.free_hardened(class, first);
        assert_eq!((objects_of_rings(heap), heap.quarantined_bytes()), (1, 128));
        for _ in 0..200 {
            let object = heap.allocate_hardened(50, 1);
            assert_ne!(object, first);
        }
        heap.drain_quarantine();
        assert_eq!((objects_of_rings(heap), heap.quarantined_bytes()), (0, 0));
        assert_eq!(heap.central[class].bytes(class).batches, 0);
        let comes_again = (0..1000).any(|_| heap.allocate_hardened(50, 1) == first);
        assert!(comes_again);
    });
}

#[test]
fn an_idle_ring_is_emptied() {
    alone(HARDENED, |heap| {
        let object = heap.allocate_hardened(50, 1);
        heap.free_hardened(class_of(50 + 64), object);
        let freed_ms = heap
            .quarantine
            .rings()
            .map(|ring| ring.lock().used_ms)
            .max();
        let freed_ms = freed_ms.unwrap();
        assert_eq!(heap.drain_idle_quarantine(freed_ms + IDLE_MS - 1), 128);
        assert_eq!(heap.quarantined_bytes(), 128);
        // The program's calls scan at intervals.
        let scanned = &heap.quarantine.scanned_ms;
        scanned.store(freed_ms + IDLE_MS, Ordering::Relaxed);
        heap.scan_quarantine(freed_ms + IDLE_MS + SCAN_MS - 1);
        assert_eq!(heap.quarantined_bytes(), 128);
        heap.scan_quarantine(freed_ms + IDLE_MS + SCAN_MS);
        assert_eq!(heap.quarantined_bytes(), 0);
        let scanned_ms = freed_ms + IDLE_MS + SCAN_MS;
        assert_eq!(scanned.load(Ordering::Relaxed), scanned_ms);
        // The next ring becomes idle exactly at its time, to the millisecond.
        scanned.store(u64::MAX, Ordering::Relaxed);
        let object = heap.allocate_hardened(50, 1);
        heap.free_hardened(class_of(50 + 64), object);
        let used = heap
            .quarantine
            .rings()
            .map(|ring| ring.lock().used_ms)
            .max();
        assert_eq!(heap.quarantined_bytes(), 128);
        assert_eq!(heap.drain_idle_quarantine(used.unwrap() + IDLE_MS), 0);
        assert_eq!(heap.quarantined_bytes(), 0);
    });
}

#[test]
fn a_ring_that_is_forgotten_keeps_its_memory() {
    alone(HARDENED, |heap| {
        let object = heap.allocate_hardened(50, 1);
        heap.free_hardened(class_of(50 + 64), object);
        let large = heap.allocate_large(100 << 12, 1).unwrap();
        assert!(heap.free_large(heap.region().frame(large.address)));
        // SAFETY: the test's process has no other thread that uses the heap.
        unsafe { Quarantined.abandon(heap) };
        let slack = heap.slack.load(Ordering::Relaxed);
        heap.put_all_kept();
        assert_eq!(slack, heap.slack.load(Ordering::Relaxed), "forgotten too");
        assert_eq!((objects_of_rings(heap), heap.quarantined_bytes()), (0, 0));
        let object = heap.allocate_hardened(50, 1);
        heap.free_hardened(class_of(50 + 64), object);
        assert_eq!(objects_of_rings(heap), 1);
    });
}

fn has_sections(heap: &Heap) -> bool {
    let has = heap.caches.uses_sections();
    if !has {
        std::eprintln!("skipped: no restartable sections here");
    }
    has
}

/// Frees an object as the program does.
fn free_at_once(object: usize) {
    assert!(front().unwrap().free_at_once(object));
}

fn stacked(heap: &Heap) -> usize {
    let mut entries = [0; FREED_MAX];
    let cpus = 0..heap.caches.cpus();
    cpus.map(|cpu| heap.caches.peek_freed(cpu, &mut entries))
        .sum()
}

/// An object as the program gets it, with or without the slow path.
fn allocate(heap: &Heap, size: usize) -> usize {
    match front().unwrap().allocate_at_once(size, 1) {
        0 => heap.allocate_hardened(size, 1),
        object => object,
    }
}

#[test]
fn objects_pass_the_stack_and_then_the_ring() {
    alone(HARDENED, |heap| {
        if !has_sections(heap) {
            return;
        }
        stay_here();
        let count = FREED_MAX + ENTRIES;
        let objects: Vec<usize> = (0..count + 200).map(|_| allocate(heap, 50)).collect();
        for (number, &object) in objects.iter().enumerate() {
            free_at_once(object);
            let all = stacked(heap) + objects_of_rings(heap);
            assert!(all <= count && (all == number + 1 || all >= ENTRIES - 1));
            assert!(heap.quarantined_bytes() == all * 128);
        }
        // The oldest ones have left, and only they come again.
        let waiting = &objects[objects.len() - (ENTRIES - 1)..];
        assert!((0..64).all(|_| !waiting.contains(&allocate(heap, 50))));
        heap.drain_quarantine();
        assert_eq!((stacked(heap), heap.quarantined_bytes()), (0, 0));
    });
}

#[test]
fn an_idle_stack_is_emptied() {
    alone(HARDENED, |heap| {
        if !has_sections(heap) {
            return;
        }
        stay_here();
        let object = allocate(heap, 50);
        let now = ebbtide_sys::clock::now_ms();
        heap.drain_idle_quarantine(now);
        free_at_once(object);
        assert_eq!((stacked(heap), heap.quarantined_bytes()), (1, 128));
        assert_eq!(heap.drain_idle_quarantine(now + IDLE_MS - 1), 128);
        assert_eq!(stacked(heap), 1);
        let freed = ebbtide_sys::clock::now_ms();
        assert_eq!(heap.drain_idle_quarantine(freed + IDLE_MS), 0);
        assert_eq!((stacked(heap), heap.quarantined_bytes()), (0, 0));
    });
}

/// Few objects are freed: a full stack is rare.
#[test]
fn a_ring_behind_a_stack_in_use_is_not_idle() {
    alone(HARDENED, |heap| {
        if !has_sections(heap) {
            return;
        }
        stay_here();
        let objects: Vec<usize> = (0..=FREED_MAX + 1).map(|_| allocate(heap, 50)).collect();
        objects[1..].iter().for_each(|&object| free_at_once(object));
        let in_ring = objects_of_rings(heap);
        assert!(in_ring >= FREED_MAX);
        let rings = heap.quarantine.rings();
        let used_ms = rings.map(|ring| ring.lock().used_ms).max().unwrap();
        heap.drain_idle_quarantine(used_ms + 300);
        // The stack is used again.
        free_at_once(objects[0]);
        heap.drain_idle_quarantine(used_ms + IDLE_MS + 50);
        assert_eq!(objects_of_rings(heap), in_ring);
        heap.drain_idle_quarantine(used_ms + 2 * IDLE_MS);
        assert_eq!(heap.quarantined_bytes(), 0);
    });
}

#[test]
fn a_drain_of_a_cpu_ends_the_quarantine_of_its_stack() {
    alone(HARDENED, |heap| {
        if !has_sections(heap) {
            return;
        }
        let cpu = stay_here();
        let object = allocate(heap, 50);
        free_at_once(object);
        assert!(heap.drain_cpu(cpu));
        assert_eq!(heap.quarantined_bytes(), 0);
        assert!((0..1000).any(|_| allocate(heap, 50) == object));
    });
}

/// A fork that takes long makes a free wait, after it has begun.
#[test]
fn a_free_can_be_undone() {
    alone(HARDENED, |heap| {
        if !has_sections(heap) {
            return;
        }
        let class = heap.layout(50, 1).unwrap().class;
        let object = allocate(heap, 50);
        let entry = heap.end_stacked(class, object);
        heap.revive(entry);
        assert_eq!(heap.size_hardened(class, object, ""), 50);
        assert_eq!(
            heap.resize_hardened(class, object, 40),
            Ok(()),
            "its guards hold"
        );
        free_at_once(object);
    });
}

/// Small objects, and those of a page when no more places may be closed now.
#[test]
fn objects_of_little_memory_are_stacked() {
    alone(HARDENED, |heap| {
        let is_stacked = |size| heap.is_stacked(heap.layout(size, 1).unwrap().class);
        assert!(is_stacked(1) && is_stacked(3000) && !is_stacked(20_000));
        if heap.has_guard_pages {
            assert!(!is_stacked(4096));
            (0..CLOSINGS).for_each(|_| assert!(heap.quarantine.may_close(5)));
            assert!(is_stacked(4096) && !is_stacked(20_000) && !heap.quarantine.may_close(5));
            heap.quarantine.note_time(9);
            assert!(!is_stacked(4096));
        }
    });
}
