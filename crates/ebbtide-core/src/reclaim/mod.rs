//! The whole heap, and the release of its free memory.
//!
//! | module | contents |
//! |---|---|
//! | [`sources`] | all holders of free memory, in one list |
//! | [`engine`] | ticks, rounds, and the release of everything |
//! | [`gather`] | claimed ranges, and their storage |
//! | [`slots`] | the process's gathers, and the queue for workers |
//! | [`kernel`] | the system calls, and the splitting of huge pages |
//! | [`zones`] | free frames of the zones: claimed and released |
//! | [`depopulate`] | empty frames of half-used spans: claimed and released |
//! | [`put_back`] | puts claimed ranges back to zones and spans |
//! | [`retry_unsplit`] | claims unsplit blocks again |
//! | [`lazy`] | whether due frames become lazy first, or clean at once |
//! | [`pacing`] | the last times of the periodic work of ticks and rounds |
//! | [`owned`] | releases one gather, by the thread that owns it |
//! | [`workers`] | the threads that release beside the program |
//! | [`pressure`] | whether memory is short, and the user's limit |
//! | [`unmap`] | the program's own mappings, unmapped beside it |
//! | [`control`] | keys that change at run time, and requests of observers |
//! | [`figures`] | the statistics of the whole heap |

pub mod control;
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
pub mod unmap;
pub mod workers;
pub mod zones;

use crate::objects::Objects;
use crate::pages::{Pages, Settings};
use crate::reclaim::control::Control;
use crate::reclaim::figures::Changes;
use crate::reclaim::pacing::Pacing;
use crate::reclaim::pressure::Pressure;
use crate::reclaim::slots::Slots;
use crate::reclaim::sources::Parts;
use crate::reclaim::unmap::Unmapping;
use crate::reclaim::workers::Workers;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The whole state of one process's heap. A `&Heap` proves that the thread has checked for forks: its holder may
/// take locks.
pub struct Heap {
    objects: Objects,
    parts: AtomicPtr<Parts>,
    /// Whether this process has forked, or is a fork's child: other processes may share its pages.
    pub forked: AtomicBool,
    /// Number of CPUs allowed at the last check. `usize::MAX`: not to be checked.
    pub cpus: AtomicUsize,
    /// The last times of periodic work.
    pub pacing: Pacing,
    /// Keys that can change, and observers' requests.
    pub control: Control,
    /// Changes that the statistics page does not show yet.
    pub changes: Changes,
    /// The gathers: ranges on their way to the kernel.
    pub slots: Slots,
    /// The program's mappings on their way to the kernel.
    pub unmapping: Unmapping,
    /// Detects whether memory is short.
    pub pressure: Pressure,
    /// The threads that release memory.
    pub workers: Workers,
}

static HEAP: Heap = Heap {
    objects: Objects::new(),
    parts: AtomicPtr::new(ptr::null_mut()),
    forked: AtomicBool::new(false),
    cpus: AtomicUsize::new(usize::MAX),
    pacing: Pacing::new(),
    control: Control::new(),
    changes: Changes::new(),
    slots: Slots::new(),
    unmapping: Unmapping::new(),
    pressure: Pressure::new(),
    workers: Workers::new(),
};

/// The heap of this process.
///
/// # Safety
/// The heap has started, or this thread starts it. In addition, one of these holds: the thread has checked
/// for forks; or it is a worker (no child has one, and a worker may wait for a fork); or it takes no lock.
#[inline]
pub unsafe fn the_heap() -> &'static Heap {
    &HEAP
}

impl Heap {
    /// The heap's sources and hooks.
    pub fn parts(&self) -> &'static Parts {
        // SAFETY: `begin` wrote it, before any other thread had the heap.
        unsafe { &*self.parts.load(Ordering::Relaxed) }
    }

    /// Writes the parts, and the settings that are constant from now on.
    ///
    /// # Safety
    /// Called once, before any other thread has the heap.
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
