//! Sorts the resident pages of the heap by the heap's own records.
//!
//! ```text
//!  a page of the region ─┬ in the free map ── clean, dirty, lazy
//!                        ├ in a span ──────── in use, in a CPU's cache, free between objects: by bytes
//!                        ├ in a large allocation
//!                        └ in none of them ── a spare run of a CPU, or on its way to the kernel
//! ```
//!
//! The process runs on meanwhile, so a record may be newer than the page that it describes. An unexpected value makes a page count as
//! in use.

mod caches;
mod sorted;

use std::collections::HashMap;
use std::io;

use ebbtide_interface::records::{
    BLOCK_FRAMES, CLASSES, FRAME_BYTES, LARGE, Places, block_word, class_bytes, pageblock, span,
};

use super::residency::{Bits, Block, Residency, has};
use crate::memory::{Readable, words_of};
use sorted::Where;
pub use sorted::{Bytes, Sorted};

/// Sorts all pages.
pub fn sort(memory: &impl Readable, places: &Places, residency: &Residency) -> io::Result<Sorted> {
    let mut heap = Heap {
        memory,
        places,
        spans: HashMap::new(),
        cached: HashMap::new(),
        words: HashMap::new(),
        large_end: 0,
        owned_end: 0,
        page_frames: residency.page_frames,
        sorted: Sorted::default(),
    };
    heap.read_caches();
    for (&number, block) in &residency.blocks {
        heap.sort_block(number, block)?;
    }
    Ok(heap.sorted)
}

struct Heap<'a, R> {
    memory: &'a R,
    places: &'a Places,
    /// Records of spans that were read.
    spans: HashMap<u32, Span>,
    /// Objects in caches of CPUs, by span: a bit an object.
    cached: HashMap<u32, Bits>,
    /// Records of 64 pageblocks that were read.
    words: HashMap<u64, Vec<u64>>,
    /// The frame behind the last large allocation that was found.
    large_end: u64,
    /// The frame behind the pageblocks that it owns.
    owned_end: u64,
    /// Frames of a page of the kernel.
    page_frames: usize,
    sorted: Sorted,
}

/// What is needed of a span record.
#[derive(Clone, Copy)]
struct Span {
    first: u64,
    frames: u64,
    blocks: u64,
    class: usize,
    map: Bits,
}

impl Span {
    fn parse(record: &[u8]) -> Self {
        let half =
            |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes")).into();
        let map = words_of(&record[span::MAP..span::MAP + span::MAP_BYTES]);
        Self {
            first: half(span::FIRST),
            frames: half(span::FRAMES),
            blocks: half(span::BLOCKS),
            class: record[span::CLASS].into(),
            map: map.try_into().expect("8 words"),
        }
    }

    fn objects(&self) -> u64 {
        let all = self.frames * FRAME_BYTES / class_bytes(self.class) as u64;
        all.min(span::MAP_BYTES as u64 * 8)
    }
}

/// The state of a whole pageblock or of its frames.
enum Kind {
    Clean,
    Dirty,
    Lazy,
    Claimed,
    /// The pageblock's record says it frame by frame.
    Mixed,
    Used,
}

impl<R: Readable> Heap<'_, R> {
    fn sort_block(&mut self, number: u64, block: &Block) -> io::Result<()> {
        let kind = self.kind(number)?;
        let maps = match kind {
            Kind::Mixed => {
                let at = self.places.pageblocks + number * pageblock::BYTES as u64;
                self.memory.read(at, pageblock::BYTES)?
            }
            _ => vec![0; pageblock::BYTES],
        };
        let map = |at: usize| -> Bits {
            let words = words_of(&maps[at..at + 64]);
            words.try_into().expect("8 words")
        };
        let [free, dirty, lazy] = [pageblock::FREE, pageblock::DIRTY, pageblock::LAZY].map(map);
        let first = number * BLOCK_FRAMES;
        let frames = BLOCK_FRAMES as usize;
        let classes = self.memory.read(self.places.classes + first, frames)?;
        let ids = self
            .memory
            .read(self.places.span_ids + first * 4, frames * 4)?;
        if matches!(kind, Kind::Used | Kind::Mixed) {
            self.find_large_before(number)?;
        }
        let mut empty = Bits::default();
        for (frame, (&class, id)) in classes.iter().zip(ids.chunks_exact(4)).enumerate() {
            let id = u32::from_le_bytes(id.try_into().expect("4 bytes"));
            if class == LARGE {
                self.find_large(id)?;
            }
            let page = match (has(&block.present, frame), has(&block.swapped, frame)) {
                (true, _) => Where::Resident,
                (false, true) => Where::Swapped,
                (false, false) => continue,
            };
            let is_free = has(&free, frame);
            let sorted = &mut self.sorted;
            let part = match kind {
                Kind::Dirty => &mut sorted.dirty,
                Kind::Lazy => &mut sorted.lazy,
                Kind::Clean => &mut sorted.clean,
                Kind::Claimed => &mut sorted.waiting,
                _ if is_free && !is_whole(&free, frame, self.page_frames) => &mut sorted.pinned,
                _ if is_free && has(&dirty, frame) => &mut sorted.dirty,
                _ if is_free && has(&lazy, frame) => &mut sorted.lazy,
                _ if is_free => &mut sorted.clean,
                _ if class != 0 && class != LARGE => {
                    let is_empty = self.sort_span_page(first + frame as u64, id, page)?;
                    empty[frame / 64] |= u64::from(is_empty) << (frame % 64);
                    continue;
                }
                _ if first + (frame as u64) < self.large_end => &mut sorted.large,
                _ if first + (frame as u64) < self.owned_end => &mut sorted.clean,
                _ => &mut sorted.waiting,
            };
            part.add(page, FRAME_BYTES);
        }
        for frame in (0..frames).filter(|&frame| is_whole(&empty, frame, self.page_frames)) {
            let page = match has(&block.present, frame) {
                true => Where::Resident,
                false => Where::Swapped,
            };
            self.sorted.empty_pages.add(page, FRAME_BYTES);
        }
        Ok(())
    }

    /// The bits of a pageblock.
    fn kind(&mut self, number: u64) -> io::Result<Kind> {
        let record = number / 64;
        if !self.words.contains_key(&record) {
            let at = self.places.block_words + record * block_word::BYTES as u64;
            let words = self.memory.words(at, block_word::BYTES / 8)?;
            self.words.insert(record, words);
        }
        let words = &self.words[&record];
        let is = |word: usize| words[word / 8] >> (number % 64) & 1 == 1;
        let (is_dirty, is_lazy) = (is(block_word::DIRTY), is(block_word::LAZY));
        Ok(match is(block_word::FREE) {
            true if is(block_word::ALL) && is_dirty => Kind::Dirty,
            true if is(block_word::ALL) && is_lazy => Kind::Lazy,
            true if is_dirty || is_lazy => Kind::Mixed,
            true => Kind::Clean,
            false if is(block_word::CLAIMED) => Kind::Claimed,
            false if is(block_word::PARTIAL) => Kind::Mixed,
            false => Kind::Used,
        })
    }

    /// Finds a large allocation that began in an earlier pageblock without resident pages and reaches into this one.
    fn find_large_before(&mut self, number: u64) -> io::Result<()> {
        let mut before = number;
        while self.owned_end <= number * BLOCK_FRAMES && before > 0 {
            before -= 1;
            if !matches!(self.kind(before)?, Kind::Used | Kind::Mixed) {
                break;
            }
            let first = before * BLOCK_FRAMES;
            let classes = self
                .memory
                .read(self.places.classes + first, BLOCK_FRAMES as usize)?;
            if let Some(last) = classes.iter().rposition(|&class| class != 0) {
                if classes[last] == LARGE {
                    let at = self.places.span_ids + (first + last as u64) * 4;
                    let id = self.memory.read(at, 4)?.try_into().expect("4 bytes");
                    self.find_large(u32::from_le_bytes(id))?;
                }
                break;
            }
        }
        Ok(())
    }

    /// Notes a large allocation by its record.
    fn find_large(&mut self, id: u32) -> io::Result<()> {
        let large = self.span(id)?;
        self.large_end = large.first + large.frames;
        self.owned_end = self
            .large_end
            .max(large.first + large.blocks * BLOCK_FRAMES);
        Ok(())
    }

    fn span(&mut self, id: u32) -> io::Result<Span> {
        if let Some(&span) = self.spans.get(&id) {
            return Ok(span);
        }
        let at = self.places.spans + u64::from(id) * span::BYTES as u64;
        let span = Span::parse(&self.memory.read(at, span::BYTES)?);
        self.spans.insert(id, span);
        Ok(span)
    }

    /// Counts the bytes of a span's frame by the objects that lie in it. Returns whether there is none.
    fn sort_span_page(&mut self, frame: u64, id: u32, page: Where) -> io::Result<bool> {
        let span = self.span(id)?;
        let is_of_span = (1..CLASSES).contains(&span.class)
            && (span.first..span.first + span.frames).contains(&frame);
        if !is_of_span {
            self.sorted.small.add(page, FRAME_BYTES);
            return Ok(false);
        }
        let size = class_bytes(span.class) as u64;
        let cached_objects = self.cached.get(&id).copied().unwrap_or_default();
        let start = (frame - span.first) * FRAME_BYTES;
        let end = start + FRAME_BYTES;
        let (mut live, mut cached) = (0, 0);
        let objects = start / size..span.objects().min(end.div_ceil(size));
        for object in objects.filter(|&object| !has(&span.map, object as usize)) {
            let bytes = ((object + 1) * size).min(end) - (object * size).max(start);
            match has(&cached_objects, object as usize) {
                true => cached += bytes,
                false => live += bytes,
            }
        }
        let free = FRAME_BYTES - live - cached;
        self.sorted.small.add(page, live);
        self.sorted.cached.add(page, cached);
        self.sorted.in_spans.add(page, free);
        if page == Where::Resident {
            let (in_use, between) = &mut self.sorted.classes[span.class];
            *in_use += live;
            *between += free;
        }
        Ok(free == FRAME_BYTES)
    }
}

/// Whether all frames of this frame's page of the kernel have their bit.
fn is_whole(bits: &Bits, frame: usize, page_frames: usize) -> bool {
    let first = frame / page_frames * page_frames;
    (first..first + page_frames).all(|frame| has(bits, frame))
}

#[cfg(test)]
mod tests;
