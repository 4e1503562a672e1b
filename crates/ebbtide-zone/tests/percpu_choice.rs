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

    /// The same in populated pages.
    fn take_populated(&mut self, n: u32, align: u32) -> Option<(u32, u32)> {
        let taken = self.shard().take_populated(n, align);
        self.shard().check_invariants().unwrap();
        let taken = taken?;
        assert_eq!(taken.populate, 0);
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

/// One area is free in one chunk, two neighbours in the other: the hints must be exact to tell them apart.
#[test]
fn the_chunk_with_the_smaller_hole_gives_the_area() {
    for (n, hole) in [PAGE_GRANULES, 32]
        .iter()
        .flat_map(|&n| [0, 6, 7, 62, 63].map(|hole| (n, hole)))
    {
        for (smaller, larger) in [(0, 1), (1, 0)] {
            let mut s = Storage::new(2);
            (0..2).for_each(|_| s.fill(n));
            s.put(smaller, hole * n);
            [1, 2].iter().for_each(|at| s.put(larger, at * n));
            assert_eq!(s.take(n, 1), Some((smaller, hole * n)), "{n} granules");
            assert_eq!(s.take(n, 1), Some((larger, n)));
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

#[test]
fn populated_pages_come_first_and_then_low_ones() {
    let mut s = Storage::new(1);
    s.fill(PAGE_GRANULES);
    for page in [3, 5, 9] {
        s.put(0, page * PAGE_GRANULES);
    }
    s.shard().begin_round(Scope::Everything);
    let claimed = s.shard().claim(Scope::Everything, 64).expect("pages");
    assert_eq!(claimed.pages, 1 << 3 | 1 << 5 | 1 << 9);
    // One page stays.
    s.shard().finish(claimed, 1 << 3 | 1 << 9);
    for page in [5, 3, 9] {
        let taken = s.shard().take(PAGE_GRANULES, 1).expect("a page");
        assert_eq!(taken.at, page * PAGE_GRANULES);
        assert_eq!(taken.populate, if page == 5 { 0 } else { 1 << page });
    }
}

#[test]
fn an_area_lies_in_one_page_if_it_can() {
    let mut s = Storage::new(1);
    assert!(s.shard().open(0, false));
    assert_eq!(s.take(300, 1), Some((0, 0)));
    assert_eq!(s.take(300, 1), Some((0, 512)), "not across a border");
    assert_eq!(s.take(212, 1), Some((0, 300)));
    assert_eq!(s.take(212, 1), Some((0, 812)));
    (2..64).for_each(|page| assert_eq!(s.take(512, 1), Some((0, page * 512))));
    // 512 granules across the border of two pages are free.
    s.put(0, 300);
    s.put(0, 512);
    assert_eq!(s.take(513, 1), None);
    // Any 512 granules hold an aligned area of 385.
    assert_eq!(s.take(385, 128), Some((0, 384)));
    s.put(0, 384);
    assert_eq!(s.take(400, 32), Some((0, 320)));
    assert_eq!(s.take(93, 1), None);
    assert_eq!(s.take(92, 1), Some((0, 720)));
    assert_eq!(s.take(20, 1), Some((0, 300)));
    assert_eq!(s.take(17, 1), None, "full");
    s.shard().check_invariants().unwrap();
}

#[test]
fn an_aligned_area_of_pages_fits_between_its_neighbours() {
    let mut s = Storage::new(1);
    s.fill(PAGE_GRANULES);
    [4, 5, 10, 11, 12]
        .iter()
        .for_each(|page| s.put(0, page * PAGE_GRANULES));
    assert_eq!(s.take(2 * PAGE_GRANULES, 512), Some((0, 4 * 512)));
    assert_eq!(s.take(3 * PAGE_GRANULES, 512), Some((0, 10 * 512)));
    assert_eq!(s.take(17, 1), None, "full");
}

#[test]
fn populated_pages_alone_serve_a_caller_that_cannot_wait() {
    let mut s = Storage::new(1);
    assert_eq!(s.take_populated(1, 1), None, "no chunk is open");
    assert!(s.shard().open(0, false));
    assert_eq!(s.take_populated(1, 1), None, "no page is populated");
    assert_eq!(s.take(SMALL_GRANULES, 1), Some((0, 0)));
    // The rest of the page, and nothing behind it.
    let rest = (PAGE_GRANULES / SMALL_GRANULES - 1) as usize;
    for i in 1..=rest {
        let at = i as u32 * SMALL_GRANULES;
        assert_eq!(s.take_populated(SMALL_GRANULES, 1), Some((0, at)));
    }
    assert_eq!(s.take_populated(1, 1), None);
    // The chunk has lost none of its places.
    let next = Some((0, PAGE_GRANULES));
    assert_eq!(s.take(1, 1), next);
}

#[test]
fn an_area_across_populated_pages_ends_with_them() {
    let mut s = Storage::new(1);
    assert!(s.shard().open(0, false));
    let pages = 3 * PAGE_GRANULES;
    assert_eq!(s.take(pages, 1), Some((0, 0)));
    s.put(0, 0);
    assert_eq!(s.take_populated(pages + 1, 1), None);
    assert_eq!(s.take_populated(pages - 1, 1), Some((0, 0)), "a free chunk");
    assert_eq!(
        s.take_populated(2, 1),
        None,
        "the last granule alone is left"
    );
    assert_eq!(s.take_populated(17, 1), None);
    s.put(0, 0);
    assert_eq!(s.take(UNIT_GRANULES, 1), Some((0, 0)));
}

/// Active chunks without a populated page do not hide it in a sidelined one.
#[test]
fn populated_pages_of_a_sidelined_chunk_serve() {
    let mut s = Storage::new(2);
    s.fill(PAGE_GRANULES);
    (0..UNIT_PAGES as u32 - 1).for_each(|page| s.put(0, page * PAGE_GRANULES));
    s.shard().begin_round(Scope::Everything);
    let claimed = s.shard().claim(Scope::Everything, 64).expect("a full one");
    s.shard().finish(claimed, claimed.pages);
    // One page of the sidelined chunk is populated, and in use.
    assert_eq!(s.shard().counters().sidelined, 1);
    assert_eq!(s.take_populated(PAGE_GRANULES, 1), None);
    let last = (UNIT_PAGES as u32 - 1) * PAGE_GRANULES;
    let behind = s.shard().disown(0, last).expect("the last area");
    s.shard().put(behind);
    assert_eq!(s.take_populated(PAGE_GRANULES, 1), Some((0, last)));
}
