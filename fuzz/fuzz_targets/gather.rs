//! A gather against the list of the pieces that were added to it.
#![no_main]

use ebbtide_core::reclaim::gather::{CLAIM_RANGES, Gather, Range};
use ebbtide_fuzz::Bytes;
use ebbtide_zone::BLOCK_FRAMES;
use libfuzzer_sys::fuzz_target;

enum Op {
    Reserve,
    /// Pieces with a gap before each: gap, frames, lazy.
    Add(Vec<(u32, u32, bool)>),
    /// Whole pageblocks, with a gap of pageblocks before.
    AddBlocks(u32, u32, bool),
    Pop,
    Cut(u32),
}

fn op(bytes: &mut Bytes) -> Op {
    match bytes.below(8) {
        0..=1 => Op::Reserve,
        2..=3 => {
            let piece = |bytes: &mut Bytes| {
                let gap = bytes.of(&[0..=0, 0..=3, 0..=599]) as u32;
                (gap, bytes.of(&[1..=3, 1..=599]) as u32, bytes.flag())
            };
            // Many pieces alike, and then a few that differ.
            let (first, count) = (
                piece(bytes),
                bytes.number(1..=CLAIM_RANGES as u64 - 8) as usize,
            );
            let mut pieces = vec![first; count];
            pieces.extend((0..bytes.below(8)).map(|_| piece(bytes)));
            Op::Add(pieces)
        }
        4 => Op::AddBlocks(
            bytes.below(3) as u32,
            bytes.number(1..=4) as u32,
            bytes.flag(),
        ),
        5..=6 => Op::Pop,
        _ => Op::Cut(bytes.number(1..=1999) as u32),
    }
}

struct World {
    gather: Gather,
    /// What was added: first frame, frames, lazy.
    pieces: Vec<(u32, u32, bool)>,
    /// The frame behind the last one that was ever added.
    end: u32,
}

impl World {
    /// Adds a piece; `false`: there was no room. `INV-GATHER-2`.
    fn add(&mut self, first: u32, frames: u32, lazy: bool) -> bool {
        let range = Range::new(first, frames);
        let room = self.gather.room();
        let added = self.gather.add(if lazy { range.to_lazy() } else { range });
        assert!(added || room == 0, "no range was added to a room of {room}");
        if added {
            self.pieces.push((first, frames, lazy));
            self.end = first + frames;
        }
        added
    }

    /// The last frames of the pieces are these. `INV-GATHER-1`.
    fn take(&mut self, first: u32, mut frames: u32, is_lazy: bool) {
        while frames > 0 {
            let (piece, n, lazy) = self.pieces.pop().expect("a piece");
            let taken = n.min(frames);
            frames -= taken;
            assert_eq!((piece + n - taken, lazy), (first + frames, is_lazy));
            if taken < n {
                self.pieces.push((piece, n - taken, lazy));
            }
        }
    }

    fn pop(&mut self) {
        let Some(range) = self.gather.pop() else {
            return assert!(self.pieces.is_empty());
        };
        let (first, frames) = (range.first, range.frames());
        let is_blocks = first % BLOCK_FRAMES == 0 && frames % BLOCK_FRAMES == 0;
        assert!(is_blocks || first / BLOCK_FRAMES == (first + frames - 1) / BLOCK_FRAMES);
        self.take(first, frames, range.is_lazy());
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Reserve => {
                if self.gather.reserve() {
                    assert!(self.gather.room() >= CLAIM_RANGES);
                }
            }
            Op::Add(pieces) => {
                for (gap, frames, lazy) in pieces {
                    let first = self.end + gap;
                    // A claim ends at the border of a pageblock.
                    let frames = frames.min(BLOCK_FRAMES - first % BLOCK_FRAMES);
                    if !self.add(first, frames, lazy) {
                        break;
                    }
                }
            }
            Op::AddBlocks(gap, blocks, lazy) => {
                let first = self.end.next_multiple_of(BLOCK_FRAMES) + gap * BLOCK_FRAMES;
                self.add(first, blocks * BLOCK_FRAMES, lazy);
            }
            Op::Pop => self.pop(),
            Op::Cut(frames) => {
                if let Some(range) = self.gather.peek() {
                    // Whole pageblocks are put back as such.
                    let is_blocks =
                        range.first % BLOCK_FRAMES == 0 && range.frames() % BLOCK_FRAMES == 0;
                    let unit = if is_blocks { BLOCK_FRAMES } else { 1 };
                    let frames = frames.next_multiple_of(unit);
                    self.gather.cut(frames);
                    let cut = frames.min(range.frames());
                    let rest = range.frames() - cut;
                    self.take(range.first + rest, cut, range.is_lazy());
                }
            }
        }
        let frames: u64 = self.pieces.iter().map(|piece| u64::from(piece.1)).sum();
        assert_eq!(self.gather.frames(), frames);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes::new(bytes);
    let mut world = World {
        gather: Gather::NEW,
        pieces: Vec::new(),
        end: 0,
    };
    for _ in 0..100 {
        if bytes.is_over() {
            break;
        }
        world.step(op(&mut bytes));
    }
    let mut ranges = 0;
    world.gather.for_each(|range| {
        ranges += 1;
        match range.first % 3 {
            0 => Gather::keep(range),
            1 => Gather::done(range),
            _ => {}
        }
    });
    assert_eq!(world.gather.len(), ranges);
    if ranges % 2 == 0 {
        world.gather.begin_again();
        world.gather.for_each(|range| assert!(!range.is_done()));
    }
    while !world.gather.is_empty() {
        world.pop();
    }
    assert!(world.pieces.is_empty());
    world.gather.free_batches();
});
