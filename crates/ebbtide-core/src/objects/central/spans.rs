//! The spans of a class with free objects, in lists by fullness. The empty frames of these spans are depopulated here.

use crate::base::size_class::{CLASS, Class};
use crate::objects::Objects;
use crate::pages::span::{self, Misuse, Span, low_mask};
use core::sync::atomic::Ordering;
use ebbtide_sys::vm;
use ebbtide_zone::retain::Retain;
use ebbtide_zone::{FRAME_BYTES, Frame};

/// Lists of spans by fullness.
const BUCKETS: usize = 8;
/// At least this many bytes must have returned before the spans are scanned again.
const MARK_BYTES: usize = 64 << 10;

/// Spans with free objects, by fullness. The lists are rings; `heads` has their first spans.
pub struct SpanLists {
    /// First span, as index plus one.
    heads: [u32; BUCKETS],
    /// Bit set: the list has a span.
    mask: u8,
    /// Spans of this class.
    pub(super) spans: usize,
    /// Objects in them.
    pub(super) free: usize,
    /// Objects taken out while their frames are released.
    pub(super) claimed: usize,
    /// Frames of living spans that are released.
    released: usize,
    /// Objects that returned since the last scan of all spans.
    returned: usize,
    /// Objects whose frames could not be released, or were not tried because other frames of their block could not
    /// be.
    unsplit: usize,
    /// The recent peak of bytes in use.
    retain: Retain,
}

impl SpanLists {
    /// # Safety
    /// Lists of `class` in `heap`, under their lock.
    pub(super) unsafe fn take(
        &mut self,
        heap: &Objects,
        class: usize,
        into: &mut [usize],
    ) -> usize {
        let region = heap.region();
        let about = &CLASS[class];
        let mut left = into.len();
        while left > 0 && self.mask != 0 {
            let bucket = self.mask.ilog2() as usize;
            let index = self.heads[bucket] - 1;
            // SAFETY: spans on the lists belong to them.
            let span = unsafe { span::record(region, index) };
            let address = region.address(Frame(span.first));
            let before = span.released.count_ones();
            left -= span.take(about, address, &mut into[..left]);
            self.released -= (before - span.released.count_ones()) as usize;
            // SAFETY: as above.
            unsafe { self.settle(heap, index, false) };
        }
        let taken = into.len() - left;
        self.free -= taken;
        self.retain.rise(self.out_bytes(about));
        into.copy_within(left.., 0);
        taken
    }

    /// Puts objects back. `emptied` gets the spans that became empty and were taken off their list. Memory that the
    /// program frees together often lies together, so consecutive objects of one span are put back in one step.
    ///
    /// # Safety
    /// As [`Self::take`].
    pub(super) unsafe fn put(
        &mut self,
        heap: &Objects,
        class: usize,
        objects: &[usize],
        mut emptied: impl FnMut(u32),
    ) -> Result<(), Misuse> {
        let (region, about) = (heap.region(), &CLASS[class]);
        let mut rest = objects;
        while let Some(&object) = rest.first() {
            let frame = region.frame(object);
            if heap.is_abandoned(frame) {
                rest = &rest[1..];
                continue;
            }
            // SAFETY: the class of the frame was read as `class` when the program freed the object, so the frame is
            // opened.
            let of_frame = unsafe { region.class_of(frame) }.load(Ordering::Relaxed);
            if of_frame as usize != class {
                // The object was in a cache twice: its span was returned meanwhile.
                return Err(Misuse::DoubleFree(object));
            }
            // SAFETY: the frame's class is ours, so its span is on our lists or full, or just became empty.
            let (index, span) = unsafe { span::of_frame(region, frame) };
            let address = region.address(Frame(span.first));
            let (count, misuse) = span.put_run(about, address, rest);
            if count > 0 {
                self.free += count;
                self.add_returned(heap, class, count);
                // SAFETY: as above; objects went in, so it was not empty before.
                if unsafe { self.settle(heap, index, false) } {
                    emptied(index);
                }
            }
            if let Some(misuse) = misuse {
                return Err(misuse);
            }
            if count == 0 {
                // The frame's class names this span, but the object is none of the span's. Stop here: never repeat
                // the same step.
                return Err(Misuse::Interior(object));
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Moves a span to the list of its fullness after objects were taken or put (`INV-CENTRAL-1`). Returns whether
    /// the span became empty and was taken off.
    unsafe fn settle(&mut self, heap: &Objects, index: u32, back: bool) -> bool {
        // SAFETY: by contract of the callers.
        unsafe {
            let span = span::record(heap.region(), index);
            let objects = CLASS[span.class as usize].objects;
            if span.free == objects {
                self.released -= span.released.count_ones() as usize;
                self.unlink(heap, index);
                self.spans -= 1;
                self.free -= objects as usize;
                return true;
            }
            let wanted = bucket_of(span);
            if span.bucket as usize != wanted {
                self.unlink(heap, index);
                if wanted != 0 {
                    self.link(heap, index, back);
                }
            }
        }
        false
    }

    /// Puts a span at the front of its list, or at its back for a depopulation, which goes round the list.
    pub(super) unsafe fn link(&mut self, heap: &Objects, index: u32, back: bool) {
        // SAFETY: by contract of the callers; neighbours are on the same list.
        unsafe {
            let span = span::record(heap.region(), index);
            let bucket = bucket_of(span);
            span.bucket = bucket as u8;
            let head = &mut self.heads[bucket - 1];
            if *head == 0 {
                (span.prev, span.next) = (index + 1, index + 1);
                *head = index + 1;
                self.mask |= 1 << (bucket - 1);
                return;
            }
            let first = *head;
            let last = span::record(heap.region(), first - 1).prev;
            (span.prev, span.next) = (last, first);
            span::record(heap.region(), first - 1).prev = index + 1;
            span::record(heap.region(), last - 1).next = index + 1;
            if !back {
                *head = index + 1;
            }
        }
    }

    unsafe fn unlink(&mut self, heap: &Objects, index: u32) {
        // SAFETY: by contract of the callers; neighbours are on the same list.
        unsafe {
            let span = span::record(heap.region(), index);
            let Some(list) = (span.bucket as usize).checked_sub(1) else {
                return;
            };
            let (prev, next) = (span.prev, span.next);
            span.bucket = 0;
            if next == index + 1 {
                self.heads[list] = 0;
                self.mask &= !(1 << list);
                return;
            }
            span::record(heap.region(), prev - 1).next = next;
            span::record(heap.region(), next - 1).prev = prev;
            if self.heads[list] == index + 1 {
                self.heads[list] = next;
            }
        }
    }

    /// No spans.
    pub const NEW: Self = Self {
        heads: [0; BUCKETS],
        mask: 0,
        spans: 0,
        free: 0,
        claimed: 0,
        released: 0,
        returned: 0,
        unsplit: 0,
        retain: Retain::new(),
    };

    /// Bytes of free objects beyond the recent peak, as far as they are known to be populated. 0 if little has
    /// returned since the last scan of all spans.
    pub fn due(&mut self, class: usize, now: u64, window_ms: u64) -> usize {
        let out = self.out_bytes(&CLASS[class]);
        self.retain.observe(now, out);
        match self.waiting(class) as u64 {
            0 => 0,
            free => self.retain.due(now, window_ms, out, free, None) as usize,
        }
    }

    /// Bytes of objects in caches or with the program.
    fn out_bytes(&self, about: &Class) -> u64 {
        let objects = self.spans * about.objects as usize - self.free - self.claimed;
        (objects * about.size as usize) as u64
    }

    /// Bytes of free objects that may be worth a scan, as far as they are known to be populated.
    pub fn waiting(&self, class: usize) -> usize {
        let size = CLASS[class].size as usize;
        if self.is_reclaimable(size) {
            (self.free * size).saturating_sub(self.released * FRAME_BYTES)
        } else {
            0
        }
    }

    fn is_reclaimable(&self, size: usize) -> bool {
        self.returned * size >= MARK_BYTES
    }

    fn add_returned(&mut self, heap: &Objects, class: usize, objects: usize) {
        self.returned += objects;
        if self.is_reclaimable(CLASS[class].size as usize) {
            heap.reclaimable.mark(class);
        }
    }

    /// Notes that all spans have been scanned.
    pub fn looked_at_all(&mut self, heap: &Objects, class: usize) {
        self.returned = 0;
        heap.reclaimable.unmark(class);
    }

    /// Frames that could not be released are worth another scan.
    pub fn clear_unsplit(&mut self, heap: &Objects, class: usize) {
        let unsplit = core::mem::take(&mut self.unsplit);
        self.add_returned(heap, class, unsplit);
    }

    /// Scans up to `spans` spans that round `round` has not scanned, emptiest first, and claims their empty frames:
    /// `each` gets first frame and count of every run. `false`: all spans are scanned.
    ///
    /// # Safety
    /// As [`Self::take`].
    pub unsafe fn depopulate(
        &mut self,
        heap: &Objects,
        class: usize,
        round: u32,
        spans: usize,
        mut each: impl FnMut(Frame, u32),
    ) -> bool {
        let (region, about) = (heap.region(), &CLASS[class]);
        let mut looked = 0;
        for list in 0..BUCKETS {
            while self.heads[list] != 0 {
                if looked == spans {
                    return true;
                }
                let index = self.heads[list] - 1;
                // SAFETY: spans on the lists belong to them.
                let span = unsafe { span::record(region, index) };
                if span.scanned == round {
                    break;
                }
                span.scanned = round;
                self.heads[list] = span.next;
                looked += 1;
                let whole = heap.may_be_huge(Frame(span.first));
                let empty = span.empty_frames(about, whole, vm::page_frames());
                if empty == 0 {
                    continue;
                }
                if whole && heap.is_held(Frame(span.first).block()) {
                    // Other frames of the block could not be released: these frames could not be, either.
                    if span.unsplit_generation != heap.unsplit.generation() {
                        span.unsplit_generation = heap.unsplit.generation();
                        heap.unsplit.add_in_span(empty.count_ones());
                        let bytes = empty.count_ones() as usize * FRAME_BYTES;
                        self.unsplit += (bytes / about.size as usize).max(1);
                    }
                    continue;
                }
                let claimed = span.claim(about, empty);
                self.free -= claimed;
                self.claimed += claimed;
                let first = span.first;
                // SAFETY: as above.
                unsafe { self.settle(heap, index, true) };
                for_each_run(empty, |at, count| each(Frame(first + at), count));
            }
        }
        false
    }

    /// Puts frames of one span back that [`Self::depopulate`] claimed. Returns whether the span became empty and
    /// was taken off.
    ///
    /// # Safety
    /// As [`Self::take`], and the frames were claimed.
    pub(super) unsafe fn repopulate(
        &mut self,
        heap: &Objects,
        class: usize,
        index: u32,
        frames: u64,
        clean: bool,
        unsplit: bool,
    ) -> bool {
        // SAFETY: a span with claimed objects lives.
        let span = unsafe { span::record(heap.region(), index) };
        let before = span.released.count_ones();
        let objects = span.unclaim(&CLASS[class], frames, clean);
        self.released += (span.released.count_ones() - before) as usize;
        self.claimed -= objects;
        self.free += objects;
        if unsplit {
            self.unsplit += objects;
            span.unsplit_generation = heap.unsplit.generation();
        } else if !clean {
            // The frames were not tried: worth another scan.
            self.add_returned(heap, class, objects);
        }
        // SAFETY: as above.
        unsafe { self.settle(heap, index, true) }
    }
}

/// Calls `each` with start and length of every run of set bits.
fn for_each_run(mut bits: u64, mut each: impl FnMut(u32, u32)) {
    while bits != 0 {
        let start = bits.trailing_zeros();
        let count = (!(bits >> start)).trailing_zeros().min(64 - start);
        each(start, count);
        bits &= !(low_mask(count) << start);
    }
}

/// The list for a span, plus one: 8 is the fullest. 0 for a span without free objects.
fn bucket_of(span: &Span) -> usize {
    let objects = CLASS[span.class as usize].objects as usize;
    if span.free == 0 {
        return 0;
    }
    let used = objects - span.free as usize;
    used * BUCKETS / objects + 1
}
