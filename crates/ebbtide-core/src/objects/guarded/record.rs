//! What is known about the object in a slot. A fault handler reads it at any time, so all fields are atomic.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::process;
use ebbtide_sys::unwind::{self, Registers};

/// No object was in the slot so far. Zeroed memory is such a record.
pub const UNUSED: u32 = 0;
/// A thread prepares the slot.
pub const OPENING: u32 = 1;
/// The program has the object.
pub const LIVE: u32 = 2;
/// The object was freed: a second `free` finds this.
pub const FREED: u32 = 3;

/// Most frames of a stack.
pub const MAX_FRAMES: usize = 32;

/// The record of a slot.
pub struct Record {
    /// [`UNUSED`], [`OPENING`], [`LIVE`] or [`FREED`].
    pub state: AtomicU32,
    /// The next slot in the queue.
    pub next: AtomicU32,
    /// Whether a fault was reported in this life of the object: 0 or 1.
    pub reported: AtomicU32,
    pub address: AtomicUsize,
    /// The requested bytes.
    pub size: AtomicUsize,
    pub allocated: Trace,
    pub freed: Trace,
}

/// Which thread did something, and where.
pub struct Trace {
    thread: AtomicU32,
    depth: AtomicU32,
    name: [AtomicU64; 2],
    frames: [AtomicU64; MAX_FRAMES],
}

impl Record {
    /// Begins the life of an object. The caller publishes it by the state.
    pub fn begin(&self, address: usize, size: usize) {
        self.address.store(address, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
        self.reported.store(0, Ordering::Relaxed);
        self.allocated.take();
        self.freed.forget();
    }

    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Address and size of the object.
    pub fn object(&self) -> (usize, usize) {
        let (address, size) = (&self.address, &self.size);
        (
            address.load(Ordering::Relaxed),
            size.load(Ordering::Relaxed),
        )
    }
}

impl Trace {
    /// Takes this thread's stack.
    pub fn take(&self) {
        let mut frames = [0; MAX_FRAMES];
        let thread = process::thread_id();
        let depth = unwind::frames(&Registers::here(), thread, &mut frames);
        for (place, frame) in self.frames.iter().zip(&frames[..depth]) {
            place.store(*frame, Ordering::Relaxed);
        }
        self.depth.store(depth as u32, Ordering::Relaxed);
        let name = process::thread_name();
        for (place, bytes) in self.name.iter().zip(name.as_chunks().0) {
            place.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.thread.store(thread, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.thread.store(0, Ordering::Relaxed);
        self.depth.store(0, Ordering::Relaxed);
    }

    /// The thread and its name. `None`: nothing was taken.
    pub fn thread(&self) -> Option<(u32, [u8; 16])> {
        let thread = self.thread.load(Ordering::Relaxed);
        let mut name = [0; 16];
        for (bytes, word) in name.as_chunks_mut().0.iter_mut().zip(&self.name) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        (thread != 0).then_some((thread, name))
    }

    /// The return addresses, the innermost first.
    pub fn frames(&self) -> impl Iterator<Item = usize> + '_ {
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        let frames = self.frames.iter().take(depth);
        frames.map(|frame| frame.load(Ordering::Relaxed) as usize)
    }
}
