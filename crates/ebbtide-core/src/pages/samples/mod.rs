//! Sampled objects: the profile of the program's allocations.
//!
//! A sampled object is a large allocation, whatever its size: it has frames and a record of its own. The record has its sample
//! where a span has its map, so `free` and its relatives find it on their slow path, and other objects cost nothing.
//!
//! ```text
//!   malloc ──counts──▶ countdown ──now and then──▶ frames of its own, a stack ──▶ the table: live, total, peak, lifetimes
//!   free ──▶ class byte LARGE ──▶ the record has a sample ──▶ the table
//! ```
//!
//! A sample takes no lock but the table's, which is held for the table only. A request inside a sample, such as that of a signal handler,
//! is not sampled: the thread's word in [`Turns`] says so. No memory that belongs to a thread is used, as not every thread has such memory.
//!
//! | state | `FAST.rate` | area |
//! |---|---|---|
//! | never on | 0 | none |
//! | on | the rate | reserved, bounded |
//! | off again | 0 | stays: what is live leaves it when it is freed or resized |
//!
//! - `INV-SAMPLE-1`: a record has a sample only while its allocation is live. The thread that frees the allocation removes it.

pub mod dump;
mod table;

use crate::base::countdown::COUNTDOWN;
use crate::base::fast::FAST;
use crate::base::message::Message;
use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::source::{Round, Source};
use crate::base::stats::{self, Owner};
use crate::pages::Pages;
use crate::pages::span::{self, Span};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ebbtide_interface::profile::{Area, MAX_FRAMES, NAME_BYTES};
use ebbtide_interface::records::{Places, sample, span as layout};
use ebbtide_sys::lock::{Lock, Rank};
use ebbtide_sys::unwind::{self, Registers};
use ebbtide_sys::{clock, process, vm};
use ebbtide_zone::Frame;
use ebbtide_zone::plan::Remaining;
pub use table::Sample;
use table::{Key, TABLE_BYTES, Table};

/// Threads that take a sample at the same time, at most. Others go on without.
const TURNS: usize = 32;

/// The profile of this process.
pub struct Samples {
    table: Lock<Table>,
    turns: Turns,
    /// A signal has asked for a dump, which nobody has written yet.
    pub asked: AtomicBool,
    /// A thread writes a dump.
    is_writing: AtomicBool,
}

/// The threads that are taking a sample.
struct Turns([AtomicUsize; TURNS]);

/// This thread takes a sample.
struct Turn<'a>(&'a AtomicUsize);

impl Turns {
    /// `None`: this thread takes a sample already, or too many do.
    fn take(&self) -> Option<Turn<'_>> {
        let thread = process::this_thread();
        if self
            .0
            .iter()
            .any(|place| place.load(Ordering::Relaxed) == thread)
        {
            return None;
        }
        let free = |place: &&AtomicUsize| {
            place
                .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        self.0.iter().find(free).map(Turn)
    }

    fn clear(&self) {
        self.0
            .iter()
            .for_each(|place| place.store(0, Ordering::Relaxed));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Samples {
    /// Never on.
    pub const fn new() -> Self {
        Self {
            table: Lock::new(ranks::PROFILE, Table::NONE),
            turns: Turns([const { AtomicUsize::new(0) }; TURNS]),
            asked: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
        }
    }
}

/// What is known of a request before it has memory.
pub struct Origin<'a> {
    _turn: Turn<'a>,
    frames: [u64; MAX_FRAMES],
    count: usize,
    name: [u64; NAME_BYTES / 8],
    thread: u32,
    time_ns: u64,
}

impl Span {
    fn word(&mut self, offset: usize) -> &mut u64 {
        &mut self.map[(offset - layout::MAP) / 8]
    }

    /// The record has no sample: at first, and when it leaves.
    pub fn forget_sample(&mut self) {
        *self.word(sample::SIZE) = 0;
    }

    fn set_sample(&mut self, of: Sample) {
        *self.word(sample::SIZE) = of.size;
        *self.word(sample::TIME_NS) = of.time_ns;
        *self.word(sample::STACK) = u64::from(of.stack) | u64::from(of.thread) << 32;
    }

    /// The sample of a large allocation.
    pub fn sample(&self) -> Option<Sample> {
        let word = |offset| self.map[(offset - layout::MAP) / 8];
        let size = word(sample::SIZE);
        let last = word(sample::STACK);
        (size != 0).then_some(Sample {
            size,
            time_ns: word(sample::TIME_NS),
            stack: last as u32,
            thread: (last >> 32) as u32,
        })
    }
}

const _: () = assert!(sample::THREAD == sample::STACK + 4 && sample::STACK.is_multiple_of(8));

impl Pages {
    /// Sets the mean distance of samples in bytes, 0 for none. `false`: there is no address space for a profile.
    pub fn sample(&self, rate: usize) -> bool {
        let now = clock::precise_ns();
        if rate != 0 && self.samples.table.lock().address().is_none() {
            let Ok(fresh) = vm::map(TABLE_BYTES) else {
                Message::new()
                    .text("no profile: there is no address space for it")
                    .write();
                return false;
            };
            let mut table = self.samples.table.lock();
            if table.address().is_none() {
                table.begin(fresh, now);
                drop(table);
                stats::note_range(Owner::Profile, fresh, TABLE_BYTES);
                stats::set_place(offset_of!(Places, profile), fresh);
            } else {
                drop(table);
                vm::unmap(fresh, vm::whole_pages(TABLE_BYTES));
            }
        }
        let mut table = self.samples.table.lock();
        if table.address().is_some() {
            let area = table.area();
            (area.rate, area.unwinder) = (rate as u64, unwind::unwinder() as u64);
        }
        if rate != 0 {
            COUNTDOWN.begin(rate, now);
        }
        FAST.set_rate(rate);
        true
    }

    /// The mean distance of samples in bytes; 0: sampling is off.
    pub fn sampling_rate(&self) -> usize {
        FAST.rate.load(Ordering::Relaxed)
    }

    /// Begins a sample of a request. `None`: this thread is taking one already.
    pub fn origin(&self, start: &Registers) -> Option<Origin<'_>> {
        let Some(turn) = self.samples.turns.take() else {
            self.miss_sample();
            return None;
        };
        let (thread, name) = match self.config.basic_syscalls {
            true => (0, [0; 2]),
            false => (process::thread_id(), short_name(process::thread_name())),
        };
        let mut frames = [0; MAX_FRAMES];
        let count = unwind::frames(start, thread, &mut frames);
        Some(Origin {
            _turn: turn,
            frames,
            count,
            name,
            thread,
            time_ns: clock::precise_ns(),
        })
    }

    /// Counts a request that was to be sampled and was not.
    pub fn miss_sample(&self) {
        let mut table = self.samples.table.lock();
        if table.address().is_some() {
            table.area().missed += 1;
        }
    }

    /// Makes a large allocation of the calling thread a sampled object.
    pub fn begin_sample(&self, head: Frame, size: usize, rate: usize, origin: &Origin) {
        let size = size.max(1) as u64;
        let key = Key {
            frames: &origin.frames[..origin.count],
            rate: rate as u64,
            class: table::class_of(size),
            name: origin.name,
        };
        let mut table = self.samples.table.lock();
        // A filter may have refused to read the stack meanwhile.
        table.area().unwinder = unwind::unwinder() as u64;
        let stack = table.began(&key, size, origin.time_ns);
        drop(table);
        // SAFETY: a head has a record, which belongs to the allocation's owner: the caller.
        let (_, span) = unsafe { span::of_frame(self.region(), head) };
        span.set_sample(Sample {
            size,
            time_ns: origin.time_ns,
            stack,
            thread: origin.thread,
        });
    }

    /// The object of a record is freed, or is no longer what was sampled (`INV-SAMPLE-1`).
    #[inline]
    pub fn end_sample(&self, span: &mut Span) {
        if let Some(ended) = span.sample() {
            span.forget_sample();
            self.ended(&ended);
        }
    }

    /// The same for a large allocation of the calling thread, which was resized where it is.
    pub fn end_sample_of(&self, head: Frame) {
        // SAFETY: as in `begin_sample`.
        self.end_sample(unsafe { span::of_frame(self.region(), head) }.1);
    }

    #[cold]
    fn ended(&self, ended: &Sample) {
        let now = clock::precise_ns();
        self.samples.table.lock().ended(ended, now);
    }
}

/// The name with each run of digits as one `#`: the threads of a pool have one name.
fn short_name(name: [u8; NAME_BYTES]) -> [u64; NAME_BYTES / 8] {
    let mut short = [0; NAME_BYTES];
    let (mut len, mut before) = (0, 0);
    for byte in name.into_iter().take_while(|&byte| byte != 0) {
        let shown = if byte.is_ascii_digit() { b'#' } else { byte };
        if shown != b'#' || before != b'#' {
            short[len] = shown;
            len += 1;
        }
        before = shown;
    }
    let (words, _) = short.as_chunks();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// The profile as a part of the heap: it holds no free memory.
pub struct Profile;

impl<H: AsRef<Pages>> Source<H> for Profile {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == ranks::PROFILE {
            each(&heap.as_ref().samples.table);
        }
    }

    fn give_due(&self, _heap: &H, _round: &Round, _left: &mut Remaining) {}

    fn give_all(&self, _heap: &H, _by: Releaser) {}

    unsafe fn child(&self, heap: &H) {
        let samples = &heap.as_ref().samples;
        samples.turns.clear();
        samples.asked.store(false, Ordering::Relaxed);
        samples.is_writing.store(false, Ordering::Relaxed);
    }

    /// The table may have been in the middle of a change. Samples of the parent stay where they are, and never end.
    unsafe fn abandon(&self, heap: &H) {
        let mut table = heap.as_ref().samples.table.lock();
        let Some(at) = table.address() else { return };
        let rate = heap.as_ref().sampling_rate() as u64;
        // SAFETY: the table's memory, which is in use by no other thread.
        unsafe {
            if vm::release(at, vm::whole_pages(TABLE_BYTES)).is_err() {
                (at as *mut u8).write_bytes(0, size_of::<Area>());
            }
        }
        table.clear(clock::precise_ns());
        (table.area().rate, table.area().unwinder) = (rate, unwind::unwinder() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_a_name_are_one_sign() {
        let of = |name: &[u8]| {
            let mut bytes = [0; NAME_BYTES];
            bytes[..name.len()].copy_from_slice(name);
            short_name(bytes).map(u64::to_le_bytes)
        };
        assert_eq!(of(b"worker-12"), [*b"worker-#", [0; 8]]);
        assert_eq!(of(b"worker-7"), of(b"worker-12345678"));
        assert_eq!(of(b"a1b22c"), [*b"a#b#c\0\0\0", [0; 8]]);
        assert_eq!(of(b""), [[0; 8]; 2]);
    }

    #[test]
    fn a_thread_has_one_turn() {
        let turns = Turns([const { AtomicUsize::new(0) }; TURNS]);
        let turn = turns.take().unwrap();
        assert!(turns.take().is_none());
        drop(turn);
        assert!(turns.take().is_some());
    }
}
