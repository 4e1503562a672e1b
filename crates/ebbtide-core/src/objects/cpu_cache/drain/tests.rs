//! Which objects a drain takes, when a drain happens, and which threads it waits for.

extern crate std;

use super::*;
use crate::alone::{CALM, PORTABLE, alone, stay_here};
use crate::base::size_class::class_of;
use crate::objects::central::transfer::Batches;
use crate::objects::cpu_cache::COLD;
use crate::objects::cpu_cache::traffic::tests::has_sections;
use crate::reclaim::Heap;
use crate::reclaim::pacing::is_time;
use std::vec::Vec;

/// The state after a CPU freed a few objects of `class`: one stays with the caller.
fn use_cache(heap: &Heap, class: usize) -> usize {
    let kept = heap.take_object(class);
    let objects: Vec<usize> = (0..200).map(|_| heap.take_object(class)).collect();
    objects
        .iter()
        .for_each(|&object| heap.put_object(class, object));
    kept
}

fn is_live(heap: &Heap, cpu: usize) -> bool {
    let (caches, place) = (&heap.caches, heap.caches.place());
    let entry = caches.table_entry(cpu).load(Ordering::Relaxed);
    caches.states[cpu].load(Ordering::Relaxed) == LIVE
        && (!caches.uses_sections() || entry == place.stacks.live_offset(cpu))
}

/// Bytes of a class that are neither in a CPU's cache nor with the program.
fn central_bytes(heap: &Heap, class: usize) -> usize {
    let bytes = heap.central[class].bytes(class);
    bytes.batches + bytes.in_spans
}

fn a_drain_takes_all(heap: &Heap) {
    let (cpu, classes) = (stay_here(), [class_of(64), class_of(3000)]);
    assert!(heap.drain_cpu(cpu), "cold: nothing to take");
    assert!(!heap.caches.is_warm(cpu));
    let kept = classes.map(|class| use_cache(heap, class));
    assert!(heap.caches.cpu_bytes(cpu) > 100 * 64);
    assert!(heap.drain_cpu(cpu));
    assert_eq!(heap.caches.cpu_bytes(cpu), 0);
    for class in classes {
        let all = heap.central[class].bytes(class).all;
        assert_eq!(central_bytes(heap, class), all - CLASS[class].size as usize);
        let capacity = &heap.caches.notes(cpu).capacity[class];
        if heap.caches.uses_sections() {
            assert_eq!(capacity.load(Ordering::Relaxed), 0, "begins anew");
        }
    }
    assert!(is_live(heap, cpu));
    for (class, object) in classes.into_iter().zip(kept) {
        heap.put_object(class, object);
        assert_eq!(heap.take_object(class), object, "the newest first");
    }
}

#[test]
fn a_drain_takes_everything_and_the_cache_lives_on() {
    alone(CALM, |heap| {
        a_drain_takes_all(heap);
    });
}

#[test]
fn a_drain_takes_everything_without_sections() {
    alone(PORTABLE, |heap| {
        a_drain_takes_all(heap);
    });
}

/// Without a fence, the slab is not the draining thread's: a section may be at work in it.
#[test]
fn a_drain_without_a_fence_takes_nothing() {
    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let (cpu, class) = (stay_here(), class_of(64));
        let kept = use_cache(heap, class);
        let bytes = heap.caches.cpu_bytes(cpu);
        const PRIVATE_EXPEDITED_RSEQ: u32 = 1 << 7;
        crate::alone::refuse(libc::SYS_membarrier, 0, PRIVATE_EXPEDITED_RSEQ);
        for _ in 0..2 {
            assert!(!heap.drain_cpu(cpu));
            assert!(is_live(heap, cpu));
            assert_eq!(heap.caches.cpu_bytes(cpu), bytes);
        }
        assert!(!heap.caches.park_all(), "a fork is told as well");
        heap.caches.unpark_all();
        heap.put_object(class, kept);
        assert_eq!(heap.take_object(class), kept);
    });
}

#[test]
fn a_fork_parks_all_and_brings_the_live_ones_back() {
    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let (caches, cpu) = (&heap.caches, stay_here());
        let kept = use_cache(heap, 1);
        let bytes = caches.cpu_bytes(cpu);
        assert!(caches.park_all());
        assert_eq!(caches.table_entry(cpu).load(Ordering::Relaxed), 0);
        // SAFETY: the section mode.
        let popped = unsafe { ebbtide_sys::rseq::section::pop(&caches.place().stacks, 1) };
        assert_eq!(popped, 0);
        caches.unpark_all();
        assert!(is_live(heap, cpu) && caches.cpu_bytes(cpu) == bytes);
        for other in (0..caches.cpus()).filter(|&other| other != cpu) {
            assert_eq!(caches.states[other].load(Ordering::Relaxed), COLD);
            assert_eq!(caches.table_entry(other).load(Ordering::Relaxed), 0);
        }
        heap.put_object(1, kept);
        // SAFETY: this process has one thread that uses the heap.
        unsafe { caches.forget_all() };
        assert!(is_live(heap, cpu) && caches.bytes() == 0);
    });
}

fn an_idle_cache_is_drained(heap: &Heap) {
    let (cpu, class) = (stay_here(), class_of(64));
    assert!(heap.drain_if_idle(cpu), "cold");
    use_cache(heap, class);
    // The first scan sees a change, and so does the first scan after any use.
    for round in 0..=IDLE_ROUNDS {
        assert!(!heap.drain_if_idle(cpu), "round {round}");
    }
    let object = heap.take_object(class);
    for round in 0..=IDLE_ROUNDS {
        assert!(!heap.drain_if_idle(cpu), "round {round} after use");
        assert!(heap.caches.cpu_bytes(cpu) > 0);
    }
    assert!(heap.drain_if_idle(cpu));
    assert_eq!(heap.caches.cpu_bytes(cpu), 0);
    if heap.caches.uses_sections() {
        assert!(!heap.drain_if_idle(cpu), "the drain was a change");
        assert!(heap.drain_if_idle(cpu), "there is nothing to wait for");
    }
    heap.put_object(class, object);
}

#[test]
fn a_cache_is_idle_after_some_rounds_without_use() {
    alone(CALM, |heap| {
        an_idle_cache_is_drained(heap);
    });
}

#[test]
fn a_cache_is_idle_after_some_rounds_without_use_and_without_sections() {
    alone(PORTABLE, |heap| {
        an_idle_cache_is_drained(heap);
    });
}

fn surplus_goes(heap: &Heap) {
    let (cpu, class) = (stay_here(), CLASSES - 1);
    let size = CLASS[class].size as usize;
    let in_cache = || heap.caches.cpu_bytes(cpu) / size;
    let two = [heap.take_object(class), heap.take_object(class)];
    let third = heap.take_object(class);
    heap.drain_cpu(cpu);
    let put_two = || {
        two.iter()
            .for_each(|&object| heap.put_object(class, object))
    };
    put_two();
    assert_eq!(in_cache(), 2);
    heap.drain_surplus(cpu, true);
    assert_eq!(in_cache(), 2, "nothing is known of the window before");
    // One of the two objects is needed in this window: at least one was always there.
    let wanted = heap.take_object(class);
    heap.drain_surplus(cpu, false);
    assert_eq!(in_cache(), 1, "the window has not ended");
    heap.put_object(class, wanted);
    heap.drain_surplus(cpu, false);
    assert_eq!(in_cache(), 2, "the window has not ended");
    heap.drain_surplus(cpu, true);
    assert_eq!(in_cache(), 1);
    let left = heap.take_object(class);
    // Both are needed, and are put back.
    heap.drain_surplus(cpu, false);
    heap.put_object(class, left);
    heap.drain_surplus(cpu, true);
    assert_eq!(in_cache(), 1);
    heap.drain_surplus(cpu, true);
    assert_eq!(in_cache(), 0, "nobody wanted it for a window");
    // An amount as small as this is left alone.
    let small = class_of(SURPLUS_BYTES / 8);
    use_cache_of(heap, small, 2);
    for _ in 0..3 {
        heap.drain_surplus(cpu, true);
        assert_eq!(heap.caches.cpu_bytes(cpu), SURPLUS_BYTES / 4);
    }
    heap.put_object(class, third);
}

/// Leaves `count` objects in the cache.
fn use_cache_of(heap: &Heap, class: usize, count: usize) {
    let objects: Vec<usize> = (0..count).map(|_| heap.take_object(class)).collect();
    heap.drain_cpu(stay_here());
    objects
        .iter()
        .for_each(|&object| heap.put_object(class, object));
}

#[test]
fn what_a_window_did_without_is_taken_out() {
    alone(CALM, |heap| {
        surplus_goes(heap);
    });
}

#[test]
fn what_a_window_did_without_is_taken_out_without_sections() {
    alone(PORTABLE, |heap| {
        surplus_goes(heap);
    });
}

/// Bytes that a round leaves in CPU stacks and full batches.
fn give_due(heap: &Heap, now: u64) -> usize {
    let (mut left, by) = (Remaining::default(), Releaser::Tick);
    let window = u64::from(heap.config.retain_ms);
    let round = Round {
        now,
        ends_window: is_time(&heap.pacing.window_ms, now, window),
        by,
    };
    CpuStacks.give_due(heap, &round, &mut left);
    Batches.give_due(heap, &round, &mut left);
    left.cached_bytes as usize
}

#[test]
fn rounds_drain_what_is_idle_and_count_the_rest() {
    alone(CALM, |heap| {
        let (cpu, class) = (stay_here(), class_of(64));
        let bytes = CLASS[class].batch as usize * 64;
        let objects: Vec<usize> = (0..300).map(|_| heap.take_object(class)).collect();
        objects
            .iter()
            .for_each(|&object| heap.put_object(class, object));
        // A full batch by itself.
        let mut batch = [0; MAX_BATCH];
        assert_eq!(heap.take_objects(class, &mut batch), MAX_BATCH);
        heap.put_objects(class, &batch);
        let in_cache = heap.caches.cpu_bytes(cpu);
        let batches = heap.central[class].bytes(class).batches;
        assert!(in_cache > 0 && batches >= bytes);
        // The CPU's cache is counted one round later than full batches, because its first scan sees a change.
        for _ in 1..IDLE_ROUNDS {
            assert_eq!(give_due(heap, 1000), in_cache + batches);
        }
        assert_eq!(give_due(heap, 1000), in_cache);
        assert_eq!(give_due(heap, 1000), in_cache);
        assert_eq!(give_due(heap, 1000), 0);
        assert_eq!(heap.caches.bytes(), 0);
        assert_eq!(heap.central[class].bytes(class).batches, 0);
    });
}

/// More than a batch of them.
#[test]
fn a_part_of_a_cache_is_taken_out() {
    alone(CALM, |heap| {
        let (cpu, class) = (stay_here(), class_of(64));
        use_cache(heap, class);
        let before = heap.caches.cpu_bytes(cpu);
        let mut most = [0; CLASSES];
        most[class] = MAX_BATCH as u16 + 6;
        assert!(before > 80 * 64 && heap.take_out(cpu, Some(&most)));
        assert_eq!(heap.caches.cpu_bytes(cpu), before - (MAX_BATCH + 6) * 64);
    });
}

/// At the end of a window, its low water goes to the spans: of a CPU's stack, and of the full batches.
#[test]
fn windows_end_by_the_clock() {
    alone(CALM, |heap| {
        let window = u64::from(heap.config.retain_ms);
        let (cpu, large, small) = (stay_here(), CLASSES - 1, class_of(64));
        let bytes = CLASS[large].size as usize * 2;
        use_cache_of(heap, large, 2);
        let mut batch = [0; MAX_BATCH];
        assert_eq!(heap.take_objects(small, &mut batch), MAX_BATCH);
        heap.put_objects(small, &batch);
        let left = || {
            let batches = heap.central[small].bytes(small).batches;
            (heap.caches.cpu_bytes(cpu), batches / batch.len() / 64)
        };
        let end = window + 5000;
        // The first window began at 0. In it both low waters were 0.
        give_due(heap, end);
        assert_eq!(left(), (bytes, 1));
        give_due(heap, end + window - 1);
        assert_eq!(left(), (bytes, 1));
        give_due(heap, end + window);
        assert_eq!(left(), (0, 0));
    });
}

#[test]
fn a_drain_of_everything_puts_spare_runs_back() {
    alone(CALM, |heap| {
        let large = heap.allocate_large(100 << 12, 1).unwrap();
        heap.free_large(heap.region().frame(large.address));
        assert_eq!(heap.spares.frames(), 100);
        heap.drain_all(Releaser::Explicit);
        assert_eq!(heap.spares.frames(), 0);
        let dirty = heap.live_zones().iter().map(|zone| zone.counters().dirty);
        assert_eq!(dirty.sum::<u64>(), 100);
    });
}

/// While a thread drains, no other thread uses the slab. Here it waits for the spans of a class.
#[test]
fn a_slab_is_parked_while_it_is_drained() {
    alone(CALM, |heap| {
        if !has_sections(heap) {
            return;
        }
        let (cpu, class) = (stay_here(), class_of(64));
        use_cache(heap, class);
        let (caches, before) = (&heap.caches, heap.caches.cpu_bytes(cpu));
        let state = &caches.states[cpu];
        std::thread::scope(|scope| {
            let held = heap.central[class].spans.lock();
            let drainer = scope.spawn(|| heap.drain_cpu(cpu));
            while caches.cpu_bytes(cpu) == before {
                std::thread::yield_now();
            }
            let entry = caches.table_entry(cpu).load(Ordering::Relaxed);
            let state = state.load(Ordering::Relaxed);
            // SAFETY: the section mode.
            let popped = unsafe { ebbtide_sys::rseq::section::pop(&caches.place().stacks, class) };
            drop(held);
            assert!(drainer.join().unwrap());
            assert_eq!((entry, state, popped), (0, PARKED, 0));
        });
        assert!(is_live(heap, cpu) && caches.cpu_bytes(cpu) == 0);
    });
}

/// A section that works with an entry that it read before a drain must not take effect after the drain.
mod beside_sections {
    use super::*;
    use crate::alone::stay_on;
    use crate::objects::cpu_cache::traffic::tests::warm;
    use core::sync::atomic::AtomicU32;
    use ebbtide_sys::process;
    use ebbtide_sys::rseq::section;

    const ROUNDS: usize = 50;

    /// The words that the thread in the section shares with the draining thread.
    #[derive(Default)]
    struct Words {
        section: section::Lingering,
        /// Attempts that found the CPU parked.
        parked: AtomicU32,
    }

    /// Lets the section end, also where a check fails: its thread is waited for.
    struct Go<'a>(&'a Words);

    impl Drop for Go<'_> {
        fn drop(&mut self) {
            self.0.section.go.store(1, Ordering::Relaxed);
        }
    }

    fn allowed() -> Vec<usize> {
        let cpus = process::CpuSet::allowed();
        (0..1024).filter(|&cpu| cpus.has(cpu)).collect()
    }

    /// Calls `stop` while a section runs on another CPU: no section that began before `stop` may take effect after
    /// it.
    fn sections_end(heap: &'static Heap, stop: impl Fn(usize, &Words)) {
        if !has_sections(heap) {
            return;
        }
        let [here, there, ..] = allowed()[..] else {
            return std::eprintln!("skipped: one CPU");
        };
        stay_on(here);
        assert!(warm(heap, there));
        let stacks = heap.caches.place().stacks;
        for round in 0..ROUNDS {
            let words = Words::default();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    stay_on(there);
                    heap.caches.join_sections();
                    for attempt in 1.. {
                        // SAFETY: the section mode.
                        let parked = unsafe { section::linger(&stacks, &words.section, attempt) };
                        words.parked.fetch_add(parked.into(), Ordering::Relaxed);
                        if words.section.done.load(Ordering::Relaxed) != 0 {
                            return;
                        }
                    }
                });
                while words.section.inside.load(Ordering::Relaxed) == 0 {
                    core::hint::spin_loop();
                }
                let before = words.section.inside.load(Ordering::Relaxed);
                let go = Go(&words);
                stop(there, &words);
                drop(go);
                while words.section.done.load(Ordering::Relaxed) == 0 {
                    core::hint::spin_loop();
                }
                let done = words.section.done.load(Ordering::Relaxed);
                assert!(done > before, "round {round}: from before the fence");
            });
        }
    }

    #[test]
    fn a_drain_ends_the_sections_under_way() {
        alone(CALM, |heap| {
            sections_end(heap, |cpu, _| assert!(heap.drain_cpu(cpu)));
        });
    }

    #[test]
    fn a_fork_ends_the_sections_under_way() {
        alone(CALM, |heap| {
            sections_end(heap, |_, words| {
                assert!(heap.caches.park_all());
                words.section.go.store(1, Ordering::Relaxed);
                let parked = words.parked.load(Ordering::Relaxed);
                // Each section that begins now finds it parked.
                let done = || words.section.done.load(Ordering::Relaxed);
                while words.parked.load(Ordering::Relaxed) < parked + 100 && done() == 0 {}
                let took_effect = done();
                heap.caches.unpark_all();
                assert_eq!(took_effect, 0, "while memory is copied");
            });
        });
    }
}
