//! The central lists of a class: a transfer list of full batches in front, spans behind it.
//!
//! ```text
//!  cpu_cache ── full batch ──▶ transfer: 64 nodes of 64 pointers, handed over by number
//!            ◀──────────────
//!            ── the rest ────▶ spans by fullness: 8 lists, the fullest serves first
//!            ◀──────────────                │ empty span ▼        ▲ new span
//!                                          frames
//! ```
//!
//! A batch moves in O(1) under the lock: a thread takes a node out, fills or empties it without the lock, and puts it
//! back. Spans have a lock of their own, held for at most [`MAX_BATCH`] objects at a time. Frames are fetched and
//! returned without that lock.
//!
//! - `INV-CENTRAL-1`: a span with free objects is on the list of its fullness, once. A full span is on no list. An empty
//!   span goes back to its zone at once.
//! - `INV-CENTRAL-2`: a returned object lies in a span of this class, at an object's start, and is not in the span
//!   already. Only misuse by the program breaks this; nothing is changed then.

pub mod reclaimable;
mod spans;
pub mod transfer;

use crate::base::ranks;
use crate::base::size_class::{CLASS, MAX_BATCH};
use crate::objects::Objects;
use crate::pages::Settings;
use crate::pages::span::{self, low_mask};
use core::sync::atomic::Ordering;
use ebbtide_sys::lock::Lock;
use ebbtide_sys::vm;
use ebbtide_zone::Frame;
pub use spans::SpanLists;
use transfer::Transfer;

/// The central lists of one class.
pub struct Central {
    /// Full batches.
    pub transfer: Lock<Transfer>,
    /// Spans.
    pub spans: Lock<SpanLists>,
}

impl Central {
    /// Nothing in it.
    pub const fn new() -> Self {
        Self {
            transfer: Lock::new(ranks::TRANSFER, Transfer::NEW),
            spans: Lock::new(ranks::SPANS, SpanLists::NEW),
        }
    }

    /// The bytes of this class, by place.
    pub fn bytes(&self, class: usize) -> ClassBytes {
        let about = &CLASS[class];
        let size = about.size as usize;
        let batches = self.transfer.lock().count;
        let lists = self.spans.lock();
        ClassBytes {
            batches: batches * about.batch as usize * size,
            in_spans: lists.free * size,
            claimed: lists.claimed * size,
            all: lists.spans * about.objects as usize * size,
            frames: lists.spans * about.frames as usize,
        }
    }
}

/// See [`Central::bytes`].
pub struct ClassBytes {
    /// Objects in full batches.
    pub batches: usize,
    /// Objects in spans.
    pub in_spans: usize,
    /// Objects in frames that are being released.
    pub claimed: usize,
    /// All objects of all spans.
    pub all: usize,
    /// Frames (not bytes) of all spans.
    pub frames: usize,
}

impl Objects {
    /// Takes up to `into.len()` objects of `class` into the front of `into`. The objects that should be used first
    /// are at the end. 0: out of memory.
    pub fn take_objects(&self, class: usize, into: &mut [usize]) -> usize {
        debug_assert!(into.len() <= MAX_BATCH);
        if into.len() == CLASS[class].batch as usize && self.take_batch(class, into) {
            return into.len();
        }
        let central = &self.central[class];
        loop {
            // SAFETY: the lists are of this class, under its lock.
            let taken = unsafe { central.spans.lock().take(self, class, into) };
            if taken > 0 {
                return taken;
            }
            if self.add_span(class).is_none() {
                return 0;
            }
        }
    }

    /// Puts objects of `class` back. Misuse by the program ends the process.
    pub fn put_objects(&self, class: usize, objects: &[usize]) {
        if objects.len() == CLASS[class].batch as usize && self.put_batch(class, objects) {
            return;
        }
        self.put_in_spans(class, objects);
    }

    /// Puts at most [`MAX_BATCH`] objects into their spans. Spans that become empty go back to their zones.
    pub fn put_in_spans(&self, class: usize, objects: &[usize]) {
        debug_assert!(objects.len() <= MAX_BATCH);
        self.count_freed(objects.len() * CLASS[class].size as usize);
        let mut emptied = [0; MAX_BATCH];
        let mut count = 0;
        let result = {
            let mut lists = self.central[class].spans.lock();
            let emptied = |span| {
                emptied[count] = span;
                count += 1;
            };
            // SAFETY: as in `take_objects`.
            unsafe { lists.put(self, class, objects, emptied) }
        };
        for &span in &emptied[..count] {
            // SAFETY: the span is on no list and all its objects are in it: no other thread knows it.
            unsafe { self.return_span(class, span) };
        }
        if let Err(misuse) = result {
            misuse.abort(class);
        }
    }

    /// Puts frames back into the span from which a depopulation claimed them.
    ///
    /// # Safety
    /// A depopulation claimed them, and they have not been put back.
    pub unsafe fn put_span_frames(
        &self,
        first: Frame,
        count: u32,
        clean: bool,
        unsplit: bool,
        under_lock: impl FnOnce(),
    ) {
        let region = self.region();
        // SAFETY: frames of a living span; only fields that do not change while it lives are read.
        let (index, span) = unsafe { span::of_frame(region, first) };
        let class = span.class as usize;
        let frames = low_mask(count) << (first.0 - span.first);
        let emptied = {
            let mut lists = self.central[class].spans.lock();
            // SAFETY: under the lists' lock, by contract claimed.
            let emptied = unsafe { lists.repopulate(self, class, index, frames, clean, unsplit) };
            under_lock();
            emptied
        };
        if emptied {
            // SAFETY: the span is on no list and all its objects are in it.
            unsafe { self.return_span(class, index) };
        }
    }

    /// Gets frames for a span and puts it on the list. `None`: out of memory.
    fn add_span(&self, class: usize) -> Option<()> {
        let (region, about) = (self.region(), &CLASS[class]);
        let index = self.take_record()?;
        // A span has as few pages of the kernel in common with other frames as possible.
        let frames = u32::from(about.frames);
        let align = vm::page_frames().min(frames.next_power_of_two());
        let Some(run) = self.take_run(frames, align) else {
            self.put_record(index);
            return None;
        };
        for frame in (run.first.0..run.first.0 + run.frames).map(Frame) {
            // SAFETY: the frames were just taken from a zone, so they are opened.
            unsafe {
                region.span_of(frame).store(index, Ordering::Relaxed);
                region.class_of(frame).store(class as u8, Ordering::Relaxed);
            }
        }
        if self.is_paged(class) {
            self.close_guard_pages(class, run.first);
        }
        // SAFETY: a fresh record, known to no other thread yet.
        let span = unsafe { span::record(region, index) };
        span.begin(class, about, run.first, run.clean);
        let mut lists = self.central[class].spans.lock();
        lists.spans += 1;
        lists.free += about.objects as usize;
        // SAFETY: under the lock of the lists.
        unsafe { lists.link(self, index, false) };
        Some(())
    }

    /// # Safety
    /// Only the caller knows the span, which is empty and on no list.
    unsafe fn return_span(&self, class: usize, index: u32) {
        let region = self.region();
        // SAFETY: by contract.
        let span = unsafe { span::record(region, index) };
        let (first, frames) = (Frame(span.first), span.frames);
        let dirty = low_mask(span.touched_frames(&CLASS[class])) & !span.released;
        for frame in (first.0..first.0 + frames).map(Frame) {
            // SAFETY: frames of a span are opened.
            unsafe { region.class_of(frame) }.store(0, Ordering::Relaxed);
        }
        self.put_record(index);
        self.put_cluster(first, frames, dirty);
    }
}

impl Settings {
    /// The first frame of the span that a frame belongs to.
    pub fn span_start(&self, frame: Frame) -> u32 {
        // SAFETY: only called for frames of living spans, whose first frame does not change.
        unsafe { span::of_frame(self.region(), frame) }.1.first
    }
}
