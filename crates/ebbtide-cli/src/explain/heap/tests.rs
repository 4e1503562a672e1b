//! A made-up heap: records in memory, and pages that are resident.

use super::*;
use ebbtide_interface::records::slab;
use std::io::ErrorKind;

/// Memory by address; what was not written reads as zeroes.
#[derive(Default)]
struct Fake(HashMap<u64, u8>);

impl Readable for Fake {
    fn read(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        if address >= SLABS + slab::BYTES {
            return Err(ErrorKind::NotFound.into());
        }
        let byte = |at| self.0.get(&at).copied().unwrap_or(0);
        Ok((address..address + bytes as u64).map(byte).collect())
    }
}

impl Fake {
    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.0.extend((address..).zip(bytes.iter().copied()));
    }

    fn set_bit(&mut self, word: usize, block: u64) {
        let at = WORDS + block / 64 * 64 + word as u64 + block % 64 / 8;
        *self.0.entry(at).or_insert(0) |= 1 << (block % 8);
    }

    /// A span or large allocation: its record, and the frames that lead to it.
    fn span(&mut self, id: u32, first: u64, frames: u64, class: u8, free: &[u64]) {
        let record = SPANS + u64::from(id) * span::BYTES as u64;
        self.write(record + span::FIRST as u64, &(first as u32).to_le_bytes());
        self.write(record + span::FRAMES as u64, &(frames as u32).to_le_bytes());
        self.write(
            record + span::CLASS as u64,
            &[if class == LARGE { 0 } else { class }],
        );
        for object in free {
            let at = record + span::MAP as u64 + object / 8;
            *self.0.entry(at).or_insert(0) |= 1 << (object % 8);
        }
        let marked = if class == LARGE { 1 } else { frames };
        for frame in first..first + marked {
            self.write(CLASS_BYTES + frame, &[class]);
            self.write(SPAN_IDS + frame * 4, &id.to_le_bytes());
        }
    }
}

const BASE: u64 = 1 << 40;
const CLASS_BYTES: u64 = 1 << 20;
const SPAN_IDS: u64 = 2 << 20;
const PAGEBLOCKS: u64 = 4 << 20;
const WORDS: u64 = 5 << 20;
const SPANS: u64 = 6 << 20;
const SLABS: u64 = 8 << 20;

fn places() -> Places {
    Places {
        base: BASE,
        blocks: 64,
        classes: CLASS_BYTES,
        span_ids: SPAN_IDS,
        pageblocks: PAGEBLOCKS,
        block_words: WORDS,
        spans: SPANS,
        slabs: SLABS,
        cpus: 2,
        profile: 0,
    }
}

/// Resident frames, and swapped ones.
fn residency(resident: impl IntoIterator<Item = u64>, swapped: &[u64]) -> Residency {
    let mut residency = Residency {
        base: BASE,
        ..Residency::default()
    };
    for frame in resident {
        residency.add(BASE + frame * FRAME_BYTES, 1 << 63);
    }
    for frame in swapped {
        residency.add(BASE + frame * FRAME_BYTES, 1 << 62);
    }
    residency
}

fn kib(bytes: Bytes) -> u64 {
    bytes.resident / 1024
}

/// Pageblocks 0 to 2 are free: clean, dirty, lazy. Pageblock 3 is being released.
#[test]
fn whole_pageblocks_have_their_bits() {
    let mut memory = Fake::default();
    for block in 0..3 {
        memory.set_bit(block_word::FREE, block);
    }
    for (word, block) in [(block_word::DIRTY, 1), (block_word::LAZY, 2)] {
        memory.set_bit(word, block);
        memory.set_bit(block_word::ALL, block);
    }
    memory.set_bit(block_word::CLAIMED, 3);
    let pages = (0..4).flat_map(|block| block * 512..block * 512 + block + 1);
    let sorted = sort(&memory, &places(), &residency(pages, &[512 + 100])).unwrap();
    let Sorted {
        clean,
        dirty,
        lazy,
        waiting,
        ..
    } = sorted;
    assert_eq!([clean, dirty, lazy, waiting].map(kib), [4, 8, 12, 16]);
    assert_eq!(dirty.swapped, 4096);
}

/// A partial pageblock: free frames by the record, and objects of 3 KiB.
#[test]
fn pages_of_spans_are_sorted_by_bytes() {
    let mut memory = Fake::default();
    memory.set_bit(block_word::PARTIAL, 0);
    memory.write(PAGEBLOCKS + pageblock::FREE as u64, &[0b1110_0000]);
    memory.write(PAGEBLOCKS + pageblock::DIRTY as u64, &[0b0010_0000]);
    memory.write(PAGEBLOCKS + pageblock::LAZY as u64, &[0b0100_0000]);
    let class = (1..CLASSES)
        .find(|&class| class_bytes(class) == 3072)
        .unwrap();
    // Four objects in three frames: the first is in use, the second in a CPU's cache, two are free.
    memory.span(1, 0, 3, class as u8, &[2, 3]);
    let stack = SLABS + slab::HEADER_BYTES + class as u64 * slab::STACK_BYTES;
    memory.write(stack + 8, &(BASE + 3072).to_le_bytes());
    memory.write(SLABS + class as u64 * 8, &(stack + 16).to_le_bytes());
    let sorted = sort(&memory, &places(), &residency(0..8, &[])).unwrap();
    assert_eq!(sorted.small.resident, 3072);
    assert_eq!(sorted.cached.resident, 3072);
    assert_eq!(sorted.in_spans.resident, 3 * 4096 - 2 * 3072);
    assert_eq!(kib(sorted.empty_pages), 4, "the third frame");
    assert_eq!(sorted.classes[class], (3072, 6144));
    let Sorted {
        dirty,
        lazy,
        clean,
        waiting,
        ..
    } = sorted;
    assert_eq!([dirty, lazy, clean].map(kib), [4, 4, 4]);
    assert_eq!(kib(waiting), 8, "frames 3 and 4 belong to nothing");
}

/// A large allocation that begins in a pageblock without resident pages.
#[test]
fn large_allocations_are_found_from_their_middle() {
    let mut memory = Fake::default();
    memory.span(1, 512, 1000, LARGE, &[]);
    let record = SPANS + span::BYTES as u64 + span::BLOCKS as u64;
    memory.write(record, &2u32.to_le_bytes());
    let pages = (1024..1026).chain(1535..1537);
    let sorted = sort(&memory, &places(), &residency(pages, &[])).unwrap();
    assert_eq!(kib(sorted.large), 8);
    assert_eq!(kib(sorted.clean), 4, "the rest of its last pageblock");
    assert_eq!(kib(sorted.waiting), 4, "behind it");
}

/// The process runs on: a record that was used again for something else.
#[test]
fn a_record_that_changed_meanwhile_counts_as_in_use() {
    let mut memory = Fake::default();
    memory.span(1, 0, 2, 4, &[]);
    memory.write(
        SPANS + span::BYTES as u64 + span::FIRST as u64,
        &9u32.to_le_bytes(),
    );
    let sorted = sort(&memory, &places(), &residency(0..2, &[])).unwrap();
    assert_eq!(kib(sorted.small), 8);
    assert_eq!(sorted.in_spans, Bytes::default());
}

/// Pages of 16 KiB. In the first one, a frame of a span is in use; the second one is free. The third one is a span's
/// without an object, and the fourth one has one empty frame of a span beside objects.
#[test]
fn larger_pages_go_as_a_whole() {
    let mut memory = Fake::default();
    let class = (1..CLASSES)
        .find(|&class| class_bytes(class) == 4096)
        .unwrap();
    memory.set_bit(block_word::PARTIAL, 0);
    memory.write(PAGEBLOCKS + pageblock::FREE as u64, &[0b1111_1110]);
    memory.write(PAGEBLOCKS + pageblock::DIRTY as u64, &[0b1111_0010]);
    memory.write(PAGEBLOCKS + pageblock::LAZY as u64, &[0b0000_0100]);
    memory.span(1, 0, 1, class as u8, &[]);
    memory.span(2, 8, 8, class as u8, &[0, 1, 2, 3, 7]);
    let mut pages = Residency {
        base: BASE,
        page_frames: 4,
        ..Residency::default()
    };
    (0..4).for_each(|page| pages.add(BASE + page * 4 * FRAME_BYTES, 1 << 63));
    let sorted = sort(&memory, &places(), &pages).unwrap();
    assert_eq!(kib(sorted.pinned), 12);
    assert_eq!(
        [sorted.dirty, sorted.lazy, sorted.clean].map(kib),
        [16, 0, 0]
    );
    assert_eq!(kib(sorted.small), 4 + 12);
    assert_eq!(kib(sorted.in_spans), 20);
    assert_eq!(kib(sorted.empty_pages), 16);
}
