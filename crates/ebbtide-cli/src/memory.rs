//! Reads the memory of another process, and finds the statistics page in it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use ebbtide_interface::records::{Owner, Places, RANGE_WORDS};
use ebbtide_interface::{figures, page, word};
use ebbtide_tools::library;

use crate::smaps::Mapping;

/// Something whose memory can be read.
pub trait Readable {
    /// Reads bytes.
    fn read(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>>;

    /// Reads words.
    fn words(&self, address: u64, count: usize) -> io::Result<Vec<u64>> {
        self.read(address, count * 8).map(|bytes| words_of(&bytes))
    }
}

/// The memory of a process. The kernel allows it to those who may trace the process.
pub struct Memory {
    file: File,
    readable: Vec<(u64, u64)>,
}

impl Memory {
    /// Opens it.
    pub fn open(pid: u32, mappings: &[Mapping]) -> io::Result<Self> {
        let readable = mappings.iter().filter(|it| it.permissions.starts_with('r'));
        Ok(Self {
            file: File::open(format!("/proc/{pid}/mem"))?,
            readable: readable.map(|it| (it.start, it.end)).collect(),
        })
    }
}

impl Readable for Memory {
    /// The kernel would also read what the process itself may not read, and make page tables for it.
    fn read(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let at = self.readable.partition_point(|&(_, end)| end <= address);
        if self
            .readable
            .get(at)
            .is_none_or(|&(start, _)| address < start)
        {
            return Err(ErrorKind::NotFound.into());
        }
        let mut read = vec![0; bytes];
        self.file.read_exact_at(&mut read, address)?;
        Ok(read)
    }
}

/// Why the memory of a process may not be read, and the remedy.
pub fn refused(pid: u32, error: &io::Error) -> String {
    format!(
        "the memory of process {pid} may not be read ({error}): that needs root or the right to trace it, see /proc/sys/kernel/yama/ptrace_scope"
    )
}

/// Little-endian words.
pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
        .collect()
}

/// The words of the statistics page in the process's own memory. The page is in the data of the library, or of a program that has the
/// library linked in; it begins with [`page::MAGIC`] at a multiple of 4 KiB.
pub fn find_page(memory: &Memory, mappings: &[Mapping]) -> Option<Vec<u64>> {
    let (own, others): (Vec<_>, Vec<_>) = data_of_files(mappings)
        .into_iter()
        .partition(|(file, _)| library::is_named(file.file_name()));
    let addresses = own
        .into_iter()
        .chain(others)
        .flat_map(|(_, data)| (data.start.next_multiple_of(PAGE)..data.end).step_by(PAGE as usize));
    let heads = [page::MAGIC, figures::VERSION];
    addresses
        .filter(|&address| {
            memory
                .words(address, heads.len())
                .is_ok_and(|words| words == heads)
        })
        .find_map(|address| memory.words(address, page::WORDS).ok())
}

const PAGE: u64 = 4096;

/// Each file with its writable data, and with the zeroed data directly behind it.
fn data_of_files(mappings: &[Mapping]) -> Vec<(&Mapping, &Mapping)> {
    let mut data = Vec::new();
    let mut file: Option<&Mapping> = None;
    let mut end = 0;
    for mapping in mappings {
        if mapping.path.starts_with('/') {
            file = Some(mapping);
        } else if !mapping.is_anonymous() || mapping.start != end {
            file = None;
        }
        end = mapping.end;
        if let Some(file) = file.filter(|_| mapping.is_private_data()) {
            data.push((file, mapping));
        }
    }
    data
}

/// A mapping of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// What it is for.
    pub owner: Owner,
    /// The first address.
    pub start: u64,
    /// The address behind the last byte.
    pub end: u64,
}

/// The library's own mappings, from the words of a page.
pub fn ranges(words: &[u64]) -> Vec<Range> {
    let records = words[page::RANGES..page::PLACES].chunks_exact(RANGE_WORDS);
    let range = |record: &[u64]| {
        Some(Range {
            owner: Owner::of(record[0])?,
            start: record[1],
            end: record[1].checked_add(record[2])?,
        })
    };
    records.filter_map(range).collect()
}

/// No process has an address as high as this.
const ADDRESS_LIMIT: u64 = 1 << 57;
/// More CPUs than any kernel supports.
const MOST_CPUS: u64 = 1 << 16;

/// Where the heap's records are, from the words of a page.
pub fn places(words: &[u64]) -> Option<Places> {
    let places = Places::from_words(|at| words[page::PLACES + at]);
    let is_possible = places.base != 0
        && places.words().iter().all(|&word| word < ADDRESS_LIMIT)
        && places.cpus <= MOST_CPUS;
    (words[word!(version)] == figures::VERSION && is_possible).then_some(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps::parse;

    #[test]
    fn data_of_a_file_include_the_zeroes_behind() {
        let text = "\
1000-2000 r-xp 00000000 08:01 4 /usr/lib/libebbtide.so.0
2000-3000 rw-p 00001000 08:01 4 /usr/lib/libebbtide.so.0
3000-5000 rw-p 00000000 00:00 0 
6000-7000 rw-p 00000000 00:00 0 
";
        let mappings = parse(text);
        let data = data_of_files(&mappings);
        let starts: Vec<u64> = data.iter().map(|(_, data)| data.start).collect();
        assert_eq!(starts, [0x2000, 0x3000]);
        assert!(
            data.iter()
                .all(|(file, _)| library::is_named(file.file_name()))
        );
    }

    #[test]
    fn mappings_and_places_are_read_from_the_page() {
        let mut words = vec![0; page::WORDS];
        assert_eq!((ranges(&words), places(&words)), (vec![], None));
        words[page::RANGES..page::RANGES + 6].copy_from_slice(&[1, 0x1000, 0x1000, 2, 0x3000, 1]);
        words[word!(version)] = figures::VERSION;
        words[page::PLACES] = 0x1000;
        let owners: Vec<Owner> = ranges(&words).iter().map(|range| range.owner).collect();
        assert_eq!(owners, [Owner::Heap, Owner::Records]);
        assert_eq!(places(&words).unwrap().base, 0x1000);
        // Another process's page can hold any number.
        for (at, wrong) in [(8, MOST_CPUS + 1), (2, u64::MAX), (0, ADDRESS_LIMIT)] {
            let mut words = words.clone();
            words[page::PLACES + at] = wrong;
            assert_eq!(places(&words), None);
        }
    }

    /// The page of this test process: found by its first words.
    #[test]
    fn the_page_is_found_in_memory() {
        #[repr(align(4096))]
        struct Page(#[allow(dead_code, reason = "read from outside")] [u64; page::WORDS]);
        static mut PAGE: Page = Page([0; page::WORDS]);
        // SAFETY: only this test has the static.
        unsafe {
            (&raw mut PAGE.0[0]).write_volatile(page::MAGIC);
            (&raw mut PAGE.0[1]).write_volatile(figures::VERSION);
            (&raw mut PAGE.0[7]).write_volatile(77);
        }
        let own = std::process::id();
        let mappings = parse(&std::fs::read_to_string("/proc/self/smaps").unwrap());
        let memory = Memory::open(own, &mappings).unwrap();
        assert_eq!(find_page(&memory, &mappings).unwrap()[7], 77);
    }
}
