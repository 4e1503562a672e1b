//! The figures of the whole heap, and when the page that tells them is written.

use crate::base::size_class::CLASSES;
use crate::base::stats::{self, Stats};
use crate::reclaim::Heap;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::clock;
use ebbtide_zone::FRAME_BYTES;

const REFRESH_MS: u64 = 100;
/// So much is told at once: nothing else may follow.
const CHANGED_BYTES: usize = 16 << 20;

/// What has changed since the page was written.
pub struct Figures {
    last_ms: AtomicU64,
    /// Bytes of objects that were freed.
    changed: AtomicUsize,
    /// Bytes of large allocations that came, went, or changed since the page's figures of frames were written.
    large_changed: AtomicUsize,
    /// Live bytes less [`FrameBytes::used`] then.
    live_less_used: AtomicUsize,
    /// What was cached beside spare runs then.
    cached_objects: AtomicUsize,
    /// What had been given back then.
    released: AtomicUsize,
}

impl Figures {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            last_ms: AtomicU64::new(0),
            changed: AtomicUsize::new(0),
            large_changed: AtomicUsize::new(0),
            live_less_used: AtomicUsize::new(0),
            cached_objects: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
        }
    }
}

impl Heap {
    /// The figures, and those of frames with them.
    pub fn stats(&self) -> (Stats, FrameBytes) {
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
        let mut stats = Stats::default();
        for zone in self.live_zones() {
            let refaults = zone.lock.lock().refaults;
            let (reused, unused) = refaults.evidence();
            stats.reused += reused as usize * FRAME_BYTES;
            stats.unused += unused as usize * FRAME_BYTES;
            stats.lazy_zones += usize::from(refaults.lazy_first());
        }
        let frames = self.frame_bytes();
        (stats.dirty, stats.lazy) = (frames.dirty, frames.lazy);
        (stats.pending, stats.opened) = (frames.claimed, frames.opened);
        stats.large = frames.used.saturating_sub(span_bytes);
        let small = objects.saturating_sub(in_spans + cached);
        stats.live = small + stats.large + self.reserve.live_bytes();
        stats.in_spans = span_bytes.saturating_sub(small + cached + claimed);
        stats.pending += claimed;
        // Spare runs are read once: the page's figures subtract them again.
        stats.cached = cached + frames.spare;
        stats.metadata = self
            .region()
            .array_bytes(stats.opened / ebbtide_zone::BLOCK_BYTES)
            + self.record_bytes()
            + self.caches.slab_bytes()
            + batches / 64;
        let hooks = self.parts().hooks.iter();
        hooks.for_each(|hook| hook.account(self, &mut stats));
        stats.held = self.held.all() * FRAME_BYTES;
        stats::fill(&mut stats, self.allowance.is_short(clock::now_ms()));
        (stats, frames)
    }
}

/// Bytes of the zones' frames, by state.
#[derive(Default)]
pub struct FrameBytes {
    dirty: usize,
    lazy: usize,
    claimed: usize,
    opened: usize,
    /// With spans and large allocations, less what the latter own and do not use, and spare runs.
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
    /// A tick: so much was freed since the last one. No lock may be held.
    pub fn freed_since(&self, bytes: usize) {
        if !stats::is_shown() {
            return;
        }
        let bytes = bytes.saturating_sub(stats::take_large_freed());
        let changed = &self.figures.changed;
        if changed.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES {
            self.write_page();
        }
    }

    /// A large allocation came or went, or changed by so much. The whole page takes microseconds, so only what this changes
    /// is written. No lock may be held.
    #[inline]
    pub fn large_changed(&self, bytes: usize) {
        let changed = &self.figures.large_changed;
        if stats::is_shown() && changed.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHANGED_BYTES
        {
            self.write_frames();
        }
    }

    /// Brings the page up to date, now and then.
    pub fn refresh_page(&self, now: u64) {
        if !stats::is_shown() {
            return;
        }
        let last = self.figures.last_ms.load(Ordering::Relaxed);
        // After a large release all may be idle for long.
        let released =
            stats::released().wrapping_sub(self.figures.released.load(Ordering::Relaxed));
        if now.wrapping_sub(last) >= REFRESH_MS || released >= CHANGED_BYTES {
            self.figures.last_ms.store(now, Ordering::Relaxed);
            self.write_page();
        }
    }

    /// The figures of frames, and what follows from them: so many more or fewer are live than when the page was written.
    #[cold]
    fn write_frames(&self) {
        if stats::wants_file() || !stats::is_written() {
            return self.write_page();
        }
        let figures = &self.figures;
        figures.large_changed.store(0, Ordering::Relaxed);
        let frames = self.frame_bytes();
        let live = figures.live_less_used.load(Ordering::Relaxed);
        let stats = Stats {
            live: (live.wrapping_add(frames.used) as isize).max(0) as usize,
            cached: figures.cached_objects.load(Ordering::Relaxed) + frames.spare,
            dirty: frames.dirty,
            lazy: frames.lazy,
            opened: frames.opened,
            ..Stats::default()
        };
        stats::write_some(&stats, &self.config);
    }

    /// Writes the whole page.
    pub fn write_page(&self) {
        let figures = &self.figures;
        figures.changed.store(0, Ordering::Relaxed);
        figures.large_changed.store(0, Ordering::Relaxed);
        figures.released.store(stats::released(), Ordering::Relaxed);
        let (stats, frames) = self.stats();
        let live = stats.live.wrapping_sub(frames.used);
        figures.live_less_used.store(live, Ordering::Relaxed);
        let objects = stats.cached - frames.spare;
        figures.cached_objects.store(objects, Ordering::Relaxed);
        let config = &self.config;
        stats::write(&stats, self.caches.uses_sections(), config);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::AtomicBool;

    /// Otherwise the page's figure of objects would be what is left below zero.
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
                let (stats, frames) = inside.stats();
                stats.cached >= frames.spare
            });
            ends.store(true, Ordering::Relaxed);
            assert!(is_whole);
        });
    }
}
