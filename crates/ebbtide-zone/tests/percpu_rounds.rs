//! Which empty pages of per-CPU chunks a round gives back, and what becomes of their chunks.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::percpu::*;

/// Chunks whose areas are pages.
struct Pages {
    state: ShardState,
    chunks: Vec<Chunk>,
}

impl Pages {
    /// Full chunks.
    fn full(chunks: u32) -> Self {
        let mut pages = Self {
            state: ShardState::NEW,
            chunks: vec![Chunk::ZERO; chunks as usize],
        };
        for id in 0..chunks {
            assert!(pages.shard().open(id, false));
            (0..64).for_each(|page| assert_eq!(pages.take(), (id, page)));
        }
        pages
    }

    fn shard(&mut self) -> Shard<'_> {
        Shard::new(&mut self.state, &mut self.chunks)
    }

    /// Takes a page; its chunk and its place there.
    fn take(&mut self) -> (u32, u32) {
        let taken = self.shard().take(PAGE_GRANULES, 1).expect("a free page");
        (taken.chunk, taken.at / PAGE_GRANULES)
    }

    fn put(&mut self, chunk: u32, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            let area = self.shard().disown(chunk, page * PAGE_GRANULES);
            assert!(self.shard().put(area.expect("an area")));
        }
    }

    /// All that a round claims, in runs of pages. The kernel takes all of it.
    fn claims(&mut self, scope: Scope, runs: u32) -> Vec<(u32, u64)> {
        let mut claims = Vec::new();
        while let Some(claimed) = self.shard().claim(scope, runs) {
            claims.push((claimed.chunk, claimed.pages));
            self.shard().finish(claimed, claimed.pages);
            self.shard().check_invariants().unwrap();
        }
        claims
    }

    /// A round of pages that were empty since the round before.
    fn due(&mut self) -> Vec<(u32, u64)> {
        self.shard().begin_round(Scope::Due);
        self.claims(Scope::Due, 64)
    }

    /// All that is empty now was so in the round before.
    fn let_a_round_pass(&mut self) {
        self.shard().begin_round(Scope::Due);
    }

    fn states(&self) -> Vec<State> {
        self.chunks.iter().map(Chunk::state).collect()
    }
}

/// The pages of a range, as a mask.
fn mask(pages: std::ops::Range<u32>) -> u64 {
    pages.map(|page| 1 << page).sum()
}

#[test]
fn a_chunk_is_sidelined_if_a_quarter_of_it_is_empty() {
    use State::{Active, Sidelined};
    for (empty, state) in [(16, Sidelined), (15, Active)] {
        let mut pages = Pages::full(2);
        pages.put(0, 0..empty);
        // These stay at hand.
        pages.put(1, 0..HIGH);
        pages.let_a_round_pass();
        // Of fewer pages the chunk is trimmed, in the second pass.
        assert_eq!(pages.due(), [(0, mask(0..empty))]);
        assert_eq!(pages.states(), [state, Active], "of {empty} pages");
        assert_eq!(pages.shard().stock(), HIGH);
    }
}

#[test]
fn fewer_empty_pages_are_trimmed_to_one_in_twenty() {
    // 160 populated pages, 8 of which may be empty.
    let empty = |n| {
        let mut pages = Pages::full(3);
        pages.put(2, 0..64);
        pages.shard().begin_round(Scope::Everything);
        assert_eq!(pages.claims(Scope::Everything, 64), [(2, u64::MAX)]);
        (0..32).for_each(|page| assert_eq!(pages.take(), (2, page)));
        pages.put(0, 0..n);
        pages.let_a_round_pass();
        assert_eq!(pages.shard().counters().populated, 160);
        pages
    };
    assert_eq!(empty(8).due(), []);
    let mut pages = empty(9);
    // The lowest ones stay.
    assert_eq!(pages.due(), [(0, mask(HIGH..9))]);
    assert_eq!(pages.states(), [State::Active; 3]);
}

#[test]
fn pages_go_that_were_empty_since_the_round_before() {
    let mut pages = Pages::full(2);
    pages.put(0, 0..20);
    assert_eq!(pages.due(), [], "needed until just now");
    pages.put(0, 20..30);
    // Of 30 empty pages 20 were empty all the time, and some stay.
    assert_eq!(pages.due(), [(0, mask(14..30))]);
    assert_eq!(pages.shard().stock(), 10 + HIGH);
    assert_eq!(pages.states(), [State::Active; 2], "it has pages at hand");
}

#[test]
fn a_round_leaves_pages_at_hand_that_are_taken_meanwhile() {
    let mut pages = Pages::full(1);
    pages.put(0, 0..16);
    pages.let_a_round_pass();
    pages.shard().begin_round(Scope::Due);
    (0..10).for_each(|page| assert_eq!(pages.take(), (0, page)));
    let claims = pages.claims(Scope::Due, 64);
    assert_eq!(claims, [(0, mask(10 + HIGH..16))]);
    assert_eq!(pages.shard().stock(), HIGH);
}

/// A shard of a full chunk, of which `at_hand` pages are empty, and of a sidelined one.
fn with_a_sidelined_chunk(at_hand: u32) -> Pages {
    let mut pages = Pages::full(2);
    pages.put(0, 0..32);
    pages.put(1, 0..HIGH);
    pages.let_a_round_pass();
    assert_eq!(pages.due(), [(0, mask(0..32))]);
    assert_eq!(pages.states(), [State::Sidelined, State::Active]);
    for _ in at_hand..HIGH {
        assert_eq!(pages.take().0, 1);
    }
    pages
}

#[test]
fn what_a_sidelined_chunk_gets_goes_in_the_next_round_unless_it_is_to_be_at_hand() {
    for at_hand in [0, 1, HIGH - 1, HIGH] {
        let mut pages = with_a_sidelined_chunk(at_hand);
        pages.put(0, 40..46);
        assert_eq!(pages.shard().stock(), at_hand, "they are not at hand yet");
        let stay = HIGH - at_hand;
        assert_eq!(pages.due(), [(0, mask(40 + stay..46))]);
        assert_eq!(pages.shard().stock(), HIGH);
        // With a page that stays, the chunk serves again.
        let state = [State::Sidelined, State::Active][usize::from(stay > 0)];
        assert_eq!(pages.states()[0], state, "{at_hand} at hand");
    }
}

#[test]
fn a_chunk_that_gives_its_pages_in_parts_is_sidelined_if_enough_are_at_hand() {
    for (at_hand, state) in [(HIGH, State::Sidelined), (HIGH - 1, State::Active)] {
        let mut pages = Pages::full(2);
        // Every fourth page: sixteen runs.
        pages.put(0, (0..64).step_by(4));
        pages.put(1, 0..at_hand);
        pages.let_a_round_pass();
        pages.shard().begin_round(Scope::Due);
        let claimed = pages.shard().claim(Scope::Due, 1).expect("a run");
        assert_eq!((claimed.chunk, claimed.pages), (0, 1 << 60));
        pages.shard().finish(claimed, claimed.pages);
        assert_eq!(pages.states()[0], state, "{at_hand} pages at hand");
        pages.shard().check_invariants().unwrap();
    }
}

#[test]
fn free_chunks_go_when_a_round_has_passed() {
    let mut pages = Pages::full(3);
    (0..3).for_each(|id| pages.put(id, 0..64));
    assert_eq!(pages.shard().counters().free, 3);
    let mut round = || {
        pages.shard().begin_round(Scope::FreeChunks);
        pages.claims(Scope::FreeChunks, 64).len()
    };
    assert_eq!(round(), 0, "needed until just now");
    // One stays.
    assert_eq!(round(), 2);
    assert_eq!(round(), 0);
    let counters = pages.shard().counters();
    assert_eq!((counters.chunks, counters.free), (1, 1));
    assert_eq!((counters.populated, counters.depopulated), (64, 128));
}

#[test]
fn a_free_chunk_is_unused_as_soon_as_its_pages_have_gone() {
    let mut pages = Pages::full(2);
    (0..2).for_each(|id| pages.put(id, 0..64));
    pages.shard().begin_round(Scope::Everything);
    let claimed = pages.shard().claim(Scope::Everything, 64).expect("one");
    let id = claimed.chunk;
    pages.shard().finish(claimed, claimed.pages);
    assert_eq!(pages.states()[id as usize], State::Unused);
    assert_eq!(pages.shard().counters().chunks, 1);
    assert_eq!(pages.shard().wanted(2), Some(id), "it is opened again");
    // The last one stays without its pages.
    assert_eq!(pages.claims(Scope::Everything, 64).len(), 1);
    assert_eq!(pages.states()[1 - id as usize], State::Free);
}

#[test]
fn the_kernel_may_keep_pages() {
    let mut pages = Pages::full(2);
    pages.put(0, 0..20);
    pages.shard().begin_round(Scope::Everything);
    let claimed = pages.shard().claim(Scope::Everything, 64).expect("pages");
    assert_eq!(claimed.pages, mask(0..20));
    pages.shard().finish(claimed, mask(5..20));
    pages.shard().check_invariants().unwrap();
    let counters = pages.shard().counters();
    assert_eq!((counters.empty, counters.depopulated), (5, 15));
    assert_eq!(pages.shard().populated(0), !mask(5..20));
    // They are at hand, and go with the next.
    assert_eq!(
        (pages.states()[0], pages.shard().stock()),
        (State::Active, 5)
    );
    assert_eq!(pages.claims(Scope::Everything, 64), [(0, mask(0..5))]);
}

#[test]
fn a_round_is_worth_while_for_empty_pages_above_what_stays() {
    let due = |pages: &mut Pages| {
        [Scope::Due, Scope::FreeChunks].map(|scope| pages.shard().due_pages(scope))
    };
    let mut pages = Pages::full(1);
    assert_eq!(due(&mut pages), [0, 0]);
    pages.put(0, 0..HIGH);
    assert_eq!(due(&mut pages), [0, 0]);
    pages.put(0, [HIGH]);
    assert_eq!(due(&mut pages), [u64::from(HIGH) + 1, 0]);
    // A twentieth of 192 pages stays, if that is more.
    let mut pages = Pages::full(3);
    pages.put(0, 0..9);
    assert_eq!(due(&mut pages), [0, 0]);
    pages.put(0, [9]);
    assert_eq!(due(&mut pages), [10, 0]);
    // Of free chunks one stays.
    let mut pages = Pages::full(40);
    pages.put(0, 0..64);
    assert_eq!(due(&mut pages), [0, 0]);
    pages.put(1, 0..64);
    assert_eq!(due(&mut pages), [128, 128]);
    // What a sidelined chunk has is not at hand.
    let mut pages = with_a_sidelined_chunk(HIGH);
    assert_eq!(due(&mut pages), [0, 0]);
    pages.put(0, [40]);
    assert_eq!(due(&mut pages), [u64::from(HIGH) + 1, 0]);
}
