//! The stacks of the profile, in the area that [`ebbtide_interface::profile`] lays out.
//!
//! ```text
//!   the area, up to AREA_BYTES │ the index: a hash table of numbers of stacks, plus one
//! ```

use core::slice;
use ebbtide_interface::profile::{
    AREA_BYTES, Area, FRAMES_AT, LIFETIMES, LIFETIMES_AT, MAGIC, MAX_FRAMES, MAX_STACKS,
    NAME_BYTES, STACK_BYTES, STACKS_BYTES, Stack, VERSION, lifetime_bucket,
};
use ebbtide_interface::records::{CLASSES, class_bytes, sample};

/// Places of the index: at most half of them are in use.
const PLACES: usize = MAX_STACKS * 2;
/// Bytes of the mapping.
pub const TABLE_BYTES: usize = AREA_BYTES + PLACES * 4;

/// The area and its index; the holder of the lock has them.
pub struct Table {
    /// The address of the area; 0: there is none.
    at: usize,
}

/// What a stack is found by.
pub struct Key<'a> {
    /// Return addresses, the innermost first.
    pub frames: &'a [u64],
    /// Bytes between two samples.
    pub rate: u64,
    /// The size class.
    pub class: u64,
    /// The name of the thread.
    pub name: [u64; NAME_BYTES / 8],
}

/// A live sample, as its object's record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The size that the program asked for, at least 1.
    pub size: u64,
    /// When it was allocated.
    pub time_ns: u64,
    /// The number of its stack, or [`sample::NO_STACK`].
    pub stack: u32,
    /// The thread that allocated it; 0: not known.
    pub thread: u32,
}

impl Key<'_> {
    fn hash(&self) -> u64 {
        let facts = [self.rate, self.class, self.name[0], self.name[1]];
        let words = facts.iter().chain(self.frames);
        let hash = words.fold(0, |hash: u64, word| {
            (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        });
        hash ^ hash >> 32
    }
}

/// The size class of a profile: beyond 256 KiB it goes on as below.
pub fn class_of(size: u64) -> u64 {
    let size = size.max(1);
    if size <= 128 {
        return size.div_ceil(16);
    }
    let doubling = u64::from((size - 1).ilog2()) - 7;
    let step = (size - 1 - (128 << doubling)) / (16 << doubling);
    9 + doubling * 8 + step
}

/// About the bytes that a sampled object stands for.
fn estimate(size: u64, rate: u64) -> u64 {
    if size < rate * 2 {
        rate + size / 2
    } else {
        size
    }
}

const _: () = {
    assert!(class_bytes(CLASSES - 1) == 256 << 10);
    assert!(STACKS_BYTES.is_multiple_of(8) && STACK_BYTES.is_multiple_of(8));
};

impl Table {
    /// None.
    pub const NONE: Self = Self { at: 0 };

    /// Takes zeroed memory of [`TABLE_BYTES`]. There is none yet.
    pub fn begin(&mut self, at: usize, now: u64) {
        self.at = at;
        self.clear(now);
    }

    /// The address of the area, if there is one.
    pub fn address(&self) -> Option<usize> {
        (self.at != 0).then_some(self.at)
    }

    /// Writes the words of an empty profile to zeroed memory.
    pub fn clear(&mut self, now: u64) {
        let area = self.area();
        (area.version, area.begun_ns) = (VERSION, now);
        area.magic = MAGIC;
    }

    /// The first words. There is an area.
    pub fn area(&mut self) -> &mut Area {
        debug_assert!(self.at != 0);
        // SAFETY: the area is mapped for ever, and only the holder of the lock has the table.
        unsafe { &mut *(self.at as *mut Area) }
    }

    fn stack_at(&self, number: usize) -> usize {
        debug_assert!(self.at != 0 && number < MAX_STACKS);
        self.at + STACKS_BYTES + number * STACK_BYTES
    }

    fn stack(&mut self, number: usize) -> &mut Stack {
        // SAFETY: as in `area`; the number is below `MAX_STACKS`.
        unsafe { &mut *(self.stack_at(number) as *mut Stack) }
    }

    fn lifetimes(&mut self, number: usize) -> &mut [u64; LIFETIMES] {
        // SAFETY: as in `stack`.
        unsafe { &mut *((self.stack_at(number) + LIFETIMES_AT) as *mut _) }
    }

    fn frames(&mut self, number: usize) -> &mut [u64; MAX_FRAMES] {
        // SAFETY: as in `stack`.
        unsafe { &mut *((self.stack_at(number) + FRAMES_AT) as *mut _) }
    }

    fn index(&mut self) -> &mut [u32] {
        // SAFETY: the index lies behind the area, in the same mapping.
        unsafe { slice::from_raw_parts_mut((self.at + AREA_BYTES) as *mut u32, PLACES) }
    }

    /// Counts a new sample. Returns the number of its stack, or [`sample::NO_STACK`].
    pub fn began(&mut self, key: &Key, size: u64, now: u64) -> u32 {
        self.area().total_objects += 1;
        let Some(number) = self.find(key) else {
            self.area().dropped += 1;
            return sample::NO_STACK;
        };
        self.keep_peak(number);
        let stack = self.stack(number);
        stack.live_objects += 1;
        stack.live_bytes += size;
        stack.total_objects += 1;
        stack.total_bytes += size;
        let area = self.area();
        area.live_objects += 1;
        area.live_bytes += size;
        area.live_estimate += estimate(size, key.rate);
        if area.live_estimate > area.peak_estimate {
            area.peak_estimate = area.live_estimate;
            area.peak_ns = now;
            area.peak += 1;
        }
        number as u32
    }

    /// Counts the end of a sample.
    pub fn ended(&mut self, ended: &Sample, now: u64) {
        let number = ended.stack as usize;
        if self.at == 0 || number >= self.area().stacks as usize {
            return;
        }
        self.keep_peak(number);
        let stack = self.stack(number);
        let rate = stack.rate;
        stack.live_objects = stack.live_objects.saturating_sub(1);
        stack.live_bytes = stack.live_bytes.saturating_sub(ended.size);
        let lived = now.saturating_sub(ended.time_ns);
        self.lifetimes(number)[lifetime_bucket(lived)] += 1;
        let area = self.area();
        area.live_objects = area.live_objects.saturating_sub(1);
        area.live_bytes = area.live_bytes.saturating_sub(ended.size);
        let less = estimate(ended.size, rate);
        area.live_estimate = area.live_estimate.saturating_sub(less);
    }

    /// Before a stack changes: its figures are still those of the last peak.
    fn keep_peak(&mut self, number: usize) {
        let peak = self.area().peak;
        let stack = self.stack(number);
        if stack.peak != peak {
            stack.peak = peak;
            (stack.peak_objects, stack.peak_bytes) = (stack.live_objects, stack.live_bytes);
        }
    }

    /// Finds a stack, or makes it. `None`: all are in use.
    fn find(&mut self, key: &Key) -> Option<usize> {
        let hash = key.hash();
        let mut place = hash as usize % PLACES;
        loop {
            match self.index()[place] as usize {
                0 => break,
                found if self.is(found - 1, hash, key) => return Some(found - 1),
                _ => place = (place + 1) % PLACES,
            }
        }
        let number = self.area().stacks as usize;
        if number == MAX_STACKS {
            return None;
        }
        self.frames(number)[..key.frames.len()].copy_from_slice(key.frames);
        let peak = self.area().peak;
        *self.stack(number) = Stack {
            hash,
            rate: key.rate,
            class: key.class,
            frames: key.frames.len() as u64,
            name_low: key.name[0],
            name_high: key.name[1],
            peak,
            ..Stack::default()
        };
        self.index()[place] = number as u32 + 1;
        self.area().stacks += 1;
        Some(number)
    }

    fn is(&mut self, number: usize, hash: u64, key: &Key) -> bool {
        let stack = *self.stack(number);
        let facts = [
            stack.hash,
            stack.rate,
            stack.class,
            stack.name_low,
            stack.name_high,
        ];
        let count = key.frames.len();
        facts == [hash, key.rate, key.class, key.name[0], key.name[1]]
            && stack.frames == count as u64
            && self.frames(number)[..count] == *key.frames
    }
}
