//! A zone with its storage, and checked steps.

use ebbtide_zone::*;

pub const FIRST: u32 = 1024;
pub const BASE: u32 = FIRST * BLOCK_FRAMES;

pub struct Storage {
    pub state: ZoneState,
    pub blocks: Vec<Pageblock>,
    pub words: Vec<BlockWord>,
}

impl Storage {
    pub fn new(limit: u32, open: u32) -> Storage {
        let mut s = Storage {
            state: ZoneState::new(FIRST, FIRST + limit),
            blocks: vec![Pageblock::ZERO; limit as usize],
            words: vec![BlockWord::ZERO; words_for(limit)],
        };
        assert_eq!(s.zone().open(open), open.min(limit));
        s
    }

    pub fn zone(&mut self) -> Zone<'_> {
        Zone::new(&mut self.state, &mut self.blocks, &mut self.words)
    }
}

pub fn take(z: &mut Zone<'_>, frames: u32) -> Run {
    let run = z.take_run(frames, 1, TakeMode::Cluster).unwrap();
    z.check_invariants().unwrap();
    run
}

pub fn put(z: &mut Zone<'_>, first: u32, frames: u32, dirty: bool) {
    assert_eq!(
        z.put_run(Frame(first), frames, dirty, TakeMode::Cluster),
        Ok(Put::Done)
    );
    z.check_invariants().unwrap();
}

pub fn put_error(z: &mut Zone<'_>, first: u32, frames: u32) -> PutErrorKind {
    let before = z.counters();
    let error = z
        .put_run(Frame(first), frames, true, TakeMode::Cluster)
        .unwrap_err();
    assert_eq!(error.first, Frame(first));
    assert_eq!(z.counters(), before);
    z.check_invariants().unwrap();
    error.kind
}
