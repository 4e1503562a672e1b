//! The quarantine: freed objects wait here, poisoned, before they can be allocated again.
//!
//! Each CPU has a ring: first in, first out, bounded in objects and in bytes. When an object leaves the ring, its poison
//! is checked, or it gets access again (`INV-HARDEN-2`), and the object goes to the caches. A ring's lock is held only to move entries: no other
//! lock is taken under it, and no object is touched.
//!
//! The objects of an idle ring go to the spans. So do all objects when everything is released, and at the end of the
//! program.

use super::memory_of;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::CLASS;
use crate::base::size_class::{CLASSES, MAX_BATCH, MIN_ALIGN};
use crate::base::source::{Cached, Outside, Round, Source};
use crate::base::stats::{self, Owner};
use crate::objects::Objects;
use crate::pages::large::guard::Kept;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::lock::{Lock, Rank};
use ebbtide_sys::{process, vm};
use ebbtide_zone::plan::Remaining;

/// CPUs with a ring of their own; higher ones share them.
const MAX_RINGS: usize = 64;
/// Most objects in a ring, plus one.
const ENTRIES: usize = 1024;
/// Bytes of objects in a ring. [`LEAVING`] bounds how fast a ring shrinks to this size.
const BYTES: usize = 1 << 20;
/// Most objects that one call takes out.
const LEAVING: usize = 16;
/// Most places that are closed in each step of the clock. A place costs about 1 µs, so this takes 0.2 % of a CPU.
const CLOSINGS: usize = 8;
/// Milliseconds between scans by the program's calls.
const SCAN_MS: u64 = 100;
/// Milliseconds without use after which a scan empties a ring.
const IDLE_MS: u64 = 400;

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
/// bit says that the place is closed.
#[derive(Clone, Copy)]
pub(super) struct Entry(u64);

impl Entry {
    const CLASS_SHIFT: u32 = 44;
    const FRONT_SHIFT: u32 = 52;
    const CLOSED: u64 = 1 << 63;
    const NONE: Self = Self(0);

    pub fn new(class: usize, object: usize, front: usize, is_closed: bool) -> Self {
        let (object, front) = (object / MIN_ALIGN, front / MIN_ALIGN);
        let place = (front as u64) << Self::FRONT_SHIFT | object as u64;
        let closed = if is_closed { Self::CLOSED } else { 0 };
        Self(closed | (class as u64) << Self::CLASS_SHIFT | place)
    }

    pub fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    pub fn class(self) -> usize {
        (self.0 >> Self::CLASS_SHIFT) as u8 as usize
    }

    pub fn object(self) -> usize {
        (self.0 & ((1 << Self::CLASS_SHIFT) - 1)) as usize * MIN_ALIGN
    }

    pub fn front(self) -> usize {
        ((self.0 & !Self::CLOSED) >> Self::FRONT_SHIFT) as usize * MIN_ALIGN
    }

    pub fn place(self) -> usize {
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

    fn bytes_of(&self, entry: Entry) -> usize {
        memory_of(entry.class(), self.has_guard_pages)
    }

    /// There is always space for one entry ([`Self::is_over`]).
    fn put(&mut self, entry: Entry, now: u64) {
        // SAFETY: the entries are mapped from the start on, and the lock of the ring is held.
        unsafe { self.at(self.count).write(entry) };
        self.count += 1;
        self.bytes += self.bytes_of(entry);
        self.places += CLASS[entry.class()].size as usize;
        self.used_ms = now;
    }

    fn take(&mut self) -> Option<Entry> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: as in `put`.
        let entry = unsafe { self.at(0).read() };
        self.first = (self.first + 1) % ENTRIES;
        self.bytes -= self.bytes_of(entry);
        self.places -= CLASS[entry.class()].size as usize;
        Some(entry)
    }

    fn is_over(&self) -> bool {
        self.count == ENTRIES || self.bytes > BYTES
    }

    /// Takes the oldest entries out while `wanted` says so. Returns their number.
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
        if self.closing_ms.swap(now, Ordering::Relaxed) != now {
            self.closings.store(0, Ordering::Relaxed);
        }
        self.closings.load(Ordering::Relaxed) < CLOSINGS
            && self.closings.fetch_add(1, Ordering::Relaxed) < CLOSINGS
    }

    fn rings(&self) -> impl Iterator<Item = &Lock<Ring>> {
        let count = self.count.load(Ordering::Relaxed);
        self.rings[..count].iter().map(|ring| &ring.0)
    }

    /// Bytes of objects in all rings.
    pub fn bytes(&self) -> usize {
        self.rings().map(|ring| ring.lock().places).sum()
    }
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
        sum.objects += heap.as_ref().quarantine.bytes();
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
    /// Keeps a poisoned object for a while, and takes older ones out. Entries that were idle before are taken out
    /// first: the program may have slept, without a worker.
    pub(super) fn put_in_quarantine(&self, entry: Entry, now: u64) {
        self.scan_quarantine(now);
        let quarantine = &self.quarantine;
        let count = quarantine.count.load(Ordering::Relaxed).max(1);
        let mut leaving = [Entry::NONE; LEAVING];
        let left = {
            let mut ring = quarantine.rings[process::current_cpu() % count].0.lock();
            ring.put(entry, now);
            ring.take_while(&mut leaving, Ring::is_over)
        };
        for entry in &leaving[..left] {
            if self.check_left(*entry) {
                self.put_object(entry.class(), entry.place());
            }
        }
    }

    /// Empties all rings into the spans, and puts large allocations back.
    pub fn drain_quarantine(&self) {
        self.put_all_kept();
        for ring in self.quarantine.rings() {
            self.drain_ring(ring);
        }
    }

    /// Empties the rings that have not been used for [`IDLE_MS`]. Returns the bytes of objects in the other rings.
    pub fn drain_idle_quarantine(&self, now: u64) -> usize {
        let mut in_use = 0;
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
