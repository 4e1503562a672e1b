//! The order in which the memory goes.
//!
//! Files and shared memory first, by unmapping: they pin locks, devices and mounts. Then every private anonymous
//! mapping, ours and others', by `MADV_DONTNEED` in pieces that several threads take from one list. The rest is
//! the end of the process.

use super::arena::{Arena, Piece};
use super::crew::Crew;
use super::life;
use super::maps::{self, Kind, Mapping};
use core::sync::atomic::Ordering;
use ebbtide_sys::helper::{self, Descriptor};

/// A piece, and the multiple at which it ends.
const PIECE_BYTES: usize = 32 << 20;
/// The same of memory that cannot be touched and is mostly empty.
const RESERVED_BYTES: usize = 64 << 30;
/// Up to this a mapping of a file goes at once.
const SMALL_BYTES: usize = 64 << 20;
/// Which mappings of files to take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// Those that go quickly.
    Small,
    /// All of them.
    All,
}

/// The files that hold code which the helper runs: this library, and what the compiler calls.
struct Kept {
    places: [usize; 5],
    files: [Option<Kind>; 5],
}

impl Kept {
    fn find(arena: Arena, maps: &Descriptor) -> Self {
        let mut kept = Self {
            places: [
                life::main as *const () as usize,
                libc::memcpy as *const () as usize,
                libc::memmove as *const () as usize,
                libc::memset as *const () as usize,
                libc::memcmp as *const () as usize,
            ],
            files: [None; 5],
        };
        // SAFETY: the first thread's, and not in use.
        maps::for_each(maps, unsafe { arena.buffer() }, |mapping| {
            for (place, file) in kept.places.iter().zip(&mut kept.files) {
                if (mapping.start..mapping.end).contains(place) {
                    *file = Some(mapping.kind);
                }
            }
            true
        });
        kept
    }

    fn holds(&self, mapping: &Mapping) -> bool {
        let range = mapping.start..mapping.end;
        self.places.iter().any(|place| range.contains(place))
            || matches!(mapping.kind, Kind::File { .. }) && self.files.contains(&Some(mapping.kind))
    }
}

/// Unmaps files and shared memory.
pub fn unmap_files(arena: Arena, maps: &Descriptor, which: Files) {
    let kept = Kept::find(arena, maps);
    // SAFETY: the first thread's, and not in use.
    maps::for_each(maps, unsafe { arena.buffer() }, |mapping| {
        let small = mapping.end - mapping.start <= SMALL_BYTES;
        if matches!(mapping.kind, Kind::File { .. })
            && (small || which == Files::All)
            && !kept.holds(&mapping)
        {
            // SAFETY: INV-REAPER-1: nobody else uses the memory; INV-REAPER-2: this is not code of the helper's.
            unsafe { helper::unmap(mapping.start, mapping.end) };
        }
        true
    });
}

/// Takes all private memory but the helper's.
pub fn take_memory(arena: Arena, files: &mut life::Files) {
    let control = arena.control();
    let kept = Kept::find(arena, &files.maps);
    let mut from = 0;
    let mut crew = Crew::new(arena, files.turns);
    loop {
        control.finished.store(0, Ordering::SeqCst);
        let (count, next) = list_pieces(arena, &files.maps, &kept, from);
        control.left.store(count, Ordering::SeqCst);
        control.count.store(count, Ordering::SeqCst);
        control.next.store(0, Ordering::SeqCst);
        control.round.fetch_add(1, Ordering::SeqCst);
        helper::wake(control.round.as_ptr() as usize);
        if count == 0 || !crew.finish(&mut files.need) {
            return;
        }
        match next {
            Some(next) => from = next,
            None => return,
        }
    }
}

/// Lists what lies at or above `from`. How many pieces, and where the next list begins if this one is full.
fn list_pieces(
    arena: Arena,
    maps: &Descriptor,
    kept: &Kept,
    from: usize,
) -> (usize, Option<usize>) {
    let pieces = arena.pieces();
    // An even number of this round's: not done.
    let pending = arena.control().round.load(Ordering::SeqCst).wrapping_add(1) << 1;
    let (mut count, mut more) = (0, None);
    let mut add = |start: usize, end: usize, most: usize| {
        let mut at = start.max(from);
        while at < end && more.is_none() {
            let next = ((at / most + 1) * most).min(end);
            if let Some(Piece { start, bytes, done }) = pieces.get(count) {
                start.store(at, Ordering::Relaxed);
                bytes.store(next - at, Ordering::Relaxed);
                done.store(pending, Ordering::Relaxed);
                count += 1;
                at = next;
            } else {
                more = Some(at);
            }
        }
        more.is_none()
    };
    // SAFETY: the first thread's, and not in use.
    maps::for_each(maps, unsafe { arena.buffer() }, |mapping| {
        let Kind::Anonymous { reserved } = mapping.kind else {
            return true;
        };
        if kept.holds(&mapping) {
            return true;
        }
        let most = if reserved {
            RESERVED_BYTES
        } else {
            PIECE_BYTES
        };
        // INV-REAPER-2: not the arena, which the kernel may have merged with its neighbours.
        add(mapping.start, mapping.end.min(arena.address()), most)
            && add(mapping.start.max(arena.end()), mapping.end, most)
    });
    (count, more)
}
