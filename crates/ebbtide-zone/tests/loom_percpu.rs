//! Chunks behind a lock while areas come and go and pages are given back, all orders of the critical sections. Run
//! as `loom.rs`.
//!
//! Areas are a quarter of a unit, and each quarter has a loom cell that stands for its memory. Whoever has an area,
//! zeroes it, or gives its pages back uses the cell outside the lock, so loom reports a quarter that two have.

#![allow(unexpected_cfgs)]
#![cfg(loom)]

use ebbtide_zone::percpu::*;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

const QUARTER: u32 = UNIT_GRANULES / 4;
const QUARTER_PAGES: u32 = QUARTER / PAGE_GRANULES;
const CHUNKS: usize = 2;

struct Storage {
    state: ShardState,
    chunks: Vec<Chunk>,
}

struct Shared {
    storage: Mutex<Storage>,
    memory: Vec<UnsafeCell<u64>>,
}

impl Shared {
    /// One chunk, its first quarter taken, the second populated and empty.
    fn new() -> Arc<Shared> {
        let shared = Arc::new(Shared {
            storage: Mutex::new(Storage {
                state: ShardState::NEW,
                chunks: vec![Chunk::ZERO; CHUNKS],
            }),
            memory: (0..CHUNKS * 4).map(|_| UnsafeCell::new(0)).collect(),
        });
        shared.with(|shard| shard.open(0, false));
        shared.take().unwrap();
        let second = shared.take().unwrap();
        shared.put(second);
        shared
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut storage = self.storage.lock().unwrap();
        let Storage { state, chunks } = &mut *storage;
        work(&mut Shard::new(state, chunks))
    }

    fn cell(&self, chunk: u32, at: u32) -> &UnsafeCell<u64> {
        &self.memory[(chunk * 4 + at / QUARTER) as usize]
    }

    /// Takes a quarter, which must be zero, and writes to it.
    fn take(&self) -> Option<Taken> {
        let taken = self.with(|shard| {
            shard.take(QUARTER, 1).or_else(|| {
                let id = shard.wanted(CHUNKS as u32)?;
                shard.open(id, false);
                shard.take(QUARTER, 1)
            })
        })?;
        self.cell(taken.chunk, taken.at).with_mut(|word| {
            // SAFETY: loom checks that nobody else has it.
            let word = unsafe { &mut *word };
            assert_eq!(core::mem::replace(word, 7), 0);
        });
        Some(taken)
    }

    /// Frees it in two steps, zeroing without the lock.
    fn put(&self, taken: Taken) {
        let area = self
            .with(|shard| shard.disown(taken.chunk, taken.at))
            .unwrap();
        self.cell(area.chunk, area.at).with_mut(|word| {
            // SAFETY: loom checks that nobody else has it.
            assert_eq!(core::mem::replace(unsafe { &mut *word }, 0), 7);
        });
        self.with(|shard| shard.put(area));
    }

    /// Gives pages back, as a round does.
    fn depopulate(&self, rounds: u32) {
        self.with(|shard| shard.begin_round(Scope::Everything));
        for _ in 0..rounds {
            let Some(claimed) = self.with(|shard| shard.claim(Scope::Everything, 64)) else {
                return;
            };
            for quarter in 0..4 {
                let pages = u64::MAX >> (64 - QUARTER_PAGES) << (quarter * QUARTER_PAGES);
                if claimed.pages & pages != 0 {
                    assert_eq!(claimed.pages & pages, pages);
                    // SAFETY: loom checks that nobody else has it.
                    self.cell(claimed.chunk, quarter * QUARTER)
                        .with_mut(|word| unsafe { *word = 0 });
                }
            }
            self.with(|shard| shard.finish(claimed, claimed.pages));
        }
    }

    fn check(&self) {
        self.with(|shard| shard.check_invariants().unwrap());
    }
}

#[test]
fn areas_come_and_go_beside_a_round() {
    loom::model(|| {
        let shared = Shared::new();
        let user = {
            let shared = shared.clone();
            thread::spawn(move || {
                let taken = shared.take().unwrap();
                shared.put(taken);
            })
        };
        shared.depopulate(2);
        user.join().unwrap();
        shared.check();
    });
}

#[test]
fn two_rounds_at_once() {
    loom::model(|| {
        let shared = Shared::new();
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || shared.depopulate(1))
        };
        shared.depopulate(1);
        let taken = shared.take().unwrap();
        worker.join().unwrap();
        shared.put(taken);
        shared.check();
    });
}

#[test]
fn the_last_area_goes_while_its_chunk_is_isolated() {
    loom::model(|| {
        let shared = Shared::new();
        let first = Taken {
            chunk: 0,
            at: 0,
            populate: 0,
        };
        let user = {
            let shared = shared.clone();
            thread::spawn(move || shared.put(first))
        };
        shared.depopulate(2);
        user.join().unwrap();
        shared.check();
    });
}
