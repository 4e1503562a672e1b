//! The functions of malloc, called by several threads that pass objects on, against a shadow of every object.
//!
//! The heap under test is not the allocator of this program. `EBBTIDE_CONF` configures it.
#![no_main]

use ebbtide::alloc::{
    MIN_ALIGN, allocate, allocate_aligned, allocate_zeroed, check_size, free, reallocate,
    usable_size,
};
use ebbtide_fuzz::Bytes;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const THREADS: usize = 3;
const SLOTS: usize = 12;
const SIZE_MAX: u64 = 6 << 20;

enum Op {
    /// Slot and size.
    Take(usize, usize),
    TakeZeroed(usize, usize),
    /// The last number: the alignment, as a power of two.
    TakeAligned(usize, usize, u32),
    Free(usize),
    /// The size is checked first, as `free_sized` does.
    FreeSized(usize),
    Resize(usize, usize),
    /// Exchanges a slot with one that all threads have.
    Exchange(usize, usize),
    Release,
}

fn op(bytes: &mut Bytes) -> Op {
    let slot = bytes.below(SLOTS);
    let size = |bytes: &mut Bytes| {
        // The large ones take most of the time.
        let small = [
            0..=300,
            0..=300,
            0..=300,
            0..=5000,
            0..=5000,
            0..=300_000,
            0..=300_000,
            0..=SIZE_MAX,
        ];
        bytes.of(&small) as usize
    };
    match bytes.below(25) {
        0..=5 => Op::Take(slot, size(bytes)),
        6..=8 => Op::TakeZeroed(slot, size(bytes)),
        9..=10 => Op::TakeAligned(slot, size(bytes), bytes.below(22) as u32),
        11..=14 => Op::Free(slot),
        15 => Op::FreeSized(slot),
        16..=19 => Op::Resize(slot, size(bytes)),
        20..=23 => Op::Exchange(slot, bytes.below(SLOTS)),
        _ => Op::Release,
    }
}

/// An object, and the pattern that it carries.
struct Object {
    address: usize,
    size: usize,
    stamp: u64,
    /// It was taken with an alignment above the usual one.
    is_aligned: bool,
}

/// All live objects: end by start.
static LIVE: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
static STAMPS: AtomicU64 = AtomicU64::new(1);

impl Object {
    fn new(address: *mut u8, size: usize, align: usize) -> Self {
        assert!(!address.is_null(), "{size} bytes");
        let object = Self {
            address: address as usize,
            size,
            stamp: STAMPS.fetch_add(1, Ordering::Relaxed) << 8 | 0xa5,
            is_aligned: align > MIN_ALIGN,
        };
        assert_eq!(object.address % align, 0, "alignment {align}");
        object.enter();
        object.write(0);
        object
    }

    fn usable(&self) -> usize {
        // SAFETY: live, and of this heap.
        let usable = unsafe { usable_size(self.address as *const u8) };
        assert!(usable >= self.size, "{} of {} usable", usable, self.size);
        usable
    }

    /// No two live objects have a byte in common.
    fn enter(&self) {
        let end = self.address + self.usable().max(1);
        let mut live = LIVE.lock().expect("live");
        let before = live.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, &before)| before <= self.address),
            "{:#x} of {} bytes lies in another object",
            self.address,
            self.size
        );
        live.insert(self.address, end);
    }

    fn leave(&self) {
        let known = LIVE.lock().expect("live").remove(&self.address);
        assert_eq!(known, Some(self.address + self.usable().max(1)));
    }

    /// The bytes that carry the pattern: all of a small object; of a large one some of each page, and the last ones.
    fn places(&self, size: usize) -> impl Iterator<Item = usize> {
        let dense = size.min(8192);
        let sparse = (dense..size).step_by(1021);
        (0..dense)
            .chain(sparse)
            .chain(size.saturating_sub(64).max(dense)..size)
    }

    fn byte(&self, at: usize) -> u8 {
        (self.stamp >> (at % 8 * 8)) as u8
    }

    fn write(&self, from: usize) {
        for at in self.places(self.size).filter(|&at| at >= from) {
            // SAFETY: within the object.
            unsafe { ((self.address + at) as *mut u8).write(self.byte(at)) };
        }
    }

    /// Checks the pattern at `places`, up to `size`.
    fn check(&self, places: impl Iterator<Item = usize>, size: usize) {
        for at in places.filter(|&at| at < size) {
            // SAFETY: within the object.
            let byte = unsafe { ((self.address + at) as *const u8).read() };
            assert_eq!(
                byte,
                self.byte(at),
                "byte {at} of {size} at {:#x}",
                self.address
            );
        }
    }

    fn free(self, sized: bool) {
        self.check(self.places(self.size), self.size);
        self.leave();
        let address = self.address as *mut u8;
        // SAFETY: live, and nobody uses it any more.
        unsafe {
            if sized {
                check_size(address, self.size, self.is_aligned);
            }
            free(address);
        }
    }

    fn resize(mut self, size: usize) -> Self {
        // Of size 0, `realloc` frees.
        let size = size.max(1);
        let places: Vec<usize> = self.places(self.size).collect();
        self.leave();
        // SAFETY: live, and nobody else uses it.
        let address = unsafe { reallocate(self.address as *mut u8, size) };
        assert!(!address.is_null() && (address as usize).is_multiple_of(MIN_ALIGN));
        let kept = self.size.min(size);
        (self.address, self.size, self.is_aligned) = (address as usize, size, false);
        self.enter();
        self.check(places.into_iter(), kept);
        self.write(0);
        self
    }
}

fn check_zero(address: *const u8, size: usize) {
    // SAFETY: the allocation has that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(address, size) };
    // SAFETY: any bytes are numbers.
    let (before, words, behind) = unsafe { bytes.align_to::<u128>() };
    let is_zero = before.iter().chain(behind).all(|&byte| byte == 0);
    assert!(
        is_zero && words.iter().all(|&word| word == 0),
        "{size} bytes are not zero"
    );
}

type Slot = Option<Object>;

fn step(slots: &mut [Slot; SLOTS], board: &[Mutex<Slot>; SLOTS], op: Op) {
    let mut fill = |slot: usize, object: Object| {
        let old = slots[slot].replace(object);
        old.into_iter().for_each(|old| old.free(false));
    };
    match op {
        Op::Take(slot, size) => fill(slot, Object::new(allocate(size), size, MIN_ALIGN)),
        Op::TakeZeroed(slot, size) => {
            let address = allocate_zeroed(size);
            assert!(!address.is_null());
            check_zero(address, size);
            fill(slot, Object::new(address, size, MIN_ALIGN));
        }
        Op::TakeAligned(slot, size, shift) => {
            let align = 1 << shift;
            let address = allocate_aligned(size, align);
            fill(slot, Object::new(address, size, align));
        }
        Op::Free(slot) | Op::FreeSized(slot) => {
            let sized = matches!(op, Op::FreeSized(_));
            let old = slots[slot].take();
            old.into_iter().for_each(|old| old.free(sized));
        }
        Op::Resize(slot, size) => {
            let old = slots[slot].take();
            slots[slot] = old.map(|old| old.resize(size));
        }
        Op::Exchange(slot, other) => {
            std::mem::swap(&mut slots[slot], &mut board[other].lock().expect("board"));
        }
        Op::Release => {
            ebbtide::release_all();
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes::new(bytes);
    let mut programs = [const { Vec::new() }; THREADS];
    for number in 0..180 {
        if bytes.is_over() {
            break;
        }
        programs[number % THREADS].push(op(&mut bytes));
    }
    let board = [const { Mutex::new(None) }; SLOTS];
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for ops in programs {
            let (board, start) = (&board, &start);
            scope.spawn(move || {
                let mut slots = [const { None }; SLOTS];
                start.wait();
                ops.into_iter().for_each(|op| step(&mut slots, board, op));
                slots
                    .into_iter()
                    .flatten()
                    .for_each(|object| object.free(false));
            });
        }
    });
    for slot in board {
        let object = slot.into_inner().expect("board");
        object.into_iter().for_each(|object| object.free(true));
    }
    assert!(LIVE.lock().expect("live").is_empty());
    // Whatever was freed is in use no more. Objects that a worker moves from one list to another count as live meanwhile, and
    // those that it moves back may be missed. Several readings of 0 in a row are no accident.
    let live = || ebbtide::stats::figures().live_bytes;
    let end = Instant::now() + Duration::from_secs(5);
    let (mut last, mut zeros) = (live(), 0);
    while zeros < 3 && Instant::now() < end {
        if last != 0 {
            ebbtide::release_all();
        }
        last = live();
        zeros = if last == 0 { zeros + 1 } else { 0 };
    }
    assert!(zeros == 3, "{last} bytes are live");
});
