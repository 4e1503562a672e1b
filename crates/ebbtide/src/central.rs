//! The central lists of a class: full batches in front, spans behind.
//!
//! ```text
//!  cpu_cache ── full batch ──▶ transfer: 64 nodes of 64 pointers, handed over by number
//!            ◀──────────────
//!            ── the rest ────▶ spans by fullness: 8 lists, the fullest serves first
//!            ◀──────────────                │ empty span ▼        ▲ new span
//!                                          frames
//! ```
//!
//! A batch changes hands in O(1) under the lock: a node is taken out, filled or emptied by its holder
//! outside, and put back in. Spans are worked on under a lock of their own, at most
//! [`MAX_BATCH`] objects at a time; frames are fetched and returned without it.
//!
//! - `INV-CENTRAL-1`: a span with free objects is on the list of its fullness, once; a full one is on
//!   none; an empty one goes back to its zone at once.
//! - `INV-CENTRAL-2`: an object that comes back lies in a span of this class, at an object's start, and
//!   is not in the span already. What breaks this is the program's mistake; nothing is changed then.

use crate::heap::Heap;
use crate::ranks;
use crate::report::Line;
use crate::size_class::{CLASS, MAX_BATCH};
use crate::span::{self, Span, low_mask};
use core::sync::atomic::Ordering;
use ebbtide_sys::lock::Lock;
use ebbtide_zone::retain::Retain;
use ebbtide_zone::{FRAME_BYTES, Frame};

/// Lists of spans by fullness.
const BUCKETS: usize = 8;
/// Batch nodes of a class.
const NODES: usize = 64;
/// So much must have come back before the spans are looked at again.
const NEWS_BYTES: usize = 64 << 10;
/// Bytes of a batch node.
const NODE_BYTES: usize = MAX_BATCH * 8;
/// Bytes of all nodes of all classes, address space until used.
pub const NODES_BYTES: usize = crate::size_class::CLASSES * NODES * NODE_BYTES;

/// The central lists of one class.
pub struct Central {
    /// Full batches.
    pub transfer: Lock<Transfer>,
    /// Spans.
    pub spans: Lock<SpanLists>,
}

/// Which nodes hold a full batch, the newest last, and which are empty. A node that is neither is
/// being filled or emptied.
pub struct Transfer {
    full: [u8; NODES],
    count: usize,
    empty: u64,
    /// Rounds of the release engine since a batch came or went.
    idle_rounds: usize,
}

/// Spans with free objects, by fullness. The lists are rings; `heads` is where they are entered.
pub struct SpanLists {
    /// First span, as index plus one.
    heads: [u32; BUCKETS],
    /// Bit set: the list has a span.
    mask: u8,
    /// Spans of this class.
    spans: usize,
    /// Objects in them.
    free: usize,
    /// Objects taken out while their frames are released.
    claimed: usize,
    /// Frames of living spans that are released.
    released: usize,
    /// Objects that came back since all spans were looked at.
    news: usize,
    /// The recent peak of bytes out.
    retain: Retain,
    /// The most objects out since the last look.
    high: usize,
}

/// What came back is not an object of the class that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// It is in its span already.
    DoubleFree(usize),
    /// It is inside an object, or behind the last one.
    Interior(usize),
}

impl Misuse {
    /// Says so and aborts.
    pub fn abort(self, class: usize) -> ! {
        let (what, address) = match self {
            Self::DoubleFree(address) => ("double free of ", address),
            Self::Interior(address) => {
                ("free of a pointer into the middle of an object: ", address)
            }
        };
        let size = CLASS[class].size as usize;
        Line::new()
            .text(what)
            .address(address)
            .text(", size class ")
            .number(size)
            .abort()
    }
}

impl Central {
    /// Nothing in it.
    pub const fn new() -> Self {
        let transfer = Transfer {
            full: [0; NODES],
            count: 0,
            empty: u64::MAX,
            idle_rounds: 0,
        };
        let lists = SpanLists::NEW;
        Self {
            transfer: Lock::new(ranks::TRANSFER, transfer),
            spans: Lock::new(ranks::SPANS, lists),
        }
    }

    /// Where the bytes of this class are.
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
    /// Objects of frames that are being released.
    pub claimed: usize,
    /// All objects of all spans.
    pub all: usize,
    /// Frames (not bytes) of all spans.
    pub frames: usize,
}

impl Heap {
    /// Takes up to `into.len()` objects of `class` into the front of `into`, those to be used
    /// first at the end. 0: out of memory.
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
            if !self.add_span(class) {
                return 0;
            }
        }
    }

    /// Gives objects of `class` back. Misuse by the program ends the process.
    pub fn put_objects(&self, class: usize, objects: &[usize]) {
        if objects.len() == CLASS[class].batch as usize && self.put_batch(class, objects) {
            return;
        }
        self.put_in_spans(class, objects);
    }

    fn node(&self, class: usize, node: u8) -> *mut usize {
        (self.caches.nodes() + (class * NODES + node as usize) * NODE_BYTES) as *mut usize
    }

    fn take_batch(&self, class: usize, into: &mut [usize]) -> bool {
        let transfer = &self.central[class].transfer;
        let Some(node) = transfer.lock().take_full() else {
            return false;
        };
        // SAFETY: a node that is in neither list belongs to whoever took it out.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(self.node(class, node), into.len())
        };
        transfer.lock().put_empty(node);
        true
    }

    fn put_batch(&self, class: usize, objects: &[usize]) -> bool {
        let transfer = &self.central[class].transfer;
        let limit = CLASS[class].transfer as usize;
        let Some(node) = transfer.lock().take_empty(limit) else {
            return false;
        };
        // SAFETY: as in `take_batch`.
        unsafe {
            self.node(class, node)
                .copy_from_nonoverlapping(objects.as_ptr(), objects.len());
        }
        transfer.lock().put_full(node);
        true
    }

    /// Empties the full batches of a class into its spans.
    pub fn drain_transfer(&self, class: usize) {
        let mut objects = [0; MAX_BATCH];
        let objects = &mut objects[..CLASS[class].batch as usize];
        while self.take_batch(class, objects) {
            self.put_in_spans(class, objects);
        }
    }

    /// Puts objects into their spans, and frames of spans that got empty into their zones.
    pub fn put_in_spans(&self, class: usize, objects: &[usize]) {
        self.count_freed(objects.len() * CLASS[class].size as usize);
        let mut emptied = [0; MAX_BATCH];
        let mut count = 0;
        for objects in objects.chunks(MAX_BATCH) {
            let result = {
                let mut lists = self.central[class].spans.lock();
                objects.iter().try_for_each(|&object| {
                    // SAFETY: as in `take_objects`.
                    if let Some(span) = unsafe { lists.put(self, class, object) }? {
                        emptied[count] = span;
                        count += 1;
                    }
                    Ok::<_, Misuse>(())
                })
            };
            for &span in &emptied[..count] {
                // SAFETY: it is on no list and all its objects are in it: nobody else knows it.
                unsafe { self.return_span(class, span) };
            }
            count = 0;
            if let Err(misuse) = result {
                misuse.abort(class);
            }
        }
    }

    /// The first frame of the span that a frame belongs to.
    pub fn span_start(&self, frame: Frame) -> u32 {
        let region = self.region();
        // SAFETY: asked of frames of living spans only, whose first frame does not change.
        unsafe { span::record(region, region.span_of(frame).load(Ordering::Relaxed)).first }
    }

    /// Puts frames back into the span that they were claimed from by a depopulation.
    ///
    /// # Safety
    /// They were claimed so and have not been put back.
    pub unsafe fn put_span_frames(
        &self,
        first: Frame,
        count: u32,
        clean: bool,
        under_lock: impl FnOnce(),
    ) {
        let region = self.region();
        // SAFETY: frames of a living span.
        let (class, index) = unsafe {
            let class = region.class_of(first).load(Ordering::Relaxed) as usize;
            (class, region.span_of(first).load(Ordering::Relaxed))
        };
        // SAFETY: as above; only what does not change while the span lives is read.
        let start = first.0 - unsafe { span::record(region, index) }.first;
        let frames = low_mask(count) << start;
        let emptied = {
            let mut lists = self.central[class].spans.lock();
            // SAFETY: under the lists' lock, by contract claimed.
            let emptied = unsafe { lists.repopulate(self, class, index, frames, clean) };
            under_lock();
            emptied
        };
        if let Some(index) = emptied {
            // SAFETY: it is on no list and all its objects are in it.
            unsafe { self.return_span(class, index) };
        }
    }

    /// Gets frames for a span and puts it on the list. `false`: out of memory.
    fn add_span(&self, class: usize) -> bool {
        let about = &CLASS[class];
        let Some(index) = span::take_record(&self.records, self.region()) else {
            return false;
        };
        let Some(run) = self.take_run(about.frames as u32, 1) else {
            span::put_record(&self.records, self.region(), index);
            return false;
        };
        let region = self.region();
        for frame in run.first.0..run.first.0 + run.frames {
            // SAFETY: the frames were just taken from a zone, so they are opened.
            unsafe {
                region.span_of(Frame(frame)).store(index, Ordering::Relaxed);
                region
                    .class_of(Frame(frame))
                    .store(class as u8, Ordering::Relaxed);
            }
        }
        // SAFETY: a fresh record, known to nobody else yet.
        unsafe { span::record(region, index) }.begin(class, about, run.first, run.clean);
        let mut lists = self.central[class].spans.lock();
        lists.spans += 1;
        lists.free += about.objects as usize;
        // SAFETY: under the lock of the lists.
        unsafe { lists.link(self, index, false) };
        true
    }

    /// # Safety
    /// The caller alone knows the span, which is empty and on no list.
    unsafe fn return_span(&self, class: usize, index: u32) {
        let region = self.region();
        // SAFETY: by contract.
        let span = unsafe { span::record(region, index) };
        let (first, frames) = (Frame(span.first), span.frames);
        let dirty = low_mask(span.touched_frames(&CLASS[class])) & !span.released;
        for frame in first.0..first.0 + frames {
            // SAFETY: frames of a span are opened.
            unsafe { region.class_of(Frame(frame)) }.store(0, Ordering::Relaxed);
        }
        span::put_record(&self.records, region, index);
        let mut at = 0;
        while at < frames {
            // A run of frames in one state.
            let is_dirty = dirty >> at & 1 == 1;
            let same = if is_dirty { !dirty } else { dirty } >> at;
            let count = same.trailing_zeros().min(frames - at);
            self.put_run(Frame(first.0 + at), count, if is_dirty { count } else { 0 });
            at += count;
        }
    }
}

impl Transfer {
    /// `None`: no full batch; else for how many rounds none came or went, this one counted, and how many
    /// there are.
    pub fn idle(&mut self) -> Option<(usize, usize)> {
        if self.count == 0 {
            return None;
        }
        self.idle_rounds += 1;
        Some((self.idle_rounds, self.count))
    }

    fn take_full(&mut self) -> Option<u8> {
        self.idle_rounds = 0;
        self.count = self.count.checked_sub(1)?;
        Some(self.full[self.count])
    }

    fn put_full(&mut self, node: u8) {
        self.idle_rounds = 0;
        self.full[self.count] = node;
        self.count += 1;
    }

    fn take_empty(&mut self, limit: usize) -> Option<u8> {
        if self.count >= limit || self.empty == 0 {
            return None;
        }
        let node = self.empty.trailing_zeros();
        self.empty &= self.empty - 1;
        Some(node as u8)
    }

    fn put_empty(&mut self, node: u8) {
        self.empty |= 1 << node;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.count, self.empty) = (0, u64::MAX);
    }
}

impl SpanLists {
    /// # Safety
    /// Lists of `class` in `heap`, under their lock.
    unsafe fn take(&mut self, heap: &Heap, class: usize, into: &mut [usize]) -> usize {
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
        let out = self.spans * about.objects as usize - self.free - self.claimed;
        self.high = self.high.max(out);
        into.copy_within(left.., 0);
        taken
    }

    /// Puts one object back; `Some` span that got empty and was taken off.
    ///
    /// # Safety
    /// As [`Self::take`].
    unsafe fn put(
        &mut self,
        heap: &Heap,
        class: usize,
        object: usize,
    ) -> Result<Option<u32>, Misuse> {
        let region = heap.region();
        let frame = region.frame(object);
        if heap.is_abandoned(frame) {
            return Ok(None);
        }
        // SAFETY: the class of the frame was read as `class` when the program freed the object, so
        // the frame is opened.
        let (of_frame, index) = unsafe {
            (
                region.class_of(frame).load(Ordering::Relaxed),
                region.span_of(frame).load(Ordering::Relaxed),
            )
        };
        if of_frame as usize != class {
            // Its span was returned while the object was in a cache: it was there twice.
            return Err(Misuse::DoubleFree(object));
        }
        // SAFETY: the frame's class is ours, so its span is on our lists or full.
        let span = unsafe { span::record(region, index) };
        let about = &CLASS[class];
        let (number, exact) = about.object_at(object - region.address(Frame(span.first)));
        if !exact || number >= about.objects as usize {
            return Err(Misuse::Interior(object));
        }
        if !span.put(number) {
            return Err(Misuse::DoubleFree(object));
        }
        self.free += 1;
        self.news += 1;
        if span.free == about.objects {
            self.released -= span.released.count_ones() as usize;
            // SAFETY: as above.
            unsafe { self.unlink(heap, index) };
            self.spans -= 1;
            self.free -= about.objects as usize;
            return Ok(Some(index));
        }
        // SAFETY: as above.
        unsafe { self.settle(heap, index, false) };
        Ok(None)
    }

    /// Moves a span to the list of its fullness (`INV-CENTRAL-1`).
    unsafe fn settle(&mut self, heap: &Heap, index: u32, back: bool) {
        // SAFETY: by contract of the callers.
        unsafe {
            let span = span::record(heap.region(), index);
            let wanted = bucket_of(span);
            if span.bucket as usize == wanted {
                return;
            }
            self.unlink(heap, index);
            if wanted != 0 {
                self.link(heap, index, back);
            }
        }
    }

    /// Puts a span on its list, in front; at the back for a depopulation, which goes round the list.
    unsafe fn link(&mut self, heap: &Heap, index: u32, back: bool) {
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

    unsafe fn unlink(&mut self, heap: &Heap, index: u32) {
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

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::NEW;
    }

    const NEW: Self = Self {
        heads: [0; BUCKETS],
        mask: 0,
        spans: 0,
        free: 0,
        claimed: 0,
        released: 0,
        news: 0,
        retain: Retain::new(),
        high: 0,
    };

    /// Bytes of free objects, populated as far as is known, beyond what the recent peak will want again.
    /// 0 when little has come back since all spans were looked at.
    pub fn due(&mut self, class: usize, now: u64, window_ms: u64) -> usize {
        let about = &CLASS[class];
        let size = about.size as usize;
        let out = self.spans * about.objects as usize - self.free - self.claimed;
        let high = core::mem::replace(&mut self.high, out).max(out);
        self.retain.observe(now, (high * size) as u64);
        self.retain.observe(now, (out * size) as u64);
        if self.news * size < NEWS_BYTES {
            return 0;
        }
        let free = (self.free * size).saturating_sub(self.released * FRAME_BYTES) as u64;
        self.retain
            .due(now, window_ms, (out * size) as u64, free, None) as usize
    }

    /// Bytes of free objects that may be worth a look.
    pub fn waiting(&self, class: usize) -> usize {
        let size = CLASS[class].size as usize;
        if self.news * size < NEWS_BYTES {
            0
        } else {
            self.free * size
        }
    }

    /// All spans have been looked at.
    pub fn looked_at_all(&mut self) {
        self.news = 0;
    }

    /// Looks at up to `spans` spans, emptiest first, that round `round` has not seen, and claims their
    /// empty frames: `each` is told first frame and count of every run. `false`: all seen.
    ///
    /// # Safety
    /// As [`Self::take`].
    pub unsafe fn depopulate(
        &mut self,
        heap: &Heap,
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
                let empty = span.empty_frames(about, whole);
                if empty == 0 {
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

    /// Puts back what [`Self::depopulate`] claimed: frames of one span. `Some`: it got empty and was taken
    /// off.
    ///
    /// # Safety
    /// As [`Self::take`], and the frames were claimed.
    unsafe fn repopulate(
        &mut self,
        heap: &Heap,
        class: usize,
        index: u32,
        frames: u64,
        clean: bool,
    ) -> Option<u32> {
        let about = &CLASS[class];
        // SAFETY: a span with claimed objects lives.
        let span = unsafe { span::record(heap.region(), index) };
        let before = span.released.count_ones();
        let objects = span.unclaim(about, frames, clean);
        self.released += (span.released.count_ones() - before) as usize;
        self.claimed -= objects;
        self.free += objects;
        if !clean {
            // Worth another look.
            self.news += objects;
        }
        if span.free == about.objects {
            self.released -= span.released.count_ones() as usize;
            // SAFETY: as above.
            unsafe { self.unlink(heap, index) };
            self.spans -= 1;
            self.free -= about.objects as usize;
            return Some(index);
        }
        // SAFETY: as above.
        unsafe { self.settle(heap, index, true) };
        None
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

/// The list for a span, plus one: 8 the fullest. 0 for a span without free objects.
fn bucket_of(span: &Span) -> usize {
    let objects = CLASS[span.class as usize].objects as usize;
    if span.free == 0 {
        return 0;
    }
    let used = objects - span.free as usize;
    used * BUCKETS / objects + 1
}
