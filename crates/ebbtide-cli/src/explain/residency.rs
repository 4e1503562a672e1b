//! Which pages of a process are resident or swapped out: `/proc/PID/pagemap`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ebbtide_interface::records::{BLOCK_FRAMES, FRAME_BYTES};
use ebbtide_tools::machine::page_bytes;

use crate::memory::words_of;

/// A bit for each frame of a pageblock.
pub type Bits = [u64; 8];

/// The pages of a pageblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Pages that are mapped.
    pub present: Bits,
    /// Of these, pages that only this process has: never the kernel's page of zeroes, which is not counted as resident.
    pub own: Bits,
    /// Pages that are swapped out.
    pub swapped: Bits,
}

/// The pageblocks of a region that have a page, by number.
#[derive(Debug)]
pub struct Residency {
    /// The address of the first pageblock.
    pub base: u64,
    /// Frames of a page of the kernel: 1, 4 or 16. They are resident together.
    pub page_frames: usize,
    /// The pageblocks.
    pub blocks: BTreeMap<u64, Block>,
}

impl Default for Residency {
    fn default() -> Self {
        Self {
            base: 0,
            page_frames: 1,
            blocks: BTreeMap::new(),
        }
    }
}

const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;
const OWN: u64 = 1 << 56;
/// Entries that are read at once.
const STEP: u64 = 64 * 1024;

impl Residency {
    /// Reads the ranges of addresses. All processes have pages of one size.
    pub fn read(pid: u32, base: u64, ranges: &[(u64, u64)]) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let read = |entries: &mut [u8], at| pagemap.read_exact_at(entries, at);
        Self::read_from(read, page_bytes(), base, ranges)
    }

    /// The same from any file of entries: a word for each page of `page_bytes`.
    fn read_from(
        read: impl Fn(&mut [u8], u64) -> io::Result<()>,
        page_bytes: u64,
        base: u64,
        ranges: &[(u64, u64)],
    ) -> io::Result<Self> {
        let mut residency = Self {
            base,
            page_frames: (page_bytes / FRAME_BYTES) as usize,
            ..Self::default()
        };
        for &(start, end) in ranges {
            let (mut at, end) = (start / page_bytes, end / page_bytes);
            while at < end {
                let count = STEP.min(end - at);
                let mut entries = vec![0; count as usize * 8];
                read(&mut entries, at * 8)?;
                for (page, entry) in (at..).zip(words_of(&entries)) {
                    residency.add(page * page_bytes, entry);
                }
                at += count;
            }
        }
        Ok(residency)
    }

    /// Adds a page of the kernel by its entry: all its frames.
    pub fn add(&mut self, address: u64, entry: u64) {
        if entry & (PRESENT | SWAPPED) == 0 || address < self.base {
            return;
        }
        let first = (address - self.base) / FRAME_BYTES;
        for frame in first..first + self.page_frames as u64 {
            self.add_frame(frame, entry);
        }
    }

    fn add_frame(&mut self, frame: u64, entry: u64) {
        let block = self.blocks.entry(frame / BLOCK_FRAMES).or_default();
        let (word, bit) = ((frame % BLOCK_FRAMES / 64) as usize, frame % 64);
        let set = |bits: &mut Bits, condition: bool| bits[word] |= u64::from(condition) << bit;
        let is_present = entry & PRESENT != 0;
        set(&mut block.present, is_present);
        set(&mut block.own, is_present && entry & OWN != 0);
        set(&mut block.swapped, entry & SWAPPED != 0);
    }

    /// Counts only own pages if the others cannot all be resident: then many of them are the page of zeroes.
    pub fn fit(&mut self, resident: u64) {
        let pages = |bits: fn(&Block) -> &Bits| -> u64 {
            let words = self.blocks.values().flat_map(|block| bits(block).iter());
            words.map(|word| u64::from(word.count_ones())).sum()
        };
        let all = pages(|block| &block.present) * FRAME_BYTES;
        let own = pages(|block| &block.own) * FRAME_BYTES;
        if all.abs_diff(resident) > own.abs_diff(resident) {
            let blocks = self.blocks.values_mut();
            blocks.for_each(|block| block.present = block.own);
        }
    }
}

/// Whether a bit is set.
pub fn has(bits: &Bits, frame: usize) -> bool {
    bits[frame / 64] >> (frame % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bits_of_their_block() {
        let mut residency = Residency {
            base: 1 << 30,
            ..Residency::default()
        };
        residency.add((1 << 30) + (512 + 65) * 4096, PRESENT | OWN);
        residency.add((1 << 30) + (512 + 66) * 4096, SWAPPED);
        residency.add((1 << 30) + 5 * 4096, 0);
        residency.add(4096, PRESENT);
        assert_eq!(residency.blocks.len(), 1);
        let block = residency.blocks[&1];
        assert!(has(&block.present, 65) && !has(&block.present, 66));
        assert!(has(&block.swapped, 66) && !has(&block.swapped, 65));
    }

    /// Two pages of 64 KiB, on both sides of the end of a pageblock, and a swapped one of 16 KiB.
    #[test]
    fn larger_pages_have_all_their_frames() {
        let base = 1 << 30;
        let file = |entries: &'static [(u64, u64)]| {
            move |bytes: &mut [u8], at: u64| {
                for (number, word) in (at / 8..).zip(bytes.chunks_exact_mut(8)) {
                    let found = entries.iter().find(|&&(entry, _)| entry == number);
                    word.copy_from_slice(&found.map_or(0, |&(_, entry)| entry).to_le_bytes());
                }
                Ok(())
            }
        };
        let blocks = [(base, base + (4 << 20))];
        const FIRST: u64 = (1 << 30) >> 16;
        let large = file(&[(FIRST + 31, PRESENT | OWN), (FIRST + 32, PRESENT)]);
        let read = Residency::read_from(large, 64 << 10, base, &blocks).unwrap();
        assert_eq!(read.page_frames, 16);
        assert_eq!(read.blocks[&0].present, [0, 0, 0, 0, 0, 0, 0, 0xffff << 48]);
        assert_eq!(read.blocks[&0].own, read.blocks[&0].present);
        assert_eq!(read.blocks[&1].present, [0xffff, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read.blocks[&1].own, Bits::default());
        let middle = file(&[(((1 << 30) >> 14) + 3, SWAPPED)]);
        let read = Residency::read_from(middle, 16 << 10, base, &blocks).unwrap();
        assert_eq!(read.blocks[&0].swapped[0], 0xf << 12);
        assert_eq!(read.blocks[&0].present, Bits::default());
    }

    /// A program that only reads memory from calloc has the page of zeroes there.
    #[test]
    fn the_page_of_zeroes_is_not_resident() {
        let mut residency = Residency::default();
        residency.add(0, PRESENT | OWN);
        residency.add(4096, PRESENT);
        residency.fit(2 * 4096);
        assert_eq!(residency.blocks[&0].present[0], 3);
        residency.fit(4096);
        assert_eq!(residency.blocks[&0].present[0], 1);
    }

    #[test]
    fn this_process_has_resident_pages() {
        let page = vec![1u8; 3 << 20];
        let start = (page.as_ptr() as u64).next_multiple_of(2 << 20);
        let base = start - (2 << 20);
        let read = Residency::read(std::process::id(), base, &[(start, start + (64 << 10))]);
        let read = read.unwrap();
        assert_eq!(read.blocks[&1].present[0] & 0xffff, 0xffff);
    }
}
