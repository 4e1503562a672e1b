//! Fork: what a child finds, and how it goes on.
//!
//! With handlers (`fork`): the parent takes all locks in the order of `ranks` and stops the
//! restartable sections of all CPUs; then every structure is whole and memory is copied. Parent and
//! child free the locks and let the sections run. The child has none of the parent's other threads:
//! what they had claimed goes back to the zones.
//!
//! Why the sections must stop: the kernel copies page after page while other threads run on. A header
//! and its stack could be copied at different moments, and the child would be given objects that are
//! in use.
//!
//! Without handlers (`_Fork`, a raw clone): the kernel has wiped the page with the CPUs' table and a
//! word beside it, so the child's fast paths find all slabs parked, and the first slow path sees the
//! word ([`notice`]). If the parent had one thread, all is whole. If it had more, they may have been
//! anywhere: the child gives the heap so far up (what is live there stays live, what is freed there
//! stays) and begins a new one behind it.
//!
//! Handlers that were registered before ours run inside them, on the forking thread, and may allocate: in the child they
//! find what a child without handlers does. In the parent each slow path undoes what was prepared, and prepares it anew
//! when it is done ([`Turn`]): whether the memory has been copied meanwhile makes no difference. Other threads' forks wait
//! until the last handler is done, turns or not (`FORK`).

pub(crate) mod gate;

use crate::heap::ForkLock;
use crate::heap::{Heap, heap, started_heap};
use crate::ranks;
use crate::sources::SOURCES;
use crate::stats;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use ebbtide_sys::lock::Lock;
use ebbtide_sys::streams;
use gate::Inside;

/// Longest time, in milliseconds, that a thread waits for another one's fork before the reserve serves it.
const PATIENCE_MS: u64 = 1;

/// No fork is under way.
const NO: usize = 0;
/// Set in [`FORKING`] where the fence was refused. A thread's number is even.
const UNFENCED: usize = 1;

/// The thread whose fork with handlers is under way, as its child sees it too. A child that skips the handlers may be
/// another thread's, made just then: one word says both, or such a child of the last forker could take the state that
/// another thread has prepared for its own.
static FORKING: AtomicUsize = AtomicUsize::new(NO);

/// One fork with handlers at a time. A second one that came in while a handler inside ours allocates would hold all locks and
/// wait for that handler's own, whose holder waits for ours.
static FORK: Lock<()> = Lock::new(ranks::FORK, ());
/// The thread that holds [`FORK`].
static OWNER: AtomicUsize = AtomicUsize::new(NO);
/// Forks within each other of that thread: a handler inside ours may fork.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// This thread, by a number that it keeps in its child.
fn this_thread() -> usize {
    // SAFETY: no arguments; it only reads the thread pointer.
    unsafe { libc::pthread_self() as usize }
}

/// Whether a value of [`FORKING`] says that this thread, or the one that it was before its process was copied, has
/// prepared a fork.
fn is_mine(forking: usize) -> bool {
    forking & !UNFENCED == this_thread()
}

/// Installs the handlers: at the first allocation, so that handlers of libraries that come later run
/// outside ours.
pub fn register() {
    // What `pthread_atfork` calls in glibc. The name itself is not in every libc.so.6: programs link it in.
    #[cfg(target_env = "gnu")]
    unsafe extern "C" {
        fn __register_atfork(
            prepare: extern "C" fn(),
            parent: extern "C" fn(),
            child: extern "C" fn(),
            library: *const core::ffi::c_void,
        ) -> core::ffi::c_int;
    }
    // SAFETY: three functions that live as long as the library, which is never unloaded; null: of no library that may be.
    #[cfg(target_env = "gnu")]
    unsafe {
        __register_atfork(prepare, parent, child, core::ptr::null())
    };
    // SAFETY: as above.
    #[cfg(not(target_env = "gnu"))]
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child))
    };
}

extern "C" fn prepare() {
    let Some(heap) = started_heap() else { return };
    if heap.caches.was_forked() {
        recover(heap);
    }
    if OWNER.load(Ordering::Relaxed) != this_thread() {
        // A filter that kills the thread for a fence does so here, where it holds nothing.
        heap.caches.may_fence();
        FORK.take();
        OWNER.store(this_thread(), Ordering::Relaxed);
        streams::lock();
    }
    DEPTH.fetch_add(1, Ordering::Relaxed);
    if !is_mine(FORKING.load(Ordering::Relaxed)) {
        stop(heap);
    }
}

/// Closes the gate, takes all locks and stops all sections.
fn stop(heap: &Heap) {
    heap.gate.close();
    heap.for_each_lock(|lock| lock.take());
    let fenced = heap.caches.park_all();
    let state = if fenced { 0 } else { UNFENCED };
    FORKING.store(this_thread() | state, Ordering::Relaxed);
}

extern "C" fn parent() {
    let Some(heap) = started_heap() else { return };
    // The heap was not there when the fork began, or this fork is inside another one.
    if OWNER.load(Ordering::Relaxed) != this_thread() || DEPTH.fetch_sub(1, Ordering::Relaxed) > 1 {
        return;
    }
    if is_mine(FORKING.load(Ordering::Relaxed)) {
        // SAFETY: `FORKING` says that this thread has stopped all.
        unsafe { go(heap) };
    }
    // SAFETY: `prepare` took it in this thread.
    unsafe { streams::unlock() };
    OWNER.store(NO, Ordering::Relaxed);
    // SAFETY: `OWNER` said that this thread took it.
    unsafe { FORK.free() };
    free_queued(heap);
}

/// Undoes [`stop`].
///
/// # Safety
/// This thread has called it last.
unsafe fn go(heap: &Heap) {
    heap.forked.store(true, Ordering::Relaxed);
    FORKING.store(NO, Ordering::Relaxed);
    heap.caches.unpark_all();
    // SAFETY: `stop` took them in this thread.
    heap.for_each_lock(|lock| unsafe { lock.free() });
    heap.gate.open();
}

extern "C" fn child() {
    let Some(heap) = started_heap() else { return };
    let state = FORKING.load(Ordering::Relaxed);
    // Done already, or not prepared by the thread that this one was: its first slow path recovers.
    if !is_mine(state) {
        return;
    }
    heap.caches.forget_fork();
    // SAFETY: the child of a fork has one thread, and `prepare` took them in it.
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

/// Says that no fork is under way, in a child.
///
/// # Safety
/// No other thread exists.
unsafe fn forget_forks(heap: &Heap) {
    heap.gate.reset();
    heap.reserve.begin_in_child();
    FORKING.store(NO, Ordering::Relaxed);
    OWNER.store(NO, Ordering::Relaxed);
    DEPTH.store(0, Ordering::Relaxed);
    // SAFETY: by contract.
    unsafe { FORK.force_free() };
}

/// What the child of a parent whose state was whole does before it goes on.
fn go_on(heap: &Heap) {
    heap.forked.store(true, Ordering::Relaxed);
    heap.workers.begin();
    // SAFETY: the parent's workers are not here.
    unsafe {
        heap.pressure.begin();
        heap.slots.reset(|gather| {
            heap.put_back(gather, false);
            gather.free_batches();
        });
    }
    for source in SOURCES {
        // SAFETY: as above.
        unsafe { source.child(heap) };
    }
    heap.caches.unpark_all();
    stats::forked();
    crate::reaper::forked(heap);
}

/// Whether a fork with handlers is under way in this process.
pub fn is_forking() -> bool {
    OWNER.load(Ordering::Relaxed) != NO
}

/// What a slow path holds while it is at work. On the thread whose fork is under way, it has set all in motion that
/// the fork had stopped, and stops it again at its end.
#[must_use]
pub struct Turn<'a>(Option<&'a Heap>);

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(heap) = self.0 {
            stop(heap);
        }
    }
}

/// A place inside the heap for a slow path of the program's. `None`: another thread forks, and has not ended that
/// within [`PATIENCE_MS`].
#[inline]
pub(crate) fn enter(heap: &Heap) -> Option<Inside<'_>> {
    try_enter(heap).or_else(|| enter_soon(heap))
}

/// Most forks are over soon. In a long one, threads wait before each request only when little of the reserve is left.
#[cold]
fn enter_soon(heap: &Heap) -> Option<Inside<'_>> {
    if heap.gate.is_closed_for_long() && heap.reserve.is_ample() {
        return None;
    }
    heap.gate.wait_until_open(PATIENCE_MS);
    try_enter(heap)
}

/// The same, waiting for as long as the fork takes.
#[cold]
pub(crate) fn enter_after_fork(heap: &Heap) -> Inside<'_> {
    loop {
        if let Some(inside) = try_enter(heap) {
            return inside;
        }
        heap.gate.wait_until_open(1000);
    }
}

#[inline]
fn try_enter(heap: &Heap) -> Option<Inside<'_>> {
    // Before it is counted: a child's counters begin anew.
    if heap.caches.was_forked() {
        recover(heap);
    }
    // A handler that runs inside ours passes a gate that its own fork has closed.
    let thread = this_thread();
    heap.gate
        .enter(thread)
        .or_else(|| (OWNER.load(Ordering::Relaxed) == thread).then_some(Inside::UNCOUNTED))
}

/// Frees later what cannot be freed while another thread forks. `false`: there is no room for that.
#[cold]
pub(crate) fn free_later(heap: &Heap, address: usize) -> bool {
    let queued = heap.reserve.queue(address);
    // The fork may be over, and its thread have looked already: either it has seen the queue, or this sees the gate
    // open. The partner is in `free_queued`.
    fence(Ordering::SeqCst);
    if queued && !heap.gate.is_closed() {
        free_queued(heap);
    }
    queued
}

/// Frees what was queued, unless the next fork has begun: its thread does it then.
fn free_queued(heap: &Heap) {
    fence(Ordering::SeqCst);
    if heap.reserve.has_queued()
        && let Some(_inside) = try_enter(heap)
    {
        heap.reserve
            .take_queued(|address| crate::alloc::free_inside(heap, address));
    }
}

/// Slow paths call this first, with no lock held: a child that nobody has told of its fork finds out here, and so does
/// a handler that runs inside ours.
#[inline]
pub fn notice(heap: &Heap) -> Turn<'_> {
    if heap.caches.was_forked() {
        recover(heap);
    }
    if FORKING.load(Ordering::Relaxed) == NO {
        return Turn(None);
    }
    Turn(step_aside(heap))
}

#[cold]
fn step_aside(heap: &Heap) -> Option<&Heap> {
    // Other threads find the locks taken.
    is_mine(FORKING.load(Ordering::Relaxed)).then(|| {
        // SAFETY: `FORKING` says that this thread has stopped all.
        unsafe { go(heap) };
        heap
    })
}

#[cold]
fn recover(heap: &Heap) {
    if is_mine(FORKING.load(Ordering::Relaxed)) {
        // A handler that runs before ours allocates.
        return child();
    }
    // A worker is a thread that the C library does not know of.
    let alone = parent_had_one_thread() && heap.workers.count() == 0;
    heap.caches.forget_fork();
    // SAFETY: a child that skipped the handlers has one thread until it allocates one more's stack.
    unsafe {
        forget_forks(heap);
        heap.for_each_lock(|lock| lock.force_free());
        if !alone {
            give_up(heap);
        }
    }
    go_on(heap);
}

/// # Safety
/// No other thread exists, and all locks are free.
unsafe fn give_up(heap: &Heap) {
    heap.abandoned.store(true, Ordering::Relaxed);
    // What these count is given up too.
    for count in [&heap.slack, &heap.moves, &heap.small_blocks] {
        count.store(0, Ordering::Relaxed);
    }
    // SAFETY: by contract. What was claimed is given up with the rest, batches and all.
    unsafe {
        heap.slots
            .reset(|gather| *gather = crate::release::gather::Gather::NEW)
    };
    for source in SOURCES {
        // SAFETY: by contract.
        unsafe { source.abandon(heap) };
    }
}

/// Whether this process, as it was copied, had a single thread.
fn parent_had_one_thread() -> bool {
    ebbtide_sys::process::is_single_threaded()
}

/// Starts the heap now, for tests of the start itself.
pub fn ensure_started() -> bool {
    heap().is_some()
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
