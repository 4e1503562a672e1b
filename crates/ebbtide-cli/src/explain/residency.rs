//! Which pages of a process are resident, swapped out or in huge pages: `/proc/PID/pagemap`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
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
    /// The pageblock is a huge page.
    pub is_huge: bool,
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
    /// Whether huge pages are known: from Linux 6.7 on.
    pub knows_huge: bool,
}

impl Default for Residency {
    fn default() -> Self {
        Self {
            base: 0,
            page_frames: 1,
            blocks: BTreeMap::new(),
            knows_huge: false,
        }
    }
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30
    | (size_of::<ScanArgument>() << 16) as libc::c_ulong
    | (b'f' as libc::c_ulong) << 8
    | 16;
/// `PAGE_IS_HUGE`.
const IS_HUGE: u64 = 1 << 6;

/// Ranges of huge pages from an address on, and the address up to which they are all. `None` if the kernel does not say.
fn huge_pages(pagemap: &File, start: u64, end: u64) -> Option<(Vec<Region>, u64)> {
    let mut regions = vec![Region::default(); 512];
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        start,
        end,
        regions: regions.as_mut_ptr() as u64,
        regions_len: regions.len() as u64,
        category_mask: IS_HUGE,
        return_mask: IS_HUGE,
        ..ScanArgument::default()
    };
    // SAFETY: the argument is as the kernel has it, and the regions have the length that it names.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
    regions.truncate(usize::try_from(found).ok()?);
    Some((regions, argument.walk_end))
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
        let mut residency = Self::read_from(read, page_bytes(), base, ranges)?;
        residency.find_huge(&pagemap, ranges);
        Ok(residency)
    }

    /// Asks which pageblocks are huge pages.
    fn find_huge(&mut self, pagemap: &File, ranges: &[(u64, u64)]) {
        self.knows_huge = ranges.iter().all(|&(start, end)| {
            let mut at = start;
            while at < end {
                let Some((regions, walked)) = huge_pages(pagemap, at, end) else {
                    return false;
                };
                for region in regions {
                    self.add_huge(region.start, region.end);
                }
                // A walk that came no further would never end.
                if walked <= at {
                    return false;
                }
                at = walked;
            }
            true
        });
    }

    /// Marks the whole pageblocks of a range.
    fn add_huge(&mut self, start: u64, end: u64) {
        let block_bytes = BLOCK_FRAMES * FRAME_BYTES;
        let first = start.saturating_sub(self.base).div_ceil(block_bytes);
        let last = end.saturating_sub(self.base) / block_bytes;
        for (_, block) in self.blocks.range_mut(first..last.max(first)) {
            block.is_huge = true;
        }
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

    /// Only whole pageblocks with pages, and none outside of the range.
    #[test]
    fn huge_pages_are_whole_pageblocks() {
        let base = 1 << 30;
        let at = |block: u64| base + (block << 21);
        let mut residency = Residency {
            base,
            ..Residency::default()
        };
        for block in 0..5 {
            residency.add(at(block), PRESENT);
        }
        residency.add_huge(at(1), at(3));
        residency.add_huge(at(4), at(4) + 4096);
        let huge = residency.blocks.iter().filter(|(_, block)| block.is_huge);
        assert_eq!(huge.map(|(&number, _)| number).collect::<Vec<_>>(), [1, 2]);
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
