//! The gathers of the process, in a fixed table, so that a forked child finds what its parent's threads
//! had claimed, and so that a gather can be handed to somebody else.
//!
//! | state | meaning | who leads into it |
//! |---|---|---|
//! | [`FREE`] | empty | whoever put its last range back |
//! | [`OWNED`] | one thread fills or releases it | [`Slots::take`], [`Slots::take_queued`]; from a worker that was killed, [`Slots::take_orphan`] |
//! | [`QUEUED`] | waits for a worker, or for a thread that helps | its owner, by [`Slots::hand_over`] |
//! | [`LEFT`] | waits for a worker, because only a worker sees whether a huge page was split | its owner, by [`Slots::leave`] |

use super::gather::Gather;
use crate::base::releaser::Owner;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, Ordering};
use ebbtide_sys::lock::futex_wake;
use ebbtide_sys::{clock, thread};

const FREE: u32 = 0;
const OWNED: u32 = 1;
const QUEUED: u32 = 2;
const LEFT: u32 = 3;

/// Gathers at once: one for each worker, and some for threads that release in place.
const COUNT: usize = crate::base::config::MAX_WORKERS + 8;
/// Gathers that may wait for a worker.
const MAX_QUEUED: usize = 32;
/// Whoever waits looks so often whether there still is a worker: one that was counted on may not have come to be,
/// or a filter may have killed it.
const RECHECK_MS: u64 = 100;
/// Whoever waits for everything takes a gather that a thread of the program has had for so long for lost: a filter may
/// have killed that thread, and nobody would see it.
const LOST_MS: u64 = if cfg!(test) { 300 } else { 10_000 };

struct Slot {
    state: AtomicU32,
    /// The [`Owner`] while it is owned, else 0.
    owner: AtomicU64,
    /// How often it got free.
    uses: AtomicU32,
    /// The order of handing over.
    ticket: AtomicU64,
    gather: UnsafeCell<Gather>,
}

impl Slot {
    /// Whether it was in `state`, and is this thread's from now on.
    fn own(&self, state: u32) -> bool {
        self.state
            .compare_exchange(state, OWNED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// See the module's header.
pub struct Slots {
    slots: [Slot; COUNT],
    next_ticket: AtomicU64,
    queued: AtomicIsize,
    /// Changes when a gather gets free; sleepers wait for that.
    done: AtomicU32,
    /// How many do.
    waiting: AtomicU32,
}

// SAFETY: a gather is reached by the slot's owner, or by a child's only thread.
unsafe impl Sync for Slots {}

/// A gather that this thread owns.
pub struct Owned<'a> {
    slots: &'a Slots,
    index: usize,
}

impl Slots {
    /// All free.
    pub const fn new() -> Self {
        Self {
            slots: [const {
                Slot {
                    state: AtomicU32::new(FREE),
                    owner: AtomicU64::new(0),
                    uses: AtomicU32::new(0),
                    ticket: AtomicU64::new(0),
                    gather: UnsafeCell::new(Gather::NEW),
                }
            }; COUNT],
            next_ticket: AtomicU64::new(0),
            queued: AtomicIsize::new(0),
            done: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// A free gather. `None`: all are in use; release later.
    pub fn take(&self, owner: Owner) -> Option<Owned<'_>> {
        let index = self.slots.iter().position(|slot| slot.own(FREE))?;
        Some(self.own(index, owner))
    }

    fn own(&self, index: usize, owner: Owner) -> Owned<'_> {
        let slot = &self.slots[index];
        slot.owner.store(owner.0, Ordering::Release);
        Owned { slots: self, index }
    }

    /// The gather that has waited longest, of those that are left to workers too if `left`.
    pub fn take_queued(&self, left: bool, owner: Owner) -> Option<Owned<'_>> {
        while self.queued() > 0 {
            let waiting = self.slots.iter().enumerate().filter_map(|(index, slot)| {
                let state = slot.state.load(Ordering::Acquire);
                (state == QUEUED || state == LEFT && left).then_some((index, slot, state))
            });
            let (index, slot, state) =
                waiting.min_by_key(|(_, slot, _)| slot.ticket.load(Ordering::Relaxed))?;
            if slot.own(state) {
                self.queued.fetch_sub(1, Ordering::AcqRel);
                return Some(self.own(index, owner));
            }
        }
        None
    }

    /// A gather whose owner is gone, as if nothing had been done about it yet. Workers are killed in system calls, and
    /// the ranges of a gather are those that it claims at each of them (`INV-GATHER-1`).
    pub fn take_orphan(&self, owner: Owner, is_gone: impl Fn(Owner) -> bool) -> Option<Owned<'_>> {
        let index = self.slots.iter().position(|slot| {
            let last = slot.owner.load(Ordering::Acquire);
            // Who is gone changes the word no more, and nobody is called the same later: it names the owner until one
            // thread has exchanged it.
            last != 0
                && is_gone(Owner(last))
                && slot
                    .owner
                    .compare_exchange(last, owner.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        let mut owned = Owned { slots: self, index };
        owned.gather().begin_again();
        Some(owned)
    }

    /// Puts a gather into the queue. `Err`: it is full, the caller releases the gather itself.
    pub fn hand_over<'a>(&'a self, owned: Owned<'a>) -> Result<(), Owned<'a>> {
        self.enqueue(owned, QUEUED)
    }

    /// Puts a gather into the queue for workers alone. `Err`: it is full, and there is no worker, or the caller does
    /// not wait until there is room.
    pub fn leave<'a>(
        &'a self,
        mut owned: Owned<'a>,
        waits: bool,
        has_worker: impl Fn() -> bool,
    ) -> Result<(), Owned<'a>> {
        loop {
            let done = self.done.load(Ordering::Acquire);
            match self.enqueue(owned, LEFT) {
                Err(back) if waits && has_worker() => owned = back,
                queued_or_not => return queued_or_not,
            }
            self.wait(done, RECHECK_MS);
        }
    }

    /// Sleeps until a gather gets free after `done` was seen.
    fn wait(&self, done: u32, ms: u64) {
        // Before the kernel compares the word: who changes it later sees that somebody sleeps.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        thread::wait(&self.done, done, ms);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// `Err`: the queue is full.
    fn enqueue<'a>(&'a self, owned: Owned<'a>, state: u32) -> Result<(), Owned<'a>> {
        if self.queued() >= MAX_QUEUED {
            return Err(owned);
        }
        let slot = &self.slots[owned.index];
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        slot.ticket.store(ticket, Ordering::Relaxed);
        core::mem::forget(owned);
        slot.owner.store(0, Ordering::Relaxed);
        slot.state.store(state, Ordering::Release);
        // Behind the state: who sees the count finds the gather. It may be taken already, and the count
        // below zero for a moment.
        self.queued.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// How many gathers wait.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire).max(0) as usize
    }

    /// Returns when every gather that is in use now has got free once; takes the oldest of the queue and
    /// lets `help` have it meanwhile, those that are left to workers too if `left`. So with what somebody owned that
    /// `is_gone`. Threads of the program are waited for for a while only ([`LOST_MS`]).
    pub fn join(
        &self,
        left: impl Fn() -> bool,
        owner: Owner,
        is_gone: impl Fn(Owner) -> bool,
        help: impl FnMut(Owned),
    ) {
        let is_over = |slot: &Slot, since_ms| {
            let state = slot.state.load(Ordering::Acquire);
            let of_the_program = slot.owner.load(Ordering::Acquire) == Owner::PROGRAM.0;
            let is_lost = || of_the_program && clock::now_ms() >= since_ms + LOST_MS;
            state == FREE || state == OWNED && is_lost()
        };
        let take = || {
            let queued = self.take_queued(left(), owner);
            queued.or_else(|| self.take_orphan(owner, &is_gone))
        };
        self.wait_for_each(is_over, u64::MAX, take, help);
    }

    /// Whether so much waits for workers that more had better not.
    pub fn is_crowded(&self) -> bool {
        self.queued() >= MAX_QUEUED / 2
    }

    /// Returns when workers have taken every gather that is left to them now, or `most_ms` are over; `help` has it if
    /// there are none.
    pub fn wait_for_workers(
        &self,
        most_ms: u64,
        has_worker: impl Fn() -> bool,
        help: impl FnMut(Owned),
    ) {
        let is_taken = |slot: &Slot, _| slot.state.load(Ordering::Acquire) != LEFT;
        let take = || match has_worker() {
            true => None,
            false => self.take_queued(true, Owner::PROGRAM),
        };
        self.wait_for_each(is_taken, clock::now_ms() + most_ms, take, help);
    }

    /// Returns when each gather `is_over`, given since when it is waited for, or has got free once, or it is `end_ms` and
    /// there is nothing to `take` and to `help` with.
    fn wait_for_each<'a>(
        &'a self,
        is_over: impl Fn(&Slot, u64) -> bool,
        end_ms: u64,
        take: impl Fn() -> Option<Owned<'a>>,
        mut help: impl FnMut(Owned),
    ) {
        for slot in &self.slots {
            let uses = slot.uses.load(Ordering::Acquire);
            let since_ms = clock::now_ms();
            loop {
                let done = self.done.load(Ordering::Acquire);
                if is_over(slot, since_ms) || slot.uses.load(Ordering::Acquire) != uses {
                    break;
                }
                let taken = take();
                let left_ms = end_ms.saturating_sub(clock::now_ms());
                match taken {
                    Some(owned) => help(owned),
                    None if left_ms > 0 => self.wait(done, RECHECK_MS.min(left_ms)),
                    None => return,
                }
            }
        }
    }

    /// Calls `each` for every gather in use and makes all slots free.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn reset(&self, mut each: impl FnMut(&mut Gather)) {
        for slot in &self.slots {
            // A free one too may name an owner: state and owner of one that was got free just then were perhaps
            // copied at different moments.
            slot.owner.store(0, Ordering::Relaxed);
            if slot.state.load(Ordering::Relaxed) != FREE {
                // SAFETY: by contract nobody owns it.
                each(unsafe { &mut *slot.gather.get() });
                slot.state.store(FREE, Ordering::Relaxed);
            }
        }
        self.queued.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }
}

impl Owned<'_> {
    /// The gather itself.
    pub fn gather(&mut self) -> &mut Gather {
        // SAFETY: the slot is owned by this value, which is borrowed mutably.
        unsafe { &mut *self.slots.slots[self.index].gather.get() }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.gather().free_batches();
        let slot = &self.slots.slots[self.index];
        slot.uses.fetch_add(1, Ordering::AcqRel);
        slot.owner.store(0, Ordering::Relaxed);
        slot.state.store(FREE, Ordering::Release);
        self.slots.done.fetch_add(1, Ordering::SeqCst);
        if self.slots.waiting.load(Ordering::SeqCst) > 0 {
            futex_wake(&self.slots.done, u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::gather::Range;

    #[test]
    fn the_oldest_is_taken_first_and_a_full_queue_says_so() {
        static SLOTS: Slots = Slots::new();
        for n in 0..MAX_QUEUED as u32 {
            let mut owned = SLOTS.take(Owner::PROGRAM).unwrap();
            assert!(owned.gather().add(Range::new(n * 2, 1)));
            assert!(SLOTS.hand_over(owned).is_ok());
        }
        let one_more = SLOTS.take(Owner::PROGRAM).unwrap();
        assert!(SLOTS.hand_over(one_more).is_err());
        for n in 0..MAX_QUEUED as u32 {
            let mut owned = SLOTS.take_queued(n % 2 == 0, Owner::PROGRAM).unwrap();
            assert_eq!(owned.gather().pop().unwrap().first, n * 2);
        }
        assert!(SLOTS.take_queued(true, Owner::PROGRAM).is_none() && SLOTS.queued() == 0);
        SLOTS.join(|| false, Owner::PROGRAM, |_| false, |_| unreachable!());
    }

    #[test]
    fn what_is_left_to_workers_is_taken_by_them_alone() {
        static SLOTS: Slots = Slots::new();
        for n in 0..2 {
            let mut owned = SLOTS.take(Owner::PROGRAM).unwrap();
            assert!(owned.gather().add(Range::new(n, 1)));
            if n == 0 {
                assert!(SLOTS.leave(owned, true, || true).is_ok());
            } else {
                assert!(SLOTS.hand_over(owned).is_ok());
            }
        }
        let first = |left| {
            let owned = SLOTS.take_queued(left, Owner::PROGRAM);
            owned.map(|mut owned| owned.gather().pop().unwrap().first)
        };
        assert_eq!((first(false), first(false)), (Some(1), None));
        assert!(SLOTS.queued() > 0);
        assert_eq!((first(true), first(true)), (Some(0), None));
        SLOTS.wait_for_workers(RECHECK_MS, || true, |_| unreachable!());
    }

    #[test]
    fn where_no_worker_is_whoever_waits_helps() {
        static SLOTS: Slots = Slots::new();
        let mut helped = 0;
        for n in 0..=MAX_QUEUED {
            let owned = SLOTS.take(Owner::PROGRAM).unwrap();
            assert_eq!(SLOTS.leave(owned, true, || false).is_ok(), n < MAX_QUEUED);
        }
        SLOTS.wait_for_workers(0, || false, |_| helped += 1);
        assert!(helped == MAX_QUEUED && SLOTS.queued() == 0);
        assert!(
            SLOTS
                .leave(SLOTS.take(Owner::PROGRAM).unwrap(), true, || true)
                .is_ok()
        );
        // The worker is there at first, and found gone while others sleep.
        let looks = core::cell::Cell::new(0);
        let left = || looks.replace(looks.get() + 1) > 1;
        SLOTS.join(left, Owner::PROGRAM, |_| false, |_| helped += 1);
        assert!(helped == MAX_QUEUED + 1 && looks.get() == 3);
    }

    #[test]
    fn nobody_waits_for_a_busy_worker_for_longer_than_he_wants() {
        static SLOTS: Slots = Slots::new();
        assert!(!SLOTS.is_crowded());
        for _ in 0..MAX_QUEUED / 2 {
            let owned = SLOTS.take(Owner::PROGRAM).unwrap();
            assert!(SLOTS.leave(owned, true, || true).is_ok());
        }
        let start = clock::now_ms();
        SLOTS.wait_for_workers(30, || true, |_| unreachable!());
        let took = clock::now_ms() - start;
        assert!((25..1000).contains(&took), "{took} ms");
        assert!(SLOTS.is_crowded() && SLOTS.queued() == MAX_QUEUED / 2);
        for n in MAX_QUEUED / 2..=MAX_QUEUED {
            let owned = SLOTS.take(Owner::PROGRAM).unwrap();
            assert_eq!(
                SLOTS.leave(owned, false, || true).is_ok(),
                n < MAX_QUEUED,
                "{n}"
            );
        }
        assert_eq!(SLOTS.queued(), MAX_QUEUED);
    }

    #[test]
    fn what_a_dead_thread_of_the_program_owned_is_waited_for_for_a_while() {
        static SLOTS: Slots = Slots::new();
        core::mem::forget(SLOTS.take(Owner::PROGRAM).unwrap());
        assert!(SLOTS.hand_over(SLOTS.take(Owner::PROGRAM).unwrap()).is_ok());
        let (start, mut helped) = (clock::now_ms(), 0);
        SLOTS.join(|| true, Owner::PROGRAM, |_| false, |_| helped += 1);
        let took = clock::now_ms() - start;
        assert!(helped == 1 && took >= LOST_MS, "{took} ms");
    }

    #[test]
    fn a_child_finds_no_owners() {
        static SLOTS: Slots = Slots::new();
        let worker = Owner::worker(1, 1);
        let mut claimed = SLOTS.take(Owner::PROGRAM).unwrap();
        assert!(claimed.gather().add(Range::new(7, 1)));
        core::mem::forget(claimed);
        drop(SLOTS.take(worker).unwrap());
        // As a child may find it: the owner of before, and the state of after.
        SLOTS.slots[1].owner.store(worker.0, Ordering::Relaxed);
        let mut found = 0;
        // SAFETY: no other thread knows of these slots.
        unsafe {
            SLOTS.reset(|gather| {
                assert_eq!(gather.pop(), Some(Range::new(7, 1)));
                found += 1;
            });
        }
        assert_eq!(found, 1);
        // Or the free slot would be owned twice: by whoever takes it, and by whoever comes for what is gone.
        let _owned = SLOTS.take(Owner::PROGRAM).unwrap();
        assert!(SLOTS.take_orphan(Owner::PROGRAM, |_| true).is_none());
    }

    #[test]
    fn what_a_dead_worker_owned_is_begun_again() {
        static SLOTS: Slots = Slots::new();
        let (dead, alive) = (Owner::worker(0, 1), Owner::worker(0, 2));
        assert_eq!((dead.place(), alive.place()), (Some((0, 1)), Some((0, 2))));
        let is_gone = |owner| owner == dead;
        for owner in [dead, alive] {
            let mut owned = SLOTS.take(owner).unwrap();
            let first = owned.index as u32;
            assert!(owned.gather().add(Range::new(first, 1)));
            owned.gather().for_each(Gather::done);
            core::mem::forget(owned);
        }
        let of_the_program = SLOTS.take(Owner::PROGRAM).unwrap();
        let mut owned = SLOTS.take_orphan(alive, is_gone).unwrap();
        let range = owned.gather().pop().unwrap();
        assert_eq!((range.first, range.is_done()), (0, false));
        drop(owned);
        // What it had handed over, or put back, is nobody's.
        assert!(SLOTS.hand_over(SLOTS.take(dead).unwrap()).is_ok());
        drop(SLOTS.take(dead).unwrap());
        assert!(SLOTS.take_orphan(alive, is_gone).is_none());
        drop(of_the_program);
        // Another one is found gone by whoever waits for it.
        let (mut helped, looks) = (0, core::cell::Cell::new(0));
        let gone_later = |owner| {
            assert_eq!(owner, alive);
            looks.replace(looks.get() + 1) > 1
        };
        SLOTS.join(
            || true,
            Owner::PROGRAM,
            gone_later,
            |mut owned| {
                while owned.gather().pop().is_some() {}
                helped += 1;
            },
        );
        assert_eq!(helped, 2);
    }
}
