//! The zone and its naive model, side by side.

use crate::op::Op;
use ebbtide_zone::*;

pub(crate) const FIRST: u32 = 512;
pub(crate) const BLOCKS: u32 = 66;
pub(crate) const FRAMES: usize = (BLOCKS * BLOCK_FRAMES) as usize;
pub(crate) const BASE: u32 = FIRST * BLOCK_FRAMES;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum F {
    Unopened,
    Clean,
    Dirty,
    Lazy,
    Owned,
    Claimed,
}

impl F {
    fn free(self) -> bool {
        matches!(self, F::Clean | F::Dirty | F::Lazy)
    }
}

pub(crate) struct World {
    pub(crate) state: ZoneState,
    pub(crate) blocks: Vec<Pageblock>,
    pub(crate) words: Vec<BlockWord>,
    pub(crate) model: Vec<F>,
    pub(crate) open: u32,
    pub(crate) runs: Vec<(u32, u32)>,
    pub(crate) extents: Vec<(u32, u32)>,
    pub(crate) claims: Vec<Claim>,
    /// Frames of a page of the kernel.
    pub(crate) group: u32,
}

fn mode(frame_by_frame: bool) -> TakeMode {
    if frame_by_frame {
        TakeMode::FrameByFrame
    } else {
        TakeMode::Cluster
    }
}

fn choose<T>(of: &[T], i: usize) -> Option<usize> {
    (!of.is_empty()).then(|| i % of.len())
}

impl World {
    pub(crate) fn new(group: u32) -> World {
        World {
            state: ZoneState::with_group(FIRST, FIRST + BLOCKS, group),
            blocks: vec![Pageblock::ZERO; BLOCKS as usize],
            words: vec![BlockWord::ZERO; 2],
            model: vec![F::Unopened; FRAMES],
            open: 0,
            runs: vec![],
            extents: vec![],
            claims: vec![],
            group,
        }
    }

    /// The groups of frames that are all free.
    fn free_groups(&self) -> impl Iterator<Item = &[F]> {
        let groups = self.model.chunks(self.group as usize);
        groups.filter(|group| group.iter().all(|f| f.free()))
    }

    /// Whether a frame in one of the states can be claimed.
    pub(crate) fn has_loose(&self, states: &[F]) -> bool {
        self.free_groups()
            .any(|group| group.iter().any(|f| states.contains(f)))
    }

    /// A claim consists of whole groups, all free, and each of them has a frame in one of the wanted states. Only a
    /// claim of whole blocks may have groups without one.
    fn claimed(&mut self, claim: Claim, max: u32, wanted: &[F]) {
        assert!(claim.frames() <= max.max(self.group) && claim.frames() > 0);
        let (whole, size) = (matches!(claim, Claim::Blocks { .. }), self.group);
        let frames = frames_of(&claim);
        for group in frames.chunks(size as usize) {
            assert!(group[0] % size == 0 && group[group.len() - 1] == group[0] + size - 1);
            let states = self.slice(group[0], size);
            assert!(states.iter().all(|f| f.free()));
            assert!(whole || states.iter().any(|f| wanted.contains(f)));
            assert!(!whole || wanted.contains(&F::Dirty) || !states.contains(&F::Dirty));
            states.fill(F::Claimed);
        }
        self.claims.push(claim);
    }

    pub(crate) fn zone(&mut self) -> Zone<'_> {
        Zone::new(&mut self.state, &mut self.blocks, &mut self.words)
    }

    fn slice(&mut self, first: u32, n: u32) -> &mut [F] {
        let at = (first - BASE) as usize;
        &mut self.model[at..at + n as usize]
    }

    fn taken(&mut self, first: u32, n: u32) -> bool {
        let s = self.slice(first, n);
        assert!(s.iter().all(|f| f.free()), "a frame was handed out twice");
        let clean = s.iter().all(|&f| f == F::Clean);
        s.fill(F::Owned);
        clean
    }

    fn whole_free(&self, b: u32) -> bool {
        self.model[(b * 512) as usize..(b * 512 + 512) as usize]
            .iter()
            .all(|f| f.free())
    }

    fn fits(&self, b: u32, n: u32, align: u32) -> bool {
        let s = &self.model[(b * 512) as usize..(b * 512 + 512) as usize];
        (0..=512 - n)
            .step_by(align as usize)
            .any(|at| s[at as usize..(at + n) as usize].iter().all(|f| f.free()))
    }

    fn lowest_blocks(&self, n: u32, align: u32) -> Option<u32> {
        (0..BLOCKS.saturating_sub(n - 1))
            .filter(|b| (b + FIRST).is_multiple_of(align))
            .find(|&b| (b..b + n).all(|b| self.whole_free(b)))
    }

    pub(crate) fn step(&mut self, op: Op) {
        match op {
            Op::Open(n) => {
                let n = self.zone().open(n);
                let at = BASE + self.open * 512;
                self.slice(at, n * 512).fill(F::Clean);
                self.open += n;
            }
            Op::Take(n, align, m) => match self.zone().take_run(n, align, mode(m)) {
                Some(run) => {
                    assert_eq!((run.frames, run.first.0 % align), (n, 0));
                    assert_eq!(run.first.0 / 512, (run.first.0 + n - 1) / 512);
                    assert_eq!(self.taken(run.first.0, n), run.clean);
                    self.runs.push((run.first.0, n));
                }
                None => assert!(!(0..BLOCKS).any(|b| self.fits(b, n, align))),
            },
            Op::Put(i, dirty, m) => {
                if let Some(i) = choose(&self.runs, i) {
                    let (first, n) = self.runs.swap_remove(i);
                    self.put(first, n, dirty, m);
                }
            }
            Op::PutTail(i, n, dirty) => {
                if let Some(i) = choose(&self.runs, i) {
                    let (first, all) = self.runs[i];
                    if n < all {
                        self.runs[i].1 -= n;
                        self.put(first + all - n, n, dirty, false);
                    }
                }
            }
            Op::TakeBlocks(n, align, slack) => {
                let expect = match self.lowest_blocks(n + slack, align) {
                    Some(at) => {
                        let clean = |b: &u32| {
                            let frames = (b * 512) as usize..(b * 512 + 512) as usize;
                            self.model[frames].iter().all(|&f| f == F::Clean)
                        };
                        let slack = (at + n..at + n + slack).take_while(clean).count();
                        Some((at, n + slack as u32))
                    }
                    None => self.lowest_blocks(n, align).map(|at| (at, n)),
                };
                let got = self.zone().take_blocks(n, align, slack);
                assert_eq!(got.map(|e| (e.first.0 - FIRST, e.blocks)), expect);
                if let Some(e) = got {
                    let first = e.first.first_frame().0;
                    let dirty = self
                        .slice(first, e.blocks * 512)
                        .chunks(512)
                        .filter(|c| c.iter().any(|&f| f != F::Clean))
                        .count();
                    assert_eq!(dirty as u32, e.dirty_blocks);
                    assert_eq!(self.taken(first, e.blocks * 512), e.clean);
                    self.extents.push((e.first.0, e.blocks));
                }
            }
            Op::PutBlocks(i, dirty) => {
                if let Some(i) = choose(&self.extents, i) {
                    let (first, n) = self.extents.swap_remove(i);
                    assert_eq!(
                        self.zone().put_blocks(Block(first), n, dirty),
                        Ok(Put::Done)
                    );
                    let dirty = dirty.min(n);
                    self.slice(first * 512, dirty * 512).fill(F::Dirty);
                    self.slice((first + dirty) * 512, (n - dirty) * 512)
                        .fill(F::Clean);
                }
            }
            // Gives frames of the last block of an extent back; the rest of that block becomes a run.
            Op::Shrink(i, n) => {
                if let Some(i) = choose(&self.extents, i) {
                    let last = self.extents[i].0 + self.extents[i].1 - 1;
                    self.extents[i].1 -= 1;
                    if self.extents[i].1 == 0 {
                        self.extents.swap_remove(i);
                    }
                    self.put(last * 512 + 512 - n, n, true, false);
                    if n < 512 {
                        self.runs.push((last * 512, 512 - n));
                    }
                }
            }
            Op::GrowRun(i, more) => {
                if let Some(i) = choose(&self.runs, i) {
                    let (first, n) = self.runs[i];
                    let end = first + n;
                    let room = end % 512 != 0 && end % 512 + more <= 512;
                    let can = more == 0 || room && self.slice(end, more).iter().all(|f| f.free());
                    match self.zone().grow_run(Frame(first), n, n + more) {
                        Some(clean) => {
                            assert_eq!(self.taken(end, more), clean);
                            self.runs[i].1 += more;
                            // A run that fills a block may be put as one.
                            if self.runs[i].1 == 512 {
                                self.runs.swap_remove(i);
                                self.extents.push((first / 512, 1));
                            }
                        }
                        None => assert!(!can),
                    }
                }
            }
            Op::GrowBlocks(i, more) => {
                if let Some(i) = choose(&self.extents, i) {
                    let (first, n) = self.extents[i];
                    let end = first + n;
                    let can = end + more <= FIRST + BLOCKS
                        && (end..end + more).all(|b| self.whole_free(b - FIRST));
                    match self.zone().grow_blocks(Block(first), n, n + more) {
                        Some(clean) => {
                            assert_eq!(self.taken(end * 512, more * 512), clean);
                            self.extents[i].1 += more;
                        }
                        None => assert!(!can),
                    }
                }
            }
            Op::ClaimLazy(max) => match self.zone().claim_lazy(max) {
                Some(claim) => self.claimed(claim, max, &[F::Lazy]),
                None => assert!(!self.has_loose(&[F::Lazy])),
            },
            Op::Claim(max, lazy) => {
                let wanted = &[F::Dirty, F::Lazy][..1 + usize::from(lazy)];
                match self.zone().claim_dirty(max, lazy) {
                    Some(claim) => self.claimed(claim, max, wanted),
                    None => assert!(!self.has_loose(wanted)),
                }
            }
            Op::ClaimFree(block) => {
                let block = Block(FIRST + block);
                if let Some(claim) = self.zone().claim_free(block) {
                    self.claimed(claim, BLOCK_FRAMES, &[F::Clean, F::Dirty, F::Lazy]);
                }
                let first = block.first_frame().0;
                let groups = self.slice(first, BLOCK_FRAMES).to_vec();
                let whole = groups.iter().all(|f| f.free());
                let mut groups = groups.chunks(self.group as usize);
                assert!(whole || !groups.any(|group| group.iter().all(|f| f.free())));
            }
            Op::PutClaim(i, outcome) => {
                if let Some(i) = choose(&self.claims, i) {
                    let claim = self.claims.swap_remove(i);
                    assert_eq!(self.zone().put_claim(claim, outcome), Ok(Put::Done));
                    let to = match outcome {
                        PutState::Clean => F::Clean,
                        PutState::Dirty => F::Dirty,
                        PutState::Lazy => F::Lazy,
                    };
                    for f in frames_of(&claim) {
                        self.slice(f, 1)[0] = to;
                    }
                    // It is not out any more.
                    assert!(self.zone().put_claim(claim, outcome).is_err());
                }
            }
            Op::Wrong(at, n) => {
                let in_block = at % 512 + n <= 512;
                let range = at as usize..((at + n) as usize).min(FRAMES);
                let nobodys = self.model[range]
                    .iter()
                    .any(|f| f.free() || *f == F::Unopened);
                if !in_block || nobodys {
                    let m = mode(at % 2 == 0);
                    assert!(self.zone().put_run(Frame(BASE + at), n, true, m).is_err());
                }
            }
            Op::WrongBlocks(b, n) => {
                let range = (b * 512) as usize..(((b + n) * 512) as usize).min(FRAMES);
                let out = b + n > BLOCKS;
                if out || self.model[range].iter().any(|f| *f != F::Owned) {
                    assert!(self.zone().put_blocks(Block(FIRST + b), n, 0).is_err());
                }
            }
        }
    }

    fn put(&mut self, first: u32, n: u32, dirty: bool, m: bool) {
        assert_eq!(
            self.zone().put_run(Frame(first), n, dirty, mode(m)),
            Ok(Put::Done)
        );
        self.slice(first, n)
            .fill(if dirty { F::Dirty } else { F::Clean });
        assert!(
            self.zone()
                .put_run(Frame(first), n, dirty, mode(m))
                .is_err(),
            "double put"
        );
    }

    pub(crate) fn check(&mut self) {
        self.zone().check_invariants().unwrap();
        // How many frames are in each state; and in groups with a frame that is not free.
        let (mut n, mut pinned) = ([0u64; 6], [0u64; 6]);
        for group in self.model.chunks(self.group as usize) {
            let is_free = group.iter().all(|f| f.free());
            for &f in group {
                n[f as usize] += 1;
                pinned[f as usize] += u64::from(!is_free);
            }
        }
        let c = self.zone().counters();
        let [unopened, clean, dirty, lazy, owned, claimed] = n;
        assert_eq!(
            (c.free, c.dirty, c.lazy),
            (clean + dirty + lazy, dirty, lazy)
        );
        assert_eq!((c.in_use, c.claimed), (owned, claimed));
        assert_eq!(c.pinned_dirty, pinned[F::Dirty as usize]);
        assert_eq!(c.pinned_lazy, pinned[F::Lazy as usize]);
        assert_eq!(c.open, FRAMES as u64 - unopened);
    }

    pub(crate) fn check_frames(&mut self) {
        let model = core::mem::take(&mut self.model);
        let zone = self.zone();
        for (i, &f) in model.iter().enumerate() {
            let got = zone.frame_state(Frame(BASE + i as u32));
            let same = match f {
                F::Unopened => got == FrameState::Unopened,
                F::Clean => got == FrameState::Clean,
                F::Dirty => got == FrameState::Dirty,
                F::Lazy => got == FrameState::Lazy,
                F::Owned => got == FrameState::Taken,
                F::Claimed => matches!(got, FrameState::Claimed | FrameState::Taken),
            };
            assert!(same, "frame {i}: {f:?} in the model, {got:?} in the zone");
        }
        self.model = model;
    }
}

fn frames_of(claim: &Claim) -> Vec<u32> {
    let frames = frames_one_by_one(claim);
    let by_runs: Vec<u32> = claim.runs().flat_map(|(f, n)| f.0..f.0 + n).collect();
    assert_eq!(by_runs, frames);
    frames
}

fn frames_one_by_one(claim: &Claim) -> Vec<u32> {
    match *claim {
        Claim::Blocks { first, count } => (first.0 * 512..(first.0 + count) * 512).collect(),
        Claim::Frames { block, mask } => (0..512)
            .filter(|i| mask[(i / 64) as usize] >> (i % 64) & 1 == 1)
            .map(|i| block.0 * 512 + i)
            .collect(),
    }
}
