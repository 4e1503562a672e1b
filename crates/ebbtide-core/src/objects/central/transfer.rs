//! The transfer list of a class: full batches, handed over by number.
//!
//! A batch moves in O(1) under the lock: a thread takes a node out, fills or empties it without the lock, and puts it
//! back.

use crate::base::ranks::{self, ForkLock};
use crate::base::releaser::Releaser;
use crate::base::size_class::{CLASS, CLASSES, MAX_BATCH};
use crate::base::source::{Cached, Round, Source};
use crate::base::stats::{self, Owner};
use crate::objects::Objects;
use core::sync::atomic::{AtomicUsize, Ordering};
use ebbtide_sys::lock::Rank;
use ebbtide_sys::vm;
use ebbtide_zone::low_water::LowWater;
use ebbtide_zone::plan::Remaining;

/// Batch nodes of a class.
const NODES: usize = 64;
/// Bytes of a batch node.
const NODE_BYTES: usize = MAX_BATCH * 8;
/// Rounds of the release engine without use after which batches go to their spans and a CPU's cache is drained:
/// about a second when calm.
pub const IDLE_ROUNDS: usize = 6;

/// The batch nodes of all classes.
pub struct Nodes(AtomicUsize);

impl Nodes {
    /// None.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Reserves the nodes: only address space until they are used. `None`: there is none.
    pub fn start(&self) -> Option<()> {
        let bytes = CLASSES * NODES * NODE_BYTES;
        let start = vm::map(bytes).ok()?;
        stats::note_range(Owner::Records, start, bytes);
        self.0.store(start, Ordering::Relaxed);
        Some(())
    }
}

/// The nodes with a full batch, the newest last, and the empty nodes. A node in neither list is being filled or
/// emptied.
pub struct Transfer {
    full: [u8; NODES],
    pub(super) count: usize,
    empty: u64,
    /// Rounds of the release engine since a batch was last taken or put.
    idle_rounds: usize,
    /// The fewest full batches in this window.
    low: LowWater<usize>,
}

impl Objects {
    fn node(&self, class: usize, node: u8) -> *mut usize {
        (self.nodes.0.load(Ordering::Relaxed) + (class * NODES + node as usize) * NODE_BYTES)
            as *mut usize
    }

    pub(super) fn take_batch(&self, class: usize, into: &mut [usize]) -> bool {
        let transfer = &self.central[class].transfer;
        let Some(node) = transfer.lock().take_full() else {
            return false;
        };
        // SAFETY: a node in neither list belongs to the thread that took it out.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(self.node(class, node), into.len())
        };
        transfer.lock().put_empty(node);
        true
    }

    pub(super) fn put_batch(&self, class: usize, objects: &[usize]) -> bool {
        let transfer = &self.central[class].transfer;
        let limit = CLASS[class].transfer as usize;
        let Some(node) = transfer.lock().take_empty(limit) else {
            return false;
        };
        // SAFETY: as in `take_batch`.
        unsafe {
            self.node(class, node)
                .copy_from_nonoverlapping(objects.as_ptr(), objects.len());
        }
        transfer.lock().put_full(node);
        true
    }

    /// Empties up to `batches` full batches of a class into its spans.
    pub fn drain_transfer(&self, class: usize, batches: usize) {
        let mut objects = [0; MAX_BATCH];
        let objects = &mut objects[..CLASS[class].batch as usize];
        for _ in 0..batches {
            if !self.take_batch(class, objects) {
                return;
            }
            self.put_in_spans(class, objects);
        }
    }
}

impl Transfer {
    /// Has no full batch.
    pub const NEW: Self = Self {
        full: [0; NODES],
        count: 0,
        empty: u64::MAX,
        idle_rounds: 0,
        low: LowWater(0),
    };

    /// A round, which may end a window. Returns the number of full batches that go, and of those that stay.
    fn give_due(&mut self, ends_window: bool) -> (usize, usize) {
        let least = self.low.note(self.count, ends_window);
        let surplus = if ends_window { least } else { 0 };
        self.idle_rounds += 1;
        let is_idle = self.idle_rounds >= IDLE_ROUNDS;
        let going = if is_idle { self.count } else { surplus };
        (going, self.count - going)
    }

    fn take_full(&mut self) -> Option<u8> {
        self.idle_rounds = 0;
        self.count = self.count.checked_sub(1)?;
        self.low.note(self.count, false);
        Some(self.full[self.count])
    }

    fn put_full(&mut self, node: u8) {
        self.idle_rounds = 0;
        self.full[self.count] = node;
        self.count += 1;
    }

    fn take_empty(&mut self, limit: usize) -> Option<u8> {
        if self.count >= limit || self.empty == 0 {
            return None;
        }
        let node = self.empty.trailing_zeros();
        self.empty &= self.empty - 1;
        Some(node as u8)
    }

    fn put_empty(&mut self, node: u8) {
        self.empty |= 1 << node;
    }
}

/// The full batches of all classes. A class that moved no batch for [`IDLE_ROUNDS`] rounds puts all its batches
/// into its spans. Other classes put back the batches that were not needed in the last window.
pub struct Batches;

impl<H: AsRef<Objects>> Source<H> for Batches {
    fn locks(&self, heap: &H, rank: Rank, each: &mut dyn FnMut(&dyn ForkLock)) {
        let heap = heap.as_ref();
        if rank == ranks::TRANSFER {
            let all = heap.central.iter();
            all.for_each(|central| each(&central.transfer));
        }
    }

    fn cached(&self, heap: &H, sum: &mut Cached) {
        for (central, about) in heap.as_ref().central.iter().zip(CLASS.iter()).skip(1) {
            let objects = central.transfer.lock().count * about.batch as usize;
            sum.objects += objects * about.size as usize;
        }
    }

    fn give_due(&self, heap: &H, round: &Round, left: &mut Remaining) {
        let heap = heap.as_ref();
        for (class, about) in CLASS.iter().enumerate().skip(1) {
            let transfer = &heap.central[class].transfer;
            let (going, kept) = transfer.lock().give_due(round.ends_window);
            heap.drain_transfer(class, going);
            left.cached_bytes += (kept * about.batch as usize) as u64 * u64::from(about.size);
        }
    }

    fn give_all(&self, heap: &H, _by: Releaser) {
        for class in 1..CLASSES {
            heap.as_ref().drain_transfer(class, usize::MAX);
        }
    }

    unsafe fn abandon(&self, heap: &H) {
        for central in &heap.as_ref().central {
            *central.transfer.lock() = Transfer::NEW;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_is_what_a_whole_window_did_without() {
        let mut transfer = Transfer::NEW;
        assert_eq!(transfer.give_due(true), (0, 0));
        for _ in 0..5 {
            let node = transfer.take_empty(NODES).unwrap();
            transfer.put_full(node);
        }
        assert_eq!(transfer.give_due(true), (0, 5), "they came in this window");
        for _ in 0..3 {
            let node = transfer.take_full().unwrap();
            transfer.put_empty(node);
        }
        let node = transfer.take_empty(NODES).unwrap();
        transfer.put_full(node);
        assert_eq!(transfer.give_due(false), (0, 3), "the window has not ended");
        assert_eq!(transfer.give_due(true), (2, 1), "the fewest there were");
        assert_eq!(transfer.give_due(true), (3, 0), "nobody came");
    }

    #[test]
    fn all_go_after_some_rounds_in_which_none_came_or_went() {
        let mut transfer = Transfer::NEW;
        for _ in 0..2 * IDLE_ROUNDS {
            assert_eq!(transfer.give_due(false), (0, 0), "there is none");
        }
        for _ in 0..2 {
            let node = transfer.take_empty(NODES).unwrap();
            transfer.put_full(node);
            let kept = transfer.count;
            for _ in 1..IDLE_ROUNDS {
                assert_eq!(transfer.give_due(false), (0, kept));
            }
        }
        assert_eq!(transfer.give_due(false), (2, 0));
    }
}
