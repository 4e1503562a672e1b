//! Spare runs: the last run below 2 MiB that each CPU freed, kept for its next request of as many frames.
//!
//! A program that takes a buffer, fills it and frees it again would pay for a search in its zone and for four locks each
//! time; here it takes one lock twice that no other CPU wants. One run a CPU bounds what others could have used and what the release
//! engine does not see. A spare run goes to its zone when the next one comes, when nobody wanted it for some scans, and
//! when everything is drained. None is kept where freed memory shall not stay (`retain_ms=0`, a small `retain_max`, an owner's
//! limit, short memory), or where it is closed instead (`harden=on`).
//!
//! - `INV-SPARE-1`: a spare run has the record that it had, and the class byte 0, so that freeing it once more is found. It is
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

/// CPUs beyond so many share.
const PLACES: usize = 64;
/// Looks without use after which a spare run goes, and how far apart they are at least.
const IDLE_SCANS: u32 = 6;
const SCAN_MS: u64 = 100;
/// Runs below 256 KiB come of alignment alone.
const LEAST_FRAMES: u32 = 64;
/// Slow paths take care of so many without being told what comes: 8 MiB.
const FEW_PLACES: usize = 4;

/// One CPU's.
#[repr(align(64))]
struct Place(Lock<Kept>);

struct Kept {
    spare: Option<Spare>,
    /// Since the last look a run came that was counted.
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
    /// Looks since it came.
    scans: u32,
}

/// Those of all CPUs.
pub struct SpareRuns {
    places: [Place; PLACES],
    /// So many are in use; 0: none is to be kept.
    count: AtomicUsize,
    /// The last look.
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

    /// One for each of `cpus`, before any use.
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

    /// The place for runs of so many frames, and the CPU.
    fn here(&self, frames: u32) -> Option<(usize, &Lock<Kept>)> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 || !(LEAST_FRAMES..BLOCK_FRAMES).contains(&frames) {
            return None;
        }
        let cpu = process::current_cpu();
        Some((cpu, &self.places[cpu % count].0))
    }

    /// Frames of all of them.
    pub fn frames(&self) -> u64 {
        self.places().map(|place| place.lock().frames()).sum()
    }

    /// The same in bytes.
    pub fn bytes(&self) -> usize {
        self.frames() as usize * FRAME_BYTES
    }
}

/// The spare runs of all CPUs.
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
    /// Keeps a run that has just been freed, and puts the one back that was kept before. `false`: it is still the caller's.
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
            // They may add up: the tick scans. Whatever comes to this place until then is no more than that.
            self.count_large_freed(BLOCK_FRAMES);
        }
        true
    }

    /// The spare run of this CPU, if it is one of so many frames at such a multiple: an allocation again, with old content.
    pub fn take_spare(&self, frames: u32, align_frames: u32) -> Option<Frame> {
        let (_, place) = self.spares.here(frames)?;
        let spare = place
            .lock()
            .spare
            .take_if(|spare| spare.frames == frames && spare.head.0.is_multiple_of(align_frames))?;
        let region = self.region();
        // SAFETY: the run and its record are this thread's (`INV-SPARE-1`), known to nobody else yet.
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

    /// Puts all of them back into their zones.
    pub fn drain_spares(&self) {
        for place in self.spares.places() {
            let spare = place.lock().spare.take();
            self.put_spare(spare);
        }
    }

    /// Looks at all of them, and puts those back that nobody has wanted for [`IDLE_SCANS`], scans that come sooner than
    /// [`SCAN_MS`] not counted. Frames of the others.
    pub fn scan_spares(&self, now: u64) -> u64 {
        let since = now.saturating_sub(self.spares.scanned_ms.load(Ordering::Relaxed));
        let look = u32::from(since >= SCAN_MS);
        if look > 0 {
            self.spares.scanned_ms.store(now, Ordering::Relaxed);
        }
        let mut frames = 0;
        for place in self.spares.places() {
            let idle = {
                let mut kept = place.lock();
                kept.is_counted = false;
                let idle = kept.spare.take_if(|spare| {
                    spare.scans += look;
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
