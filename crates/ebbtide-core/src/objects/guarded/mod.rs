//! Guarded allocations (`guard=RATE`): a few objects get pages of their own, with pages without access around them.
//!
//! ```text
//!  malloc  a slot's pages are opened ──▶ the object at their start or end, a pattern in the rest ──▶ live
//!  free    pattern read ──▶ freed ──▶ memory and access taken away ──▶ the queue, first in, first out
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`slots`] | where slots and objects lie |
//! | [`record`] | what is known about the object in a slot |
//! | [`report`] | the lines about a mistake |
//!
//! The slots lie outside of the region, so the fast path of `free` leaves them to the slow path. A slot is used again only
//! after all slots that were freed before it. A fault in a slot or a guard reaches [`report::watch`], which reads records
//! without a lock.
//!
//! - `INV-GUARDED-1`: the thread that changes a record's state from live to freed has freed the object.
//! - `INV-GUARDED-2`: no slot in the queue has memory or access.
//!
//! The idea is that of GWP-ASan, and before it of Electric Fence.

mod record;
mod report;
mod slots;

use crate::base::countdown::GUARD_COUNTDOWN;
use crate::base::fast::FAST;
use crate::base::message::Message;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::MIN_ALIGN;
use crate::base::source::{Round, Source};
use crate::base::stats::{self, Owner};
use crate::objects::Objects;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use ebbtide_interface::guard::{ALL, Most, SAMPLED};
use ebbtide_sys::lock::{Lock, Rank};
use ebbtide_sys::{Errno, clock, fault, process, vm};
use ebbtide_zone::plan::Remaining;
use record::{FREED, LIVE, OPENING, Record};
use slots::{KINDS, Layout, MOST_BYTES, Slot};

/// Bytes around an object that the program must not write to.
const PATTERN: u8 = crate::pages::large::guard::GUARD;
/// No slot.
const NONE: u32 = u32::MAX;

const _: () = assert!(SAMPLED.slots.len() == KINDS);

/// The slots of this process.
pub struct Guarded {
    /// [`Layout::base`]; 0: there are no slots.
    base: AtomicUsize,
    counts: [AtomicUsize; KINDS],
    /// Address of the records.
    records: AtomicUsize,
    /// The process that may take slots. A `vfork` child is another one.
    process: AtomicU32,
    /// The kernel refused to open pages.
    is_refused: AtomicBool,
    free: Lock<Free>,
}

/// The pool of this process, for its fault handler.
static POOL: AtomicPtr<Guarded> = AtomicPtr::new(core::ptr::null_mut());

/// The slots that may be taken.
struct Free {
    queues: [Queue; KINDS],
    /// Bytes of the pages of live objects, and their bound.
    live_bytes: usize,
    most_bytes: usize,
    random: u64,
}

/// Free slots of a kind: those never used, then those freed, the oldest first.
#[derive(Clone, Copy)]
struct Queue {
    /// The first slot never used, and the end of these.
    fresh: u32,
    end: u32,
    first: u32,
    last: u32,
}

impl Queue {
    const EMPTY: Self = Self {
        fresh: 0,
        end: 0,
        first: NONE,
        last: NONE,
    };

    fn take(&mut self, pool: &Guarded) -> Option<usize> {
        if self.fresh < self.end {
            self.fresh += 1;
            return Some(self.fresh as usize - 1);
        }
        let number = self.first;
        if number == NONE {
            return None;
        }
        self.first = pool.record(number as usize).next.load(Ordering::Relaxed);
        if self.first == NONE {
            self.last = NONE;
        }
        Some(number as usize)
    }

    fn put(&mut self, pool: &Guarded, number: usize) {
        let next = |of: u32| &pool.record(of as usize).next;
        next(number as u32).store(NONE, Ordering::Relaxed);
        match self.last {
            NONE => self.first = number as u32,
            last => next(last).store(number as u32, Ordering::Relaxed),
        }
        self.last = number as u32;
    }
}

impl Guarded {
    /// No slots.
    pub const fn new() -> Self {
        let free = Free {
            queues: [Queue::EMPTY; KINDS],
            live_bytes: 0,
            most_bytes: 0,
            random: 0,
        };
        Self {
            base: AtomicUsize::new(0),
            counts: [const { AtomicUsize::new(0) }; KINDS],
            records: AtomicUsize::new(0),
            process: AtomicU32::new(0),
            is_refused: AtomicBool::new(false),
            free: Lock::new(ranks::GUARDED, free),
        }
    }

    /// Reserves the slots, and begins to see faults. With little address space there are fewer slots.
    pub fn start(&'static self, rate: usize) {
        let most = if rate == 1 { &ALL } else { &SAMPLED };
        if self.reserve(most).is_none() {
            return line("there is no room for slots; no allocation is guarded");
        }
        POOL.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
        if !fault::install(report::watch) {
            line("no handler of SIGSEGV is possible; accesses to guarded memory are not reported");
        }
        self.process.store(process::id(), Ordering::Relaxed);
        GUARD_COUNTDOWN.begin(rate, clock::precise_ns());
        FAST.set_guard(rate);
    }

    fn reserve(&self, most: &Most) -> Option<()> {
        let mut layout = Layout {
            base: 0,
            counts: most.slots,
        };
        layout.base = loop {
            match vm::reserve(layout.bytes(), vm::page()) {
                Ok(base) => break base,
                Err(_) if layout.counts[1] > 1 => layout.counts = layout.counts.map(|n| n / 2),
                Err(_) => return None,
            }
        };
        let bytes = layout.count() * size_of::<Record>();
        let Ok(records) = vm::map(bytes) else {
            vm::unmap(layout.base, layout.bytes());
            return None;
        };
        stats::note_range(Owner::Guarded, layout.base, layout.bytes());
        stats::note_range(Owner::Records, records, vm::whole_pages(bytes));
        let mut free = self.free.lock();
        let mut first = 0;
        for (queue, count) in free.queues.iter_mut().zip(layout.counts) {
            (queue.fresh, queue.end) = (first, first + count as u32);
            first = queue.end;
        }
        free.most_bytes = most.live_bytes;
        free.random = clock::precise_ns() | 1;
        for (place, count) in self.counts.iter().zip(layout.counts) {
            place.store(count, Ordering::Relaxed);
        }
        self.records.store(records, Ordering::Relaxed);
        self.base.store(layout.base, Ordering::Release);
        Some(())
    }

    fn layout(&self) -> Option<Layout> {
        let base = self.base.load(Ordering::Acquire);
        let counts = [0, 1].map(|kind: usize| self.counts[kind].load(Ordering::Relaxed));
        (base != 0).then_some(Layout { base, counts })
    }

    /// Whether an address lies in a slot or a guard.
    pub fn contains(&self, address: usize) -> bool {
        self.layout().is_some_and(|layout| layout.contains(address))
    }

    fn record(&self, number: usize) -> &Record {
        let records = self.records.load(Ordering::Relaxed);
        // SAFETY: `reserve` mapped a record for each slot, for ever; all of its fields are atomic, and zero is valid.
        unsafe { &*(records as *const Record).add(number) }
    }

    /// Takes a slot for `size` bytes at a multiple of `align`, a power of two. `None`: the object is not guarded.
    fn take(&self, size: usize, align: usize) -> Option<usize> {
        let layout = self.layout()?;
        if size > MOST_BYTES
            || align > vm::page()
            || self.process.load(Ordering::Relaxed) != process::id()
        {
            return None;
        }
        let kind = slots::kind_for(size);
        let bytes = vm::whole_pages(size.max(1));
        let (number, at_end) = self.take_number(kind, bytes)?;
        let (slot, record) = (layout.slot(number), self.record(number));
        record.state.store(OPENING, Ordering::Relaxed);
        // SAFETY: a slot that no other thread has.
        if let Err(error) = unsafe { vm::commit(slot.start, bytes) } {
            self.put_number(kind, bytes, number);
            // Too many mappings, or too much memory: later, perhaps.
            if error != Errno::ENOMEM {
                self.stop();
            }
            return None;
        }
        let object = slots::place(slot.start, bytes, size.max(1), align.max(MIN_ALIGN), at_end);
        let (before, behind) = around(slot, bytes, object, size);
        // SAFETY: the pages were opened just now, and the program does not have them yet.
        unsafe {
            (before.0 as *mut u8).write_bytes(PATTERN, before.1);
            (behind.0 as *mut u8).write_bytes(PATTERN, behind.1);
        }
        record.begin(object, size);
        record.state.store(LIVE, Ordering::Release);
        Some(object)
    }

    /// A slot's number, and on which side its object lies.
    fn take_number(&self, kind: usize, bytes: usize) -> Option<(usize, bool)> {
        let mut free = self.free.lock();
        let live_bytes = free.live_bytes + bytes;
        if live_bytes > free.most_bytes {
            return None;
        }
        let number = free.queues[kind].take(self)?;
        free.live_bytes = live_bytes;
        // Numerical Recipes' generator; the upper bits are good.
        let next = free.random.wrapping_mul(6_364_136_223_846_793_005);
        free.random = next.wrapping_add(1_442_695_040_888_963_407);
        Some((number, free.random >> 63 == 1))
    }

    fn put_number(&self, kind: usize, bytes: usize, number: usize) {
        let mut free = self.free.lock();
        free.live_bytes -= bytes;
        free.queues[kind].put(self, number);
    }

    /// From now on no slot is taken.
    #[cold]
    fn stop(&self) {
        self.process.store(0, Ordering::Relaxed);
        if !self.is_refused.swap(true, Ordering::Relaxed) {
            line("the kernel refuses mprotect; no further allocation is guarded");
        }
    }

    /// The slot and the record of a live object. Ends the process if none begins at `address`, which is inside.
    fn expect_live(&self, address: usize, call: &str) -> (Slot, &Record) {
        let slot = self.layout().and_then(|layout| layout.slot_at(address));
        let Some(slot) = slot else {
            report::no_object(address, call)
        };
        let record = self.record(slot.number);
        if record.state() != LIVE || record.object().0 != address {
            report::misuse(record, address, call);
        }
        (slot, record)
    }

    fn free(&self, address: usize) {
        let (slot, record) = self.expect_live(address, "free of ");
        let (_, size) = record.object();
        let bytes = vm::whole_pages(size.max(1));
        record.freed.take();
        let (from, to) = (LIVE, FREED);
        let freed = record
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if freed.is_err() {
            report::misuse(record, address, "free of ");
        }
        if let Some(damaged) = damaged(around(slot, bytes, address, size)) {
            report::damage(record, damaged);
        }
        // SAFETY: the slot of an object that this thread has just freed (`INV-GUARDED-1`).
        if unsafe { vm::reserve_again(slot.start, bytes) }.is_ok() {
            self.put_number(slots::kind_for(size), bytes, slot.number);
        }
        // Otherwise the kernel refuses mmap, and the slot is lost: see `INV-GUARDED-2`.
    }

    /// Bytes of the pages of live objects.
    pub fn live_bytes(&self) -> usize {
        self.free.lock().live_bytes
    }

    /// The requested bytes of a live object.
    pub fn size(&self, address: usize, call: &str) -> usize {
        self.expect_live(address, call).1.object().1
    }
}

/// A range: its start, and its bytes.
type Range = (usize, usize);

/// The parts of a slot's pages before and behind its object.
fn around(slot: Slot, pages_bytes: usize, object: usize, size: usize) -> (Range, Range) {
    let end = object + size;
    let behind = slot.start + pages_bytes - end;
    ((slot.start, object - slot.start), (end, behind))
}

/// The byte of the pattern next to the object that the program changed, first behind it, then before it.
fn damaged((before, behind): (Range, Range)) -> Option<usize> {
    // SAFETY: pages of an object that was live until now.
    let bytes =
        |range: Range| unsafe { core::slice::from_raw_parts(range.0 as *const u8, range.1) };
    let wrong = |&byte: &u8| byte != PATTERN;
    let at = bytes(behind).iter().position(wrong);
    at.map(|at| behind.0 + at).or_else(|| {
        let at = bytes(before).iter().rposition(wrong);
        at.map(|at| before.0 + at)
    })
}

fn line(text: &str) {
    Message::new().text("guard: ").text(text).write();
}

impl Objects {
    /// A guarded object for `size` bytes at a multiple of `align`. `None`: it must be an ordinary one.
    #[cold]
    #[inline(never)]
    pub fn take_guarded(&self, size: usize, align: usize) -> Option<usize> {
        self.guarded.take(size, align)
    }

    /// Frees a guarded object.
    #[cold]
    #[inline(never)]
    pub fn free_guarded(&self, address: usize) {
        self.guarded.free(address);
    }
}

/// The slots, as a source: they keep no free memory, but a lock.
pub struct Slots;

impl<H: AsRef<Objects>> Source<H> for Slots {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::GUARDED {
            each(&heap.as_ref().guarded.free);
            each(fault::lock());
        }
    }

    fn give_due(&self, _heap: &H, _round: &Round, _left: &mut Remaining) {}

    fn give_all(&self, _heap: &H, _by: Releaser) {}

    unsafe fn child(&self, heap: &H) {
        let guarded = &heap.as_ref().guarded;
        if guarded.process.load(Ordering::Relaxed) != 0 {
            guarded.process.store(process::id(), Ordering::Relaxed);
        }
        fault::begin_in_child();
    }

    /// Another thread may have changed the queues during the copy: no slot is taken in this process.
    unsafe fn abandon(&self, heap: &H) {
        let guarded = &heap.as_ref().guarded;
        guarded.process.store(0, Ordering::Relaxed);
        guarded.free.lock().queues = [Queue::EMPTY; KINDS];
    }
}

#[cfg(test)]
mod tests;
