//! The statistics of the whole heap, and the times at which the statistics page is written.

use crate::base::size_class::CLASSES;
use crate::base::stats::{self, Figures};
use crate::reclaim::Heap;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::clock;
use ebbtide_zone::{BLOCK_BYTES, FRAME_BYTES};

const REFRESH_MS: u64 = 100;
/// A change of this size is shown at once: no further call may follow.
const CHANGED_BYTES: usize = 16 << 20;

/// Changes since the page was written.
pub struct Changes {
    last_ms: AtomicU64,
    /// Bytes of objects that were freed.
    changed: AtomicUsize,
    /// Bytes of large allocations that were made, freed or resized since the frame figures of the page were
    /// written.
    large_changed: AtomicUsize,
    /// Live bytes less [`FrameBytes::used`], at that time.
    live_less_used: AtomicU64,
    /// Bytes of large allocations less [`FrameBytes::used`], at that time.
    large_less_used: AtomicU64,
    /// Cached bytes without spare runs, at that time.
    cached_objects: AtomicU64,
    /// Released bytes, at that time.
    released: AtomicUsize,
}

impl Changes {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            last_ms: AtomicU64::new(0),
            changed: AtomicUsize::new(0),
            large_changed: AtomicUsize::new(0),
            live_less_used: AtomicU64::new(0),
            large_less_used: AtomicU64::new(0),
            cached_objects: AtomicU64::new(0),
            released: AtomicUsize::new(0),
        }
    }
}

impl Heap {
    /// The statistics, together with those of frames.
    pub fn figures(&self) -> (Figures, FrameBytes) {
        let (mut batches, mut in_spans, mut objects, mut span_bytes) = (0, 0, 0, 0);
        let mut claimed = 0;
        for class in 1..CLASSES {
            let bytes = self.central[class].bytes(class);
            batches += bytes.batches;
            in_spans += bytes.in_spans + bytes.claimed;
            claimed += bytes.claimed;
            objects += bytes.all;
            span_bytes += bytes.frames * FRAME_BYTES;
        }
        let cached = self.cached().objects;
        let frames = self.frame_bytes();
        let large = frames.used.saturating_sub(span_bytes);
        let small = objects.saturating_sub(in_spans + cached);
        let records = self.region().array_bytes(frames.opened / BLOCK_BYTES)
            + self.record_bytes()
            + self.caches.slab_bytes()
            + batches / 64;
        let mut figures = Figures {
            live_bytes: (small + large + self.reserve.live_bytes() + self.guarded.live_bytes())
                as u64,
            large_bytes: large as u64,
            // Spare runs are read once: the page's figures subtract the same value again.
            cached_bytes: (cached + frames.spare) as u64,
            in_spans_bytes: span_bytes.saturating_sub(small + cached + claimed) as u64,
            dirty_bytes: frames.dirty as u64,
            lazy_bytes: frames.lazy as u64,
            pending_bytes: (frames.claimed + claimed) as u64,
            unsplit_bytes: (self.unsplit.all() * FRAME_BYTES) as u64,
            metadata_bytes: records as u64,
            opened_bytes: frames.opened as u64,
            percpu_bytes: 0,
            lazy_zones: 0,
            reused_bytes: 0,
            unused_bytes: 0,
            pinned_bytes: frames.pinned as u64,
            rseq_mode: self.caches.uses_sections().into(),
            ..stats::counted(self.allowance.is_short(clock::now_ms()))
        };
        for zone in self.live_zones() {
            let refaults = zone.lock.lock().refaults;
            let (reused, unused) = refaults.evidence();
            figures.reused_bytes += reused * FRAME_BYTES as u64;
            figures.unused_bytes += unused * FRAME_BYTES as u64;
            figures.lazy_zones += u64::from(refaults.lazy_first());
        }
        let hooks = self.parts().hooks.iter();
        hooks.for_each(|hook| hook.add_figures(self, &mut figures));
        (figures, frames)
    }
}

/// Bytes of the zones' frames, by state.
#[derive(Default)]
pub struct FrameBytes {
    dirty: usize,
    lazy: usize,
    /// Of dirty and lazy.
    pinned: usize,
    claimed: usize,
    opened: usize,
    /// Used by spans and large allocations, without spare runs and without frames that large allocations own and do
    /// not use.
    used: usize,
    /// Spare runs.
    pub spare: usize,
}

impl Heap {
    fn frame_bytes(&self) -> FrameBytes {
        let mut sum = FrameBytes::default();
        for zone in self.live_zones() {
            let counters = zone.counters();
            let bytes = |frames: u64| frames as usize * FRAME_BYTES;
            sum.dirty += bytes(counters.dirty);
            sum.lazy += bytes(counters.lazy);
            sum.pinned += bytes(counters.pinned_dirty + counters.pinned_lazy);
            sum.claimed += bytes(counters.claimed);
            sum.opened += bytes(counters.open);
            sum.used += bytes(counters.in_use);
        }
        let slack = self.slack.load(Ordering::Relaxed) * FRAME_BYTES;
        sum.spare = self.spares.bytes();
        sum.used = sum.used.saturating_sub(slack + sum.spare);
        sum
    }

    /// Span records ever used, and the words of their objects.
    fn record_bytes(&self) -> usize {
        let records = self.records.lock().bytes();
        if !self.is_hardened() {
            return records;
        }
        records
            + records / size_of::<crate::pages::span::Span>() * crate::pages::region::STATES_BYTES
    }
}

impl Heap {
    /// Called by a tick with the bytes freed since the last one. No lock may be held.
    pub fn freed_since(&self, bytes: usize) {
        if !stats::is_shown() {
            return;
        }
        let bytes = bytes.saturating_sub(stats::take_large_freed());
        let changed = &self.changes.changed;
        if changed.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES
            && self.page_is_due()
        {
            self.write_page();
        }
    }

    /// Called when a large allocation was made, freed, or resized by `bytes`. Writing the whole page takes
    /// microseconds, so only the figures that this changes are written. No lock may be held.
    #[inline]
    pub fn large_changed(&self, bytes: usize) {
        let changed = &self.changes.large_changed;
        if stats::is_shown() && changed.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES
        {
            self.write_frames();
        }
    }

    /// Updates the page from time to time.
    pub fn refresh_page(&self, now: u64) {
        if !stats::is_shown() {
            return;
        }
        let last = self.changes.last_ms.load(Ordering::Relaxed);
        // After a large release all threads may be idle for long.
        let released =
            stats::released().wrapping_sub(self.changes.released.load(Ordering::Relaxed));
        if now.wrapping_sub(last) >= REFRESH_MS || released >= CHANGED_BYTES {
            self.changes.last_ms.store(now, Ordering::Relaxed);
            if self.page_is_due() {
                self.write_page();
            }
        }
    }

    /// Writes the figures of frames, and the live bytes that follow from their change since the page was written.
    #[cold]
    fn write_frames(&self) {
        let changes = &self.changes;
        changes.large_changed.store(0, Ordering::Relaxed);
        if !self.page_is_due() {
            return;
        }
        if stats::wants_file() || !stats::is_written() {
            return self.write_page();
        }
        let frames = self.frame_bytes();
        let used = frames.used as u64;
        let now = |less_used: &AtomicU64| {
            let bytes = less_used.load(Ordering::Relaxed).wrapping_add(used);
            bytes.cast_signed().max(0) as u64
        };
        let new = Figures {
            live_bytes: now(&changes.live_less_used),
            large_bytes: now(&changes.large_less_used),
            cached_bytes: changes.cached_objects.load(Ordering::Relaxed) + frames.spare as u64,
            dirty_bytes: frames.dirty as u64,
            lazy_bytes: frames.lazy as u64,
            pinned_bytes: frames.pinned as u64,
            opened_bytes: frames.opened as u64,
            ..Figures::default()
        };
        stats::write_frames(&new, &self.config);
    }

    /// Whether the page has a file, or may get one now.
    pub fn page_is_due(&self) -> bool {
        let bytes = || {
            let (held, _) = self.sum(|counters| (counters.in_use + counters.dirty, 0));
            held as usize * FRAME_BYTES
        };
        stats::is_shown() && stats::is_due(&self.config, bytes)
    }

    /// Writes the whole page.
    pub fn write_page(&self) {
        let changes = &self.changes;
        changes.changed.store(0, Ordering::Relaxed);
        changes.large_changed.store(0, Ordering::Relaxed);
        changes.released.store(stats::released(), Ordering::Relaxed);
        let (figures, frames) = self.figures();
        let live = figures.live_bytes.wrapping_sub(frames.used as u64);
        changes.live_less_used.store(live, Ordering::Relaxed);
        let large = figures.large_bytes.wrapping_sub(frames.used as u64);
        changes.large_less_used.store(large, Ordering::Relaxed);
        let objects = figures.cached_bytes - frames.spare as u64;
        changes.cached_objects.store(objects, Ordering::Relaxed);
        stats::write(&figures, &self.config);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::AtomicBool;

    /// If spare runs were read twice, the page's figure of objects could be negative.
    #[test]
    fn spare_runs_that_come_and_go_are_read_once() {
        let ends = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        let heap = crate::front::heap().unwrap().enter_uncounted();
                        let run = heap.allocate_large(900 << 10, 1).unwrap();
                        crate::front::requests::free_inside(&heap, run.address);
                    }
                });
            }
            let heap = crate::front::heap().unwrap();
            let inside = heap.enter_uncounted();
            let is_whole = (0..5000).all(|_| {
                let (figures, frames) = inside.figures();
                figures.cached_bytes >= frames.spare as u64
            });
            ends.store(true, Ordering::Relaxed);
            assert!(is_whole);
        });
    }
}
