//! Which chunk and which place an area of per-CPU data gets.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::percpu::*;

struct Storage {
    state: ShardState,
    chunks: Vec<Chunk>,
}

impl Storage {
    fn new(chunks: usize) -> Self {
        Self {
            state: ShardState::NEW,
            chunks: vec![Chunk::ZERO; chunks],
        }
    }

    fn shard(&mut self) -> Shard<'_> {
        Shard::new(&mut self.state, &mut self.chunks)
    }

    /// Takes `n` granules of the chunks that are open.
    fn take(&mut self, n: u32, align: u32) -> Option<(u32, u32)> {
        let taken = self.shard().take(n, align)?;
        Some((taken.chunk, taken.at))
    }

    fn put(&mut self, chunk: u32, at: u32) {
        let area = self.shard().disown(chunk, at).expect("an area");
        self.shard().put(area);
        self.shard().check_invariants().unwrap();
    }

    /// Opens the next chunk and fills it with areas of `n` granules.
    fn fill(&mut self, n: u32) {
        let id = self.shard().end();
        assert!(self.shard().open(id, false));
        (0..UNIT_GRANULES / n).for_each(|i| assert_eq!(self.take(n, 1), Some((id, i * n))));
        self.shard().check_invariants().unwrap();
    }
}

#[test]
fn the_fuller_of_two_chunks_gives_the_area() {
    for (fuller, emptier) in [(0, 1), (1, 0)] {
        for fuller_first in [true, false] {
            let mut s = Storage::new(2);
            (0..2).for_each(|_| s.fill(PAGE_GRANULES));
            if fuller_first {
                s.put(fuller, 7 * PAGE_GRANULES);
            }
            (0..40).for_each(|page| s.put(emptier, page * PAGE_GRANULES));
            if !fuller_first {
                s.put(fuller, 7 * PAGE_GRANULES);
            }
            let place = Some((fuller, 7 * PAGE_GRANULES));
            assert_eq!(s.take(PAGE_GRANULES, 1), place);
            assert_eq!(s.take(PAGE_GRANULES, 1), Some((emptier, 0)));
        }
    }
}

#[test]
fn a_single_free_granule_is_found_behind_full_chunks() {
    let mut s = Storage::new(9);
    s.fill(SMALL_GRANULES);
    s.put(0, 32);
    assert_eq!(s.take(SMALL_GRANULES - 1, 1), Some((0, 32)));
    assert_eq!(s.take(2, 1), None, "one granule is left");
    (0..8).for_each(|_| s.fill(SMALL_GRANULES));
    assert_eq!(s.take(1, 1), Some((0, 47)));
    assert_eq!(s.take(1, 1), None);
}

#[test]
fn the_number_of_opened_chunks_is_known_with_and_without_the_lock() {
    let mut s = Storage::new(4);
    for end in 0..4 {
        assert_eq!((s.state.end(), s.shard().end()), (end, end));
        assert_eq!(s.shard().wanted(end), None, "there are no more");
        assert_eq!(s.shard().wanted(end + 1), Some(end));
        s.fill(PAGE_GRANULES);
    }
    // A chunk that is opened again is none of them.
    (0..64).for_each(|page| {
        [1, 2]
            .iter()
            .for_each(|&id| s.put(id, page * PAGE_GRANULES))
    });
    s.shard().begin_round(Scope::Everything);
    let claimed = s.shard().claim(Scope::Everything, 64).expect("a free one");
    s.shard().finish(claimed, claimed.pages);
    assert_eq!(s.shard().wanted(9), Some(claimed.chunk));
    assert_eq!((s.state.end(), s.shard().counters().chunks), (4, 3));
}

#[test]
fn an_area_lies_in_every_page_that_it_touches() {
    let mut s = Storage::new(1);
    assert!(s.shard().open(0, false));
    for (n, align, pages) in [
        (PAGE_GRANULES - 1, 1, 0b1),
        (2 * PAGE_GRANULES, PAGE_GRANULES, 0b110),
        (PAGE_GRANULES + 1, PAGE_GRANULES, 0b11000),
    ] {
        let taken = s.shard().take(n, align).expect("room");
        assert_eq!(taken.populate, pages, "{n} granules");
        let area = s.shard().disown(0, taken.at).expect("an area");
        assert_eq!((area.granules, Shard::pages(area)), (n, pages));
    }
}

/// In a forked child that skipped the fork handlers the parent's chunks are nobody's.
#[test]
fn chunks_that_were_given_up_are_left_alone() {
    let mut s = Storage::new(4);
    (0..2).for_each(|_| s.fill(PAGE_GRANULES));
    (1..64).for_each(|page| s.put(0, page * PAGE_GRANULES));
    s.shard().abandon();
    let before = [0, 1].map(|id: usize| s.chunks[id].state());
    for (chunk, at) in [(0, 0), (0, 7), (1, PAGE_GRANULES)] {
        assert_eq!(s.shard().disown(chunk, at), Err(Misuse::Abandoned));
    }
    assert_eq!(s.shard().disown(2, 0), Err(Misuse::NotAnArea), "not open");
    // The round that was going on finds none of their pages, nor does the next.
    assert_eq!(s.shard().claim(Scope::Everything, 64), None);
    s.shard().begin_round(Scope::Everything);
    assert_eq!(s.shard().claim(Scope::Everything, 64), None);
    s.shard().take_back();
    assert_eq!(s.shard().counters(), Counters::default());
    assert_eq!(s.take(1, 1), None);
    // The child's own chunks come behind them.
    assert_eq!((s.shard().end(), s.shard().wanted(4)), (2, Some(2)));
    s.fill(PAGE_GRANULES);
    s.put(2, 0);
    assert_eq!(s.shard().disown(1, 0), Err(Misuse::Abandoned));
    let after = [0, 1].map(|id: usize| s.chunks[id].state());
    assert_eq!(before, after);
}
