//! The order in which the memory goes.
//!
//! Files and shared memory first, by unmapping: they pin locks, devices and mounts; and requests that are under way, which pin
//! sockets and pipes. Then every private anonymous
//! mapping, ours and others', by `MADV_DONTNEED` in pieces that several threads take from one list. The rest is
//! the end of the process.

use crate::arena::{Arena, ENDERS, Piece};
use crate::maps::{self, Kind, Mapping};
use crate::memory_shortage::MemoryShortage;
use crate::resources::Resources;
use crate::teardown_threads;
use core::sync::atomic::Ordering;
use ebbtide_sys::helper;

/// Pieces end at a multiple of this, and are about this long at least.
const PIECE_BYTES: usize = 32 << 20;
/// Large ones cost less with huge pages. A thread may be at one for long that hurried ones could share.
const MAX_PIECE_BYTES: usize = 256 << 20;
/// The size of pieces of memory that cannot be touched and is mostly empty.
const RESERVED_BYTES: usize = 64 << 30;
/// Up to this a mapping of a file goes at once.
pub const SMALL_BYTES: usize = 64 << 20;

/// What was mapped when the program had ended.
pub struct Survey<'a> {
    resources: &'a Resources,
    /// Where the code is that the helper runs: this library, and what the compiler calls.
    places: [usize; 5],
    /// The files that hold it.
    kept: [Option<Kind>; 5],
    /// Whether there are files that do not go quickly.
    pub has_large_files: bool,
    /// The size of private memory that can be touched.
    anonymous_bytes: usize,
    /// Rings of requests.
    rings: usize,
}

impl<'a> Survey<'a> {
    /// Looks. `code` is a place in this library.
    pub fn make(resources: &'a Resources, code: usize) -> Self {
        let mut survey = Self {
            resources,
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
            rings: 0,
        };
        // SAFETY: the first thread's, and not in use.
        maps::for_each(&resources.maps, unsafe { resources.arena.buffer() }, |it| {
            survey.add(it);
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
            Kind::Requests => {
                if let Some(place) = self.resources.arena.control().rings.get(self.rings) {
                    place.store(mapping.start, Ordering::Relaxed);
                    self.rings += 1;
                }
            }
            Kind::Anonymous { reserved: true } | Kind::Kernel => {}
        }
    }

    fn keeps(&self, mapping: &Mapping) -> bool {
        let range = mapping.start..mapping.end;
        self.places.iter().any(|place| range.contains(place))
            || matches!(mapping.kind, Kind::File { .. }) && self.kept.contains(&Some(mapping.kind))
    }

    /// Has requests ended that pin ports and pipes. Each ring takes a grace period of the kernel's, some 30 ms, which
    /// several threads wait for together, and nobody else.
    pub fn end_requests(&self) {
        // SAFETY: each seat is used once; `end_rings` keeps to what a helper may do.
        let made = unsafe { self.resources.spawn(ENDERS.take(self.rings), end_rings) };
        if made == 0 {
            take_rings(self.resources.arena);
        }
    }

    /// Unmaps files and shared memory, mappings of up to `most` bytes.
    pub fn unmap_files(&self, most: usize) {
        let Resources { arena, maps, .. } = self.resources;
        // SAFETY: the first thread's, and not in use.
        maps::for_each(maps, unsafe { arena.buffer() }, |mapping| {
            let is_file = matches!(mapping.kind, Kind::File { .. });
            if is_file && mapping.end - mapping.start <= most && !self.keeps(&mapping) {
                // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: this is not the helper's.
                unsafe { helper::unmap(mapping.start, mapping.end) };
            }
            true
        });
    }

    /// Takes all private memory but the helper's.
    pub fn take_memory(&self, shortage: &mut MemoryShortage) {
        let arena = self.resources.arena;
        let count = self.list_pieces(arena.pieces());
        arena.control().left.store(count, Ordering::SeqCst);
        arena.control().count.store(count, Ordering::SeqCst);
        if count > 0 {
            teardown_threads::take_pieces(self.resources, shortage);
        }
    }

    /// Lists it, as far as there are pieces for it. How many are listed.
    fn list_pieces(&self, pieces: &[Piece]) -> usize {
        let Resources { arena, maps, .. } = self.resources;
        let mut left_bytes = self.anonymous_bytes;
        let mut unlisted = pieces.iter();
        let mut add = |start: usize, end: usize, reserved: bool| {
            let mut at = start;
            while at < end {
                let most = if reserved {
                    RESERVED_BYTES
                } else {
                    let left_bytes = left_bytes.saturating_sub(at - start);
                    piece_bytes(left_bytes, arena.control().workers)
                };
                let next = ((at + most) / PIECE_BYTES * PIECE_BYTES).min(end);
                let Some(piece) = unlisted.next() else {
                    return false;
                };
                piece.list(at, next - at);
                at = next;
            }
            if !reserved {
                left_bytes = left_bytes.saturating_sub(end.saturating_sub(start));
            }
            true
        };
        // SAFETY: the first thread's, and not in use.
        maps::for_each(maps, unsafe { arena.buffer() }, |mapping| {
            match mapping.kind {
                // INV-REAPER-2: not the arena, which the kernel may have merged with its neighbours.
                Kind::Anonymous { reserved } if !self.keeps(&mapping) => {
                    add(mapping.start, mapping.end.min(arena.address()), reserved)
                        && add(mapping.start.max(arena.end()), mapping.end, reserved)
                }
                _ => true,
            }
        });
        pieces.len() - unlisted.len()
    }
}

extern "C" fn end_rings(argument: usize) {
    // SAFETY: the argument of a thread made by `spawn`.
    let (resources, _) = unsafe { Resources::of_thread(argument) };
    take_rings(resources.arena);
    helper::exit_thread()
}

fn take_rings(arena: Arena) {
    let control = arena.control();
    let next = || {
        let place = control.next_ring.fetch_add(1, Ordering::Relaxed);
        let ring = control.rings.get(place)?.load(Ordering::Relaxed);
        (ring != 0).then_some(ring)
    };
    while let Some(ring) = next() {
        // SAFETY: INV-REAPER-1: nobody else uses the memory.
        unsafe { helper::end_requests(ring) };
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
    use crate::admission::Admission;
    use ebbtide_sys::helper::Descriptor;
    use ebbtide_sys::pressure::Kept;

    fn resources() -> Resources {
        let own = ebbtide_sys::process::id();
        Resources {
            arena: Arena::map().unwrap(),
            program: Descriptor::process(own).unwrap(),
            stat: Descriptor::open(c"/proc/self/stat").unwrap(),
            maps: Descriptor::open(c"/proc/self/maps").unwrap(),
            pressure: Kept::open(),
            admission: Admission::open(),
        }
    }

    #[test]
    fn pieces_are_half_a_fair_share() {
        assert_eq!(piece_bytes(0, 1), PIECE_BYTES);
        assert_eq!(piece_bytes(256 << 20, 2), 64 << 20);
        assert_eq!(piece_bytes(4 << 30, 2), MAX_PIECE_BYTES);
        assert_eq!(piece_bytes(usize::MAX, 4), MAX_PIECE_BYTES);
    }

    #[test]
    fn pieces_are_all_there_is_and_not_the_arena() {
        let resources = resources();
        let arena = resources.arena;
        let block = ebbtide_sys::vm::map(300 << 20).unwrap();
        let survey = Survey::make(&resources, Survey::make as *const () as usize);
        let count = survey.list_pieces(arena.pieces());
        let mut at = block;
        for piece in &arena.pieces()[..count] {
            assert!(piece.take(|start, bytes| {
                let end = start + bytes;
                assert!(end <= arena.address() || start >= arena.end());
                if start <= at && at < end {
                    at = end;
                }
            }));
        }
        assert!(at >= block + (300 << 20));
    }

    #[test]
    fn what_there_are_no_pieces_for_is_not_listed() {
        let resources = resources();
        let pieces = resources.arena.pieces();
        ebbtide_sys::vm::map(300 << 20).unwrap();
        let survey = Survey::make(&resources, Survey::make as *const () as usize);
        let all = survey.list_pieces(pieces);
        assert!(all > 4);
        for piece in &pieces[..all] {
            assert!(piece.take(|_, _| {}));
        }
        assert_eq!(
            (
                survey.list_pieces(&pieces[..0]),
                survey.list_pieces(&pieces[..4])
            ),
            (0, 4)
        );
        let listed = pieces.iter().filter(|piece| piece.take(|_, _| {}));
        assert_eq!(listed.count(), 4);
    }

    #[test]
    fn a_survey_finds_the_code_that_runs() {
        let resources = resources();
        let survey = Survey::make(&resources, Survey::make as *const () as usize);
        let mut keeps = 0;
        let mut buffer = [0; 4600];
        maps::for_each(&resources.maps, &mut buffer, |mapping| {
            let here = (mapping.start..mapping.end).contains(&survey.places[0]);
            assert!(!here || survey.keeps(&mapping));
            keeps += usize::from(survey.keeps(&mapping));
            true
        });
        assert!(keeps > 1, "the parts of a file are kept together");
        assert!(survey.anonymous_bytes > crate::arena::BYTES / 2);
    }
}
