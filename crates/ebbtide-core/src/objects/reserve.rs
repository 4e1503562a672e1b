//! The reserve: memory for threads that allocate while another thread forks, and a queue of what they free.
//!
//! A forking thread holds every lock of the heap, so the heap cannot serve other threads
//! ([`crate::front::fork::gate`]). The reserve has no lock. It is small, made at its first use, and lies outside of the
//! heap's region:
//!
//! ```text
//!  chunk 0         chunk 1 (current)            chunk 2 …
//!  ┌──────────────┬───────────────────────────┬─────────
//!  │h object│h obj│h object│h object│ ▲ free    │
//!  └──────────────┴──────────────────┼────────┴─────────
//!   uses: objects                    cursor      0: any thread may take it
//! ```
//!
//! Each object has a header (`h`) in front of it. Small objects are cut from the current chunk in ascending order; a
//! larger object takes whole chunks. A chunk counts its objects, and one more use while it is current. When the count
//! falls to zero, the chunk is emptied and may be taken again.
//!
//! Memory that is freed while the gate is closed is queued: a node from the reserve holds its address, because freed
//! memory is never written. The forking thread frees the queued memory after it has opened the gate again.
//!
//! - `INV-RESERVE-1`: an object lies in one chunk or in chunks of its own. A chunk with a use belongs to nothing else.
//! - `INV-RESERVE-2`: the reserve consists of atomic words and of memory that one thread owns. So a child that is copied
//!   in the middle of an operation finds a reserve that works. The child loses the operation that was under way.

use crate::base::message::Message;
use crate::base::stats::{self, Owner};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebbtide_sys::vm;

/// Bytes of a chunk. Small, because a long-lived object keeps its whole chunk in use.
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 1024;
const BYTES: usize = CHUNK * CHUNKS;
/// With more chunks in use than this, threads that use the reserve wait before each request.
const AMPLE_CHUNKS: usize = CHUNKS / 8;
/// Requests above this get chunks of their own.
const SHARED_MAX: usize = CHUNK / 4;
/// Every object and every header begins at a multiple of this.
const UNIT: usize = 16;

/// Set in a chunk's uses while it is being emptied.
const EMPTYING: u32 = 1 << 31;
/// Set in the uses of a chunk that a thread has taken. A use without it belongs to a thread that is about to find
/// that the chunk is no longer current.
const TAKEN: u32 = 1 << 30;
/// One use of a chunk that is taken.
const LAST_USE: u32 = TAKEN + 1;

const LIVE: u32 = 0x4542_4221;
const FREED: u32 = 0x4542_4220;

/// In front of each object.
#[repr(C)]
struct Header {
    /// The requested bytes.
    size: AtomicUsize,
    /// Number of chunks of the object's own, or 0.
    chunks: AtomicU32,
    /// [`LIVE`] or [`FREED`].
    state: AtomicU32,
}

/// A queued free.
#[repr(C)]
struct Node {
    address: AtomicUsize,
    next: AtomicUsize,
}

const _: () = assert!(size_of::<Header>() == UNIT && size_of::<Node>() == UNIT);

/// See the module's header.
pub struct Reserve {
    /// The reserve's address; 0: not made yet.
    base: AtomicUsize,
    /// The current chunk's number plus 1, and its used bytes: `number << 32 | bytes`. 0: no chunk is current.
    cursor: AtomicU64,
    /// Number of uses of each chunk.
    uses: [AtomicU32; CHUNKS],
    /// Chunks in use.
    used: AtomicUsize,
    /// Bytes of live objects.
    live: AtomicUsize,
    /// The newest queued free: a node's address.
    queue: AtomicUsize,
}

impl Reserve {
    /// Empty, and not made yet.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            cursor: AtomicU64::new(0),
            uses: [const { AtomicU32::new(0) }; CHUNKS],
            used: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            queue: AtomicUsize::new(0),
        }
    }

    /// Whether an address lies in the reserve.
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && address.wrapping_sub(base) < BYTES
    }

    /// Whether most of the reserve is free.
    pub fn is_ample(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= AMPLE_CHUNKS
    }

    /// Bytes of live objects.
    pub fn live_bytes(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two. They read zero, unless the kernel refused
    /// to release the memory. `None`: no space is left.
    pub fn allocate(&self, size: usize, align: usize) -> Option<usize> {
        if size > BYTES || align > CHUNK / 2 {
            return None;
        }
        let align = align.max(UNIT);
        let base = self.base()?;
        let bytes = (size.max(1).next_multiple_of(UNIT) + align).max(2 * UNIT);
        let (first, chunks) = if bytes > SHARED_MAX {
            let chunks = bytes.div_ceil(CHUNK);
            (base + self.take_chunks(chunks)? * CHUNK, chunks)
        } else {
            (self.cut(base, bytes)?, 0)
        };
        let object = (first + UNIT).next_multiple_of(align);
        // SAFETY: the header's place belongs to this thread alone: it was cut just now, and is large enough.
        let header = unsafe { self.header(object) };
        header.size.store(size, Ordering::Relaxed);
        header.chunks.store(chunks as u32, Ordering::Relaxed);
        header.state.store(LIVE, Ordering::Release);
        self.live.fetch_add(size, Ordering::Relaxed);
        Some(object)
    }

    /// The requested bytes of an object. Ends the process if no live object begins there.
    pub fn size(&self, object: usize, call: &str) -> usize {
        let header = self.checked(object, call);
        if header.state.load(Ordering::Acquire) != LIVE {
            mistaken(object, call);
        }
        header.size.load(Ordering::Relaxed)
    }

    /// Frees an object. Ends the process if no live object begins there.
    pub fn free(&self, object: usize) {
        let header = self.checked(object, "free of ");
        if header
            .state
            .compare_exchange(LIVE, FREED, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            mistaken(object, "free of ");
        }
        self.live
            .fetch_sub(header.size.load(Ordering::Relaxed), Ordering::Relaxed);
        let base = self.base.load(Ordering::Relaxed);
        let first = (object - base) / CHUNK;
        let chunks = header.chunks.load(Ordering::Relaxed) as usize;
        for chunk in first..first + chunks.max(1) {
            self.end_use(chunk);
        }
    }

    /// Queues a free. `false`: no space is left.
    pub fn queue(&self, address: usize) -> bool {
        let Some(place) = self.allocate(size_of::<Node>(), UNIT) else {
            return false;
        };
        // SAFETY: the object has room for a node, and no other thread has it.
        let node = unsafe { &*(place as *const Node) };
        node.address.store(address, Ordering::Relaxed);
        let put_in_front = |newest| {
            node.next.store(newest, Ordering::Relaxed);
            Some(place)
        };
        self.queue
            .fetch_update(Ordering::Release, Ordering::Relaxed, put_in_front)
            .is_ok()
    }

    /// Whether frees are queued.
    pub fn has_queued(&self) -> bool {
        self.queue.load(Ordering::Relaxed) != 0
    }

    /// Takes all queued frees, and passes their addresses to `each`.
    pub fn take_queued(&self, mut each: impl FnMut(usize)) {
        let mut place = self.queue.swap(0, Ordering::Acquire);
        while place != 0 {
            // SAFETY: a node that this thread took out of the queue is its own until it frees it.
            let node = unsafe { &*(place as *const Node) };
            let address = node.address.load(Ordering::Relaxed);
            let next = node.next.load(Ordering::Relaxed);
            self.free(place);
            each(address);
            place = next;
        }
    }

    /// Called in a forked child, whose pages were copied one after the other. A node may have been copied before it
    /// was written, so the memory in the queue stays allocated. The cursor may be newer than the uses of its chunk,
    /// so the next object gets a chunk without uses.
    pub fn begin_in_child(&self) {
        self.queue.store(0, Ordering::Relaxed);
        self.cursor.store(0, Ordering::Relaxed);
    }

    /// The reserve's address. The first use makes the reserve.
    fn base(&self) -> Option<usize> {
        let base = &self.base;
        let known = base.load(Ordering::Acquire);
        if known != 0 {
            return Some(known);
        }
        let made = vm::reserve(BYTES, CHUNK).ok()?;
        match base.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                stats::note_range(Owner::Reserve, made, BYTES);
                Some(made)
            }
            Err(others) => {
                vm::unmap(made, BYTES);
                Some(others)
            }
        }
    }

    /// Cuts `bytes` from the current chunk, which gets a use, or from a new chunk.
    fn cut(&self, base: usize, bytes: usize) -> Option<usize> {
        loop {
            let cursor = self.cursor.load(Ordering::Acquire);
            let (number, used) = ((cursor >> 32) as usize, cursor as u32 as usize);
            if number > 0 && used + bytes <= CHUNK {
                let chunk = number - 1;
                // Counted before the cut, so that no thread empties the chunk meanwhile. The chunk may no longer be
                // current; then the exchange fails.
                self.uses[chunk].fetch_add(1, Ordering::AcqRel);
                if self.move_cursor(cursor, cursor + bytes as u64) {
                    return Some(base + chunk * CHUNK + used);
                }
                self.end_use(chunk);
                continue;
            }
            let chunk = self.take_chunks(1)?;
            let fresh = ((chunk + 1) as u64) << 32;
            if !self.move_cursor(cursor, fresh) {
                self.end_use(chunk);
            } else if number > 0 {
                self.end_use(number - 1);
            }
        }
    }

    fn move_cursor(&self, from: u64, to: u64) -> bool {
        self.cursor
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes neighbouring chunks without uses, with one use each. Returns the first one's number.
    fn take_chunks(&self, count: usize) -> Option<usize> {
        let base = self.base.load(Ordering::Relaxed);
        let mut first = 0;
        while first + count <= CHUNKS {
            let taken = self.uses[first..first + count]
                .iter()
                .take_while(|uses| {
                    let taken =
                        uses.compare_exchange(0, LAST_USE, Ordering::AcqRel, Ordering::Relaxed);
                    taken.is_ok()
                })
                .count();
            self.used.fetch_add(taken, Ordering::Relaxed);
            // SAFETY: inside the reservation; twice does no harm.
            if taken == count && unsafe { vm::commit(base + first * CHUNK, count * CHUNK) }.is_ok()
            {
                return Some(first);
            }
            for chunk in first..first + taken {
                self.end_use(chunk);
            }
            if taken == count {
                // No memory is available.
                return None;
            }
            first += taken + 1;
        }
        None
    }

    /// Removes one use of a chunk. The last one empties the chunk.
    fn end_use(&self, chunk: usize) {
        let uses = &self.uses[chunk];
        // Another thread may add and remove a use while the chunk is being emptied. It leaves the mark to the
        // thread that set it.
        let less = |seen| match seen {
            LAST_USE => Some(EMPTYING),
            seen => Some(seen - 1),
        };
        if uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) != Ok(LAST_USE) {
            return;
        }
        let start = self.base.load(Ordering::Relaxed) + chunk * CHUNK;
        // SAFETY: no object uses the chunk, and no thread takes it while the mark is set. A refusal leaves old
        // content, on which nothing relies.
        let _ = unsafe { vm::advise(start, CHUNK, libc::MADV_DONTNEED) };
        self.used.fetch_sub(1, Ordering::Relaxed);
        uses.fetch_and(!EMPTYING, Ordering::Release);
    }

    /// The header in front of an address that the program passed.
    fn checked(&self, object: usize, call: &str) -> &Header {
        let offset = object.wrapping_sub(self.base.load(Ordering::Relaxed));
        let is_used =
            offset < BYTES && self.uses[offset / CHUNK].load(Ordering::Acquire) & TAKEN != 0;
        if !is_used || !offset.is_multiple_of(UNIT) || offset % CHUNK < UNIT {
            mistaken(object, call);
        }
        // SAFETY: a chunk in use is committed, and the header in front is in the same chunk.
        unsafe { self.header(object) }
    }

    /// # Safety
    /// The 16 bytes in front of `object` are committed memory of the reserve.
    unsafe fn header(&self, object: usize) -> &Header {
        // SAFETY: by contract; all fields are atomics.
        unsafe { &*((object - UNIT) as *const Header) }
    }
}

#[cold]
fn mistaken(object: usize, call: &str) -> ! {
    Message::new()
        .text(call)
        .address(object)
        .text(", where nothing is allocated: freed already, or inside an allocation")
        .abort()
}

#[cfg(test)]
mod tests;
