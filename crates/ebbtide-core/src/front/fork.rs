//! Fork: the state that a child finds, and how the child continues.
//!
//! With handlers (`fork`): the parent takes all locks in the order of `ranks`, and stops the restartable sections of all
//! CPUs. Every structure is whole then, and the kernel copies the memory. Parent and child free the locks and let the
//! sections run. The child has none of the parent's other threads: ranges that they had claimed go back to the zones.
//!
//! Why the sections must stop: the kernel copies page after page while other threads run on. A header and its stack could
//! be copied at different moments. The child would then allocate objects that are in use.
//!
//! Without handlers (`_Fork`, a raw clone): the kernel has wiped the page with the CPUs' table and a word beside it. So
//! the child's fast paths find all slabs parked, and its first slow path sees the word (`recover`). If the parent had one
//! thread, all structures are whole. If it had more, they may have been in the middle of any operation. The child then
//! gives up the old part of the heap: live allocations in it stay live, and freed ones stay as they are. It begins a new
//! part behind the old one.
//!
//! Handlers that were registered before ours run inside ours, on the forking thread, and may allocate. In the child they
//! find the same state as in a child without handlers. In the parent each slow path undoes the preparation, and prepares
//! anew when it is done (`Entered`). This is correct whether or not the memory has been copied meanwhile. Forks of other
//! threads wait until the last handler is done ([`Forks`]).
//!
//! Other threads may allocate while they hold a lock of libc's, and libc's `fork` waits for such locks. So `prepare`
//! closes the `gate` before it takes the heap's locks, and waits until the requests inside are done. From then on the
//! `reserve` serves other threads. `parent` opens the gate.
//!
//! # Entry points
//!
//! The heap's locks are fields behind a `&Heap`. Four entry points lead to one:
//!
//! | entry point | for | while another thread forks |
//! |---|---|---|
//! | `Front::enter`, which passes the gate | requests: `malloc`, `free`, `realloc` | the reserve serves; if it is full, `Front::enter_after_fork` waits |
//! | `Front::enter_uncounted` | other calls: statistics, `malloc_trim`, per-CPU data, the end | the call waits at the locks |
//! | `Front::enter_nowait` | `ebb_percpu_alloc_nowait` | there is no entry |
//! | `the_heap`, which is unsafe | the handlers here, and workers | the worker waits at the locks |
//!
//! The first three check for forks and make an `Entered`. It dereferences to the `Heap`: code inside passes the `&Heap` on,
//! and does not check again.

pub mod gate;

use crate::base::owner;
use crate::base::ranks::{self, ForkLock};
use crate::base::stats;
use crate::front::requests::free_inside;
use crate::front::{FRONT, Front, started_heap};
use crate::reclaim::gather::Gather;
use crate::reclaim::{Heap, the_heap};
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use ebbtide_sys::lock::Lock;
use ebbtide_sys::process::this_thread;
use ebbtide_sys::{process, rseq, streams};
use gate::Inside;

/// Longest time in milliseconds that a thread waits for another thread's fork before the reserve serves it.
const PATIENCE_MS: u64 = 1;

/// No fork is under way.
const NO: usize = 0;
/// Set in [`Forks::forking`] if the fence was refused. A thread's number is even.
const UNFENCED: usize = 1;

/// The state of forks with handlers.
pub struct Forks {
    /// The thread whose fork is under way; its child sees the same value. A child that skips the handlers may
    /// belong to another thread, and be made just then. So one word holds both facts. Otherwise such a child of the
    /// last forking thread could take the state that another thread has prepared for its own.
    forking: AtomicUsize,
    /// One fork at a time. A second fork could begin while a handler inside ours allocates. It would hold all locks
    /// and wait for that handler's own lock, whose holder waits for ours.
    lock: Lock<()>,
    /// The thread that holds `lock`.
    owner: AtomicUsize,
    /// Nested forks of that thread: a handler inside ours may fork.
    depth: AtomicUsize,
}

impl Forks {
    /// None.
    pub const fn new() -> Self {
        Self {
            forking: AtomicUsize::new(NO),
            lock: Lock::new(ranks::FORK, ()),
            owner: AtomicUsize::new(NO),
            depth: AtomicUsize::new(0),
        }
    }
}

/// Whether `forking` says that this thread has prepared a fork. In a copied process, this thread counts as the
/// thread from which it was copied.
fn is_mine(forking: usize) -> bool {
    forking & !UNFENCED == this_thread()
}

/// Installs the handlers at the first allocation, so that handlers of libraries that come later run outside ours.
pub fn register() {
    // Without handlers, a child recovers on its first slow path.
    process::install_fork_handlers(prepare, parent, child);
}

extern "C" fn prepare() {
    if started_heap().is_none() {
        return;
    }
    let heap = check_fork();
    if FRONT.forks.owner.load(Ordering::Relaxed) != this_thread() {
        // A filter that kills the thread for a fence does so here, where the thread holds no lock.
        heap.caches.may_fence();
        FRONT.forks.lock.take();
        FRONT.forks.owner.store(this_thread(), Ordering::Relaxed);
        heap.workers.bar(true);
        streams::lock();
    }
    FRONT.forks.depth.fetch_add(1, Ordering::Relaxed);
    if !is_mine(FRONT.forks.forking.load(Ordering::Relaxed)) {
        stop(heap);
    }
}

/// Closes the gate, takes all locks and stops all sections.
fn stop(heap: &Heap) {
    FRONT.gate.close();
    heap.for_each_lock(|lock| lock.take());
    let fenced = heap.caches.park_all();
    let forking = this_thread() | if fenced { 0 } else { UNFENCED };
    FRONT.forks.forking.store(forking, Ordering::Relaxed);
}

extern "C" fn parent() {
    // The heap had not started when the fork began, or this fork is inside another one.
    if FRONT.forks.owner.load(Ordering::Relaxed) != this_thread()
        || FRONT.forks.depth.fetch_sub(1, Ordering::Relaxed) > 1
    {
        return;
    }
    resume();
    // SAFETY: `prepare` took it in this thread.
    unsafe { streams::unlock() };
    FRONT.workers().bar(false);
    FRONT.forks.owner.store(NO, Ordering::Relaxed);
    // SAFETY: `owner` said that this thread took it.
    unsafe { FRONT.forks.lock.free() };
    free_queued(&FRONT);
}

extern "C" fn child() {
    let state = FRONT.forks.forking.load(Ordering::Relaxed);
    // No heap has started, or it is whole already, or another thread than this one's original prepared the fork. In
    // the last case this thread's first slow path recovers.
    if !is_mine(state) {
        return;
    }
    // SAFETY: in a child, on the way to make it whole.
    let heap = unsafe { the_heap() };
    heap.caches.forget_fork();
    // SAFETY: the child of a fork has one thread, and `prepare` took the locks in that thread.
    unsafe {
        forget_forks(heap);
        streams::reset();
        heap.for_each_lock(|lock| lock.force_free());
        if state & UNFENCED != 0 {
            heap.caches.forget_all();
        }
    }
    go_on(heap);
}

/// Notes that no fork is under way, in a child.
///
/// # Safety
/// No other thread exists.
unsafe fn forget_forks(heap: &Heap) {
    FRONT.gate.reset();
    heap.reserve.begin_in_child();
    FRONT.forks.forking.store(NO, Ordering::Relaxed);
    FRONT.forks.owner.store(NO, Ordering::Relaxed);
    FRONT.forks.depth.store(0, Ordering::Relaxed);
    // SAFETY: by contract.
    unsafe { FRONT.forks.lock.force_free() };
}

/// Prepares the child of a parent whose state was whole, before the child continues.
fn go_on(heap: &Heap) {
    heap.forked.store(true, Ordering::Relaxed);
    rseq::note_first_thread();
    // With `syscalls=basic` no part asks for the owner.
    if !heap.config.basic_syscalls {
        owner::begin_in_child();
    }
    heap.workers.begin();
    // SAFETY: the parent's workers are not here.
    unsafe {
        heap.pressure.begin();
        heap.allowance.begin_in_child();
        heap.unmapping.begin_in_child();
        heap.slots.reset(|gather| {
            heap.put_back(gather, false);
            gather.free_batches();
        });
        for source in heap.parts().sources() {
            source.child(heap);
        }
    }
    heap.caches.unpark_all();
    stats::forked(&heap.config);
    heap.parts()
        .hooks
        .iter()
        .for_each(|hook| hook.on_fork_child(heap));
}

/// Whether a fork with handlers is under way in this process.
pub fn is_forking() -> bool {
    FRONT.forks.owner.load(Ordering::Relaxed) != NO
}

/// A thread inside the heap, until this value is dropped.
#[must_use]
pub struct Entered<'a> {
    /// `None`: forks do not wait for this thread.
    _counted: Option<Inside<'a>>,
    /// Only the thread that entered may leave.
    _thread: PhantomData<*const ()>,
    /// This thread's own fork is under way. Everything that the fork had stopped runs, and is stopped again at the
    /// end.
    resumed: bool,
}

impl Deref for Entered<'_> {
    type Target = Heap;

    #[inline]
    fn deref(&self) -> &Heap {
        // SAFETY: only `Front` makes an `Entered`, after it has checked for forks.
        unsafe { the_heap() }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.resumed {
            stop(self);
        }
    }
}

impl Front {
    /// The entry point for requests of the program. `None`: another thread forks, and has not finished within
    /// [`PATIENCE_MS`].
    #[inline]
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.try_enter().or_else(|| self.enter_soon())
    }

    /// Most forks are over soon. In a long fork, threads wait before each request only when little of the reserve
    /// is left.
    #[cold]
    fn enter_soon(&self) -> Option<Entered<'_>> {
        if self.gate.is_closed_for_long() && self.reserve().is_ample() {
            return None;
        }
        self.gate.wait_until_open(PATIENCE_MS);
        self.try_enter()
    }

    /// Enters like `enter`, but waits as long as the fork takes.
    #[cold]
    pub fn enter_after_fork(&self) -> Entered<'_> {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            self.gate.wait_until_open(1000);
        }
    }

    #[inline]
    pub(super) fn try_enter(&self) -> Option<Entered<'_>> {
        // Checked before this thread is counted: a child's counters begin anew.
        check_fork().caches.join_sections();
        match self.gate.enter(this_thread()) {
            None if !resume() => None,
            counted => Some(Entered {
                resumed: counted.is_none(),
                _counted: counted,
                _thread: PhantomData,
            }),
        }
    }

    /// The entry point for calls that make no system call and wait for no lock. `None`: a fork is under way, or a
    /// child has not recovered yet from a fork without handlers.
    pub fn enter_nowait(&self) -> Option<Entered<'_>> {
        // SAFETY: checked for forks before it is returned.
        let heap = unsafe { the_heap() };
        let is_whole =
            !heap.caches.was_forked() && FRONT.forks.forking.load(Ordering::Relaxed) == NO;
        is_whole.then_some(Entered {
            _counted: None,
            _thread: PhantomData,
            resumed: false,
        })
    }

    /// The entry point for other calls. Libc makes none of them under a lock of its own, so they may wait for
    /// another thread's fork.
    #[inline]
    pub fn enter_uncounted(&self) -> Entered<'_> {
        check_fork();
        Entered {
            _counted: None,
            _thread: PhantomData,
            resumed: FRONT.forks.forking.load(Ordering::Relaxed) != NO && resume(),
        }
    }
}

/// A child whose fork ran no handlers detects that here, and recovers.
#[inline]
fn check_fork() -> &'static Heap {
    // SAFETY: the heap is made whole below.
    let heap = unsafe { the_heap() };
    if heap.caches.was_forked() {
        recover(heap);
    }
    heap
}

/// Lets everything run that this thread's own fork has stopped. `false`: this thread has stopped nothing.
#[cold]
fn resume() -> bool {
    let is_mine = is_mine(FRONT.forks.forking.load(Ordering::Relaxed));
    if is_mine {
        // SAFETY: `forking` says that this thread has taken all locks and stopped all sections. So no other thread
        // works inside.
        let heap = unsafe { the_heap() };
        heap.forked.store(true, Ordering::Relaxed);
        FRONT.forks.forking.store(NO, Ordering::Relaxed);
        heap.caches.unpark_all();
        // SAFETY: `stop` took the locks in this thread.
        heap.for_each_lock(|lock| unsafe { lock.free() });
        FRONT.gate.open();
    }
    is_mine
}

/// Queues an address that cannot be freed while another thread forks. `false`: there is no space for that.
#[cold]
pub fn free_later(front: &Front, address: usize) -> bool {
    let queued = front.reserve().queue(address);
    // The fork may be over, and its thread may have checked the queue already. Either that thread has seen the
    // queue, or this thread sees the gate open. The partner is in `free_queued`.
    fence(Ordering::SeqCst);
    if queued && !front.gate.is_closed() {
        free_queued(front);
    }
    queued
}

/// Frees the queued addresses. If the next fork has begun, its thread does that.
fn free_queued(front: &Front) {
    fence(Ordering::SeqCst);
    if front.reserve().has_queued()
        && let Some(heap) = front.try_enter()
    {
        heap.reserve
            .take_queued(|address| free_inside(&heap, address));
    }
}

#[cold]
fn recover(heap: &Heap) {
    if is_mine(FRONT.forks.forking.load(Ordering::Relaxed)) {
        // A handler that runs before ours allocates.
        return child();
    }
    // The state of the process when it was copied. The C library does not know workers as threads.
    let alone = process::is_single_threaded() && heap.workers.count() == 0;
    // SAFETY: a child that skipped the handlers has one thread until it allocates the stack of another thread.
    unsafe {
        forget_forks(heap);
        heap.for_each_lock(|lock| lock.force_free());
        if !alone {
            give_up(heap);
        }
    }
    // Not earlier: a signal handler must not find a heap that counts as whole.
    heap.caches.forget_fork();
    go_on(heap);
}

/// # Safety
/// No other thread exists, and all locks are free.
unsafe fn give_up(heap: &Heap) {
    heap.abandoned.store(true, Ordering::Relaxed);
    // The memory that these count is given up too.
    for count in [&heap.slack, &heap.moves, &heap.small_blocks] {
        count.store(0, Ordering::Relaxed);
    }
    // SAFETY: by contract. The claimed ranges are given up with the rest, including the batches.
    unsafe {
        heap.slots.reset(|gather| *gather = Gather::NEW);
        for source in heap.parts().sources() {
            source.abandon(heap);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_prepared_state_is_that_of_one_thread() {
        let mine = this_thread();
        let other = std::thread::spawn(this_thread).join().unwrap();
        assert_eq!((mine | other) & UNFENCED, 0);
        assert!(is_mine(mine) && is_mine(mine | UNFENCED));
        assert!(!is_mine(NO) && !is_mine(UNFENCED));
        assert!(!is_mine(other) && !is_mine(other | UNFENCED));
    }
}
