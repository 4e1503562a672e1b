//! Span records: the description of a run of frames that holds objects, or of a large allocation.
//!
//! A record is found from a frame through `span_of_frame`. A bit map in the record, outside of the objects, tracks them.
//! Free objects hold no links, so freed memory is never written, and any empty page of a span can be released.
//!
//! | owner | fields | guarded by |
//! |---|---|---|
//! | a class's central list | all | that list's lock |
//! | a large allocation | `frames`, `blocks`, `tail` | its owner, the program |
//! | the free list of records | `next` | the table's lock |
//!
//! - `INV-SPAN-1`: bit set = the object is in the span; clear = with a cache or the program.
//!   `free` is the number of set bits.
//! - `INV-SPAN-3`: a frame in `released` is clean, and every object that overlaps it is in the span.
//! - `INV-SPAN-2`: objects from `high` on were never handed out. Their frames are as they came from the zone.

mod run;

use crate::base::message::Message;
use crate::base::size_class::{CLASS, Class, MAX_OBJECTS};
use crate::base::stats::{self, word};
use crate::pages::Pages;
use crate::pages::region::{RECORD_BYTES, Region};
use core::sync::atomic::Ordering;
use ebbtide_zone::{FRAME_BYTES, Frame, bits};

/// A record. Zeroed memory is valid.
#[repr(C, align(64))]
pub struct Span {
    /// Neighbours on a list, as index plus one.
    pub next: u32,
    /// See `next`.
    pub prev: u32,
    /// The first frame.
    pub first: u32,
    /// Frames of a span; frames in use of a large allocation.
    pub frames: u32,
    /// Whole pageblocks that a large allocation owns (see `large`).
    pub blocks: u32,
    /// The class, 0 for a large allocation or a record without owner.
    pub class: u8,
    /// The list that the span is on, plus one; 0 for none.
    pub bucket: u8,
    /// Whether the frames of a span were clean when they came from the zone.
    pub was_clean: bool,
    /// Objects in the span (`INV-SPAN-1`).
    pub free: u16,
    /// All objects that were ever handed out lie below this number (`INV-SPAN-2`).
    pub high: u16,
    /// Of a large allocation: the frames at its start that lie in a mapping of their own because they were moved
    /// there.
    pub moved_frames: u32,
    /// The depopulation that last scanned the span.
    pub scanned: u32,
    /// Frames whose memory was released while the span lives, one bit each (`INV-SPAN-3`).
    pub released: u64,
    /// The retry period in which its empty frames were counted as unsplit; 0 for none.
    pub unsplit_generation: u32,
    /// Bytes of a large allocation's last page beyond the requested size, with `harden=on`; 0 without.
    pub tail: u16,
    spare: [u8; 10],
    /// One bit per object, set = in the span. Of a large allocation: its sample.
    pub map: [u64; MAX_OBJECTS / 64],
}

const _: () = assert!(size_of::<Span>() == RECORD_BYTES);
const _: () = {
    use core::mem::offset_of;
    use ebbtide_interface::records::span;
    assert!(offset_of!(Span, first) == span::FIRST && offset_of!(Span, frames) == span::FRAMES);
    assert!(offset_of!(Span, blocks) == span::BLOCKS);
    assert!(offset_of!(Span, class) == span::CLASS && offset_of!(Span, map) == span::MAP);
    assert!(MAX_OBJECTS / 8 == span::MAP_BYTES);
};

/// A returned address is no object of the class that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object is in its span already.
    DoubleFree(usize),
    /// The address is inside an object, or behind the last one.
    Interior(usize),
}

impl Misuse {
    /// Reports the misuse and aborts.
    pub fn abort(self, class: usize) -> ! {
        let (what, address) = match self {
            Self::DoubleFree(address) => ("double free of ", address),
            Self::Interior(address) => {
                ("free of a pointer into the middle of an object: ", address)
            }
        };
        line(what, address, class).abort()
    }
}

/// Begins a message about an object of a class.
pub fn line(what: &str, object: usize, class: usize) -> Message {
    Message::new()
        .text(what)
        .address(object)
        .text(", size class ")
        .number(CLASS[class].size as usize)
}

impl Span {
    /// Fills the record of a fresh span with all objects in it.
    pub fn begin(&mut self, class_index: usize, class: &Class, first: Frame, clean: bool) {
        let objects = u32::from(class.objects);
        for (before, word) in (0..).step_by(64).zip(&mut self.map) {
            *word = low_mask(objects.saturating_sub(before));
        }
        self.first = first.0;
        self.frames = class.frames as u32;
        self.blocks = 0;
        self.class = class_index as u8;
        self.bucket = 0;
        self.was_clean = clean;
        self.free = class.objects;
        self.high = 0;
        (self.scanned, self.released, self.unsplit_generation) = (0, 0, 0);
    }

    /// Takes up to `into.len()` objects: the lowest first, and objects in populated frames before others. Their
    /// addresses fill the *end* of `into`; the first object that was taken is last. Returns their number.
    pub fn take(&mut self, class: &Class, span_address: usize, into: &mut [usize]) -> usize {
        let mut left = into.len();
        let (mut last, mut refaulted) = (0, 0);
        let passes = [self.released, 0];
        // Without released frames the second pass takes all.
        for avoided in &passes[usize::from(self.released == 0)..] {
            for (index, word) in self.map.iter_mut().enumerate() {
                let mut bits = *word;
                while bits != 0 && left > 0 {
                    let object = index * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if self.released != 0 {
                        let frames = frames_of(class, object);
                        if frames & avoided != 0 {
                            continue;
                        }
                        refaulted += (self.released & frames).count_ones();
                        self.released &= !frames;
                    }
                    *word &= !(1 << (object % 64));
                    left -= 1;
                    into[left] = span_address + object * class.size as usize;
                    last = last.max(object + 1);
                }
                if left == 0 {
                    break;
                }
            }
        }
        self.high = self.high.max(last as u16);
        if refaulted > 0 {
            stats::count(
                word!(refaulted_bytes),
                u64::from(refaulted) * FRAME_BYTES as u64,
            );
        }
        let taken = into.len() - left;
        self.free -= taken as u16;
        taken
    }

    /// The frames that hold only free objects, if at least one of them may still be resident. Only whole runs, so
    /// that no object overlaps two runs. `whole`: frames that were never touched may be resident too, because a
    /// huge page is resident as a whole. `group`: frames of a page of the kernel. The frames of such a page only come
    /// together, so an object that overlaps two runs would overlap all of a page between them.
    pub fn empty_frames(&self, class: &Class, whole: bool, group: u32) -> u64 {
        let size = class.size as usize;
        if (self.free as usize) * size < FRAME_BYTES {
            return 0;
        }
        let objects = class.objects as usize;
        let mut empty = 0u64;
        for frame in 0..self.frames as usize {
            let first = frame * FRAME_BYTES / size;
            let last = ((frame + 1) * FRAME_BYTES - 1) / size;
            let mut words = words_of(first, last.min(objects - 1));
            if first >= objects || words.all(|(word, mask)| self.map[word] & mask == mask) {
                empty |= 1 << frame;
            }
        }
        let before = self.first.next_multiple_of(group) - self.first;
        let empty = bits::whole_groups(empty >> before, group) << before;
        let never = if whole {
            0
        } else {
            !low_mask(self.touched_frames(class))
        };
        let resident = empty & !self.released & !never;
        // Runs of `empty` that hold a resident frame: spread each found bit over its run.
        let mut runs = resident;
        loop {
            let spread = (runs | runs << 1 | runs >> 1) & empty;
            if spread == runs {
                return runs;
            }
            runs = spread;
        }
    }

    /// Takes out all objects that overlap `frames`, as if they were allocated. Returns their number.
    pub fn claim(&mut self, class: &Class, frames: u64) -> usize {
        let before = self.free;
        for object in objects_of(class, frames) {
            let (word, bit) = (&mut self.map[object / 64], 1 << (object % 64));
            self.free -= u16::from(*word & bit != 0);
            *word &= !bit;
        }
        (before - self.free) as usize
    }

    /// Undoes [`Self::claim`]. With `clean`, the frames have been released. Returns the number of objects.
    pub fn unclaim(&mut self, class: &Class, frames: u64, clean: bool) -> usize {
        let before = self.free;
        for object in objects_of(class, frames) {
            self.put(object);
        }
        if clean {
            self.released |= frames;
        }
        (self.free - before) as usize
    }

    /// Puts an object back. `false`: it is in the span already.
    pub fn put(&mut self, object: usize) -> bool {
        let (word, bit) = (&mut self.map[object / 64], 1 << (object % 64));
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.free += 1;
        true
    }

    /// Frames that a large allocation owns and does not use.
    pub fn slack(&self) -> usize {
        ((self.blocks * ebbtide_zone::BLOCK_FRAMES).saturating_sub(self.frames)) as usize
    }

    /// Number of frames that may have been touched (`INV-SPAN-2`).
    pub fn touched_frames(&self, class: &Class) -> u32 {
        if !self.was_clean {
            return self.frames;
        }
        let bytes = self.high as usize * class.size as usize;
        (bytes.div_ceil(FRAME_BYTES) as u32).min(self.frames)
    }
}

/// The words of the map for these objects, and their bits in them.
fn words_of(first: usize, last: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |word| {
        let low = if word == first / 64 { first % 64 } else { 0 };
        let high = if word == last / 64 { last % 64 } else { 63 };
        (word, u64::MAX << low & u64::MAX >> (63 - high))
    })
}

/// The frames that an object overlaps, one bit each.
fn frames_of(class: &Class, object: usize) -> u64 {
    let (start, size) = (object * class.size as usize, class.size as usize);
    let (first, last) = (start / FRAME_BYTES, (start + size - 1) / FRAME_BYTES);
    u64::MAX << first & u64::MAX >> (63 - last)
}

/// The objects that overlap any of `frames`, ascending. An object may come twice.
fn objects_of(class: &Class, frames: u64) -> impl Iterator<Item = usize> {
    let (size, objects) = (class.size as usize, class.objects as usize);
    (0..64)
        .filter(move |frame| frames >> frame & 1 == 1)
        .flat_map(move |frame| {
            let last = ((frame + 1) * FRAME_BYTES - 1) / size;
            frame * FRAME_BYTES / size..(last + 1).min(objects)
        })
}

/// The lowest `count` bits.
pub fn low_mask(count: u32) -> u64 {
    1u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1)
}

/// The free records.
pub struct SpanTable {
    /// First free record, as index plus one.
    free: u32,
    /// Records below were handed out at least once.
    used: u32,
    /// Records below are usable memory.
    opened: u32,
}

/// Records opened at a time when the records of the opened blocks are used up: two pages.
const STEP: u32 = 64;
/// Records opened with each pageblock: enough for the shortest spans, so that opened memory can always be used.
pub const PER_BLOCK: u32 = ebbtide_zone::BLOCK_FRAMES / 2;

impl SpanTable {
    /// No record in use.
    pub const NEW: Self = Self {
        free: 0,
        used: 0,
        opened: 0,
    };

    /// Bytes of records ever used.
    pub fn bytes(&self) -> usize {
        self.used as usize * size_of::<Span>()
    }

    /// Continues behind all records so far, which are forgotten: after a fork that skipped the handlers.
    pub fn abandon(&mut self) {
        self.free = 0;
        self.used = self.opened;
    }
}

impl Pages {
    /// Takes a free record; its content is unspecified.
    pub fn take_record(&self) -> Option<u32> {
        loop {
            {
                let mut table = self.records.lock();
                if table.free != 0 {
                    let index = table.free - 1;
                    // SAFETY: a free record belongs to the table, whose lock is held.
                    table.free = unsafe { record(self.region(), index) }.next;
                    return Some(index);
                }
                if table.used < table.opened {
                    table.used += 1;
                    return Some(table.used - 1);
                }
            }
            // Several threads may open the same records. This does no harm.
            if self.open_records(STEP) != Some(true) {
                return None;
            }
        }
    }

    /// Makes up to `count` more records usable, ahead of need. `None`: refused. Otherwise, whether there are more
    /// than before.
    pub fn open_records(&self, count: u32) -> Option<bool> {
        let opened = self.records.lock().opened;
        let end = self.region().open_spans(opened, count).ok()?;
        let mut table = self.records.lock();
        table.opened = table.opened.max(end);
        Some(table.opened > opened)
    }

    /// Returns a record.
    pub fn put_record(&self, index: u32) {
        let mut table = self.records.lock();
        // SAFETY: the caller owned the record and gives it up.
        let span = unsafe { record(self.region(), index) };
        span.class = 0;
        span.next = table.free;
        table.free = index + 1;
    }
}

/// The record `index`.
///
/// # Safety
/// `index` came from [`Pages::take_record`], and the caller may use the record now (see the table in the
/// module's header).
#[inline]
#[allow(clippy::mut_from_ref)]
pub unsafe fn record(region: &Region, index: u32) -> &mut Span {
    // SAFETY: by contract.
    unsafe { &mut *((region.spans + index as usize * size_of::<Span>()) as *mut Span) }
}

/// The number of a frame's record, and the record.
///
/// # Safety
/// The frame has one, and as for [`record`].
#[inline]
#[allow(clippy::mut_from_ref)]
pub unsafe fn of_frame(region: &Region, frame: Frame) -> (u32, &mut Span) {
    // SAFETY: by contract.
    unsafe {
        let index = region.span_of(frame).load(Ordering::Relaxed);
        (index, record(region, index))
    }
}

#[cfg(test)]
mod tests;
