//! All that two and three threads can do with one pageblock, up to a number of steps.
//!
//! Every change of a zone is one critical section, so threads are explored by the order of their sections: at each
//! point any thread takes any of its steps. States that were seen are not gone through again. After each step the
//! zone's invariants are recounted, and each frame is compared with a naive list of who has it.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

use ebbtide_zone::*;
use std::collections::HashSet;

const FRAMES: u32 = BLOCK_FRAMES;
/// What one thread holds at once, at most.
const HELD: usize = 2;

/// What somebody has.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Thing {
    Run(Run),
    Claimed(Claim),
}

/// What a thread can do next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32, TakeMode),
    /// Puts the thread's oldest run, as dirty or clean, whole or its second half.
    Put {
        dirty: bool,
        half: bool,
    },
    Claim {
        most: u32,
        lazy: bool,
    },
    /// Puts the thread's oldest claim: released, made lazy, or as it was.
    PutClaim(PutState),
}

const STEPS: [Step; 11] = [
    Step::Take(64, TakeMode::Cluster),
    Step::Take(64, TakeMode::FrameByFrame),
    Step::Take(130, TakeMode::Cluster),
    Step::Put {
        dirty: true,
        half: false,
    },
    Step::Put {
        dirty: false,
        half: false,
    },
    Step::Put {
        dirty: true,
        half: true,
    },
    Step::Claim {
        most: 512,
        lazy: true,
    },
    Step::Claim {
        most: 40,
        lazy: false,
    },
    Step::PutClaim(PutState::Clean),
    Step::PutClaim(PutState::Lazy),
    Step::PutClaim(PutState::Dirty),
];

#[derive(Clone)]
struct World {
    state: ZoneState,
    block: [Pageblock; 1],
    word: [BlockWord; 1],
    /// By thread.
    held: Vec<Vec<Thing>>,
}

impl World {
    fn new(threads: usize) -> World {
        let mut world = World {
            state: ZoneState::new(0, 1),
            block: [Pageblock::ZERO],
            word: [BlockWord::ZERO],
            held: vec![Vec::new(); threads],
        };
        assert_eq!(world.zone().open(1), 1);
        world
    }

    fn zone(&mut self) -> Zone<'_> {
        Zone::new(&mut self.state, &mut self.block, &mut self.word)
    }

    /// Threads are alike, so who holds what is kept in order.
    fn key(&self) -> String {
        let mut held: Vec<String> = self.held.iter().map(|all| format!("{all:?}")).collect();
        held.sort();
        // Stale records are never read (`INV-ZONE-5`); equal ones are enough.
        format!("{:?}{:?}{:?}{held:?}", self.state, self.block, self.word)
    }

    fn oldest(&mut self, thread: usize, fits: impl Fn(&Thing) -> bool) -> Option<Thing> {
        let at = self.held[thread].iter().position(fits)?;
        Some(self.held[thread].remove(at))
    }

    /// `None`: the thread cannot take this step now.
    fn after(&self, thread: usize, step: Step) -> Option<World> {
        let mut world = self.clone();
        match step {
            Step::Take(..) | Step::Claim { .. } if self.held[thread].len() == HELD => return None,
            Step::Take(frames, mode) => {
                let run = world.zone().take_run(frames, 1, mode)?;
                assert_eq!(run.frames, frames);
                if run.clean {
                    let clean = |f| self.clone().zone().frame_state(Frame(f)) == FrameState::Clean;
                    assert!((run.first.0..run.first.0 + frames).all(clean));
                }
                world.held[thread].push(Thing::Run(run));
            }
            Step::Put { dirty, half } => {
                let Thing::Run(run) = world.oldest(thread, |t| matches!(t, Thing::Run(_)))? else {
                    return None;
                };
                let keep = if half { run.frames / 2 } else { 0 };
                let first = Frame(run.first.0 + keep);
                let put = world
                    .zone()
                    .put_run(first, run.frames - keep, dirty, TakeMode::Cluster);
                assert_eq!(put, Ok(Put::Done));
                if keep > 0 {
                    let rest = Run {
                        frames: keep,
                        ..run
                    };
                    world.held[thread].push(Thing::Run(rest));
                }
            }
            Step::Claim { most, lazy } => {
                let claim = world.zone().claim_dirty(most, lazy)?;
                world.held[thread].push(Thing::Claimed(claim));
            }
            Step::PutClaim(outcome) => {
                let Thing::Claimed(claim) =
                    world.oldest(thread, |t| matches!(t, Thing::Claimed(_)))?
                else {
                    return None;
                };
                assert_eq!(world.zone().put_claim(claim, outcome), Ok(Put::Done));
            }
        }
        Some(world)
    }

    fn check(&mut self) {
        self.zone().check_invariants().unwrap();
        let mut owners = [0u8; FRAMES as usize];
        let mut claimed = [false; FRAMES as usize];
        for thing in self.held.iter().flatten() {
            let runs: Vec<(Frame, u32)> = match thing {
                Thing::Run(run) => vec![(run.first, run.frames)],
                Thing::Claimed(claim) => claim.runs().collect(),
            };
            for frame in runs.into_iter().flat_map(|(f, n)| f.0..f.0 + n) {
                owners[frame as usize] += 1;
                claimed[frame as usize] = matches!(thing, Thing::Claimed(_));
            }
        }
        assert!(owners.iter().all(|n| *n <= 1), "a frame is held twice");
        let zone = self.zone();
        for frame in 0..FRAMES {
            let free = matches!(
                zone.frame_state(Frame(frame)),
                FrameState::Clean | FrameState::Dirty | FrameState::Lazy
            );
            assert_eq!(free, owners[frame as usize] == 0, "frame {frame}");
        }
        let counters = zone.counters();
        let count = claimed.iter().filter(|claimed| **claimed).count();
        assert_eq!(counters.claimed, count as u64);
    }

    /// Nothing is lost: what everybody puts back makes the block whole again.
    fn finish(mut self) {
        for thing in std::mem::take(&mut self.held).into_iter().flatten() {
            let put = match thing {
                Thing::Run(run) => {
                    self.zone()
                        .put_run(run.first, run.frames, true, TakeMode::FrameByFrame)
                }
                Thing::Claimed(claim) => self.zone().put_claim(claim, PutState::Clean),
            };
            assert_eq!(put, Ok(Put::Done));
        }
        let counters = self.zone().counters();
        assert_eq!((counters.free_blocks, counters.in_use), (1, 0));
        self.zone().check_invariants().unwrap();
    }
}

/// Every state within so many steps; how many there are.
fn explore(threads: usize, steps: usize) -> usize {
    let first = World::new(threads);
    let mut seen = HashSet::from([first.key()]);
    let mut front = vec![first];
    for _ in 0..steps {
        let mut next = Vec::new();
        for world in &front {
            for thread in 0..threads {
                for step in STEPS {
                    let Some(mut after) = world.after(thread, step) else {
                        continue;
                    };
                    if seen.insert(after.key()) {
                        after.check();
                        after.clone().finish();
                        next.push(after);
                    }
                }
            }
        }
        front = next;
    }
    seen.len()
}

#[test]
fn two_threads_at_one_pageblock() {
    let states = explore(2, 7);
    println!("{states} states");
    assert!(states > 1000);
}

#[test]
fn three_threads_at_one_pageblock() {
    let states = explore(3, 5);
    println!("{states} states");
    assert!(states > 1000);
}
