//! Chunks and their naive model, and the steps that are drawn at random. The fuzz target `percpu` draws them too.

use ebbtide_zone::bits;
use ebbtide_zone::percpu::*;
use proptest::prelude::*;

const CPUS: usize = 2;
const CHUNKS: usize = 6;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Take(u32, u32),
    TakePopulated(u32, u32),
    Put(usize),
    Disown(usize),
    PutDisowned(usize),
    BeginRound(Scope),
    Claim(Scope, u32),
    Finish(usize, bool),
    Forget,
    Wrong(u32, u32),
}

pub(crate) struct Area {
    pub(crate) chunk: u32,
    pub(crate) at: u32,
    pub(crate) n: u32,
    pub(crate) value: u64,
}

/// What stands behind a chunk: a word per granule and CPU, and which pages are resident.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) words: [Vec<u64>; CPUS],
    pub(crate) resident: u64,
}

pub(crate) struct World {
    /// Pages of a page of the kernel.
    pub(crate) group: u32,
    pub(crate) state: ShardState,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) areas: Vec<Area>,
    pub(crate) disowned: Vec<Putting>,
    pub(crate) claims: Vec<Claimed>,
    pub(crate) stamp: u64,
}

impl World {
    pub(crate) fn new(group: u32) -> Self {
        let memory = Memory {
            words: [0, 1].map(|_| vec![0; UNIT_GRANULES as usize]),
            resident: 0,
        };
        Self {
            group,
            state: ShardState::NEW,
            chunks: vec![Chunk::ZERO; CHUNKS],
            memory: vec![memory; CHUNKS],
            areas: Vec::new(),
            disowned: Vec::new(),
            claims: Vec::new(),
            stamp: 0,
        }
    }

    pub(crate) fn shard(&mut self) -> Shard<'_> {
        Shard::with_group(&mut self.state, &mut self.chunks, self.group)
    }

    /// The words of a range on all CPUs; their pages must be resident.
    pub(crate) fn words(&mut self, chunk: u32, at: u32, n: u32) -> impl Iterator<Item = &mut u64> {
        let memory = &mut self.memory[chunk as usize];
        for page in at / PAGE_GRANULES..(at + n).div_ceil(PAGE_GRANULES) {
            assert_eq!(memory.resident >> page & 1, 1, "INV-PERCPU-2");
        }
        let range = at as usize..(at + n) as usize;
        memory
            .words
            .iter_mut()
            .flat_map(move |words| &mut words[range.clone()])
    }

    pub(crate) fn take(&mut self, n: u32, align: u32) {
        let taken = loop {
            if let Some(taken) = self.shard().take(n, align) {
                break taken;
            }
            let Some(id) = self.shard().wanted(CHUNKS as u32) else {
                return;
            };
            self.shard().open(id, false);
        };
        self.hand_out(taken, n, align);
    }

    /// No page may become resident for it.
    fn take_populated(&mut self, n: u32, align: u32) {
        if let Some(taken) = self.shard().take_populated(n, align) {
            assert_eq!(taken.populate, 0);
            self.hand_out(taken, n, align);
        }
    }

    fn hand_out(&mut self, taken: Taken, n: u32, align: u32) {
        let Taken {
            chunk,
            at,
            populate,
        } = taken;
        assert!(at % align == 0 && at + n <= UNIT_GRANULES);
        assert!(self.claims.iter().all(|claimed| claimed.chunk != chunk));
        self.memory[chunk as usize].resident |= bits::touched_groups(populate, self.group);
        self.stamp += 1;
        let value = self.stamp;
        for word in self.words(chunk, at, n) {
            assert_eq!(core::mem::replace(word, value), 0, "INV-PERCPU-7");
        }
        self.areas.push(Area {
            chunk,
            at,
            n,
            value,
        });
    }

    pub(crate) fn disown(&mut self, index: usize) -> Option<Putting> {
        let index = index.checked_rem(self.areas.len())?;
        let area = self.areas.swap_remove(index);
        let putting = self.shard().disown(area.chunk, area.at).unwrap();
        assert_eq!(putting.granules, area.n);
        assert_eq!(
            self.shard().disown(area.chunk, area.at),
            Err(Misuse::NotAnArea)
        );
        for word in self.words(area.chunk, area.at, area.n) {
            assert_eq!(core::mem::take(word), area.value, "content");
        }
        Some(putting)
    }

    pub(crate) fn finish(&mut self, index: usize, works: bool) {
        let Some(index) = index.checked_rem(self.claims.len()) else {
            return;
        };
        let claimed = self.claims.swap_remove(index);
        if !works {
            return self.shard().finish(claimed, 0);
        }
        assert_eq!(bits::whole_groups(claimed.pages, self.group), claimed.pages);
        let memory = &mut self.memory[claimed.chunk as usize];
        assert_eq!(claimed.pages & !memory.resident, 0);
        memory.resident &= !claimed.pages;
        for page in (0..UNIT_PAGES).filter(|page| claimed.pages >> page & 1 == 1) {
            let range = page * PAGE_GRANULES as usize..(page + 1) * PAGE_GRANULES as usize;
            for words in &mut memory.words {
                // The kernel would lose what is there.
                assert!(words[range.clone()].iter().all(|&word| word == 0));
            }
        }
        self.shard().finish(claimed, claimed.pages);
    }

    pub(crate) fn step(&mut self, op: Op) {
        match op {
            Op::Take(n, align) => self.take(n, align),
            Op::TakePopulated(n, align) => self.take_populated(n, align),
            Op::Put(index) => {
                if let Some(putting) = self.disown(index) {
                    self.shard().put(putting);
                }
            }
            Op::Disown(index) => {
                let putting = self.disown(index);
                self.disowned.extend(putting);
            }
            Op::PutDisowned(index) => {
                if let Some(index) = index.checked_rem(self.disowned.len()) {
                    let putting = self.disowned.swap_remove(index);
                    self.shard().put(putting);
                }
            }
            Op::BeginRound(scope) => self.shard().begin_round(scope),
            Op::Claim(scope, runs) => {
                let claimed = self.shard().claim(scope, runs);
                self.claims.extend(claimed);
            }
            Op::Finish(index, works) => self.finish(index, works),
            Op::Forget => {
                // As in a forked child.
                self.claims.clear();
                self.shard().take_back();
            }
            Op::Wrong(chunk, at) => {
                let known = |area: &Area| (area.chunk, area.at) == (chunk, at);
                if !self.areas.iter().any(known) {
                    assert_eq!(self.shard().disown(chunk, at), Err(Misuse::NotAnArea));
                }
            }
        }
    }

    pub(crate) fn check(&mut self) {
        self.shard().check_invariants().unwrap();
        for (chunk, memory) in self.chunks.iter().zip(&self.memory) {
            assert_eq!(memory.resident & !chunk.populated(), 0, "a page is lost");
        }
    }

    pub(crate) fn check_contents(&mut self) {
        for index in 0..self.areas.len() {
            let Area {
                chunk,
                at,
                n,
                value,
            } = self.areas[index];
            assert!(self.words(chunk, at, n).all(|word| *word == value));
        }
        let used: u64 = self.areas.iter().map(|area| u64::from(area.n)).sum();
        let disowned: u64 = self
            .disowned
            .iter()
            .map(|area| u64::from(area.granules))
            .sum();
        assert_eq!(self.shard().counters().granules, used + disowned);
    }
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![
        4 => Just(Scope::Due),
        2 => Just(Scope::Everything),
        1 => Just(Scope::FreeChunks)
    ]
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![
        6 => 1u32..20,
        6 => 20u32..300,
        6 => 300u32..3000,
        1 => 3000u32..=UNIT_GRANULES
    ];
    let align = prop_oneof![4 => Just(0u32), 1 => 0u32..10];
    prop_oneof![
        24 => (size.clone(), align.clone()).prop_map(|(n, align)| Op::Take(n, 1 << align)),
        8 => (size, align).prop_map(|(n, align)| Op::TakePopulated(n, 1 << align)),
        22 => any::<usize>().prop_map(Op::Put),
        4 => any::<usize>().prop_map(Op::Disown),
        5 => any::<usize>().prop_map(Op::PutDisowned),
        4 => scope().prop_map(Op::BeginRound),
        8 => (scope(), 1u32..70).prop_map(|(scope, runs)| Op::Claim(scope, runs)),
        8 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(i, works)| Op::Finish(i, works)),
        1 => Just(Op::Forget),
        2 => (0..CHUNKS as u32 + 1, 0..UNIT_GRANULES + 9).prop_map(|(c, at)| Op::Wrong(c, at)),
    ]
}
