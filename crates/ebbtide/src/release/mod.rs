//! Free memory back to the kernel: what, when, and by whom.
//!
//! | due | calm | past the backlog cap | memory is short ([`pressure`]) |
//! |---|---|---|---|
//! | up to 1 MiB ([`FLOOR_FRAMES`]) | kept | kept | in place on the next slow path |
//! | to 8 MiB ([`IN_PLACE_FRAMES`]) | in place on a slow path, 1 MiB a call | the same | the same |
//! | above | a worker, after the window; the program does nothing | the thread that frees takes pieces | workers at once, and that too |
//!
//! *Due* is what the recent peak does not explain ([`ebbtide_zone::retain`]), and all of it while memory is short: free frames of the zones, and
//! empty frames of half-used spans. Where huge pages must be split for that, threads of the program leave it to a worker ([`kernel`]).
//! Frames are *claimed* first, under their zone's or class's lock, into a
//! [`gather`]; no lock is held while the kernel works; then they are put back, clean.
//!
//! | module | what it is |
//! |---|---|
//! | [`gather`], [`batches`] | claimed ranges, and what they are kept in |
//! | [`slots`] | the process's gathers, and the queue for workers |
//! | [`kernel`] | the system calls, and the splitting of huge pages |
//! | [`zones`] | free frames of the zones: claimed and released |
//! | [`depopulate`] | empty frames of half-used spans: the same |
//! | [`put_back`] | claimed ranges back to zones and spans |
//! | [`held`] | huge pages that could not be split |
//! | [`lazy`] | which way due frames take: to lazy first, or straight to clean |
//! | [`releaser`] | who releases, and one gather released by it |
//! | [`workers`] | the threads |
//! | [`pressure`] | whether memory is short, and the owner's limit |

pub mod batches;
mod depopulate;
pub mod gather;
pub mod held;
pub mod kernel;
pub mod lazy;
pub mod pressure;
mod put_back;
pub mod releaser;
pub mod slots;
pub mod workers;
mod zones;

use crate::config::AUTO;
use crate::heap::{Heap, heap};
use crate::stats;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebbtide_sys::features::WORKERS;
use ebbtide_sys::thread::Affinity;
use ebbtide_sys::{clock, process, vm};
use ebbtide_zone::{BLOCK_FRAMES, Block, Counters, FRAME_BYTES, Frame};
use lazy::Take;
use releaser::{Releaser, release_owned};
use slots::Owner;
use workers::Next;

/// Frames always kept for reuse: 1 MiB.
pub const FLOOR_FRAMES: u64 = 256;
/// Up to this, slow paths do it: 8 MiB.
const IN_PLACE_FRAMES: u64 = 2048;
/// Frames released in place at once: 1 MiB, some 30 µs.
const STEP_FRAMES: u64 = 256;
/// Frames that a thread takes when the backlog is too long, or nobody else can: 16 MiB.
const HELP_FRAMES: u64 = 4096;
/// A step of this many blocks (64 MiB) makes a worker in advance.
pub const EXPECT_BLOCKS: u32 = 32;
/// Without a window ([`Heap::keeps_nothing`]), freed memory goes back from this on: every large allocation.
const AT_ONCE_BYTES: usize = 256 << 10;
/// Milliseconds between ticks.
const TICK_MS: u64 = 10;
/// Milliseconds between looks at the spans on ticks.
const LOOK_MS: u64 = 100;
/// The same, at what memory is left where pressure is not watched.
const ROOM_MS: u64 = 1000;
/// With less room than that (64 MiB) nothing becomes resident ahead of need.
const AHEAD_ROOM_FRAMES: u64 = 16384;

/// When the last tick, and the last look at the spans, was.
static LAST_TICK_MS: AtomicU64 = AtomicU64::new(0);
static LAST_LOOK_MS: AtomicU64 = AtomicU64::new(0);
/// Frames that may be kept beyond the floor, by what memory is left; when that was read.
static CAP_FRAMES: AtomicU64 = AtomicU64::new(u64::MAX);
static LAST_ROOM_MS: AtomicU64 = AtomicU64::new(0);
/// Numbers the rounds of depopulation, so that each looks at a span once.
static ROUND: AtomicU32 = AtomicU32::new(0);

/// What the zones hold.
#[derive(Clone, Copy, Default)]
struct Backlog {
    /// Free and dirty frames.
    dirty: u64,
    /// Those that are due.
    due: u64,
    /// Free and lazy frames.
    lazy: u64,
    /// Those that are due to become clean.
    lazy_due: u64,
}

impl Heap {
    /// Notes that memory was freed, for the next [`Self::tick`].
    #[inline]
    pub fn count_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Slow paths call this: sees to it that what is due goes back. Does something at most once in
    /// [`TICK_MS`], or when much has been freed since: the program may do nothing after it.
    #[inline]
    pub fn tick(&self) {
        let now = clock::now_ms();
        let last = LAST_TICK_MS.load(Ordering::Relaxed);
        let limit = if self.keeps_nothing() {
            AT_ONCE_BYTES
        } else {
            IN_PLACE_FRAMES as usize * FRAME_BYTES
        };
        let much = self.freed.load(Ordering::Relaxed) >= limit;
        if (much || now.wrapping_sub(last) >= TICK_MS)
            && LAST_TICK_MS
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.tick_now(now);
        }
        if self.pressure.is_over_budget() {
            self.pay_for_growth(now);
        }
    }

    #[cold]
    fn tick_now(&self, now: u64) {
        let freed = self.freed.swap(0, Ordering::Relaxed);
        let much = freed >= IN_PLACE_FRAMES as usize * FRAME_BYTES;
        let backlog = self.backlog(now);
        let last_look = LAST_LOOK_MS.load(Ordering::Relaxed);
        let mut plenty = backlog.dirty + backlog.lazy > IN_PLACE_FRAMES;
        if !plenty && (much || now.wrapping_sub(last_look) >= LOOK_MS) {
            LAST_LOOK_MS.store(now, Ordering::Relaxed);
            self.keep_owners_limit(Releaser::Program);
            let spare = self.look_at_spares(now);
            let waiting = self.waiting_in_spans() as u64 / FRAME_BYTES as u64;
            plenty = waiting.max(backlog.dirty + backlog.lazy + spare) > IN_PLACE_FRAMES;
        }
        stats::freed(self, freed);
        stats::refresh(self, now);
        self.look_at_quarantine(now);
        crate::reaper::look(self);
        let floor = self.floor(now);
        let unwatched = backlog.lazy > FLOOR_FRAMES && self.workers.count() == 0;
        if plenty || unwatched {
            // A worker waits for the window; it is woken when that is over already, or when none has its eyes open
            // or will look soon.
            let eyes = self.pressure.is_watched() || !self.settings().config.pressure;
            let soon = match eyes {
                true => u64::from(self.settings().config.retain_ms).max(LOOK_MS),
                false => pressure::policy::LOOK_MS.0,
            };
            let watched = self.workers.look_before(now + soon);
            let called = self.max_workers() > 0
                && (watched && backlog.due <= IN_PLACE_FRAMES || heap_workers().call(1));
            if called && self.settings().config.pressure {
                self.pressure.expect_look();
            }
            if !called {
                self.look_at_held(now);
                self.look_at_spares(now);
                let due = backlog.due.saturating_sub(floor);
                self.release_due(due.min(HELP_FRAMES), Releaser::Program);
                self.release_lazy(backlog.lazy_due.min(HELP_FRAMES), Releaser::Program);
                self.depopulate_some(now);
            } else if backlog.due > self.cap_frames(now) / 2 {
                self.release_due(HELP_FRAMES, Releaser::Program);
            }
        } else if backlog.due > floor
            && let Some(by) = self.releaser_of_little(floor == 0)
        {
            self.release_due((backlog.due - floor).min(STEP_FRAMES), by);
        }
        stats::publish_released();
    }

    /// Who splits huge pages for the little that slow paths take care of, where no worker was called. Nobody, in a
    /// process that has forked: a huge page that is shared cannot be split, and only a worker would see that. Where
    /// nothing is kept, one is made for that.
    fn releaser_of_little(&self, keeps_nothing: bool) -> Option<Releaser<'static>> {
        let unseen = self.forked.load(Ordering::Relaxed)
            && self.settings().config.thp
            && self.max_workers() > 0
            && WORKERS.may_work()
            && self.workers.count() == 0;
        match (unseen, keeps_nothing) {
            (false, _) => Some(Releaser::Tick),
            (true, true) => Some(Releaser::Program),
            (true, false) => None,
        }
    }

    /// No worker is made for as little as slow paths take care of: the program may want to stay without.
    fn releaser_of_everything<'a>(&self, by: Releaser<'a>) -> Releaser<'a> {
        if by.is_worker() || self.workers.count() > 0 {
            return by;
        }
        let (frames, _) = self.sum(|counters| (counters.dirty + counters.lazy, 0));
        if frames + (self.waiting_in_spans() / FRAME_BYTES) as u64 > IN_PLACE_FRAMES {
            return by;
        }
        match self.releaser_of_little(true) {
            Some(Releaser::Tick) => Releaser::Tick,
            _ => by,
        }
    }

    /// Whether free memory goes back at once (`retain_ms=0`).
    fn keeps_nothing(&self) -> bool {
        self.settings().config.retain_ms == 0
    }

    /// Due frames that stay all the same: none while memory is short, or where the owner has set a limit.
    fn floor(&self, now: u64) -> u64 {
        if self.keeps_nothing() || self.pressure.is_on(now) || self.pressure.is_limited() {
            0
        } else {
            FLOOR_FRAMES
        }
    }

    /// Looks at the zones and keeps their demand up to date.
    fn backlog(&self, now: u64) -> Backlog {
        let config = &self.settings().config;
        let window = u64::from(config.retain_ms);
        let own_cap = (config.retain_max / FRAME_BYTES) as u64;
        let zones = self.live_zones().len() as u64;
        let room = self.cap_frames(now) / zones;
        let cap = room.min(own_cap / zones);
        let mut backlog = Backlog::default();
        let mut in_parts = 0;
        for zone in self.live_zones() {
            let mut data = zone.lock.lock();
            let counters = data.state.counters();
            let high = core::mem::replace(&mut data.high, counters.in_use);
            data.retain.observe(now, high.max(counters.in_use));
            data.retain.observe(now, counters.in_use);
            let taken = core::mem::take(&mut data.taken);
            data.refaults.observe(now, taken);
            backlog.lazy += counters.lazy;
            let dirty = counters.dirty;
            // Of what there is room for, dirty frames come first.
            let lazy_cap = room.saturating_sub(dirty);
            backlog.lazy_due += Self::lazy_due(&mut data, now, &counters, lazy_cap);
            backlog.dirty += dirty;
            let in_whole = u64::from(counters.resident_free_blocks) * u64::from(BLOCK_FRAMES);
            in_parts += dirty.saturating_sub(in_whole);
            backlog.due += data
                .retain
                .due(now, window, counters.in_use, dirty, Some(cap));
        }
        // What is held is not to be had for now. It lies in blocks that are used in part.
        let held = (self.held.frames() as u64).min(in_parts);
        backlog.dirty -= held;
        backlog.due = backlog.due.min(backlog.dirty);
        backlog
    }

    /// Free frames that may be kept, by what memory is left.
    fn room_frames(&self, now: u64) -> u64 {
        if self.pressure.is_on(now) {
            return 0;
        }
        CAP_FRAMES.load(Ordering::Relaxed)
    }

    /// Dirty frames that may be kept, by that and by what the owner lets us.
    fn cap_frames(&self, now: u64) -> u64 {
        self.room_frames(now).min(self.pressure.dirty_limit())
    }

    /// Whether much more is kept than memory is left for: others have grown, or much was freed. While memory
    /// is short, rounds come as they are due.
    pub fn keeps_too_much(&self, now: u64) -> bool {
        let most = self.room_frames(now).saturating_add(IN_PLACE_FRAMES);
        let (in_spans, _) = self.excess_in_spans(now);
        let much =
            self.kept_frames() > most || in_spans as u64 / FRAME_BYTES as u64 > IN_PLACE_FRAMES;
        much && !self.pressure.is_on(now)
    }

    /// Whether more is kept than slow paths take care of.
    pub fn keeps_much(&self) -> bool {
        self.kept_frames() > IN_PLACE_FRAMES
            || self.waiting_in_spans() as u64 / FRAME_BYTES as u64 > IN_PLACE_FRAMES
    }

    /// Two sums over the zones.
    fn sum(&self, of: impl Fn(Counters) -> (u64, u64)) -> (u64, u64) {
        self.live_zones()
            .iter()
            .map(|zone| of(zone.counters()))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The heap has grown by [`EXPECT_BLOCKS`] or more: some day that is freed.
    #[cold]
    pub fn expect_release(&self) {
        if self.max_workers() > 0 {
            heap_workers().expect();
        }
    }

    /// Workers at most.
    pub fn max_workers(&self) -> usize {
        let config = &self.settings().config;
        match config.workers {
            AUTO => (self.most_releasers() / 2).clamp(1, 4),
            workers => workers,
        }
    }

    /// Threads that release at once at most, the one that asks for it counted: one for each CPU.
    fn most_releasers(&self) -> usize {
        self.cpus.load(Ordering::Relaxed)
    }

    /// Looks how many CPUs there are now: those of the main thread, or of this worker, which somebody may have made
    /// that keeps to a few. Either may be one that keeps to itself.
    fn look_at_cpus(&self) {
        if self.most_releasers() == usize::MAX {
            return;
        }
        let of = |thread| Affinity::of(thread).count();
        let cpus = of(process::id()).max(of(0));
        if cpus > 0 {
            self.cpus.store(cpus, Ordering::Relaxed);
        }
    }

    /// A coordinator's turn: releases what is due. What is left to wait for.
    pub fn round(&self, now: u64, by: Releaser) -> Next {
        crate::percpu::own::begin(self);
        self.look_at_cpus();
        self.look_at_room(now);
        self.look_at_held(now);
        self.keep_owners_limit(by);
        let backlog = self.backlog(now);
        let floor = self.floor(now);
        if backlog.due > floor {
            let has_room = backlog.lazy + backlog.dirty <= self.cap_frames(now);
            let take = Take::Due {
                lazy_first: by.is_worker() && has_room && self.may_go_lazy(),
            };
            self.release_zones(backlog.due - floor, backlog.due, take, by);
        }
        if backlog.lazy_due > 0 {
            self.release_zones(backlog.lazy_due, backlog.lazy_due, Take::Lazy, by);
        }
        let (cached, spare) = (self.drain_idle(now), self.look_at_spares(now));
        let depopulated = self.depopulate_due(now, by);
        let percpu = self.percpu_round(now, by);
        stats::refresh(self, now);
        stats::publish();
        let left = self.backlog(now);
        let cached = (cached / FRAME_BYTES) as u64;
        let waiting = (self.waiting_in_spans() / FRAME_BYTES) as u64;
        let most = [left.dirty + spare, cached, depopulated, waiting, percpu];
        let most = most.into_iter().max().unwrap_or(0);
        let part = (u64::from(self.settings().config.retain_ms) / 8).max(10);
        let ms = if workers::is_active(now) {
            part * 4
        } else {
            part
        };
        match most {
            most if most > IN_PLACE_FRAMES => Next::Much(ms),
            // Lazy memory goes without a call of the program's.
            most if left.lazy > FLOOR_FRAMES => Next::Much(if most > FLOOR_FRAMES {
                ms
            } else {
                self.lazy_part_ms()
            }),
            most if most > FLOOR_FRAMES => Next::Little(ms),
            _ if left.lazy > 0 => Next::Little(self.lazy_part_ms()),
            // Writes to what is in it are found when it is emptied.
            _ if self.quarantine.bytes() > 0 => Next::Little(part),
            _ if self.held.all() as u64 > IN_PLACE_FRAMES => {
                self.held.next_look_ms().map_or(Next::Nothing, Next::Much)
            }
            _ if self.workers.is_expecting() => Next::Little(part * 8),
            _ => Next::Nothing,
        }
    }

    fn look_at_room(&self, now: u64) {
        let watched = self.settings().config.pressure;
        if watched || now.wrapping_sub(LAST_ROOM_MS.load(Ordering::Relaxed)) < ROOM_MS {
            return;
        }
        LAST_ROOM_MS.store(now, Ordering::Relaxed);
        self.look_at_limits();
    }

    /// Whether so many frames may become resident before anybody needs them: within the retain cap, and nobody
    /// else is short of memory.
    pub fn has_room_for(&self, frames: u64) -> bool {
        let room = CAP_FRAMES.load(Ordering::Relaxed);
        let cap = (self.settings().config.retain_max / FRAME_BYTES) as u64;
        frames <= cap && room >= AHEAD_ROOM_FRAMES && !self.pressure.is_on(clock::now_ms())
    }

    fn flags_of(&self, block: Block) -> u8 {
        // SAFETY: only asked of opened blocks.
        unsafe { self.region().flags(block) }.load(Ordering::Relaxed)
    }

    /// Whether a huge page may lie behind a frame: in the growth range, and not given up there.
    pub fn may_be_huge(&self, frame: Frame) -> bool {
        self.settings().config.thp
            && ebbtide_sys::features::HUGE_PAGES.known() == Some(true)
            && self.is_in_growth_range(frame.block())
    }
}

/// The workers, which live as long as the process.
fn heap_workers() -> &'static workers::Workers {
    &crate::heap::the_heap().workers
}

/// Drains all caches and gives everything free back. Bytes given back.
pub fn release_everything(heap: &Heap, by: Releaser) -> usize {
    let before = stats::released();
    heap.drain_all();
    let by = heap.releaser_of_everything(by);
    heap.percpu_release_all(by);
    heap.look_at_held(clock::now_ms());
    heap.depopulate_everything(by);
    // Huge pages split for that leave more that is free, and what is on its way may be blocks.
    join(heap, by);
    // Blocks are claimed with their clean frames: all that is free bounds what is claimed.
    let (free, held) = heap.sum(|counters| (counters.free, counters.dirty + counters.lazy));
    heap.release_zones(free, held, Take::All, by);
    join(heap, by);
    stats::publish_released();
    stats::released() - before
}

/// What is on its way: helps, oldest first, then waits. What a worker leaves behind that is killed meanwhile is on its
/// way too.
fn join(heap: &Heap, by: Releaser) {
    let left = || by.is_worker() || heap.workers.count() == 0;
    let is_gone = |owner| heap.workers.is_gone(owner);
    heap.slots.join(left, by.owner(), is_gone, |owned| {
        release_owned(heap, owned, by);
    });
}

/// Workers were killed: what they had claimed is free again, as it was.
fn put_back_orphans(heap: &Heap) {
    let is_gone = |owner| heap.workers.is_gone(owner);
    while let Some(mut owned) = heap.slots.take_orphan(Owner::PROGRAM, is_gone) {
        heap.put_back(owned.gather(), false);
    }
}

/// Gives all free memory of the process back to the kernel, from the caches of all CPUs too. Returns
/// the bytes given back; 0 when nothing was free. Blocks for as long as that takes: about 0.1 µs a
/// page, shared with the workers. Any thread may call it at any time.
pub fn release_all() -> usize {
    heap().map_or(0, |heap| {
        release_everything(&heap.enter_uncounted(), Releaser::Asked)
    })
}

/// Releases a range and counts it. `false`: refused.
///
/// # Safety
/// Frames that nobody else is given now, and whose content nobody needs.
pub unsafe fn release_range(address: usize, bytes: usize) -> bool {
    // SAFETY: by contract.
    let done = unsafe { vm::release(address, bytes) }.is_ok();
    if done {
        stats::count_released(bytes);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_come_and_go_are_seen() {
        let heap = heap().unwrap().enter_uncounted();
        let allowed = process::allowed_cpus();
        heap.cpus.store(allowed + 1000, Ordering::Relaxed);
        assert_eq!(heap.most_releasers(), allowed + 1000);
        heap.round(clock::now_ms(), Releaser::Tick);
        assert_eq!(heap.most_releasers(), allowed);
        // Not to be asked, for want of system calls.
        heap.cpus.store(usize::MAX, Ordering::Relaxed);
        heap.round(clock::now_ms(), Releaser::Tick);
        assert_eq!(heap.most_releasers(), usize::MAX);
        heap.cpus.store(allowed, Ordering::Relaxed);
    }
}
