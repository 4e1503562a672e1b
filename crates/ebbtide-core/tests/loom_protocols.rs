//! Protocols of the core between threads, in all orders that the memory model allows. Run as the loom tests of `ebbtide-zone`.
//!
//! Each model has the steps of the code that it names, and nothing else. Loom does not order sequentially consistent accesses among each other,
//! only fences. So a model has a fence between two accesses whose order the code gets from `SeqCst`. `Steps` says which step a mutant lacks: for
//! each, a test shows that the model fails without it. `docs/ordering.md` lists the protocols.

#![allow(unexpected_cfgs)]
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A step that a mutant lacks.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    FirstFence,
    SecondFence,
    Release,
    Check,
}
use Without::{Check, FirstFence, Nothing, SecondFence};

impl Without {
    fn fence(self, which: Without) {
        if self != which {
            fence(SeqCst);
        }
    }

    fn release(self) -> Ordering {
        match self {
            Without::Release => Relaxed,
            _ => Release,
        }
    }
}

/// A word on which a thread sleeps, as the kernel has it: comparing and sleeping is one step. The sleeper goes on, and says that it slept.
struct Futex {
    word: AtomicU32,
    /// Whether the thread sleeps.
    kernel: Mutex<bool>,
}

impl Futex {
    fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            kernel: Mutex::new(false),
        }
    }

    fn wait(&self, seen: u32) {
        let mut sleeps = self.kernel.lock().unwrap();
        *sleeps = self.word.load(Acquire) == seen;
    }

    fn wake(&self) {
        *self.kernel.lock().unwrap() = false;
    }
}

/// Memory that only one thread may have at a time.
struct Memory(UnsafeCell<u32>);

impl Memory {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    /// Loom reports another thread that has it at the same time, or that does not see what was written.
    fn touch(&self) {
        // SAFETY: loom checks that no other thread has it.
        self.0.with_mut(|word| unsafe { *word += 1 });
    }
}

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// `front/fork/gate.rs`: `Gate::enter` and `Inside::drop`, beside `Gate::close` and `Gate::open`.
fn gate(without: Without) {
    struct Gate {
        state: AtomicU32,
        inside: AtomicU32,
        heap: Memory,
    }
    loom::model(move || {
        let gate = Arc::new(Gate {
            state: AtomicU32::new(OPEN),
            inside: AtomicU32::new(0),
            heap: Memory::new(),
        });
        let other = gate.clone();
        let request = thread::spawn(move || {
            other.inside.fetch_add(1, AcqRel);
            without.fence(FirstFence);
            if other.state.load(Acquire) == OPEN {
                other.heap.touch();
            }
            other.inside.fetch_sub(1, without.release());
        });
        gate.state.store(CLOSED, Relaxed);
        without.fence(SecondFence);
        while gate.inside.load(Acquire) != 0 {
            thread::yield_now();
        }
        gate.heap.touch();
        gate.state.store(OPEN, Release);
        request.join().unwrap();
    });
}

/// `front/fork.rs`: `free_later` beside the end of a fork, which opens the gate and calls `free_queued`.
fn late_free(without: Without) {
    struct Reserve {
        gate: AtomicU32,
        queue: AtomicU32,
        node: Memory,
    }
    impl Reserve {
        fn take_queued(&self) {
            if self.queue.load(Relaxed) != 0 && self.queue.swap(0, Acquire) != 0 {
                self.node.touch();
            }
        }
    }
    loom::model(move || {
        let reserve = Arc::new(Reserve {
            gate: AtomicU32::new(CLOSED),
            queue: AtomicU32::new(0),
            node: Memory::new(),
        });
        let other = reserve.clone();
        let freeing = thread::spawn(move || {
            other.node.touch();
            other.queue.store(1, without.release());
            without.fence(FirstFence);
            if other.gate.load(Relaxed) == OPEN {
                other.take_queued();
            }
        });
        reserve.gate.store(OPEN, Release);
        without.fence(SecondFence);
        reserve.take_queued();
        freeing.join().unwrap();
        assert_eq!(reserve.queue.load(Acquire), 0, "a free is lost");
    });
}

const FREE: u32 = 0;
const OWNED: u32 = 1;
const QUEUED: u32 = 2;

/// `reclaim/slots.rs`: `Slots::enqueue` by two threads, and `Slots::take_queued` and `Owned::drop` by a worker.
fn hand_over(without: Without) {
    struct Slot {
        state: AtomicU32,
        gather: Memory,
    }
    struct Slots {
        slots: [Slot; 2],
        queued: AtomicU32,
    }
    impl Slots {
        fn own(&self, slot: &Slot, state: u32) -> bool {
            let own = slot.state.compare_exchange(state, OWNED, Acquire, Relaxed);
            own.is_ok()
        }

        fn take_queued(&self) -> Option<&Slot> {
            if self.queued.load(Acquire) == 0 {
                return None;
            }
            let mut slots = self.slots.iter();
            let slot =
                slots.find(|slot| slot.state.load(Acquire) == QUEUED && self.own(slot, QUEUED))?;
            self.queued.fetch_sub(1, AcqRel);
            Some(slot)
        }
    }
    loom::model(move || {
        let slot = || Slot {
            state: AtomicU32::new(OWNED),
            gather: Memory::new(),
        };
        let slots = Arc::new(Slots {
            slots: [slot(), slot()],
            // The worker knows of a gather already: what it sees of another one, it does not see by this word.
            queued: AtomicU32::new(1),
        });
        let owners = [0, 1].map(|index| {
            let slots = slots.clone();
            thread::spawn(move || {
                let slot = &slots.slots[index];
                slot.gather.touch();
                slot.state.store(QUEUED, without.release());
                slots.queued.fetch_add(1, AcqRel);
            })
        });
        if let Some(slot) = slots.take_queued() {
            slot.gather.touch();
            slot.state.store(FREE, Release);
        }
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        let left = slots.slots.iter();
        let left = left.filter(|slot| slot.state.load(Acquire) == QUEUED);
        assert_eq!(left.count() as u32, slots.queued.load(Acquire) - 1);
    });
}

/// `reclaim/slots.rs`: `Owned::drop` beside `Slots::take` of the same slot.
fn put_back(without: Without) {
    struct Slot {
        state: AtomicU32,
        gather: Memory,
    }
    loom::model(move || {
        let slot = Arc::new(Slot {
            state: AtomicU32::new(OWNED),
            gather: Memory::new(),
        });
        let other = slot.clone();
        let owner = thread::spawn(move || {
            other.gather.touch();
            other.state.store(FREE, without.release());
        });
        let taken = slot.state.compare_exchange(FREE, OWNED, Acquire, Relaxed);
        if taken.is_ok() {
            slot.gather.touch();
        }
        owner.join().unwrap();
    });
}

/// `reclaim/slots.rs`: `Slots::wait` beside `Owned::drop`. `reclaim/workers.rs` has the same steps in `Workers::sleep` and `Workers::call`.
fn park(without: Without) {
    struct Slots {
        is_free: AtomicU32,
        done: Futex,
        waiting: AtomicU32,
    }
    loom::model(move || {
        let slots = Arc::new(Slots {
            is_free: AtomicU32::new(0),
            done: Futex::new(),
            waiting: AtomicU32::new(0),
        });
        let other = slots.clone();
        let owner = thread::spawn(move || {
            other.is_free.store(1, Release);
            other.done.word.fetch_add(1, AcqRel);
            without.fence(FirstFence);
            if other.waiting.load(Acquire) > 0 {
                other.done.wake();
            }
        });
        // The word is read before the state: otherwise its only change may lie between.
        let before = slots.done.word.load(Acquire);
        if slots.is_free.load(Acquire) == 0 {
            let seen = match without {
                Check => slots.done.word.load(Acquire),
                _ => before,
            };
            slots.waiting.fetch_add(1, AcqRel);
            without.fence(SecondFence);
            slots.done.wait(seen);
        }
        owner.join().unwrap();
        assert!(
            !*slots.done.kernel.lock().unwrap(),
            "nobody wakes the sleeper"
        );
    });
}

/// `reclaim/workers.rs`: the end of a worker beside `Workers::call`.
fn last_look(without: Without) {
    struct Workers {
        wake: AtomicU32,
        numbers: AtomicU32,
        work: AtomicU32,
    }
    loom::model(move || {
        let workers = Arc::new(Workers {
            wake: AtomicU32::new(0),
            numbers: AtomicU32::new(1),
            work: AtomicU32::new(0),
        });
        let other = workers.clone();
        let worker = thread::spawn(move || {
            loop {
                let seen = other.wake.load(Acquire);
                other.work.store(0, Relaxed);
                other.numbers.fetch_and(0, AcqRel);
                without.fence(FirstFence);
                if without == Check || other.wake.load(Acquire) == seen {
                    return;
                }
                other.numbers.fetch_or(1, AcqRel);
            }
        });
        workers.work.store(1, Relaxed);
        workers.wake.fetch_add(1, AcqRel);
        without.fence(SecondFence);
        if workers.numbers.load(Acquire) == 0 {
            // Another worker is made, and checks for work.
            workers.work.store(0, Relaxed);
        }
        worker.join().unwrap();
        assert_eq!(workers.work.load(Relaxed), 0, "nobody does the work");
    });
}

/// `objects/central/reclaimable.rs`: `mark`, then the time of the worker's next check, beside a worker that writes that time and then reads the
/// marks. `never` is `u64::MAX` in the code.
fn marked_class(without: Without) {
    let never = 1;
    loom::model(move || {
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let other = words.clone();
        let worker = thread::spawn(move || {
            let (mark, next) = &*other;
            next.store(never, Relaxed);
            without.fence(FirstFence);
            mark.load(Relaxed) == 1
        });
        let (mark, next) = &*words;
        mark.fetch_or(1, Relaxed);
        without.fence(SecondFence);
        let calls = next.load(Relaxed) == never;
        assert!(
            worker.join().unwrap() || calls,
            "a class waits without a worker"
        );
    });
}

const READY: u32 = 2;
const FILLING: u32 = 1;

/// `reclaim/unmap.rs`: `MovedRange::drop_piece` of a thread that comes late, beside the last piece and `Unmapping::take` of the next range.
fn moved_range(without: Without) {
    struct Range {
        state: AtomicU32,
        users: AtomicU32,
        start: AtomicU32,
        next: AtomicU32,
    }
    impl Range {
        /// The range whose piece this thread drops.
        fn drop_piece(&self, without: Without) -> Option<u32> {
            self.users.fetch_add(1, AcqRel);
            without.fence(FirstFence);
            let dropped = (self.state.load(Acquire) == READY).then(|| {
                let start = self.start.load(Relaxed);
                let at = self.next.fetch_add(1, Relaxed);
                (at == 0).then_some(start)
            });
            self.users.fetch_sub(1, Release);
            dropped.flatten()
        }

        fn end(&self) {
            self.start.swap(0, Relaxed);
            self.state.store(FREE, Release);
        }

        /// Fills the entry with range 2.
        fn fill(&self, without: Without) {
            let free = self.state.compare_exchange(FREE, FILLING, AcqRel, Relaxed);
            without.fence(SecondFence);
            if free.is_err() {
                return;
            }
            if without != Check && self.users.load(Acquire) != 0 {
                return self.state.store(FREE, Release);
            }
            self.start.store(2, Relaxed);
            self.next.store(0, Relaxed);
            self.state.store(READY, Release);
            if let Some(start) = self.drop_piece(without) {
                assert_eq!(start, 2, "a piece of another range");
                self.end();
            }
        }
    }
    loom::model(move || {
        let range = Arc::new(Range {
            state: AtomicU32::new(READY),
            users: AtomicU32::new(0),
            start: AtomicU32::new(1),
            next: AtomicU32::new(0),
        });
        let other = range.clone();
        let late = thread::spawn(move || {
            if let Some(start) = other.drop_piece(without) {
                assert!(start == 1 || start == 2, "a piece of no range");
                other.end();
            }
        });
        if range.drop_piece(without).is_some() {
            range.end();
        }
        range.fill(without);
        late.join().unwrap();
        assert_eq!(range.state.load(Acquire), FREE);
    });
}

macro_rules! models {
    ($($model:ident: $($mutant:ident = $without:ident),*;)*) => {
        $(mod $model {
            #[test]
            fn holds() {
                super::$model(super::Nothing);
            }

            $(#[test]
            #[should_panic]
            fn $mutant() {
                super::$model(super::Without::$without);
            })*
        })*
    };
}

models! {
    gate: no_fence_inside = FirstFence, no_fence_after_closing = SecondFence, leaves_without_release = Release;
    late_free: no_fence_after_queueing = FirstFence, no_fence_after_opening = SecondFence, queues_without_release = Release;
    hand_over: queues_without_release = Release;
    put_back: frees_without_release = Release;
    park: no_fence_before_waking = FirstFence, the_word_is_read_late = Check;
    last_look: no_fence_at_the_end = FirstFence, no_fence_at_the_call = SecondFence, ends_without_a_look = Check;
    marked_class: no_fence_of_the_worker = FirstFence, no_fence_of_the_thread = SecondFence;
    moved_range: no_fence_of_the_thread = FirstFence, users_are_not_looked_at = Check;
}
