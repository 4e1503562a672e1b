//! The whole heap, and how its free memory goes back.
//!
//! | module | what it is |
//! |---|---|
//! | [`sources`] | all that holds free memory, in one list |
//! | [`engine`] | ticks, rounds, and the release of everything |
//! | [`gather`] | claimed ranges, and what they are kept in |
//! | [`slots`] | the process's gathers, and the queue for workers |
//! | [`kernel`] | the system calls, and the splitting of huge pages |
//! | [`zones`] | free frames of the zones: claimed and released |
//! | [`depopulate`] | empty frames of half-used spans: the same |
//! | [`put_back`] | claimed ranges back to zones and spans |
//! | [`retry_unsplit`] | unsplit blocks, claimed again |
//! | [`lazy`] | which way due frames take: to lazy first, or straight to clean |
//! | [`pacing`] | when ticks and rounds last did what they do seldom |
//! | [`owned`] | one gather, released by whoever owns it |
//! | [`workers`] | the threads |
//! | [`pressure`] | whether memory is short, and the owner's limit |
//! | [`figures`] | the figures of the whole heap |

pub mod depopulate;
pub mod engine;
pub mod figures;
pub mod gather;
pub mod kernel;
pub mod lazy;
#[cfg(feature = "plan-log")]
mod log;
mod owned;
pub mod pacing;
pub mod pressure;
mod put_back;
pub mod retry_unsplit;
pub mod slots;
pub mod sources;
pub mod workers;
pub mod zones;

use crate::objects::Objects;
use crate::pages::{Pages, Settings};
use crate::reclaim::figures::Changes;
use crate::reclaim::pacing::Pacing;
use crate::reclaim::pressure::Pressure;
use crate::reclaim::slots::Slots;
use crate::reclaim::sources::Parts;
use crate::reclaim::workers::Workers;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Everything that one process has once. A `&Heap` proves that the thread has looked for forks: its holder may take locks.
pub struct Heap {
    objects: Objects,
    parts: AtomicPtr<Parts>,
    /// Whether this process has forked, or is a fork's child: others may share its pages.
    pub forked: AtomicBool,
    /// CPUs that were allowed at the last look; `usize::MAX`: not to be asked.
    pub cpus: AtomicUsize,
    /// When ticks and rounds did what they do seldom.
    pub pacing: Pacing,
    /// What the page says and what not yet.
    pub changes: Changes,
    /// Ranges on their way to the kernel.
    pub slots: Slots,
    /// Who looks whether memory is short.
    pub pressure: Pressure,
    /// Threads that release memory.
    pub workers: Workers,
}

static HEAP: Heap = Heap {
    objects: Objects::new(),
    parts: AtomicPtr::new(ptr::null_mut()),
    forked: AtomicBool::new(false),
    cpus: AtomicUsize::new(usize::MAX),
    pacing: Pacing::new(),
    changes: Changes::new(),
    slots: Slots::new(),
    pressure: Pressure::new(),
    workers: Workers::new(),
};

/// The heap of this process.
///
/// # Safety
/// It has started, or this thread starts it; and the thread has looked for forks, or is a worker (no child has one, and it
/// may wait for a fork), or takes no lock.
#[inline]
pub unsafe fn the_heap() -> &'static Heap {
    &HEAP
}

impl Heap {
    /// Its sources and hooks.
    pub fn parts(&self) -> &'static Parts {
        // SAFETY: what `begin` has written, before anybody else had the heap.
        unsafe { &*self.parts.load(Ordering::Relaxed) }
    }

    /// Writes that, and what is constant from now on.
    ///
    /// # Safety
    /// Called once, before anybody else has the heap.
    pub unsafe fn begin(&self, parts: &'static Parts, settings: Settings) {
        let parts = ptr::from_ref(parts).cast_mut();
        self.parts.store(parts, Ordering::Relaxed);
        // SAFETY: by contract.
        unsafe { self.objects.begin(settings) };
    }
}

impl Deref for Heap {
    type Target = Objects;

    #[inline]
    fn deref(&self) -> &Objects {
        &self.objects
    }
}

impl AsRef<Objects> for Heap {
    fn as_ref(&self) -> &Objects {
        self
    }
}

impl AsRef<Pages> for Heap {
    fn as_ref(&self) -> &Pages {
        self
    }
}
