//! Workers: threads that release memory beside the program.
//!
//! No worker exists before there is work, with one exception: a heap that has grown by a certain amount makes a worker in
//! advance ([`Workers::expect`]), so that a later `free` does not have to. That worker checks now and then whether much
//! was freed. One worker at a time *coordinates*: it waits for the retain window, decides what is due, and hands ranges
//! to the others.
//!
//! A worker ends after [`IDLE_MS`](ebbtide_zone::plan::IDLE_MS) without work or with only a small backlog ([`Next`]).
//! Until then it wakes up once a second to check whether it may stay ([`lease`]).
//!
//! Workers are threads of the process: its cgroup and its priority pay for them. They hold no allocator lock across a
//! system call. Libc does not know them ([`ebbtide_sys::thread`]): they use no `errno`, no allocation and no per-CPU
//! cache.

mod lease;
mod watch;

use super::control::OBSERVER_MS;
use super::owned::release_owned;
use crate::base::config::MAX_WORKERS;
use crate::base::owner;
use crate::base::releaser::{Owner, Releaser};
use crate::base::stats;
use crate::reclaim::{Heap, the_heap};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use ebbtide_sys::features::{SCAN_PAGES, WORKERS};
use ebbtide_sys::file::Digits;
use ebbtide_sys::pages::PageMap;
use ebbtide_sys::thread::{self, Affinity, Place};
use ebbtide_sys::{clock, process, vm};
use ebbtide_zone::BLOCK_BYTES;
use ebbtide_zone::plan::{Iteration, Next, Sleep};
use lease::{Lease, LeaseTerms};
use watch::WatchSchedule;

/// The bit beside the rights of a worker that says that they are those of the worker that makes it.
const IS_MADE: u64 = 1 << 33;
/// After a refusal, no worker is made for this time.
const RETRY_MS: u64 = 10_000;
/// A thread that ends all workers waits for them at most this long.
const END_MS: u64 = 1000;
/// Afterwards it has this long to restrict itself. Memory that is freed meanwhile stays until the next slow path,
/// or the next worker.
const APART_MS: u64 = 100;

/// The workers of this process.
pub struct Workers {
    /// The numbers in use, one bit each.
    numbers: AtomicU64,
    /// The workers' threads, by number.
    places: [Place; MAX_WORKERS],
    /// By number: the rights of the worker or, with [`IS_MADE`] and while it is made, of the worker that makes it. 0: unknown, or a thread of the
    /// program makes it.
    rights: [AtomicU64; MAX_WORKERS],
    /// When the coordinator checks again by itself. `u64::MAX`: not before it is woken.
    pub(super) next_ms: AtomicU64,
    /// Changes when there is work.
    wake: AtomicU32,
    /// Number of threads asleep on `wake`.
    asleep: AtomicU32,
    /// Bits of the workers that take queued gathers. A worker clears its bit when it has found the queue empty.
    busy: AtomicU64,
    /// The bit of the coordinating worker. 0: no worker coordinates now.
    coordinating: AtomicU64,
    /// A worker was made in advance, and has found no large backlog yet.
    expecting: AtomicBool,
    /// The number of the thread that makes a worker. 0: none. One thread at a time does.
    creating: AtomicU32,
    /// No worker is made before this time.
    retry_ms: AtomicU64,
    /// See [`Self::bar`].
    is_barred: AtomicBool,
    /// The terms of the workers' leases.
    lease_terms: LeaseTerms,
    /// The CPU of the thread that handed work over. Workers that help avoid it.
    pub(super) avoid_cpu: AtomicUsize,
}

impl Workers {
    /// None.
    pub const fn new() -> Self {
        Self {
            numbers: AtomicU64::new(0),
            places: [const { Place::new() }; MAX_WORKERS],
            rights: [const { AtomicU64::new(0) }; MAX_WORKERS],
            next_ms: AtomicU64::new(u64::MAX),
            wake: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            busy: AtomicU64::new(0),
            coordinating: AtomicU64::new(0),
            expecting: AtomicBool::new(false),
            creating: AtomicU32::new(0),
            retry_ms: AtomicU64::new(0),
            is_barred: AtomicBool::new(false),
            lease_terms: LeaseTerms::new(),
            avoid_cpu: AtomicUsize::new(usize::MAX),
        }
    }

    /// Number of workers.
    pub fn count(&self) -> usize {
        let numbers = self.numbers.load(Ordering::SeqCst);
        (numbers & !self.dead(numbers)).count_ones() as usize
    }

    /// Those of `numbers` whose thread is gone without having ended in order: a filter of the program killed this
    /// thread alone. Or the thread is just being made.
    fn dead(&self, numbers: u64) -> u64 {
        let mut left = numbers;
        let mut dead = 0;
        while left != 0 {
            let number = left.trailing_zeros();
            dead |= u64::from(self.places[number as usize].is_free()) << number;
            left &= left - 1;
        }
        dead
    }

    /// Whether the worker that owns gathers as `owner` is gone.
    pub fn is_gone(&self, owner: Owner) -> bool {
        // The next worker in its place is counted before it runs.
        owner.place().is_some_and(|(number, made)| {
            self.places[number].is_free() || self.places[number].made() != made
        })
    }

    /// Number of workers that check the queue before they do anything else: they will see a gather that is queued
    /// now.
    pub fn busy(&self) -> usize {
        fence(Ordering::SeqCst);
        let busy = self.busy.load(Ordering::Relaxed);
        (busy & !self.dead(busy)).count_ones() as usize
    }

    /// Clears the numbers of dead workers, and their roles. Called by the thread that makes workers. Returns their
    /// bits: a new worker would be killed in the same way.
    fn bury(&self) -> u64 {
        // A worker that has meanwhile ended in order has cleared its number before.
        let seen = self.dead(self.numbers.load(Ordering::SeqCst));
        let dead = seen & self.numbers.load(Ordering::SeqCst);
        self.busy.fetch_and(!dead, Ordering::SeqCst);
        if dead != 0 && self.numbers.fetch_and(!dead, Ordering::SeqCst) == dead {
            // No worker is left that could be asleep.
            self.asleep.store(0, Ordering::SeqCst);
        }
        self.coordinating.fetch_and(!dead, Ordering::SeqCst);
        dead
    }

    /// Whether no worker coordinated. If so, `number` coordinates from now on.
    fn coordinate(&self, number: usize) -> bool {
        self.coordinating
            .compare_exchange(0, 1 << number, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Called at the start, and in a forked child, which has no worker.
    pub fn begin(&self) {
        self.numbers.store(0, Ordering::Relaxed);
        self.places.iter().for_each(Place::reset);
        self.next_ms.store(u64::MAX, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.coordinating.store(0, Ordering::Relaxed);
        self.expecting.store(false, Ordering::Relaxed);
        self.creating.store(0, Ordering::Relaxed);
        self.bar(false);
        self.lease_terms.reset();
    }

    /// Ensures that `wanted` workers exist, as far as they can be made, and wakes the sleeping ones. `false`: there
    /// is no worker, so the caller must do the work.
    pub fn call(&'static self, wanted: usize) -> bool {
        self.wake.fetch_add(1, Ordering::SeqCst);
        // Read after `wake` was changed. A worker that ends clears its number first and then checks `wake`. So
        // either the worker stays, or it is not counted here.
        let before = self.count();
        let mut count = before;
        while count < wanted && self.make_one() {
            count += 1;
        }
        // A new worker checks for work without being woken.
        if before > 0 && self.asleep.load(Ordering::SeqCst) > 0 {
            ebbtide_sys::lock::futex_wake(&self.wake, u32::MAX >> 1);
        }
        count > 0
    }

    /// Lets workers that sleep look for requests. A signal handler may call it.
    pub fn nudge(&self) {
        // A worker that is about to sleep or to end notices that.
        self.wake.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            ebbtide_sys::lock::futex_wake(&self.wake, u32::MAX >> 1);
        }
    }

    /// Makes the first worker in advance, in a call that takes long anyway. While the heap grows, this worker
    /// checks every [`SAMPLE_MS`](ebbtide_zone::plan::pressure::SAMPLE_MS) whether there is much to release, so
    /// that `free` need not even wake it (30 µs). When the heap no longer grows, the checks become rarer, and
    /// `free` wakes it. Without work it ends like any other worker.
    pub fn expect(&'static self) {
        if self.count() == 0 {
            self.expecting.store(true, Ordering::Relaxed);
            self.make_one();
        }
    }

    /// Whether the only worker was made in advance and still waits for the first large backlog.
    pub fn is_expecting(&self) -> bool {
        self.expecting.load(Ordering::Relaxed)
    }

    /// Whether a coordinator checks by itself before `ms`.
    pub fn look_before(&self, ms: u64) -> bool {
        self.count() > 0 && self.next_ms.load(Ordering::SeqCst) <= ms
    }

    fn make_one(&'static self) -> bool {
        if !self.may_make() || !owner::is_own() || !self.begin_creating() {
            return false;
        }
        // Checked again: a thread that ends all workers then waits for a thread that still makes one.
        let made = self.may_make() && self.make_alone();
        self.creating.store(0, Ordering::Release);
        made
    }

    /// Makes a worker. Only one thread at a time does. After a worker's death it makes none: the new worker would
    /// be killed in the same way.
    fn make_alone(&'static self) -> bool {
        let dead = self.bury();
        let free = |number: &usize| self.places[*number].is_free();
        let Some(number) = (0..MAX_WORKERS).find(free) else {
            return false;
        };
        if dead == 0 {
            self.numbers.fetch_or(1 << number, Ordering::SeqCst);
            let maker = self.number_of(process::thread_id());
            let rights = maker.map_or(0, |maker| {
                self.rights[maker].load(Ordering::Relaxed) | IS_MADE
            });
            self.rights[number].store(rights, Ordering::Relaxed);
            let born = clock::now_ms() as usize * MAX_WORKERS + number;
            if self.places[number].spawn(main, born) {
                let _ = WORKERS.latch(Ok::<_, ()>(()));
                return true;
            }
            self.numbers.fetch_and(!(1 << number), Ordering::SeqCst);
        }
        WORKERS.refuse();
        self.make_none_for(RETRY_MS);
        if dead != 0 {
            // SAFETY: only slow paths that are inside, and workers, call for threads.
            let heap = unsafe { the_heap() };
            (0..MAX_WORKERS)
                .filter(|number| dead >> number & 1 == 1)
                .for_each(|number| heap.pressure.end_watch(number, &heap.allowance));
            heap.put_back_orphans();
        }
        false
    }

    /// The number of the worker that is this thread, if it is one.
    fn number_of(&self, thread: u32) -> Option<usize> {
        self.places
            .iter()
            .position(|place| place.thread() == thread)
    }

    fn may_make(&self) -> bool {
        !self.is_barred.load(Ordering::Relaxed)
            && clock::now_ms() >= self.retry_ms.load(Ordering::SeqCst)
    }

    /// While a thread forks, no worker is made.
    pub fn bar(&self, is_barred: bool) {
        self.is_barred.store(is_barred, Ordering::Relaxed);
    }

    fn make_none_for(&self, ms: u64) {
        self.retry_ms.store(clock::now_ms() + ms, Ordering::SeqCst);
    }

    /// Ends all workers. When it returns, they are gone, and none is made for [`APART_MS`]. `false`: a worker is
    /// still at work after [`END_MS`]; it ends when it is done. Takes no lock. Makes no system call if there is no
    /// worker: a filter that is already installed may kill the thread for it.
    pub fn end_all(&self) -> bool {
        self.make_none_for(APART_MS);
        let is_none = self.creating.load(Ordering::SeqCst) == 0
            && self.places.iter().all(|place| place.thread() == 0);
        if is_none || !owner::is_own() {
            return true;
        }
        let end = clock::now_ms() + END_MS;
        let comes = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                if clock::now_ms() >= end {
                    return false;
                }
                thread::give_way();
                thread::wait(&self.wake, self.wake.load(Ordering::Relaxed), 1);
            }
            true
        };
        let is_made = || self.creating.load(Ordering::SeqCst);
        let none_is_made = comes(&|| is_made() == 0 || thread::is_gone(is_made()));
        let threads = self.places.each_ref().map(Place::thread);
        self.lease_terms.end();
        // Changed once: a worker that ends and finds the word changed checks again for work.
        self.wake.fetch_add(1, Ordering::SeqCst);
        ebbtide_sys::lock::futex_wake(&self.wake, u32::MAX >> 1);
        // A thread is gone a moment after its place is free.
        none_is_made
            && comes(&|| {
                let mut all = threads.iter();
                all.all(|&thread| thread == 0 || thread::is_gone(thread))
            })
    }

    /// Whether no other thread makes a worker, or that thread is gone. If so, this thread makes workers from now
    /// on.
    fn begin_creating(&self) -> bool {
        let before = self.creating.load(Ordering::Relaxed);
        if before != 0 && !thread::is_gone(before) {
            return false;
        }
        let me = process::thread_id();
        self.creating
            .compare_exchange(before, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn sleep(&self, seen: u32, ms: u64) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        thread::wait(&self.wake, seen, ms);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        // The worker was woken with ordinary urgency; otherwise the end of the process would wait for a worker that
        // waits for a CPU. If it was not woken for the end, it yields to the thread that it interrupted.
        thread::give_way();
    }
}

/// A running worker.
struct Worker<'a> {
    heap: &'static Heap,
    number: usize,
    by: Releaser<'a>,
    lease: Lease,
    watch: WatchSchedule,
}

impl Worker<'_> {
    /// Sleeps until the worker is called, `ms` have passed, or its lease ends. The lease is checked meanwhile.
    /// `seen`: the value of `wake` before this worker checked for work.
    fn rest(&mut self, seen: u32, ms: u64) {
        let workers = &self.heap.workers;
        let end = clock::now_ms() + ms;
        loop {
            let now = clock::now_ms();
            let mut ms = end.saturating_sub(now).min(self.lease.pause_ms(now));
            if stats::is_open() {
                ms = ms.min(OBSERVER_MS);
            }
            workers.sleep(seen, ms);
            let now = clock::now_ms();
            self.heap.look_for_request(now, self.by);
            let called = workers.wake.load(Ordering::SeqCst) != seen;
            if called || now >= end || !self.lease.holds(now, &workers.lease_terms) {
                return;
            }
        }
    }
}

/// `born`: when the worker was made, and its number, in one word.
extern "C" fn main(born: usize) {
    // SAFETY: this thread is a worker.
    let heap = unsafe { the_heap() };
    run(heap, born % MAX_WORKERS, (born / MAX_WORKERS) as u64);
}

fn run(heap: &'static Heap, number: usize, born_ms: u64) {
    let workers = &heap.workers;
    thread::set_name(&name(number));
    thread::leave_privileges();
    thread::leave_priority();
    vm::gives_back();
    // Without an empty descriptor table of its own, the worker opens no file.
    let may_open = thread::leave_descriptors_unnoticed();
    // A maker whose rights are not known has no digest, so this worker ends if the main thread's are.
    let maker = workers.rights[number].load(Ordering::Relaxed);
    let maker = (maker & IS_MADE != 0).then_some(maker as u32);
    let lease = Lease::new(may_open, born_ms, maker, &workers.lease_terms);
    let known = lease.rights().map_or(0, u64::from);
    workers.rights[number].store(known, Ordering::Relaxed);
    if lease.is_over() {
        // The maker ends as well: soon a thread of the program makes one.
        workers.make_none_for(if maker.is_some() { APART_MS } else { RETRY_MS });
    }
    let map = if may_open {
        // A filter that kills for this call does so before the worker owns anything.
        PageMap::open().ok().filter(|map| {
            let asked = map.has_huge_page(heap.region().base, BLOCK_BYTES);
            SCAN_PAGES.may_work() && SCAN_PAGES.latch(asked).is_ok()
        })
    } else {
        heap.pressure.expect_no_sample(&heap.allowance);
        None
    };
    let by = Releaser::Worker {
        map: map.as_ref(),
        owner: Owner::worker(number, workers.places[number].made()),
    };
    let mut worker = Worker {
        heap,
        number,
        by,
        lease,
        watch: WatchSchedule::default(),
    };
    let mut worked_ms = clock::now_ms();
    loop {
        let seen = workers.wake.load(Ordering::SeqCst);
        let may_stay = worker.lease.holds(clock::now_ms(), &workers.lease_terms);
        heap.look_for_request(clock::now_ms(), by);
        heap.unmapping.work();
        if heap.slots.queued() > 0 {
            let affinity = Affinity::current();
            let cpu = affinity.pin(number, workers.avoid_cpu.load(Ordering::Relaxed));
            workers.busy.fetch_or(1 << number, Ordering::SeqCst);
            while let Some(owned) = heap.slots.take_queued(true, by.owner()) {
                release_owned(heap, owned, by);
            }
            workers.busy.fetch_and(!(1 << number), Ordering::SeqCst);
            affinity.unpin(cpu);
            stats::publish_released(&heap.config);
            // A thread that still counted on this worker has queued its gather before: the worker sees it now.
            fence(Ordering::SeqCst);
            if heap.slots.queued() > 0 {
                continue;
            }
            worked_ms = clock::now_ms();
            if may_stay {
                continue;
            }
        }
        let sleep = if !may_stay {
            Iteration::MustEnd.sleep(0)
        } else if workers.coordinate(number) {
            // From now on a thread with new work must call.
            workers.next_ms.store(u64::MAX, Ordering::SeqCst);
            if may_open && heap.config.pressure {
                worker.watch();
            }
            let began = clock::now_ms();
            let next = heap.round(began, by);
            let now = clock::now_ms();
            worker.watch.after_round(now, now - began);
            if let Next::Much(_) = next {
                worked_ms = now;
                workers.expecting.store(false, Ordering::Relaxed);
            }
            let sleep = Iteration::Round(next).sleep(now - worked_ms);
            if let Sleep::Watching { ms, .. } = sleep {
                workers.next_ms.store(now + ms, Ordering::SeqCst);
            }
            workers.coordinating.store(0, Ordering::Release);
            sleep
        } else {
            let watches = worker.watch.are_open();
            Iteration::NotCoordinating { watches }.sleep(clock::now_ms() - worked_ms)
        };
        let keeps_watcher = matches!(sleep, Sleep::Watching { keeps_watcher, .. } if keeps_watcher);
        if !keeps_watcher {
            worker.close_watcher();
        }
        match sleep {
            Sleep::Watching { ms, .. } => worker.sleep_watching(seen, ms),
            Sleep::Resting(ms) => worker.rest(seen, ms),
            Sleep::End => {
                workers.expecting.store(false, Ordering::Relaxed);
                if !may_stay && !heap.pacing.is_active(clock::now_ms()) {
                    // The program is idle: it will not make another worker for the memory that this one would have
                    // released later.
                    heap.release_everything(by);
                }
                heap.leave_unattended();
                stats::publish(&heap.config);
                // A thread that calls from now on makes a new worker. A thread that called just before has changed
                // `wake`, which is checked below.
                workers.numbers.fetch_and(!(1 << number), Ordering::SeqCst);
                if workers.wake.load(Ordering::SeqCst) == seen {
                    return;
                }
                workers.numbers.fetch_or(1 << number, Ordering::SeqCst);
            }
        }
    }
}

fn name(number: usize) -> [u8; 16] {
    let mut name = *b"ebbtide/\0\0\0\0\0\0\0\0";
    let digits = Digits::of(number);
    name[8..8 + digits.len()].copy_from_slice(&digits);
    name
}

#[cfg(test)]
mod tests;
