//! The order in which the memory goes.
//!
//! Files and shared memory first, by unmapping: they pin locks, devices and mounts; and requests that are under way, which pin
//! sockets and pipes. Then every private anonymous
//! mapping, ours and others', by `MADV_DONTNEED` in pieces that several threads take from one list. The rest is
//! the end of the process.

use crate::admission::Admission;
use crate::arena::{self, Arena};
use crate::maps::{self, Kind, Mapping};
use crate::memory_shortage::MemoryShortage;
use crate::teardown_threads::TeardownThreads;
use core::sync::atomic::Ordering;
use ebbtide_sys::helper::{self, Descriptor};

/// Pieces end at a multiple of this, and are about this long at least.
const PIECE_BYTES: usize = 32 << 20;
/// Large ones cost less with huge pages. A thread may be at one for long that hurried ones could share.
const MAX_PIECE_BYTES: usize = 256 << 20;
/// The size of pieces of memory that cannot be touched and is mostly empty.
const RESERVED_BYTES: usize = 64 << 30;
/// Up to this a mapping of a file goes at once.
pub const SMALL_BYTES: usize = 64 << 20;

/// What was mapped when the program had ended.
pub struct Survey {
    arena: Arena,
    maps: Descriptor,
    /// Where the code is that the helper runs: this library, and what the compiler calls.
    places: [usize; 5],
    /// The files that hold it.
    kept: [Option<Kind>; 5],
    /// Whether there are files that do not go quickly.
    pub has_large_files: bool,
    /// The size of private memory that can be touched.
    anonymous_bytes: usize,
}

impl Survey {
    /// Looks. `code` is a place in this library.
    pub fn make(arena: Arena, maps: Descriptor, code: usize) -> Self {
        let mut survey = Self {
            arena,
            maps,
            places: [
                code,
                libc::memcpy as *const () as usize,
                libc::memmove as *const () as usize,
                libc::memset as *const () as usize,
                libc::memcmp as *const () as usize,
            ],
            kept: [None; 5],
            has_large_files: false,
            anonymous_bytes: 0,
        };
        // SAFETY: the first thread's, and not in use.
        maps::for_each(&maps, unsafe { arena.buffer() }, |mapping| {
            survey.add(mapping);
            true
        });
        survey
    }

    fn add(&mut self, mapping: Mapping) {
        let bytes = mapping.end - mapping.start;
        for (place, file) in self.places.iter().zip(&mut self.kept) {
            if (mapping.start..mapping.end).contains(place) {
                *file = Some(mapping.kind);
            }
        }
        match mapping.kind {
            Kind::File { .. } => self.has_large_files |= bytes > SMALL_BYTES,
            Kind::Anonymous { reserved: false } => self.anonymous_bytes += bytes,
            Kind::Requests => add_ring(self.arena, mapping.start),
            Kind::Anonymous { reserved: true } | Kind::Kernel => {}
        }
    }

    fn keeps(&self, mapping: &Mapping) -> bool {
        let range = mapping.start..mapping.end;
        self.places.iter().any(|place| range.contains(place))
            || matches!(mapping.kind, Kind::File { .. }) && self.kept.contains(&Some(mapping.kind))
    }

    /// Unmaps files and shared memory, mappings of up to `most` bytes.
    pub fn unmap_files(&self, most: usize) {
        // SAFETY: the first thread's, and not in use.
        maps::for_each(&self.maps, unsafe { self.arena.buffer() }, |mapping| {
            let is_file = matches!(mapping.kind, Kind::File { .. });
            if is_file && mapping.end - mapping.start <= most && !self.keeps(&mapping) {
                // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: this is not the helper's.
                unsafe { helper::unmap(mapping.start, mapping.end) };
            }
            true
        });
    }

    /// Takes all private memory but the helper's.
    pub fn take_memory(&self, admission: Admission, shortage: &mut MemoryShortage) {
        let control = self.arena.control();
        let mut from = 0;
        let mut threads = TeardownThreads::new(self.arena, admission);
        loop {
            control.finished.clear();
            // Nobody begins with a piece that is being listed, and one that is done early is not the last.
            control.count.store(0, Ordering::SeqCst);
            control.left.store(arena::PIECES, Ordering::SeqCst);
            let (count, next) = self.list_pieces(from);
            let unused = arena::PIECES - count;
            control.left.fetch_sub(unused, Ordering::SeqCst);
            control.next.store(0, Ordering::SeqCst);
            control.count.store(count, Ordering::SeqCst);
            control.round.fetch_add(1, Ordering::SeqCst);
            helper::wake(control.round.as_ptr() as usize);
            if count == 0 || !threads.finish(shortage) {
                return;
            }
            let Some(next) = next else { return };
            from = next;
        }
    }

    /// Lists what lies at or above `from`. How many pieces, and where the next list begins if this one is full.
    fn list_pieces(&self, from: usize) -> (usize, Option<usize>) {
        let arena = self.arena;
        let (pieces, control) = (arena.pieces(), arena.control());
        let round = control.round.load(Ordering::SeqCst).wrapping_add(1);
        let mut left_bytes = self.anonymous_bytes;
        let (mut count, mut more) = (0, None);
        let mut add = |start: usize, end: usize, reserved: bool| {
            let mut at = start.max(from);
            while at < end && more.is_none() {
                let most = if reserved {
                    RESERVED_BYTES
                } else {
                    piece_bytes(left_bytes.saturating_sub(at - start), control.workers)
                };
                let next = ((at + most) / PIECE_BYTES * PIECE_BYTES).min(end);
                if let Some(piece) = pieces.get(count) {
                    piece.list(at, next - at, round);
                    count += 1;
                    at = next;
                } else {
                    more = Some(at);
                }
            }
            if !reserved {
                left_bytes = left_bytes.saturating_sub(end.saturating_sub(start));
            }
            more.is_none()
        };
        // SAFETY: the first thread's, and not in use.
        maps::for_each(&self.maps, unsafe { arena.buffer() }, |mapping| {
            match mapping.kind {
                // INV-REAPER-2: not the arena, which the kernel may have merged with its neighbours.
                Kind::Anonymous { reserved } if !self.keeps(&mapping) => {
                    add(mapping.start, mapping.end.min(arena.address()), reserved)
                        && add(mapping.start.max(arena.end()), mapping.end, reserved)
                }
                _ => true,
            }
        });
        (count, more)
    }
}

fn add_ring(arena: Arena, ring: usize) {
    let control = arena.control();
    let count = control.ring_count.load(Ordering::Relaxed);
    if let Some(place) = control.rings.get(count) {
        place.store(ring, Ordering::Relaxed);
        control.ring_count.store(count + 1, Ordering::Release);
    }
}

/// Has requests ended that pin ports and pipes. Each ring takes a grace period of the kernel's, some 30 ms, which
/// several threads wait for together, and nobody else.
pub fn end_requests(arena: Arena) {
    let rings = arena.control().ring_count.load(Ordering::Relaxed);
    for n in 0..rings.min(arena::ENDERS) {
        let seat = arena.seat(arena::FIRST_ENDER + n);
        // SAFETY: each seat is used once; the arena stays.
        let made = unsafe { helper::spawn_thread(seat, end_rings, arena.address()) };
        if made.is_err() && n == 0 {
            take_rings(arena);
        }
    }
}

extern "C" fn end_rings(arena: usize) {
    take_rings(Arena::at(arena));
    helper::exit_thread()
}

fn take_rings(arena: Arena) {
    let control = arena.control();
    let rings = &control.rings[..control.ring_count.load(Ordering::Acquire)];
    while let Some(ring) = rings.get(control.next_ring.fetch_add(1, Ordering::Relaxed)) {
        // SAFETY: INV-REAPER-1: nobody else uses the memory.
        unsafe { helper::end_requests(ring.load(Ordering::Relaxed)) };
    }
}

/// The size of the next piece, with so much left for so many threads: half of a fair share, so that all end at the
/// same time.
fn piece_bytes(left_bytes: usize, workers: usize) -> usize {
    let half = left_bytes / (2 * workers.max(1));
    (half / PIECE_BYTES * PIECE_BYTES).clamp(PIECE_BYTES, MAX_PIECE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_half_a_fair_share() {
        assert_eq!(piece_bytes(0, 1), PIECE_BYTES);
        assert_eq!(piece_bytes(256 << 20, 2), 64 << 20);
        assert_eq!(piece_bytes(4 << 30, 2), MAX_PIECE_BYTES);
        assert_eq!(piece_bytes(usize::MAX, 4), MAX_PIECE_BYTES);
    }

    #[test]
    fn pieces_are_all_there_is_and_not_the_arena() {
        let maps = Descriptor::open(c"/proc/self/maps").unwrap();
        let arena = Arena::map().unwrap();
        let block = ebbtide_sys::vm::map(300 << 20).unwrap();
        let survey = Survey::make(arena, maps, Survey::make as *const () as usize);
        // A list from the middle of the block on has the rest of it.
        for from in [0, block + (100 << 20)] {
            let (count, next) = survey.list_pieces(from);
            assert_eq!(next, None);
            let mut at = block.max(from);
            for piece in &arena.pieces()[..count] {
                let range = piece.pending().unwrap();
                let (start, end) = (range.start, range.start + range.bytes);
                assert!(end <= arena.address() || start >= arena.end());
                if start <= at && at < end {
                    at = end;
                }
            }
            assert!(at >= block + (300 << 20));
        }
    }

    #[test]
    fn a_survey_finds_the_code_that_runs() {
        let maps = Descriptor::open(c"/proc/self/maps").unwrap();
        let arena = Arena::map().unwrap();
        let survey = Survey::make(arena, maps, Survey::make as *const () as usize);
        let mut keeps = 0;
        let mut buffer = [0; 4600];
        maps::for_each(&maps, &mut buffer, |mapping| {
            let here = (mapping.start..mapping.end).contains(&survey.places[0]);
            assert!(!here || survey.keeps(&mapping));
            keeps += usize::from(survey.keeps(&mapping));
            true
        });
        assert!(keeps > 1, "the parts of a file are kept together");
        assert!(survey.anonymous_bytes > arena::BYTES / 2);
    }
}
