//! Per-CPU data in one process: contents, figures, many threads, depopulation beside them.

use ebbtide::percpu::{self, Counter, PerCpu, Problem, RefCount};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Tests that look at the figures of the process take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// An area with its own pattern on each CPU.
struct Area {
    handle: percpu::Handle,
    size: usize,
    seed: u8,
}

impl Area {
    fn new(size: usize, align: usize, seed: u8) -> Self {
        let handle = percpu::allocate(size, align).unwrap();
        for cpu in 0..percpu::cpus() {
            let at = percpu::pointer(handle, cpu);
            assert_eq!(at as usize % align, 0);
            // SAFETY: the area has that many bytes, and is this thread's.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at, size) };
            assert!(bytes.iter().all(|&byte| byte == 0), "zero on CPU {cpu}");
            bytes.fill(seed ^ cpu as u8 | 1);
        }
        Self { handle, size, seed }
    }

    fn check(&self) {
        for cpu in 0..percpu::cpus() {
            // SAFETY: as above.
            let bytes = unsafe {
                core::slice::from_raw_parts(percpu::pointer(self.handle, cpu), self.size)
            };
            let value = self.seed ^ cpu as u8 | 1;
            assert!(bytes.iter().all(|&byte| byte == value), "kept on CPU {cpu}");
        }
    }

    fn free(self) {
        self.check();
        percpu::free(self.handle);
    }
}

#[test]
fn bad_arguments_are_refused() {
    for (size, align) in [(0, 8), ((256 << 10) + 1, 8), (8, 3), (8, 8192), (8, 0)] {
        assert_eq!(percpu::allocate(size, align), Err(Problem::BadArguments));
    }
}

#[test]
fn areas_of_all_sizes_and_alignments_keep_their_content() {
    let _alone = alone();
    let before = percpu::stats().allocated_bytes;
    let mut areas = Vec::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for step in 0..6000 {
        if random.below(5) < 3 || areas.is_empty() {
            let most = [16, 200, 3000, 20_000, 256 << 10][(random.below(40) / 9).min(4)];
            let size = 1 + random.below(most);
            let align = 1 << random.below(13);
            areas.push(Area::new(size, align, step as u8));
        } else {
            let area = areas.swap_remove(random.below(areas.len()));
            area.free();
        }
        if step % 500 == 499 {
            ebbtide::release_all();
            areas.iter().for_each(Area::check);
        }
    }
    areas.drain(..).for_each(Area::free);
    // Ebbtide's own sums may have come.
    let own_bytes = 64 * percpu::cpus();
    assert!([before, before + own_bytes].contains(&percpu::stats().allocated_bytes));
}

#[test]
fn empty_pages_go_back_and_the_rest_stays() {
    let _alone = alone();
    ebbtide::release_all();
    let mut kept = Vec::new();
    let mut freed = Vec::new();
    // A page of the kernel goes back when all of its areas are free: of larger pages, as few must keep one.
    let distance = 11 * ebbtide_sys::vm::page_frames();
    for step in 0..4000 {
        let area = Area::new(2048, 64, step as u8);
        if step % distance == 0 {
            kept.push(area);
        } else {
            freed.push(area);
        }
    }
    let peak = percpu::stats();
    freed.drain(..).for_each(Area::free);
    ebbtide::release_all();
    let after = percpu::stats();
    assert!(
        after.populated_bytes * 4 < peak.populated_bytes,
        "{after:?} after {peak:?}"
    );
    assert!(after.sidelined_chunks > 0 && after.depopulated_bytes > peak.depopulated_bytes);
    kept.iter().for_each(Area::check);
    // What is used again is zero again.
    for step in 0..4000 {
        freed.push(Area::new(2048, 64, step as u8));
    }
    freed.drain(..).for_each(Area::free);
    kept.drain(..).for_each(Area::free);
    ebbtide::release_all();
    // One for each shard, and that of Ebbtide's own sums. A worker may be giving pages back in its round meanwhile,
    // and what it has is nobody else's to give.
    let most = percpu::cpus().min(16) + 1;
    for _ in 0..100 {
        if percpu::stats().chunks <= most {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        ebbtide::release_all();
    }
    panic!("{} chunks stay, at most {most} may", percpu::stats().chunks);
}

#[test]
fn counters_lose_nothing_while_threads_move() {
    let _alone = alone();
    let counter = Counter::new().unwrap();
    let both = PerCpu::<[u64; 3]>::new().unwrap();
    let stop = AtomicBool::new(false);
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        let (counter, both, stop, added) = (&counter, &both, &stop, &added);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    // SAFETY: no arguments.
                    let id = unsafe { libc_gettid() };
                    MOVED.lock().unwrap().push(id);
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..1000 {
                            counter.add(1);
                            both.add(1, 3);
                            count += 1;
                        }
                    }
                    added.fetch_add(count, Ordering::Relaxed);
                })
            })
            .collect();
        // Each thread is sent from CPU to CPU.
        let end = Instant::now() + Duration::from_millis(500);
        let mut cpu = 0;
        while Instant::now() < end {
            for &id in MOVED.lock().unwrap().iter() {
                move_to(id, cpu % cpus());
                cpu += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    let added = added.load(Ordering::Relaxed);
    assert_eq!(counter.sum(), added);
    assert_eq!([0, 1, 2].map(|index| both.sum(index)), [0, 3 * added, 0]);
}

static MOVED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

unsafe extern "C" {
    #[link_name = "gettid"]
    fn libc_gettid() -> i32;
    fn sched_setaffinity(id: i32, size: usize, mask: *const u64) -> i32;
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn move_to(id: i32, cpu: usize) {
    let mut mask = [0u64; 16];
    mask[cpu / 64] |= 1 << (cpu % 64);
    // SAFETY: `mask` is that long. Threads that have ended are not found, which does no harm.
    let _ = unsafe { sched_setaffinity(id, size_of_val(&mask), mask.as_ptr()) };
}

/// Writers on all CPUs while pages go back as fast as they can: a lost or torn addition fails.
#[test]
fn writers_beside_depopulation() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let mut threads = Vec::new();
        for thread in 0..cpus().clamp(2, 8) {
            threads.push(scope.spawn(move || {
                let mut random = Random(0x1234_5678 + thread as u64);
                let mut live: Vec<(PerCpu<[u64; 40]>, u64)> = Vec::new();
                let mut filler = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match random.below(8) {
                        0 => live.push((PerCpu::new().unwrap(), 0)),
                        1..3 => filler.push(Area::new(1 + random.below(5000), 8, thread as u8)),
                        3..5 if !filler.is_empty() => {
                            filler.swap_remove(random.below(filler.len())).free();
                        }
                        5 if live.len() > 20 => {
                            let (area, count) = live.swap_remove(random.below(live.len()));
                            check_sum(&area, count);
                        }
                        _ => {
                            for (area, count) in &mut live {
                                let index = random.below(40);
                                area.add(index, 1 << 32 | 1);
                                *count += 1;
                            }
                        }
                    }
                    if filler.len() > 300 {
                        filler.drain(..250).for_each(Area::free);
                    }
                }
                live.iter()
                    .for_each(|(area, count)| check_sum(area, *count));
                filler.drain(..).for_each(Area::free);
            }));
        }
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            ebbtide::release_all();
        }
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    assert!(percpu::stats().depopulated_bytes > 0);
}

fn check_sum(area: &PerCpu<[u64; 40]>, count: u64) {
    let sum: u64 = (0..40).map(|index| area.sum(index)).sum();
    assert_eq!(sum, count << 32 | count);
}

#[test]
fn the_last_reference_is_told_once() {
    let _alone = alone();
    for round in 0..200 {
        let references = RefCount::new().unwrap();
        let ends = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                references.get();
                let (references, ends) = (&references, &ends);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        references.get();
                        assert!(!references.put());
                    }
                    ends.fetch_add(references.put().into(), Ordering::Relaxed);
                });
            }
            for _ in 0..round * 20 {
                core::hint::spin_loop();
            }
            assert!(references.try_get());
            let last = references.kill().unwrap();
            assert!(!last, "there is one more");
            ends.fetch_add(references.put().into(), Ordering::Relaxed);
        });
        assert_eq!(ends.into_inner(), 1);
        assert!(!references.try_get());
        assert_eq!(references.kill(), Ok(false));
    }
}

#[test]
fn typed_values_are_read_and_written_whole() {
    let _alone = alone();
    let area = PerCpu::<[u32; 3]>::new().unwrap();
    for cpu in 0..percpu::cpus() {
        assert_eq!(area.read(cpu), [0; 3]);
        area.write(cpu, [cpu as u32, 7, u32::MAX]);
    }
    for cpu in 0..percpu::cpus() {
        assert_eq!(area.read(cpu), [cpu as u32, 7, u32::MAX]);
    }
}

#[test]
fn a_worker_gives_areas_back() {
    let _alone = alone();
    let before = ebbtide::stats::figures();
    let blocks: Vec<_> = (0..40).map(|_| Area::new(256 << 10, 4096, 3)).collect();
    blocks.into_iter().for_each(Area::free);
    let end = Instant::now() + Duration::from_secs(10);
    let wanted = 30 * percpu::cpus() * (256 << 10);
    while ebbtide::stats::figures().released_bytes - before.released_bytes < wanted as u64 {
        assert!(Instant::now() < end, "a worker gives them back");
        thread::sleep(Duration::from_millis(20));
    }
    let after = ebbtide::stats::figures();
    assert!(after.worker_ns > before.worker_ns);
    assert!(after.percpu_bytes as usize <= percpu::stats().populated_bytes + (1 << 20));
}
