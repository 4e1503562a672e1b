//! `ebbtide explain`: reads the records of a heap in another process, which may write anything there.
#![no_main]

#[path = "../../crates/ebbtide-cli/src/explain"]
mod explain {
    pub mod heap;
    pub mod residency;
}
#[path = "../../crates/ebbtide-cli/src/memory.rs"]
mod memory;
#[path = "../../crates/ebbtide-cli/src/smaps.rs"]
mod smaps;

use ebbtide_fuzz::Bytes;
use ebbtide_interface::records::{FRAME_BYTES, Places};
use ebbtide_interface::{figures, page, word};
use explain::heap;
use explain::residency::Residency;
use libfuzzer_sys::fuzz_target;
use memory::Readable;
use std::io;

/// Memory with the fuzzer's bytes over and over.
struct Fake<'a> {
    bytes: &'a [u8],
    /// Nothing can be read from here on.
    end: u64,
}

impl Readable for Fake<'_> {
    fn read(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        assert!(bytes <= 1 << 16, "{bytes} bytes at once");
        if address >= self.end {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Neighbouring records differ.
        let byte = |at: u64| self.bytes[(at ^ at >> 9) as usize % self.bytes.len()];
        Ok((0..bytes as u64)
            .map(|at| byte(address.wrapping_add(at)))
            .collect())
    }
}

fn check_heap(places: Places, frames: Vec<(u64, u8)>, memory: &Fake) {
    let mut residency = Residency {
        base: places.base,
        ..Residency::default()
    };
    for (frame, kind) in frames {
        let entry = u64::from(kind) << 56;
        residency.add(places.base.saturating_add(frame * FRAME_BYTES), entry);
    }
    let pages = |bits: fn(&explain::residency::Block) -> u64| {
        residency.blocks.values().map(bits).sum::<u64>()
    };
    let count = |words: [u64; 8]| {
        words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum::<u64>()
    };
    let resident = pages(|block| {
        block
            .present
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    });
    let swapped: u64 = residency
        .blocks
        .values()
        .map(|block| {
            count(std::array::from_fn(|at| {
                block.swapped[at] & !block.present[at]
            }))
        })
        .sum();
    let Ok(sorted) = heap::sort(memory, &places, &residency) else {
        return;
    };
    let parts = [
        sorted.small,
        sorted.large,
        sorted.cached,
        sorted.in_spans,
        sorted.dirty,
        sorted.lazy,
        sorted.clean,
        sorted.waiting,
    ];
    // Each page counts once.
    let sum = |part: fn(&heap::Bytes) -> u64| parts.iter().map(part).sum::<u64>();
    assert_eq!(sum(|bytes| bytes.resident), resident * FRAME_BYTES);
    assert_eq!(sum(|bytes| bytes.swapped), swapped * FRAME_BYTES);
    assert!(sorted.empty_pages.resident <= sorted.in_spans.resident);
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.is_empty() {
        return;
    }
    for mapping in smaps::parse(&String::from_utf8_lossy(bytes)) {
        mapping.file_name();
    }
    let mut numbers = Bytes::new(bytes);
    // Records lie near each other as in a heap, or anywhere.
    let words = [(); Places::COUNT].map(|()| numbers.of(&[0..=1 << 40, 0..=1 << 40, 0..=u64::MAX]));
    let end = numbers.of(&[1 << 41..=1 << 41, 0..=u64::MAX]);
    let frames =
        (0..numbers.below(60)).map(|_| (numbers.number(0..=20_000), numbers.below(256) as u8));
    let frames = frames.collect();
    let mut page: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
        .collect();
    page.resize(page::WORDS, 0);
    page[word!(version)] = figures::VERSION;
    for range in memory::ranges(&page) {
        assert!(range.start <= range.end);
    }
    page[page::PLACES..page::PLACES + words.len()].copy_from_slice(&words);
    if let Some(places) = memory::places(&page) {
        check_heap(places, frames, &Fake { bytes, end });
    }
});
