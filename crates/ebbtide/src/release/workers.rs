//! Threads that release memory beside the program.
//!
//! None exists before there is something to do. One at a time *coordinates*: it waits for the retain
//! window, decides what is due, and hands pieces to the others. They sleep without a timer when nothing is
//! kept, and end after [`IDLE_MS`] of that. They are threads of the process: its cgroup and its priority
//! pay. They hold no allocator lock across a system call, use no libc beyond their own start and end,
//! have all signals blocked, and a descriptor table of their own.

use super::gather::Gather;
use super::slots::Owned;
use crate::heap::{Heap, started_heap};
use crate::stats;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::features::WORKERS;
use ebbtide_sys::pages::PageMap;
use ebbtide_sys::thread::{self, Affinity};
use ebbtide_sys::{clock, process};

/// A worker without work ends after this.
const IDLE_MS: u64 = 10_000;
/// After a refusal, no thread is asked for during this.
const RETRY_MS: u64 = 10_000;

/// The workers of this process.
pub struct Workers {
    /// Which numbers are in use, one bit each.
    numbers: AtomicU64,
    /// Changes when there is something to do.
    wake: AtomicU32,
    /// Threads asleep on `wake`.
    asleep: AtomicU32,
    coordinating: AtomicBool,
    /// A thread is being made: what libc allocates for it must not ask for another.
    creating: AtomicBool,
    /// The process that all this is true of; a `vfork` child is another one.
    process: AtomicU32,
    retry_ms: AtomicU64,
    /// The CPU that handed work over, which helpers leave alone.
    avoid_cpu: AtomicUsize,
}

impl Workers {
    /// None.
    pub const fn new() -> Self {
        Self {
            numbers: AtomicU64::new(0),
            wake: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            coordinating: AtomicBool::new(false),
            creating: AtomicBool::new(false),
            process: AtomicU32::new(0),
            retry_ms: AtomicU64::new(0),
            avoid_cpu: AtomicUsize::new(usize::MAX),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.numbers.load(Ordering::Acquire).count_ones() as usize
    }

    /// Called at the start, and in a forked child, which has none.
    pub fn begin(&self) {
        self.numbers.store(0, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.coordinating.store(false, Ordering::Relaxed);
        self.creating.store(false, Ordering::Relaxed);
        self.process.store(process::id(), Ordering::Release);
    }

    /// Sees to it that `wanted` workers exist, and wakes those asleep. `false`: there is none, so the
    /// caller must do the work.
    pub fn call(&self, wanted: usize) -> bool {
        let mut count = self.count();
        while count < wanted && self.make_one() {
            count += 1;
        }
        self.wake.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            ebbtide_sys::lock::futex_wake(&self.wake, u32::MAX >> 1);
        }
        count > 0
    }

    fn make_one(&self) -> bool {
        if !WORKERS.may_work() && clock::now_ms() < self.retry_ms.load(Ordering::Relaxed) {
            return false;
        }
        if crate::fork::is_forking() || self.process.load(Ordering::Acquire) != process::id() {
            return false;
        }
        if self.creating.swap(true, Ordering::Acquire) {
            return false;
        }
        let number = self.numbers.load(Ordering::Relaxed).trailing_ones();
        let made = number < 64 && {
            self.numbers.fetch_or(1 << number, Ordering::SeqCst);
            let made = thread::spawn(main, number as usize);
            if !made {
                self.numbers.fetch_and(!(1 << number), Ordering::SeqCst);
            }
            made
        };
        if made {
            let _ = WORKERS.latch(Ok::<_, ()>(()));
        } else {
            WORKERS.refuse();
            self.retry_ms
                .store(clock::now_ms() + RETRY_MS, Ordering::Relaxed);
        }
        self.creating.store(false, Ordering::Release);
        made
    }

    /// Notes where the thread that hands work over runs.
    pub fn leave_cpu_alone(&self, cpu: usize) {
        self.avoid_cpu.store(cpu, Ordering::Relaxed);
    }

    fn sleep(&self, seen: u32, ms: u64) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        thread::wait(&self.wake, seen, ms);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

extern "C" fn main(number: *mut c_void) -> *mut c_void {
    if let Some(heap) = started_heap() {
        run(heap, number as usize);
    }
    core::ptr::null_mut()
}

fn run(heap: &Heap, number: usize) {
    let workers = &heap.workers;
    thread::set_name(&name(number));
    thread::leave_descriptors();
    let map = PageMap::open().ok();
    let affinity = Affinity::current();
    let mut worked_ms = clock::now_ms();
    loop {
        let seen = workers.wake.load(Ordering::SeqCst);
        if heap.slots.has_queued() {
            affinity.pin(number, workers.avoid_cpu.load(Ordering::Relaxed));
            while let Some(owned) = heap.slots.take_queued() {
                release_owned(heap, owned, map.as_ref());
            }
            affinity.restore();
            worked_ms = clock::now_ms();
            continue;
        }
        let next = if workers.coordinating.swap(true, Ordering::Acquire) {
            None
        } else {
            let next = heap.round(clock::now_ms(), map.as_ref());
            workers.coordinating.store(false, Ordering::Release);
            next
        };
        let now = clock::now_ms();
        match next {
            Some(ms) => {
                worked_ms = now;
                workers.sleep(seen, ms);
            }
            None if now - worked_ms < IDLE_MS => workers.sleep(seen, IDLE_MS - (now - worked_ms)),
            None => {
                // Whoever calls from now on makes a new one; whoever called just before is heard.
                workers.numbers.fetch_and(!(1 << number), Ordering::SeqCst);
                if workers.wake.load(Ordering::SeqCst) == seen {
                    return;
                }
                if workers.numbers.fetch_or(1 << number, Ordering::SeqCst) >> number & 1 == 1 {
                    // Somebody made a new one with this number meanwhile.
                    return;
                }
            }
        }
    }
}

/// Releases a gather and puts its ranges back. Bytes given back.
pub fn release_owned(heap: &Heap, mut owned: Owned, map: Option<&PageMap>) -> usize {
    let start = clock::precise_ns();
    let gather: &mut Gather = owned.gather();
    let released = super::kernel::release(heap, gather, map);
    heap.put_back(gather, true);
    let took = clock::precise_ns() - start;
    if map.is_some() {
        stats::count_worker(took)
    } else {
        stats::count_stall(took)
    };
    released
}

fn name(number: usize) -> [u8; 16] {
    let mut name = *b"ebbtide/\0\0\0\0\0\0\0\0";
    if number >= 10 {
        name[8] = b'0' + (number / 10) as u8;
        name[9] = b'0' + (number % 10) as u8;
    } else {
        name[8] = b'0' + number as u8;
    }
    name
}
