//! The zone behind a lock, all orders of the critical sections. Run with `RUSTFLAGS="--cfg loom"`, in release.
//!
//! Each cluster has a loom cell that stands for its memory: whoever holds frames (an owner or a claim) writes to it
//! outside the lock, so loom reports a cluster that is held twice.

#![allow(unexpected_cfgs)]
#![cfg(loom)]

use ebbtide_zone::*;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

const BLOCKS: u32 = 2;

struct Storage {
    state: ZoneState,
    blocks: [Pageblock; BLOCKS as usize],
    words: [BlockWord; 1],
}

impl Storage {
    fn zone(&mut self) -> Zone<'_> {
        Zone::new(&mut self.state, &mut self.blocks, &mut self.words)
    }
}

struct Shared {
    zone: Mutex<Storage>,
    memory: Vec<UnsafeCell<()>>,
}

impl Shared {
    fn new(blocks: u32) -> Arc<Shared> {
        let mut storage = Storage {
            state: ZoneState::new(0, BLOCKS),
            blocks: [Pageblock::ZERO; BLOCKS as usize],
            words: [BlockWord::ZERO],
        };
        assert_eq!(storage.zone().open(blocks), blocks);
        let memory = (0..BLOCKS * 8).map(|_| UnsafeCell::new(())).collect();
        Arc::new(Shared {
            zone: Mutex::new(storage),
            memory,
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Zone<'_>) -> T) -> T {
        let mut storage = self.zone.lock().unwrap();
        let out = f(&mut storage.zone());
        storage.zone().check_invariants().unwrap();
        out
    }

    /// Whoever calls this holds every frame of the clusters that the range touches.
    fn touch(&self, first: u32, frames: u32) {
        for cluster in first / 64..(first + frames).div_ceil(64) {
            self.memory[cluster as usize].with_mut(|_| ());
        }
    }

    fn touch_claim(&self, claim: &Claim) {
        match *claim {
            Claim::Blocks { first, count } => self.touch(first.first_frame().0, count * 512),
            Claim::Frames { block, mask } => {
                for (i, _) in mask.iter().enumerate().filter(|(_, m)| **m != 0) {
                    self.touch(block.first_frame().0 + i as u32 * 64, 64);
                }
            }
        }
    }

    fn take(&self, frames: u32) -> Option<Run> {
        let run = self.with(|z| z.take_run(frames, 64, TakeMode::Cluster))?;
        self.touch(run.first.0, frames);
        Some(run)
    }

    fn put(&self, run: Run) {
        self.touch(run.first.0, run.frames);
        let put = self.with(|z| z.put_run(run.first, run.frames, true, TakeMode::Cluster));
        assert_eq!(put, Ok(Put::Done));
    }

    fn release(&self, max_frames: u32, outcome: PutState) {
        if let Some(claim) = self.with(|z| z.claim_dirty(max_frames, true)) {
            self.touch_claim(&claim);
            assert_eq!(self.with(|z| z.put_claim(claim, outcome)), Ok(Put::Done));
        }
    }

    /// Nothing is held: everything must be there.
    fn assert_whole(&self, blocks: u32) {
        let c = self.with(|z| z.counters());
        assert_eq!((c.in_use, c.claimed, c.free_blocks), (0, 0, blocks));
        self.touch(0, blocks * 512);
    }
}

#[test]
fn two_owners() {
    loom::model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let t = thread::spawn(move || {
            let run = other.take(64).unwrap();
            other.put(run);
            let run = other.take(448);
            run.into_iter().for_each(|r| other.put(r));
        });
        let (a, b) = (shared.take(64), shared.take(64));
        a.into_iter().chain(b).for_each(|r| shared.put(r));
        t.join().unwrap();
        shared.assert_whole(1);
    });
}

#[test]
fn an_owner_and_a_claimer() {
    loom::model(|| {
        let shared = Shared::new(1);
        let run = shared.take(128).unwrap();
        let other = shared.clone();
        let t = thread::spawn(move || {
            other.release(512, PutState::Lazy);
            other.release(64, PutState::Clean);
        });
        shared.put(run);
        if let Some(run) = shared.take(384) {
            shared.put(run);
        }
        t.join().unwrap();
        shared.assert_whole(1);
    });
}

#[test]
fn two_owners_and_a_claimer() {
    loom::model(|| {
        let shared = Shared::new(1);
        let run = shared.take(256).unwrap();
        let (x, y) = (shared.clone(), shared.clone());
        let claimer = thread::spawn(move || x.release(512, PutState::Clean));
        let owner = thread::spawn(move || {
            if let Some(run) = y.take(128) {
                y.put(run);
            }
        });
        shared.put(run);
        claimer.join().unwrap();
        owner.join().unwrap();
        shared.assert_whole(1);
    });
}

#[test]
fn blocks_and_runs_and_claims() {
    loom::model(|| {
        let shared = Shared::new(2);
        let (x, y) = (shared.clone(), shared.clone());
        let large = thread::spawn(move || {
            if let Some(e) = x.with(|z| z.take_blocks(1, 1, 1)) {
                let first = e.first.first_frame().0;
                x.touch(first, e.blocks * 512);
                assert_eq!(
                    x.with(|z| z.put_blocks(e.first, e.blocks, 1)),
                    Ok(Put::Done)
                );
            }
        });
        let claimer = thread::spawn(move || y.release(1024, PutState::Dirty));
        if let Some(run) = shared.take(64) {
            shared.put(run);
        }
        large.join().unwrap();
        claimer.join().unwrap();
        shared.assert_whole(2);
    });
}
