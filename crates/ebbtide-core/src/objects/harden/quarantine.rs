//! The quarantine: freed objects wait here, poisoned, before they can be allocated again.
//!
//! ```text
//!  free ──▶ the CPU's stack ── all of a full one ──▶ the CPU's ring ── the oldest ones ──▶ caches
//!            no lock: a section                        under its lock
//! ```
//!
//! Each CPU has a ring: first in, first out, bounded in objects and in bytes. When an object leaves the ring, its poison
//! is checked, or it gets access again (`INV-HARDEN-2`), and the object goes to the caches. A ring's lock is held only to
//! move entries: no other lock is taken under it, and no object is touched.
//!
//! In the section mode each CPU has a [stack](crate::objects::cpu_cache::freed) in front of its ring, for objects of little
//! memory. So most calls of `free` take no lock and do not enter the heap. In the portable mode, and for other objects, `free`
//! uses the ring.
//!
//! The objects of an idle stack or ring go to the spans. So do all objects when everything is released, and at the end of the
//! program. Slow paths and workers notice that. A thread that was switched out looks for it first
//! ([`section::was_switched`](ebbtide_sys::rseq::section::was_switched)): it may have slept for long.

use super::{is_pages, memory_of};
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::CLASS;
use crate::base::size_class::{CLASSES, MAX_BATCH, MIN_ALIGN, class_of};
use crate::base::source::{Cached, Outside, Round, Source};
use crate::base::stats::{self, Owner};
use crate::objects::Objects;
use crate::objects::cpu_cache::freed::{FREED_MAX, FreedEntries};
use crate::pages::large::guard::Kept;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::lock::{Lock, Rank};
use ebbtide_sys::{clock, process, vm};
use ebbtide_zone::plan::Remaining;

/// CPUs with a ring of their own; higher ones share them.
const MAX_RINGS: usize = 64;
/// Most objects in a ring, plus one: a power of two.
const ENTRIES: usize = 1024;
/// Bytes of objects in a ring. [`LEAVING`] bounds how fast a ring shrinks to this size.
const BYTES: usize = 1 << 20;
/// Most objects that a call takes out for its own.
const LEAVING: usize = 16;
/// Most objects that the end of a full stack takes out.
const LEAVING_ALL: usize = FREED_MAX + LEAVING;
/// Objects go to a stack if their places have at most so many bytes of memory: 256 KiB in a full stack.
const STACKED_BYTES: usize = 4096;
/// All classes up to this one do so.
const STACKED_CLASS: usize = class_of(STACKED_BYTES);
/// Most places that are closed in each step of the clock. A place costs about 1 µs, so this takes 0.2 % of a CPU.
const CLOSINGS: usize = 8;
/// Milliseconds between scans by the program's calls.
const SCAN_MS: u64 = 100;
/// Milliseconds without use after which a scan empties a stack or a ring.
const IDLE_MS: u64 = 400;
/// From this many bytes in quarantine on, a worker is made that will find it idle if the program stops.
const ATTENDED_BYTES: usize = 128 << 10;

/// All rings. None before [`Self::start`].
pub struct Quarantine {
    rings: [Padded; MAX_RINGS],
    count: AtomicUsize,
    /// When the program's calls last scanned for idle rings.
    scanned_ms: AtomicU64,
    /// Places that were closed at the time in [`Self::closing_ms`].
    closings: AtomicUsize,
    closing_ms: AtomicU64,
}

/// On a cache line of its own.
#[repr(align(64))]
struct Padded(Lock<Ring>);

/// A ring of `count` entries; the oldest is at `first`.
struct Ring {
    /// Address of the storage.
    entries: usize,
    first: usize,
    count: usize,
    /// Bytes of the objects' places that can have memory.
    bytes: usize,
    has_guard_pages: bool,
    /// Bytes of the objects' places with their guard pages, as the figures count live objects.
    places: usize,
    /// When the last object was put in.
    used_ms: u64,
}

/// An object, its class, and the bytes of its place in front of it: address and bytes in units of [`MIN_ALIGN`]. The top
/// bit says that the place is closed. As an entry of a stack it is not 0, because an object is not.
#[derive(Clone, Copy)]
pub struct Entry(u64);

impl Entry {
    const CLASS_SHIFT: u32 = 44;
    const FRONT_SHIFT: u32 = 52;
    const CLOSED: u64 = 1 << 63;
    const NONE: Self = Self(0);

    pub(super) fn new(class: usize, object: usize, front: usize, is_closed: bool) -> Self {
        let (object, front) = (object / MIN_ALIGN, front / MIN_ALIGN);
        let place = (front as u64) << Self::FRONT_SHIFT | object as u64;
        let closed = if is_closed { Self::CLOSED } else { 0 };
        Self(closed | (class as u64) << Self::CLASS_SHIFT | place)
    }

    pub(super) fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    pub(super) fn class(self) -> usize {
        (self.0 >> Self::CLASS_SHIFT) as u8 as usize
    }

    /// The address of the object.
    pub fn object(self) -> usize {
        (self.0 & ((1 << Self::CLASS_SHIFT) - 1)) as usize * MIN_ALIGN
    }

    pub(super) fn front(self) -> usize {
        ((self.0 & !Self::CLOSED) >> Self::FRONT_SHIFT) as usize * MIN_ALIGN
    }

    pub(super) fn place(self) -> usize {
        self.object() - self.front()
    }
}

const _: () = assert!(CLASSES <= 1 << (Entry::FRONT_SHIFT - Entry::CLASS_SHIFT));

impl Ring {
    const NEW: Self = Self {
        entries: 0,
        first: 0,
        count: 0,
        bytes: 0,
        has_guard_pages: false,
        places: 0,
        used_ms: 0,
    };

    fn at(&self, number: usize) -> *mut Entry {
        (self.entries + (self.first + number) % ENTRIES * size_of::<Entry>()) as *mut Entry
    }

    #[inline]
    fn bytes_of(&self, entry: Entry) -> usize {
        memory_of(entry.class(), self.has_guard_pages)
    }

    /// The caller has made room ([`Self::is_over`]).
    #[inline]
    fn put(&mut self, entry: Entry, now: u64) {
        // SAFETY: the entries are mapped from the start on, and the lock of the ring is held.
        unsafe { self.at(self.count).write(entry) };
        self.count += 1;
        self.bytes += self.bytes_of(entry);
        self.places += CLASS[entry.class()].size as usize;
        self.used_ms = now;
    }

    #[inline]
    fn take(&mut self) -> Option<Entry> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: as in `put`.
        let entry = unsafe { self.at(0).read() };
        self.first = (self.first + 1) % ENTRIES;
        self.bytes -= self.bytes_of(entry);
        self.places -= CLASS[entry.class()].size as usize;
        Some(entry)
    }

    /// Whether there is too much in it to put in so many entries more.
    #[inline]
    fn is_over(&self, more: usize) -> bool {
        self.count + more >= ENTRIES || self.bytes > BYTES
    }

    /// Takes the oldest entries out while `wanted` says so. Returns their number.
    #[inline]
    fn take_while(&mut self, into: &mut [Entry], wanted: impl Fn(&Self) -> bool) -> usize {
        let mut taken = 0;
        while taken < into.len() && wanted(self) {
            let Some(entry) = self.take() else { break };
            into[taken] = entry;
            taken += 1;
        }
        taken
    }
}

impl Quarantine {
    /// No ring.
    pub const fn new() -> Self {
        Self {
            rings: [const { Padded(Lock::new(ranks::FREED, Ring::NEW)) }; MAX_RINGS],
            count: AtomicUsize::new(0),
            scanned_ms: AtomicU64::new(0),
            closings: AtomicUsize::new(0),
            closing_ms: AtomicU64::new(0),
        }
    }

    /// Makes the rings. `false`: no memory.
    pub fn start(&self, has_guard_pages: bool) -> bool {
        let count = process::cpu_limit().clamp(1, MAX_RINGS);
        let bytes = ENTRIES * size_of::<Entry>();
        let Ok(entries) = vm::map(count * bytes) else {
            return false;
        };
        stats::note_range(Owner::Records, entries, count * bytes);
        for (index, ring) in self.rings[..count].iter().enumerate() {
            let mut ring = ring.0.lock();
            ring.entries = entries + index * bytes;
            ring.has_guard_pages = has_guard_pages;
        }
        self.count.store(count, Ordering::Relaxed);
        true
    }

    /// Whether another place may be closed at this time: [`CLOSINGS`] in each step of the clock, which are about 4 ms
    /// apart. Threads may do a few more together.
    pub(super) fn may_close(&self, now: u64) -> bool {
        self.note_time(now);
        self.has_closings() && self.closings.fetch_add(1, Ordering::Relaxed) < CLOSINGS
    }

    fn has_closings(&self) -> bool {
        self.closings.load(Ordering::Relaxed) < CLOSINGS
    }

    fn note_time(&self, now: u64) {
        if self.closing_ms.load(Ordering::Relaxed) != now {
            self.closing_ms.store(now, Ordering::Relaxed);
            self.closings.store(0, Ordering::Relaxed);
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Lock<Ring>> {
        let count = self.count.load(Ordering::Relaxed);
        self.rings[..count].iter().map(|ring| &ring.0)
    }

    /// Notes that the ring of a CPU was in use at a time.
    fn note_use(&self, cpu: usize, used_ms: u64) {
        let count = self.count.load(Ordering::Relaxed);
        if used_ms > 0 && count > 0 {
            let mut ring = self.rings[shared(cpu, count)].0.lock();
            ring.used_ms = ring.used_ms.max(used_ms);
        }
    }

    /// Bytes of objects in all rings.
    fn ring_bytes(&self) -> usize {
        self.rings().map(|ring| ring.lock().places).sum()
    }
}

/// Whether the places of a class have so few bytes that they are always stacked, and so no guard pages.
#[inline]
pub fn has_small_places(class: usize) -> bool {
    const { assert!(!is_pages(STACKED_BYTES)) };
    class <= STACKED_CLASS
}

/// The ring of a CPU. Higher CPUs share the rings; for the others it takes no division.
#[inline]
fn shared(cpu: usize, count: usize) -> usize {
    if cpu < count { cpu } else { cpu % count }
}

/// The rings of all CPUs, and large allocations.
pub struct Quarantined;

impl<H: AsRef<Objects>> Source<H> for Quarantined {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        let heap = heap.as_ref();
        if rank == ranks::FREED {
            heap.quarantine.rings().for_each(|ring| each(ring));
            each(&heap.kept);
        }
    }

    fn cached(&self, heap: &H, sum: &mut Cached) {
        sum.objects += heap.as_ref().quarantined_bytes();
    }

    fn tick(&self, heap: &H, now: u64, _outside: &mut Outside) {
        heap.as_ref().scan_quarantine(now);
    }

    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining) {
        left.cached_bytes += heap.as_ref().drain_idle_quarantine(round.now) as u64;
    }

    fn give_all(&self, heap: &H, _by: Releaser) {
        heap.as_ref().drain_quarantine();
    }

    /// Last chance to find a write to a freed object.
    fn unattended(&self, heap: &H) {
        heap.as_ref().drain_quarantine();
    }

    unsafe fn abandon(&self, heap: &H) {
        let heap = heap.as_ref();
        *heap.kept.lock() = Kept::NONE;
        for ring in heap.quarantine.rings() {
            let mut ring = ring.lock();
            (ring.count, ring.bytes, ring.places) = (0, 0, 0);
        }
    }
}

impl Objects {
    /// Bytes of objects in quarantine. Of the stacks only a hint, unless no thread runs.
    pub fn quarantined_bytes(&self) -> usize {
        let stacks = (0..self.caches.cpus()).map(|cpu| self.stacked_bytes(cpu));
        self.quarantine.ring_bytes() + stacks.sum::<usize>()
    }

    fn stacked_bytes(&self, cpu: usize) -> usize {
        let mut entries = [0; FREED_MAX];
        let count = self.caches.peek_freed(cpu, &mut entries);
        let of = |&entry: &usize| CLASS[Entry(entry as u64).class()].size as usize;
        entries[..count].iter().map(of).sum()
    }

    /// Whether so much is in quarantine that a worker should attend it.
    pub fn quarantines_much(&self) -> bool {
        self.is_hardened() && self.quarantined_bytes() >= ATTENDED_BYTES
    }

    /// Whether freed objects of a class go to this CPU's stack, in the section mode. Places that should be closed do not.
    #[inline]
    pub fn is_stacked(&self, class: usize) -> bool {
        has_small_places(class)
            || self.is_paged(class)
                && memory_of(class, true) <= STACKED_BYTES
                && !self.quarantine.has_closings()
    }

    /// Puts a poisoned object on this CPU's stack. `false`: [`Self::spill`] must do it.
    #[inline]
    pub fn stack(&self, entry: Entry) -> bool {
        self.push_freed(entry.0 as usize)
    }

    /// As [`Self::stack`], after it failed: moves a full stack to the ring, and takes older objects out.
    pub fn spill(&self, entry: Entry) {
        let mut entries: FreedEntries = [0; FREED_MAX];
        // After an interruption there may be room.
        if self.stack(entry) {
            return;
        }
        let now = clock::now_ms();
        let count = self.pop_freed(&mut entries);
        if count == 0 && self.begin_freed(entry.0 as usize, now) {
            return;
        }
        self.put_in_ring::<LEAVING_ALL>(&entries[..count], entry, now);
    }

    /// Keeps a poisoned object for a while, and takes older ones out. Entries that were idle before are taken out
    /// first: the program may have slept, without a worker.
    pub(super) fn put_in_quarantine(&self, entry: Entry, now: u64) {
        self.scan_quarantine(now);
        self.put_in_ring::<LEAVING>(&[], entry, now);
    }

    /// Puts the entries of a stack, the newest first, and then another one into this CPU's ring. Takes the oldest ones out,
    /// at most `MOST`.
    fn put_in_ring<const MOST: usize>(&self, stacked: &[usize], entry: Entry, now: u64) {
        let quarantine = &self.quarantine;
        quarantine.note_time(now);
        let count = quarantine.count.load(Ordering::Relaxed).max(1);
        let mut leaving = [Entry::NONE; MOST];
        let mut left = 0;
        {
            let mut ring = quarantine.rings[shared(process::current_cpu(), count)]
                .0
                .lock();
            let more = stacked.len() + 1;
            left += ring.take_while(&mut leaving, |ring| ring.is_over(more));
            for &entry in stacked.iter().rev() {
                ring.put(Entry(entry as u64), now);
            }
            ring.put(entry, now);
            left += ring.take_while(&mut leaving[left..], |ring| ring.is_over(0));
        }
        let leaving = &leaving[..left];
        // The memory has not been used for long. So the caches of the processor load all of it at once.
        for entry in leaving.iter().filter(|entry| !entry.is_closed()) {
            // SAFETY: an object in quarantine has access unless it is closed.
            unsafe { (entry.object() as *const u8).read_volatile() };
        }
        for entry in leaving {
            if self.check_left(*entry) {
                self.put_object(entry.class(), entry.place());
            }
        }
    }

    /// Ends the time of entries that were in the stack of another CPU.
    pub fn end_quarantine_of(&self, entries: &[usize]) {
        for entry in entries.iter().map(|&entry| Entry(entry as u64)) {
            if self.check_left(entry) {
                self.put_in_spans(entry.class(), &[entry.place()]);
            }
        }
    }

    /// Empties all stacks and rings into the spans, and puts large allocations back.
    pub fn drain_quarantine(&self) {
        self.put_all_kept();
        (0..self.caches.cpus()).for_each(|cpu| self.drain_stack(cpu));
        for ring in self.quarantine.rings() {
            self.drain_ring(ring);
        }
    }

    /// Empties the stacks and rings that have not been used for [`IDLE_MS`]. Returns the bytes of objects in the others.
    pub fn drain_idle_quarantine(&self, now: u64) -> usize {
        let mut in_use = 0;
        for cpu in 0..self.caches.cpus() {
            let since = self.caches.freed_unused_since(cpu, now);
            // A ring is in use while the stack in front of it is.
            self.quarantine.note_use(cpu, since);
            if now.saturating_sub(since) < IDLE_MS {
                in_use += self.stacked_bytes(cpu);
            } else {
                self.drain_stack(cpu);
            }
        }
        for lock in self.quarantine.rings() {
            let (bytes, used_ms) = {
                let ring = lock.lock();
                (ring.bytes, ring.used_ms)
            };
            if now.saturating_sub(used_ms) < IDLE_MS {
                in_use += bytes;
            } else if bytes > 0 {
                self.drain_ring(lock);
            }
        }
        in_use
    }

    /// Frees and slow paths scan for idle rings too: there may be no worker, or none that scans.
    pub fn scan_quarantine(&self, now: u64) {
        let scanned = &self.quarantine.scanned_ms;
        if self.is_hardened() && now.saturating_sub(scanned.load(Ordering::Relaxed)) >= SCAN_MS {
            scanned.store(now, Ordering::Relaxed);
            self.drain_idle_quarantine(now);
        }
    }

    fn drain_stack(&self, cpu: usize) {
        let mut entries = [0; FREED_MAX];
        let count = self.drain_freed(cpu, &mut entries);
        self.end_quarantine_of(&entries[..count]);
    }

    /// Takes out at most as many objects as a ring holds, because other threads may continue to fill it.
    fn drain_ring(&self, ring: &Lock<Ring>) {
        for _ in 0..ENTRIES / MAX_BATCH {
            let mut entries = [Entry::NONE; MAX_BATCH];
            let taken = ring.lock().take_while(&mut entries, |_| true);
            for entry in &entries[..taken] {
                if self.check_left(*entry) {
                    self.put_in_spans(entry.class(), &[entry.place()]);
                }
            }
            if taken < entries.len() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
