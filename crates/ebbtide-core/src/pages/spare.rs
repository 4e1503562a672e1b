//! Spare runs: the last run below 2 MiB that each CPU freed, kept for its next request of as many frames.
//!
//! A program may take a buffer, fill it and free it again and again. Without a spare run, each time costs a search in the
//! zone and four locks. With a spare run it costs one lock, taken twice, that no other CPU wants. One run for each CPU
//! bounds the memory that other CPUs cannot use and that the release engine does not see.
//!
//! A spare run goes to its zone in three cases: the CPU frees the next run, no request took it during several scans, or
//! everything is drained. No spare run is kept where freed memory must not stay: with `retain_ms=0`, a small
//! `retain_max`, a user's limit, or short memory. With `harden=on` freed runs are closed to access instead.
//!
//! - `INV-SPARE-1`: a spare run keeps its record, and has the class byte 0, so that a second `free` of it is found. It is
//!   in one place only: with its owner, here, or in its zone.

use crate::base::config::Config;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::source::{Cached, Outside, Round, Source};
use crate::pages::Pages;
use crate::pages::region::LARGE;
use crate::pages::span;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::lock::{Lock, Rank};
use ebbtide_sys::{clock, process};
use ebbtide_zone::plan::Remaining;
use ebbtide_zone::{BLOCK_BYTES, BLOCK_FRAMES, FRAME_BYTES, Frame};

/// Higher CPUs share these places.
const PLACES: usize = 64;
/// A spare run goes to its zone after this many scans without use, and the least interval between scans.
const IDLE_SCANS: u32 = 6;
const SCAN_MS: u64 = 100;
/// Shorter runs, below 256 KiB, exist only because of alignment.
const LEAST_FRAMES: u32 = 64;
/// Slow paths handle up to this many spare runs without a count of their memory: 8 MiB.
const FEW_PLACES: usize = 4;

/// The place of one CPU.
#[repr(align(64))]
struct Place(Lock<Kept>);

struct Kept {
    spare: Option<Spare>,
    /// Since the last scan, a run that came to this place was added to the freed memory.
    is_counted: bool,
}

impl Kept {
    const NONE: Self = Self {
        spare: None,
        is_counted: false,
    };

    fn frames(&self) -> u64 {
        self.spare.map_or(0, |spare| u64::from(spare.frames))
    }
}

#[derive(Clone, Copy)]
struct Spare {
    head: Frame,
    frames: u32,
    /// Scans since the run came.
    scans: u32,
}

/// The spare runs of all CPUs.
pub struct SpareRuns {
    places: [Place; PLACES],
    /// Number of places in use. 0: no spare run is kept.
    count: AtomicUsize,
    /// Time of the last scan.
    scanned_ms: AtomicU64,
}

impl SpareRuns {
    /// None.
    pub const fn new() -> Self {
        Self {
            places: [const { Place(Lock::new(ranks::FREED, Kept::NONE)) }; PLACES],
            count: AtomicUsize::new(0),
            scanned_ms: AtomicU64::new(0),
        }
    }

    /// Sets up one place for each of `cpus`, before any use.
    pub fn start(&self, config: &Config, cpus: usize) {
        let count = cpus.clamp(1, PLACES);
        let kept = config.retain_ms > 0 && config.retain_max >= count * BLOCK_BYTES;
        if kept && !config.harden {
            self.count.store(count, Ordering::Relaxed);
        }
    }

    fn places(&self) -> impl Iterator<Item = &Lock<Kept>> {
        let count = self.count.load(Ordering::Relaxed);
        self.places[..count].iter().map(|place| &place.0)
    }

    /// This CPU, and its place for runs of `frames`.
    fn here(&self, frames: u32) -> Option<(usize, &Lock<Kept>)> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 || !(LEAST_FRAMES..BLOCK_FRAMES).contains(&frames) {
            return None;
        }
        let cpu = process::current_cpu();
        Some((cpu, &self.places[cpu % count].0))
    }

    /// Frames of all spare runs.
    pub fn frames(&self) -> u64 {
        self.places().map(|place| place.lock().frames()).sum()
    }

    /// Bytes of all spare runs.
    pub fn bytes(&self) -> usize {
        self.frames() as usize * FRAME_BYTES
    }
}

/// The source of all spare runs.
pub struct Spares;

impl<H: AsRef<Pages>> Source<H> for Spares {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::FREED {
            heap.as_ref().spares.places().for_each(|place| each(place));
        }
    }

    fn cached(&self, heap: &H, sum: &mut Cached) {
        sum.runs += heap.as_ref().spares.bytes();
    }

    fn tick(&self, heap: &H, now: u64, outside: &mut Outside) {
        outside.spare += heap.as_ref().scan_spares(now);
    }

    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining) {
        left.dirty += heap.as_ref().scan_spares(round.now);
    }

    fn give_all(&self, heap: &H, _by: Releaser) {
        heap.as_ref().drain_spares();
    }

    fn unattended(&self, heap: &H) {
        heap.as_ref().drain_spares();
    }

    unsafe fn abandon(&self, heap: &H) {
        let places = heap.as_ref().spares.places();
        places.for_each(|place| *place.lock() = Kept::NONE);
    }
}

impl Pages {
    /// Keeps a run that was just freed, and puts back the run that was kept before. `false`: the caller still has
    /// the run.
    pub fn keep_spare(&self, head: Frame, frames: u32) -> bool {
        let Some((cpu, place)) = self.spares.here(frames) else {
            return false;
        };
        if self.allowance.limit().is_some() || self.allowance.is_short(clock::now_ms()) {
            return false;
        }
        if self.zone_number(head.block()) != self.domains.home(cpu) {
            return false;
        }
        let spare = Spare {
            head,
            frames,
            scans: 0,
        };
        let kept = Kept {
            spare: Some(spare),
            is_counted: true,
        };
        let before = core::mem::replace(&mut *place.lock(), kept);
        self.put_spare(before.spare);
        if self.spares.count.load(Ordering::Relaxed) > FEW_PLACES && !before.is_counted {
            // With this many places the runs may add up, so the tick scans them. A run that comes to this place
            // before the scan replaces this one, so it needs no further count.
            self.count_large_freed(BLOCK_FRAMES);
        }
        true
    }

    /// Takes this CPU's spare run if it has that many frames at a multiple of `align_frames`. It is an allocation
    /// again, with old content.
    pub fn take_spare(&self, frames: u32, align_frames: u32) -> Option<Frame> {
        let (_, place) = self.spares.here(frames)?;
        let spare = place
            .lock()
            .spare
            .take_if(|spare| spare.frames == frames && spare.head.0.is_multiple_of(align_frames))?;
        let region = self.region();
        // SAFETY: the run and its record belong to this thread (`INV-SPARE-1`), and no other thread knows them yet.
        unsafe {
            let (_, span) = span::of_frame(region, spare.head);
            (span.moved_frames, span.tail) = (0, 0);
            region.class_of(spare.head).store(LARGE, Ordering::Release);
        }
        Some(spare.head)
    }

    fn put_spare(&self, spare: Option<Spare>) {
        let Some(Spare { head, frames, .. }) = spare else {
            return;
        };
        // SAFETY: as in `take_spare`.
        let index = unsafe { self.region().span_of(head) }.load(Ordering::Relaxed);
        self.put_record(index);
        self.count_large_freed(frames);
        self.put_run(head, frames, frames);
    }

    /// Puts all spare runs back into their zones.
    pub fn drain_spares(&self) {
        for place in self.spares.places() {
            let spare = place.lock().spare.take();
            self.put_spare(spare);
        }
    }

    /// Scans all spare runs, and puts those back that no request took for [`IDLE_SCANS`] scans. Scans within
    /// [`SCAN_MS`] of the last one do not count. Returns the frames of the remaining spare runs.
    pub fn scan_spares(&self, now: u64) -> u64 {
        let since = now.saturating_sub(self.spares.scanned_ms.load(Ordering::Relaxed));
        let scan = u32::from(since >= SCAN_MS);
        if scan > 0 {
            self.spares.scanned_ms.store(now, Ordering::Relaxed);
        }
        let mut frames = 0;
        for place in self.spares.places() {
            let idle = {
                let mut kept = place.lock();
                kept.is_counted = false;
                let idle = kept.spare.take_if(|spare| {
                    spare.scans += scan;
                    spare.scans > IDLE_SCANS
                });
                frames += kept.frames();
                idle
            };
            self.put_spare(idle);
        }
        frames
    }
}
